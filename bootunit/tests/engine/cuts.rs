//! The power cut at every effect of a run and of its closing, and at effects of the
//! resume; with what was not flushed lost, kept and torn; on both block sizes.
//!
//! Whatever is cut: before `changed` is durable the node boots on as it was, after it
//! the run ends Done with one new pool, and no pool that was made is made again.

use repave_boot::cache_file;
use repave_boot::finish::Finished;
use repave_boot::model_host::Cut;
use repave_boot::run::Ended;
use repave_plan::report::Verdict;
use repave_plan::table::TableImage;
use repave_survey::labels::read_labels;

use super::worker::*;

/// What the uncut run does and leaves.
struct Uncut {
    points: usize,
    calls: Vec<String>,
    table: TableImage,
}

fn uncut(block: u32) -> Uncut {
    let worker = armed(block);
    let (ended, finished) = worker.boot_through();
    assert_eq!(
        (ended, finished),
        (Some(Ended::StepsDone), Some(Finished::Done))
    );
    let points = worker.host.world().effects();
    Uncut {
        points,
        calls: worker.calls(),
        table: worker.table(),
    }
}

/// The guid of a pool that is whole on the disk: one that was made.
fn born(worker: &Worker) -> Option<u64> {
    let plan = &worker.intent.plan;
    let start = plan.new.extent.offset(plan.disk.block).0;
    let end = start + plan.new.extent.bytes(plan.disk.block).0;
    let world = worker.host.world();
    let set = read_labels(&world.disk, start..end).unwrap();
    let written = set.places.iter().any(|p| {
        p.newest
            .as_ref()
            .is_some_and(|u| u.txg == 4 && u.checksum_ok)
    });
    let guids = set.labels().filter_map(|l| l.pool_guid).map(|guid| guid.0);
    guids.filter(|guid| written && *guid > 9000).max()
}

/// Cuts the power and starts the machine again, its clock years off.
fn cut_power(worker: &Worker, how: Cut, boot: usize) {
    worker.host.boot(how);
    worker.host.world().clock = match boot % 2 {
        0 => 12,
        _ => 1_990_000_000,
    };
}

/// Boots until nothing is left to do; gives the number of boots.
fn boot_to_the_end(row: &str, worker: &Worker, uncut: &Uncut) {
    let mut made = None;
    for boot in 0..4 {
        if let (Some(now), Some(before)) = (born(worker), made) {
            assert_eq!(now, before, "{row}: a pool that was made is gone");
        }
        made = born(worker).or(made);
        let (ended, finished) = worker.boot_through();
        assert_eq!(ended, Some(Ended::StepsDone), "{row}, boot {boot}");
        assert_eq!(finished, Some(Finished::Done), "{row}, boot {boot}");
        if !worker.is_changed() {
            break;
        }
        cut_power(worker, Cut::Lost, boot);
    }
    assert_done(row, worker, uncut);
    if let Some(made) = made {
        assert_eq!(worker.pools_on_disk(), [made], "{row}: made twice");
    }
}

fn assert_done(row: &str, worker: &Worker, uncut: &Uncut) {
    assert_eq!(worker.verdict(), Verdict::Done, "{row}");
    assert!(worker.table() == uncut.table, "{row}: another table");
    let pools = worker.pools_on_disk();
    assert!(
        matches!(pools[..], [guid] if guid > 9000),
        "{row}: {pools:?}"
    );
    assert_eq!(
        worker.report().new_pool.map(|g| g.0),
        Some(pools[0]),
        "{row}"
    );
    for state in [worker.state.intent(), worker.state.changed()] {
        assert!(!worker.has(&state), "{row}: {} is there", state.display());
    }
    let cache = String::from_utf8(worker.file(cache_file::PATH).unwrap()).unwrap();
    assert_eq!(
        cache,
        format!("store\t{STORE}\ntank\t{}\n", pools[0]),
        "{row}"
    );
    {
        let world = worker.host.world();
        assert!(!world.containerd.lists_lost, "{row}");
        assert!(
            world.disk == *world.durable(),
            "{row}: something is not flushed"
        );
        assert_eq!(world.zfs.imported["store"].guid, STORE, "{row}");
    }
    // The next boot finds nothing to do, and both pools.
    worker.host.boot(Cut::Lost);
    assert_eq!(worker.boot_through(), (None, None), "{row}");
    let world = worker.host.world();
    assert_eq!(world.zfs.imported["tank"].guid, pools[0], "{row}");
    assert_eq!(world.zfs.imported["store"].guid, STORE, "{row}");
}

/// Nothing was begun: the node boots on as it was and stays so.
fn assert_untouched(row: &str, worker: &Worker, before: &Worker) {
    let (ended, finished) = worker.boot_through();
    assert!(
        matches!(ended, None | Some(Ended::Refused(_))),
        "{row}: {ended:?}"
    );
    assert_eq!(finished, None, "{row}");
    assert!(
        worker.host.world().disk == before.host.world().disk,
        "{row}"
    );
    assert!(!worker.has(worker.state.intent()), "{row}: still armed");
    assert_eq!(
        worker.file(cache_file::PATH).unwrap(),
        CACHE.as_bytes(),
        "{row}"
    );
    assert_eq!(
        worker.host.world().zfs.imported["store"].guid,
        STORE,
        "{row}"
    );
    assert_eq!(worker.host.world().zfs.imported["tank"].guid, TANK, "{row}");
    worker.host.boot(Cut::Lost);
    assert_eq!(worker.boot_through().0, None, "{row}: it fires later");
}

/// One cut; what follows is as it must be.
fn cut_at(block: u32, at: usize, how: Cut, uncut: &Uncut, start: &Worker) {
    let worker = start.copy();
    worker.host.world().cut = Some((at, how));
    worker.boot_through();
    assert!(worker.host.world().is_dead(), "no effect {at}");
    let call = worker.calls().pop().unwrap();
    let row = format!("block {block}, {how:?} at {at}, {call}");
    let done = worker.has(worker.run_file("report.json"))
        && !worker.is_changed()
        && worker.verdict() == Verdict::Done;
    cut_power(&worker, how, at);
    match (worker.is_changed(), done) {
        (true, _) => boot_to_the_end(&row, &worker, uncut),
        (false, true) => {
            worker.other_units();
            assert_done(&row, &worker, uncut);
        }
        (false, false) => assert_untouched(&row, &worker, start),
    }
}

/// Whether a call changes the disk or what the kernel has of it.
fn is_of_disk(call: &str) -> bool {
    ["disk ", "zpool ", "kernel"]
        .iter()
        .any(|start| call.starts_with(start))
}

/// Whether a call changes something that outlives the power.
fn is_write(call: &str) -> bool {
    let starts = ["write ", "append ", "remove ", "run ", "containerd-clear"];
    is_of_disk(call) || starts.iter().any(|start| call.starts_with(start))
}

#[test]
fn a_cut_at_every_effect_ends_well() {
    let uncut = uncut(512);
    let start = armed(512);
    let (mut points, mut cuts) = (0, 0);
    for (at, call) in uncut.calls.iter().enumerate() {
        let torn = Cut::Torn(at as u64);
        // Of a call that only looks, it does not matter how much of it took place.
        let ways = match is_write(call) {
            true => vec![Cut::Lost, Cut::Kept, torn],
            false => vec![torn],
        };
        points += 1;
        for how in ways {
            cuts += 1;
            cut_at(512, at, how, &uncut, &start);
        }
    }
    println!("512: {cuts} cuts at {points} of {} effects", uncut.points);
    assert!(points >= uncut.points && points > 100, "{points}");
}

#[test]
fn a_cut_at_every_write_of_a_4096_disk_ends_well() {
    let uncut = uncut(4096);
    let start = armed(4096);
    let mut cuts = 0;
    for (at, call) in uncut.calls.iter().enumerate() {
        if is_of_disk(call) {
            for how in [Cut::Lost, Cut::Torn(at as u64)] {
                cuts += 1;
                cut_at(4096, at, how, &uncut, &start);
            }
        }
    }
    println!("4096: {cuts} cuts");
    assert!(cuts > 60, "{cuts}");
}

/// A generator whose numbers are the same everywhere.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % below
    }

    fn cut(&mut self) -> Cut {
        match self.next(3) {
            0 => Cut::Lost,
            1 => Cut::Kept,
            _ => Cut::Torn(self.next(1 << 20) as u64),
        }
    }
}

#[test]
fn a_cut_of_the_resume_ends_well() {
    let seed = std::env::var("REPAVE_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(20261130);
    println!("seed {seed}");
    let mut numbers = Numbers(seed);
    let uncut = uncut(512);
    let start = armed(512);
    let dry = start.copy();
    assert_eq!(dry.run(), Ended::StepsDone);
    let begun = dry.call("write /var/lib/repave/changed");
    let mut pairs = 0;
    while pairs < 40 {
        let worker = start.copy();
        let at = begun + 1 + numbers.next(uncut.points - begun - 1);
        let (first, second) = (numbers.cut(), numbers.cut());
        worker.host.world().cut = Some((at, first));
        worker.boot_through();
        if !worker.is_changed() {
            continue;
        }
        cut_power(&worker, first, pairs);
        let made = born(&worker);
        let again = numbers.next(uncut.points);
        worker.host.world().cut = Some((again, second));
        worker.boot_through();
        let row = format!("seed {seed}: {first:?} at {at}, then {second:?} at {again}");
        let dead = worker.host.world().is_dead();
        match (dead, worker.is_changed()) {
            (true, true) => {
                cut_power(&worker, second, pairs + 1);
                boot_to_the_end(&row, &worker, &uncut);
            }
            (true, false) => {
                cut_power(&worker, second, pairs + 1);
                worker.other_units();
                assert_done(&row, &worker, &uncut);
            }
            (false, _) => assert_done(&row, &worker, &uncut),
        }
        if let Some(made) = made {
            assert_eq!(worker.pools_on_disk(), [made], "{row}: made twice");
        }
        pairs += 1;
    }
    println!("{pairs} pairs of cuts");
}
