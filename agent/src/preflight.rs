//! What is looked at on the live host before anything is written (design 6.2, as far as
//! it can be known now): a host on which the boot run would refuse is not armed.
//!
//! Takes the survey and the plan, gives a refusal by name or nothing.

use repave_plan::plan::Plan;
use repave_plan::policy::Policy;
use repave_plan::refusal::Refusal;
use repave_plan::step::Step;
use repave_plan::survey::{Host, PLAIN_FILE_SYSTEMS, PathFacts, Survey};
use repave_plan::units::Bytes;
use repave_survey::mounts::{path_facts, read_mounts};
use repave_survey::root::Root;

/// File systems whose content is gone after a reboot, or may be.
const TRANSIENT: [&str; 3] = ["overlay", "ramfs", "tmpfs"];

/// The programs that the boot run starts.
const PROGRAMS: [&str; 3] = ["modprobe", "zfs", "zpool"];

/// Looks at all of it.
pub fn preflight(root: &Root, policy: &Policy, survey: &Survey, plan: &Plan) -> anyhow::Result<()> {
    let mounts = read_mounts(root)?;
    let etc = path_facts(root, &mounts, "/etc")?;
    Ok(judge(policy, survey, plan, &etc)?)
}

fn judge(policy: &Policy, survey: &Survey, plan: &Plan, etc: &PathFacts) -> Result<(), Refusal> {
    let host = survey.host.as_ref().ok_or_else(|| Refusal::Incomplete {
        what: "an image file has no host".to_owned(),
    })?;
    check_path(
        "the state directory",
        &host.state_dir,
        policy.limits.min_state_free,
    )?;
    if plan
        .steps
        .iter()
        .any(|s| matches!(s, Step::ContainerdClear(_)))
        && let Some(containerd) = &survey.containerd
    {
        // The edited copy of the metadata lies beside the original for a moment.
        check_path(
            "containerd's root",
            &containerd.root,
            policy.limits.min_state_free,
        )?;
    }
    check_etc(etc)?;
    check_programs(host)?;
    if survey.containerd.is_some() && host.starters.is_empty() {
        return Err(refuse(
            "no unit was found that starts containers",
            "containerd is on this host, and whatever starts it could not be held back",
            "make the unit that starts it known to systemd under its usual name",
        ));
    }
    check_image(host, plan)
}

fn refuse(what: &str, found: &str, way_out: &str) -> Refusal {
    Refusal::Host {
        what: what.to_owned(),
        found: found.to_owned(),
        way_out: way_out.to_owned(),
    }
}

fn check_path(what: &str, place: &PathFacts, need: u64) -> Result<(), Refusal> {
    let what = format!("{what} {}", place.path);
    if !PLAIN_FILE_SYSTEMS.contains(&place.fs_type.as_str()) {
        return Err(refuse(
            &what,
            &format!(
                "it lies on {} ({}), which is not a plain file system of a local disk",
                place.fs_type, place.source
            ),
            &format!(
                "have a file system of {} there",
                PLAIN_FILE_SYSTEMS.join(", ")
            ),
        ));
    }
    if place.read_only {
        return Err(refuse(
            &what,
            &format!("{} is mounted read-only", place.mount_point),
            "mount it writable",
        ));
    }
    if place.free < Bytes(need) {
        return Err(refuse(
            &what,
            &format!(
                "{} has {} free, limits.min_state_free is {}",
                place.mount_point,
                place.free,
                Bytes(need)
            ),
            &format!("make room in {}", place.mount_point),
        ));
    }
    Ok(())
}

/// On ostree /etc may be made anew at each boot: the units would be gone.
fn check_etc(etc: &PathFacts) -> Result<(), Refusal> {
    let wrong = match (TRANSIENT.contains(&etc.fs_type.as_str()), etc.read_only) {
        (true, _) => format!(
            "it lies on {}, which does not outlive a reboot",
            etc.fs_type
        ),
        (false, true) => format!("{} is mounted read-only", etc.mount_point),
        (false, false) => return Ok(()),
    };
    Err(refuse(
        "the units' place /etc",
        &wrong,
        "use an image whose /etc is writable and kept (ostree: no transient etc)",
    ))
}

fn check_programs(host: &Host) -> Result<(), Refusal> {
    let missing: Vec<&str> = PROGRAMS
        .into_iter()
        .filter(|name| !host.programs.contains_key(*name))
        .collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(refuse(
            "programs that the boot run needs",
            &format!(
                "{} not found in /usr/sbin, /usr/bin, /sbin or /bin",
                missing.join(", ")
            ),
            "install the OpenZFS tools and kmod",
        )),
    }
}

/// The image of the next boot: the staged one, or the one that is booted.
fn check_image(host: &Host, plan: &Plan) -> Result<(), Refusal> {
    let Some(expected) = plan.image else {
        return Ok(());
    };
    let next = host.image.as_ref().and_then(|i| i.staged.or(i.booted));
    match next == Some(expected) {
        true => Ok(()),
        false => Err(Refusal::OtherImage {
            expected,
            found: next.map_or_else(|| "none".to_owned(), |digest| digest.to_string()),
        }),
    }
}
