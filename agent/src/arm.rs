//! `arm`: seals the approved plan and arms the next boot with it.
//!
//! Without an approval it is a dry run: the plan is shown and nothing is written
//! anywhere. The plan is made now, whatever was shown before; only its digest counts.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use repave_plan::intent::{Intent, VERSION, open, seal};
use repave_plan::picture::{picture, plan_json};
use repave_plan::plan::Plan;
use repave_plan::planner::{bind, volumes};
use repave_plan::policy::Policy;
use repave_plan::refusal::Refusal;
use repave_plan::report::EXIT_DONE;
use repave_plan::step::Step;
use repave_plan::survey::Survey;
use repave_plan::units::{Bytes, Digest, RunId, UnixTime};
use repave_systemd::arm::Then;
use repave_systemd::{ArmRequest, arm};

use crate::Now;
use crate::cli::ArmArgs;
use crate::disarm::mark;
use crate::host::{HostFault, open_host, open_root};
use crate::output::print;
use crate::plan::make;
use crate::preflight::preflight;
use crate::run_id::{run_id, shown};
use crate::survey::policy_and_survey;

/// No boot program is anywhere near this, in bytes.
const MAX_BINARY: u64 = 64 * 1024 * 1024;

const NOT_DRAINED: &str = "\
warning: armed by hand, nothing is drained and nothing is checked in a cluster. Whatever is on
         the pool and not somewhere else is lost at the next boot, and every pod of this node
         runs until the reboot.
";

/// Arms the host, or shows what would be armed.
pub fn run(args: &ArmArgs, now: Now) -> anyhow::Result<u8> {
    let root = open_root(&args.host.root, "arming")?;
    let (policy, survey) = policy_and_survey(&root, &args.policy.policy, now)?;
    let (plan, digest) = make(&policy, &survey)?;
    print(&picture(&plan, &digest))?;
    preflight(&root, &policy, &survey, &plan)?;
    print("\n")?;
    print(NOT_DRAINED)?;
    let Some(approved) = args.approve else {
        print(&format!(
            "dry run   nothing was written; to arm:\n          repave-agent arm --approve {digest}\n"
        ))?;
        return Ok(EXIT_DONE);
    };
    if approved != digest {
        return Err(Refusal::NotApproved {
            expected: digest,
            found: approved,
        }
        .into());
    }
    let binary = read_boot_binary(args.boot_binary.as_deref())?;
    let run_id = run_id(now)?;
    let intent = make_intent(&policy, &survey, &plan, digest, &run_id, now)?;
    let sealed = seal(&intent).context("seal the intent")?;
    // What cannot be opened again here would be refused at boot, after the drain.
    ensure!(
        open(&sealed)? == intent,
        "the sealed intent opens as another value"
    );

    let (files, systemd) = open_host(&root)?;
    let policy_file = serde_json::to_vec_pretty(&policy).context("write the policy as JSON")?;
    let survey_file = serde_json::to_vec_pretty(&survey).context("write the survey as JSON")?;
    let plan_file = plan_json(&plan, &digest).context("write the plan as JSON")?;
    let request = ArmRequest {
        run_id: &run_id,
        run_files: &[
            ("policy.json", &policy_file),
            ("survey.json", &survey_file),
            ("plan.json", plan_file.as_bytes()),
        ],
        intent: &sealed,
        binary: &binary,
        binary_digest: Digest::of(&binary),
        starters: &intent.starters,
        containerd_mount: containerd_mount(&survey, &plan),
        datasets: datasets(&plan),
        then: match args.reboot {
            true => Then::Reboot,
            false => Then::Wait,
        },
    };
    tracing::info!(stage = "arm", %run_id, %digest, "stage begins");
    let armed = arm(&files, systemd.as_ref(), &request).inspect_err(|_| {
        // The run's folder stays as evidence; without the mark it would look like an
        // intent that did not run. The error that is shown is the one of arming.
        let _ = mark(&files, &run_id, now);
    })?;
    tracing::info!(stage = "arm", %run_id, outcome = "armed", "stage ends");
    print(&armed_text(&intent, &armed.binary, args.reboot))?;
    for inhibitor in &armed.inhibitors {
        print(&format!(
            "          the reboot may be delayed by {}: {}\n",
            inhibitor.who, inhibitor.why
        ))?;
    }
    Ok(EXIT_DONE)
}

fn armed_text(intent: &Intent, binary: &str, reboot: bool) -> String {
    let until = shown(intent.not_after);
    let next = match reboot {
        true => "rebooting now".to_owned(),
        false => format!("reboot before {until}, or take it back with `repave-agent disarm`"),
    };
    format!(
        "armed:    run {}, boot program {binary}\n          {next}\n",
        intent.run_id
    )
}

fn make_intent(
    policy: &Policy,
    survey: &Survey,
    plan: &Plan,
    approval: Digest,
    run_id: &RunId,
    now: Now,
) -> Result<Intent, Refusal> {
    let missing = |what: &str| Refusal::Incomplete {
        what: what.to_owned(),
    };
    let host = survey
        .host
        .as_ref()
        .ok_or_else(|| missing("no host was seen"))?;
    let pool = survey
        .pool(&plan.pool)
        .ok_or_else(|| missing("the pool is not imported"))?;
    Ok(Intent {
        version: VERSION,
        run_id: run_id.clone(),
        approval,
        plan: plan.clone(),
        bound: bind(policy, survey)?,
        armed_boot: host.boot_id.clone(),
        armed_at: now.time,
        not_after: UnixTime(now.time.0.saturating_add(policy.limits.not_after_secs)),
        attempts: policy.limits.attempts,
        min_state_free: Bytes(policy.limits.min_state_free),
        programs: host.programs.clone(),
        volumes: volumes(plan, pool),
        starters: host.starters.clone(),
    })
}

/// The mount that the boot unit must wait for, besides the state directory's.
fn containerd_mount<'a>(survey: &'a Survey, plan: &Plan) -> Option<&'a str> {
    let clears = plan
        .steps
        .iter()
        .any(|step| matches!(step, Step::ContainerdClear(_)));
    let mount = &survey.containerd.as_ref()?.root.mount_point;
    let state = &survey.host.as_ref()?.state_dir.mount_point;
    (clears && mount != state && mount != "/").then_some(mount)
}

/// How many datasets the run makes, the pool's own among them.
fn datasets(plan: &Plan) -> usize {
    let made = plan.steps.iter().map(|step| match step {
        Step::PoolCreate(create) => create.recipe.datasets.len() + 1,
        _ => 0,
    });
    made.sum()
}

/// The boot program's bytes: next to this program, unless another is named.
fn read_boot_binary(named: Option<&Path>) -> anyhow::Result<Vec<u8>> {
    let path: PathBuf = match named {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()
            .context("find this program's own path")?
            .with_file_name("repave-boot"),
    };
    let read = || {
        let file = File::open(&path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is not a file",
            ));
        }
        let mut bytes = Vec::new();
        file.take(MAX_BINARY + 1).read_to_end(&mut bytes)?;
        match bytes.len() as u64 {
            0 => Err(io::Error::new(io::ErrorKind::InvalidData, "it is empty")),
            size if size > MAX_BINARY => Err(io::ErrorKind::FileTooLarge.into()),
            _ => Ok(bytes),
        }
    };
    let bytes = read().map_err(|source| HostFault::BootBinary {
        path: path.clone(),
        source,
    })?;
    Ok(bytes)
}
