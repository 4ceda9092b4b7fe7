//! Makes reports of runs that refused, stopped or are done.

use std::path::Path;

use repave_plan::intent::Intent;
use repave_plan::journal::{Record, attempts};
use repave_plan::plan::Touched;
use repave_plan::refusal::Refusal;
use repave_plan::report::{Cleared, PartitionReport, Report, StepReport, VERSION, Verdict};
use repave_plan::step::Step;
use repave_plan::stop::Stop;
use repave_plan::units::{BlockSize, BootId, Digest, PoolGuid, RunId};

use crate::host::{Host, HostError};
use crate::state_dir::{REPORT, RecordError, StateDir, write_report};

/// Writes the report of a refusal. An intent that cannot be opened has no run; its
/// report is kept under its own digest.
pub fn refused_report(
    host: &dyn Host,
    state: &StateDir,
    run: Option<&RunId>,
    sealed: &[u8],
    refusal: &Refusal,
) -> Result<(), RecordError> {
    let digest = Digest::of(sealed);
    let folder = match run {
        Some(run) => run.clone(),
        None => unopened_run(&digest)?,
    };
    let report = Report {
        run_id: run.cloned(),
        ..base(
            host,
            Some(digest),
            Verdict::Refused(refusal.clone()),
            boot(host),
        )
    };
    // A report that is there is of the run's first and only judgement: it stays.
    match host.read(&state.run_file(&folder, REPORT))? {
        Some(_) => Ok(()),
        None => write_report(host, state, &folder, &report),
    }
}

fn unopened_run(digest: &Digest) -> Result<RunId, RecordError> {
    let hex = digest.to_string().replace("sha256:", "");
    format!("unopened-{}", &hex[..16])
        .parse()
        .map_err(|_| RecordError::Json {
            what: "the name of a run",
            source: serde::de::Error::custom("no run id"),
        })
}

/// The report of a stop.
pub fn stopped_report(
    host: &dyn Host,
    intent: &Intent,
    sealed: &[u8],
    records: &[Record],
    stop: &Stop,
) -> Report {
    let verdict = Verdict::Stopped(stop.clone());
    let mut report = of_run(host, intent, sealed, records, verdict, boot(host));
    report.way_out = Some(stop.command().to_owned());
    report
}

/// The report of a run that is done.
pub fn done_report(
    host: &dyn Host,
    intent: &Intent,
    sealed: &[u8],
    records: &[Record],
    new_pool: Option<PoolGuid>,
    cleared: Option<Cleared>,
    boot: BootId,
) -> Report {
    let mut report = of_run(host, intent, sealed, records, Verdict::Done, Some(boot));
    report.after = Some(part(&intent.plan.new, intent.plan.disk.block));
    report.new_pool = new_pool;
    report.containerd = cleared;
    report
}

/// The id of this boot; none when the kernel does not tell one.
pub fn boot_id(host: &dyn Host) -> Result<Option<BootId>, HostError> {
    let bytes = host
        .read(Path::new("/proc/sys/kernel/random/boot_id"))?
        .unwrap_or_default();
    Ok(String::from_utf8_lossy(&bytes)
        .trim()
        .replace('-', "")
        .parse()
        .ok())
}

fn boot(host: &dyn Host) -> Option<BootId> {
    boot_id(host).ok().flatten()
}

fn base(
    host: &dyn Host,
    intent: Option<Digest>,
    outcome: Verdict,
    boot_id: Option<BootId>,
) -> Report {
    Report {
        version: VERSION,
        run_id: None,
        intent,
        outcome,
        boot_id,
        at: host.now(),
        attempts: 0,
        steps: Vec::new(),
        before: None,
        after: None,
        old_pool: None,
        new_pool: None,
        volumes_lost: Vec::new(),
        containerd: None,
        notes: Vec::new(),
        way_out: None,
    }
}

fn of_run(
    host: &dyn Host,
    intent: &Intent,
    sealed: &[u8],
    records: &[Record],
    outcome: Verdict,
    boot_id: Option<BootId>,
) -> Report {
    let plan = &intent.plan;
    let recreated = plan
        .steps
        .iter()
        .any(|step| matches!(step, Step::PoolCreate(_)));
    let member = plan.touched.iter().find(|t| t.name == plan.new.name);
    Report {
        run_id: Some(intent.run_id.clone()),
        attempts: attempts(records),
        steps: plan
            .steps
            .iter()
            .map(|step| step_report(step, records))
            .collect(),
        before: member.map(|t| part(t, plan.disk.block)),
        old_pool: Some(plan.pool_guid),
        volumes_lost: if recreated {
            intent.volumes.clone()
        } else {
            Vec::new()
        },
        ..base(host, Some(Digest::of(sealed)), outcome, boot_id)
    }
}

fn step_report(step: &Step, records: &[Record]) -> StepReport {
    let name = step.name();
    let mut report = StepReport {
        step: name,
        outcome: None,
        millis: 0,
        proof: Default::default(),
    };
    for record in records {
        match record {
            Record::Proof { step, facts } if *step == name => report.proof = facts.clone(),
            // The first done is the one that changed something; a resume finds it done.
            Record::Done {
                step,
                outcome,
                millis,
                ..
            } if *step == name && report.outcome.is_none() => {
                report.outcome = Some(*outcome);
                report.millis = *millis;
            }
            _ => {}
        }
    }
    report
}

fn part(touched: &Touched, block: BlockSize) -> PartitionReport {
    PartitionReport {
        number: touched.number,
        extent: touched.extent,
        guid: touched.guid,
        size: touched.extent.bytes(block),
    }
}
