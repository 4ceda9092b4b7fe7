//! Plans as far as a disk alone allows: for an image file, where no host, no imported
//! pool and no containerd can be seen.
//!
//! Takes the policy and the survey, gives a [`Preview`] or the same refusals that a
//! plan would be met with. What it cannot know it lists; it is never sealed.

use crate::plan::{Preview, VERSION};
use crate::policy::{ClearMode, DiskPolicy, Mode, Policy, policy_digest};
use crate::refusal::Refusal;
use crate::survey::Survey;

use super::choose::choose;
use super::make::{
    disk_warnings, draft, incomplete, lost_partitions, new_part, plan_disk, touched, untouched,
};

/// What would happen to the disk, with what is not known.
pub fn preview(policy: &Policy, survey: &Survey) -> Result<Preview, Refusal> {
    // A serial number belongs to the device; a file of its content has none.
    let by_content = match survey.host {
        Some(_) => policy.clone(),
        None => Policy {
            disk: DiskPolicy {
                serial: None,
                wwn: None,
                ..policy.disk.clone()
            },
            ..policy.clone()
        },
    };
    let chosen = choose(&by_content, survey)?;
    let draft = draft(&by_content, &chosen)?;
    Ok(Preview {
        version: VERSION,
        policy: policy_digest(policy).map_err(|e| incomplete(&e.to_string()))?,
        mode: policy.mode,
        disk: plan_disk(&chosen),
        pool: policy.disk.pool.clone(),
        pool_guid: chosen.pool_guid,
        vdev_guid: chosen.label.vdev_guid,
        touched: touched(&chosen),
        new: new_part(policy, &draft.new),
        untouched: untouched(&chosen),
        steps: draft.steps,
        lost: lost_partitions(&chosen),
        warnings: disk_warnings(policy, &chosen),
        unknown: unknown(policy, survey),
    })
}

fn unknown(policy: &Policy, survey: &Survey) -> Vec<String> {
    let mut unknown = Vec::new();
    let mut say = |wanted: bool, what: String| {
        if wanted {
            unknown.push(what);
        }
    };
    let pool = &policy.disk.pool;
    let live = survey.pool(pool).is_some();
    let recreate = policy.mode == Mode::Recreate;
    say(
        survey.host.is_none(),
        "the machine: whether anything on the disk is mounted, held or swapped on".to_owned(),
    );
    say(
        survey.host.is_none() && (policy.disk.serial.is_some() || policy.disk.wwn.is_some()),
        "the disk's serial number and WWN, which the policy names".to_owned(),
    );
    say(
        !live,
        format!("the vdevs of pool {pool} beyond what this one label says"),
    );
    say(
        recreate && !live,
        format!(
            "the datasets of pool {pool}: what would be lost, and whether the policy's can be \
             made again"
        ),
    );
    say(
        recreate && survey.containerd.is_none() && policy.containerd.clear != ClearMode::None,
        format!("containerd: whether pool {pool} carries its snapshots, which it must then forget"),
    );
    unknown.extend(survey.unknown.iter().cloned());
    unknown
}
