//! Step 1 of a first run: is this the machine, the disk and the moment it was armed for.
//!
//! Takes the opened intent and a fresh survey, gives the disk or a [`Refusal`].
//! Pure; never asked on a resume, where a refusal would leave a half-made disk behind.

use repave_plan::bound::{Bound, bound_of, compare, find_disk, name_of};
use repave_plan::chain::chain;
use repave_plan::intent::{Intent, Moment, check_moment};
use repave_plan::refusal::Refusal;
use repave_plan::survey::{Disk, Survey, TableFound};
use repave_plan::table::{BackupPlace, parse_table_with};
use repave_plan::units::UnixTime;

/// Verifies an intent for its first run.
pub fn verify<'a>(intent: &Intent, survey: &'a Survey, now: UnixTime) -> Result<&'a Disk, Refusal> {
    let host = survey.host.as_ref().ok_or_else(|| Refusal::Incomplete {
        what: "this machine's identity".to_owned(),
    })?;
    if host.machine_id != intent.bound.machine_id {
        return Err(Refusal::OtherMachine {
            expected: intent.bound.machine_id.to_string(),
            found: host.machine_id.to_string(),
        });
    }
    let moment = Moment {
        boot_id: host.boot_id.clone(),
        now,
        booted_image: host.image.as_ref().and_then(|image| image.booted),
    };
    check_moment(intent, &moment)?;
    let disk = find_disk(&intent.bound, survey)?;
    compare(&intent.bound, &bound_now(intent, disk)?)?;
    Ok(disk)
}

/// The same facts as the intent's, as the disk shows them now.
fn bound_now(intent: &Intent, disk: &Disk) -> Result<Bound, Refusal> {
    let expected = &intent.bound;
    let refuse = |why: String| Refusal::Table {
        disk: name_of(disk),
        why,
    };
    let image = match &disk.table {
        TableFound::Gpt { image } => image,
        TableFound::None => return Err(refuse("it has no GPT".to_owned())),
        TableFound::Unreadable { why } => return Err(refuse(why.clone())),
    };
    let table = parse_table_with(image, BackupPlace::MayMove).map_err(|e| refuse(chain(&e)))?;
    let members = || disk.partitions.iter().flat_map(|p| &p.labels);
    let of_pool = |name: &str| members().find(|l| l.pool.as_deref() == Some(name));
    let label = members()
        .find(|l| l.pool_guid == Some(expected.pool_guid))
        .or_else(|| of_pool(expected.pool.as_str()))
        .ok_or_else(|| Refusal::FactChanged {
            fact: "the pool's guid on the label".to_owned(),
            expected: expected.pool_guid.to_string(),
            found: "no label".to_owned(),
        })?;
    let pool = label.pool.as_deref().and_then(|name| name.parse().ok());
    let pool = pool.unwrap_or_else(|| expected.pool.clone());
    bound_of(&intent.bound.machine_id, disk, &table, image, label, &pool)
}
