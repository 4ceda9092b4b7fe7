//! `status` in every state, made of the files that say so.

use std::fs;

use repave_plan::intent::open;
use repave_plan::journal::{Record, line};
use repave_plan::refusal::Refusal;
use repave_plan::report::{Report, Verdict};
use repave_plan::step::StepName;
use repave_plan::stop::Stop;
use repave_plan::units::{RunId, UnixTime};

use crate::worker::{Answer, Worker};

const STATE: &str = "var/lib/repave";
const NEXT_BOOT: &str = "11111111-2222-3333-4444-555555555555\n";

/// A worker after it was armed and booted again, the intent taken away.
fn booted() -> (Worker, RunId) {
    let worker = Worker::new();
    let armed = worker.arm(&[]);
    assert_eq!(armed.code, Some(0), "{}", armed.err);
    let intent = worker.path(&format!("{STATE}/intent.json"));
    let run_id = open(&fs::read(&intent).unwrap()).unwrap().run_id;
    fs::remove_file(intent).unwrap();
    worker.write("proc/sys/kernel/random/boot_id", NEXT_BOOT);
    (worker, run_id)
}

fn report(worker: &Worker, run: &RunId, outcome: Verdict) {
    let report = Report {
        version: 1,
        run_id: Some(run.clone()),
        intent: None,
        outcome,
        boot_id: Some("1".repeat(32).parse().unwrap()),
        at: UnixTime(5),
        attempts: 1,
        steps: Vec::new(),
        before: None,
        after: None,
        old_pool: None,
        new_pool: None,
        volumes_lost: Vec::new(),
        containerd: None,
        notes: Vec::new(),
        way_out: None,
    };
    let text = serde_json::to_string(&report).unwrap();
    worker.write(&format!("{STATE}/runs/{run}/report.json"), &text);
}

fn assert_status(answer: &Answer, code: i32, lines: &[&str]) {
    assert_eq!(
        (answer.code, answer.err.as_str()),
        (Some(code), ""),
        "{}",
        answer.out
    );
    assert_eq!(answer.out.lines().collect::<Vec<_>>(), lines);
}

#[test]
fn nothing_was_ever_armed() {
    let worker = Worker::new();
    assert_status(
        &worker.run("status", &[]),
        0,
        &["state:    idle: nothing is armed"],
    );
    fs::rename(worker.path(STATE), worker.path("var/lib/else")).unwrap();
    assert_status(
        &worker.run("status", &[]),
        0,
        &["state:    idle: nothing is armed"],
    );
}

#[test]
fn an_intent_that_is_gone_after_its_boot_did_not_run() {
    let (worker, run) = booted();
    assert_status(
        &worker.run("status", &[]),
        11,
        &[
            "state:    NotRun: the intent did not run in the boot it was made for",
            &format!("run:      {run}"),
            "reason:   it is gone after the boot it was made for, and no run was recorded",
            "way out:  see `journalctl -b -u repave-boot -u repave-late`, then arm again",
        ],
    );
    // Taken away in the boot that armed it, it was disarmed.
    let (worker, run) = booted();
    worker.write(
        "proc/sys/kernel/random/boot_id",
        "3b9c2a4e-6b2f-4a53-9d0a-6f0e4a9c1d20\n",
    );
    let disarmed = [
        "state:    disarmed: the last run was taken back",
        &format!("run:      {run}"),
    ];
    assert_status(&worker.run("status", &[]), 0, &disarmed);
}

#[test]
fn the_verdict_of_the_last_run_is_told() {
    let (worker, run) = booted();
    let name = format!("run:      {run}");
    report(&worker, &run, Verdict::Done);
    assert_status(&worker.run("status", &[]), 0, &["state:    Done", &name]);
    let refusal = Refusal::SameBoot {
        boot: "1".repeat(32).parse().unwrap(),
    };
    report(&worker, &run, Verdict::Refused(refusal));
    assert_status(
        &worker.run("status", &[]),
        10,
        &[
            "state:    Refused: nothing was changed",
            &name,
            "reason:   this is still boot 11111111111111111111111111111111, in which the intent \
             was armed",
            "way out:  plan and arm again",
        ],
    );
}

#[test]
fn a_run_that_changed_the_disk_and_is_not_closed_is_stopped() {
    let (worker, run) = booted();
    let begin = Record::Begin {
        step: StepName::TableWrite,
        at: UnixTime(7),
    };
    let journal = String::from_utf8(line(&begin).unwrap()).unwrap();
    worker.write(&format!("{STATE}/runs/{run}/journal.jsonl"), &journal);
    worker.write(
        &format!("{STATE}/changed"),
        &format!("{{\"run_id\":\"{run}\"}}"),
    );
    let name = format!("run:      {run}");
    let stopped = "state:    Stopped: the disk was changed and the run is not closed";
    assert_status(
        &worker.run("status", &[]),
        20,
        &[
            stopped,
            &name,
            "step:     table-write",
            "reason:   the run was cut short, most likely by power",
            "way out:  repave-boot resume",
        ],
    );
    report(
        &worker,
        &run,
        Verdict::Stopped(Stop::AttemptsUsedUp { attempts: 5 }),
    );
    assert_status(
        &worker.run("status", &[]),
        20,
        &[
            stopped,
            &name,
            "step:     table-write",
            "reason:   the run was tried 5 times, which is the limit",
            "way out:  repave-boot resume --once-more",
        ],
    );
    // A mark that cannot be read is a mark all the same.
    worker.write(&format!("{STATE}/changed"), "");
    assert_eq!(worker.run("status", &[]).code, Some(20));
    let disarm = worker.run("disarm", &[]);
    assert_eq!(disarm.code, Some(10), "{}", disarm.err);
    assert!(
        disarm.err.contains("use repave-boot resume"),
        "{}",
        disarm.err
    );
    assert_eq!(worker.arm(&[]).code, Some(10));
}

#[test]
fn damaged_records_are_named_and_not_guessed_at() {
    let (worker, run) = booted();
    worker.write(&format!("{STATE}/runs/{run}/report.json"), "{\"version\":1");
    let answer = worker.run("status", &[]);
    assert_eq!(answer.code, Some(2));
    assert!(
        answer
            .err
            .contains(&format!("understand /{STATE}/runs/{run}/report.json")),
        "{}",
        answer.err
    );
    worker.write(&format!("{STATE}/intent.json"), "torn");
    let answer = worker.run("status", &[]);
    assert_eq!(answer.code, Some(0));
    assert!(
        answer.out.contains("the intent is damaged"),
        "{}",
        answer.out
    );
}
