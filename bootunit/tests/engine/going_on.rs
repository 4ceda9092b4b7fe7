//! Going on after `changed`: nothing is refused, the disk decides, attempts are bounded.

use repave_boot::Attempts;
use repave_boot::cache_file;
use repave_boot::finish::Finished;
use repave_boot::host::Host;
use repave_boot::model_host::Cut;
use repave_boot::run::{Ended, run};
use repave_boot::zfs::device_of;
use repave_plan::journal::{Record, attempts};
use repave_plan::report::Verdict;
use repave_plan::step::{Outcome, Step, StepName};
use repave_plan::stop::Stop;
use repave_plan::units::Digest;

use super::worker::*;

/// The next boot ends the run.
fn assert_done(worker: &Worker) {
    let ends = worker.boot_through();
    assert_eq!(ends, (Some(Ended::StepsDone), Some(Finished::Done)));
}

#[test]
fn nothing_is_refused_once_changed_is_there() {
    type Row = (&'static str, fn(&Worker));
    let rows: [Row; 8] = [
        ("a stale time", |w| w.host.world().clock += 5 * 365 * 86400),
        ("a clock before arming", |w| w.host.world().clock = 7),
        ("another image", |w| {
            w.host.world().image = Some(Digest::of(b"another"));
        }),
        ("a damaged intent.json", |w| w.put(w.state.intent(), b"{")),
        ("a damaged copy", |w| w.put(w.run_file("intent.json"), b"{")),
        ("no intent.json", |w| {
            w.host.world().files.remove(&w.state.intent());
        }),
        ("no copy", |w| {
            w.host.world().files.remove(&w.run_file("intent.json"));
        }),
        ("a damaged marker", |w| w.put(w.state.changed(), b"")),
    ];
    for (row, change) in rows {
        let worker = armed(512).begun();
        change(&worker);
        let (ended, finished) = worker.boot_through();
        assert_eq!(ended, Some(Ended::StepsDone), "{row}");
        assert_eq!(finished, Some(Finished::Done), "{row}");
        assert_eq!(worker.verdict(), Verdict::Done, "{row}");
    }
}

#[test]
fn no_intent_at_all_stops_and_keeps_the_gate_shut() {
    let worker = armed(512).begun();
    worker.put_intent(b"torn");
    let disk = worker.host.world().disk.clone();
    for _ in 0..2 {
        let (ended, finished) = worker.boot_through();
        let Some(Ended::Stopped(Stop::IntentLost { why })) = ended else {
            panic!("{ended:?}");
        };
        assert!(why.starts_with(&format!("run {RUN}: ")), "{why}");
        assert!(matches!(
            finished,
            Some(Finished::Stopped(Stop::IntentLost { .. }))
        ));
        assert!(worker.is_changed() && worker.has(worker.state.intent()));
        worker.reboot();
    }
    assert!(worker.host.world().disk == disk);
}

#[test]
fn a_marker_that_names_nobody_means_the_one_run_that_is_open() {
    // A run that stopped has a report, and is open all the same.
    let worker = armed(512).begun();
    worker.host.world().fails = vec!["disk write".to_owned()];
    assert!(matches!(
        worker.run(),
        Ended::Stopped(Stop::StepFailed { .. })
    ));
    worker.host.world().fails.clear();
    worker.put(worker.state.changed(), b"");
    worker.reboot();
    assert_done(&worker);

    // A run that was refused is not.
    let worker = armed(512).begun();
    worker.put(worker.state.changed(), b"");
    let other = armed(512);
    other.host.world().clock += 7200;
    drop(other.run());
    for name in ["journal.jsonl", "report.json"] {
        let bytes = other.file(other.run_file(name)).unwrap();
        worker.put(format!("/var/lib/repave/runs/older/{name}"), &bytes);
    }
    assert_eq!(worker.run(), Ended::StepsDone);

    // Two open ones are a doubt.
    let worker = armed(512).begun();
    worker.put(worker.state.changed(), b"");
    let journal = worker.file(worker.run_file("journal.jsonl")).unwrap();
    worker.put("/var/lib/repave/runs/older/journal.jsonl", &journal);
    assert!(matches!(
        worker.run(),
        Ended::Stopped(Stop::IntentLost { .. })
    ));
}

#[test]
fn attempts_are_counted_and_bounded_and_a_person_may_go_once_more() {
    let worker = armed(512).begun();
    worker.host.world().fails = vec!["disk write".to_owned()];
    for attempt in 2..=5 {
        let ended = worker.run();
        let Ended::Stopped(Stop::StepFailed { step, .. }) = ended else {
            panic!("attempt {attempt}: {ended:?}");
        };
        assert_eq!(step, StepName::LabelClear);
        assert_eq!(attempts(&worker.records()), attempt);
        worker.reboot();
    }
    worker.host.world().fails.clear();
    let disk = worker.host.world().disk.clone();
    for _ in 0..2 {
        let ended = worker.run();
        let Ended::Stopped(stop @ Stop::AttemptsUsedUp { attempts: 5 }) = ended else {
            panic!("{ended:?}");
        };
        assert_eq!(stop.command(), "repave-boot resume --once-more");
        assert_eq!(worker.report().way_out.unwrap(), stop.command());
        assert_eq!(attempts(&worker.records()), 5);
        worker.reboot();
    }
    assert!(worker.host.world().disk == disk);
    let ended = run(&worker.host, &worker.state, Attempts::OnceMore).unwrap();
    assert_eq!(ended, Ended::StepsDone);
    assert_eq!(attempts(&worker.records()), 6);
}

#[test]
fn an_attempt_is_counted_before_the_first_write_of_a_resume() {
    let worker = armed(512).begun();
    assert_eq!(worker.run(), Ended::StepsDone);
    assert!(worker.call("append ") < worker.call("disk write"));
}

#[test]
fn what_is_done_is_found_done_and_not_done_again() {
    let worker = armed(512);
    assert_eq!(worker.run(), Ended::StepsDone);
    let pools = worker.pools_on_disk();
    worker.reboot();
    assert_done(&worker);
    let outcomes: Vec<(StepName, Outcome)> = worker
        .records()
        .iter()
        .filter_map(|record| match record {
            Record::Done { step, outcome, .. } => Some((*step, *outcome)),
            _ => None,
        })
        .skip(5)
        .collect();
    let wanted = [
        (StepName::LabelClear, Outcome::AlreadyDone),
        (StepName::TableWrite, Outcome::AlreadyDone),
        (StepName::KernelTable, Outcome::AlreadyDone),
        // Not imported in this boot: imported, not made again.
        (StepName::PoolCreate, Outcome::Changed),
        (StepName::ContainerdClear, Outcome::AlreadyDone),
    ];
    assert_eq!(outcomes, wanted);
    assert_eq!(worker.pools_on_disk(), pools);
    assert_eq!(worker.host.world().zfs.creates, 1);
}

fn new_device(worker: &Worker) -> String {
    device_of(worker.intent.plan.new.guid)
}

/// A worker that has the new table and no pool.
fn without_pool() -> Worker {
    let worker = armed(512);
    let dry = worker.copy();
    assert_eq!(dry.run(), Ended::StepsDone);
    let at = dry.call("run zpool create");
    worker.host.world().cut = Some((at, Cut::Lost));
    drop(worker.run());
    worker.reboot();
    worker
}

#[test]
fn labels_that_were_never_written_out_are_cleared_and_the_pool_is_made() {
    let worker = without_pool();
    let device = new_device(&worker);
    worker.host.world().has_unborn_pool("tank", 600, &device);
    assert_eq!(worker.pools_on_disk(), [600]);
    assert_done(&worker);
    assert_eq!(worker.pools_on_disk(), [9001]);
}

#[test]
fn labels_without_an_uberblock_of_their_group_are_not_a_pool_yet() {
    let worker = without_pool();
    let device = new_device(&worker);
    let guid = worker.intent.plan.new.guid;
    {
        let mut world = worker.host.world();
        world.has_pool("tank", 600, guid);
        // The cut came between the even labels and the uberblocks.
        let start = world.links[&device].start.0;
        // The rear labels stand where the size rounded down to 256 KiB ends.
        let end = start + (world.links[&device].len.0 >> 18 << 18);
        for place in [
            start,
            start + (256 << 10),
            end - (512 << 10),
            end - (256 << 10),
        ] {
            world.disk.set(place + (128 << 10), &[0; 128 << 10]);
        }
    }
    assert_done(&worker);
    assert_eq!(worker.pools_on_disk(), [9001]);
}

#[test]
fn a_torn_uberblock_does_not_unmake_a_pool() {
    let worker = armed(512);
    assert_eq!(worker.run(), Ended::StepsDone);
    worker.reboot();
    let device = new_device(&worker);
    {
        let mut world = worker.host.world();
        let start = world.links[&device].start.0;
        // The rear labels stand where the size rounded down to 256 KiB ends.
        let end = start + (world.links[&device].len.0 >> 18 << 18);
        // The newest one of every ring has a magic and a group and no checksum.
        for place in [
            start,
            start + (256 << 10),
            end - (512 << 10),
            end - (256 << 10),
        ] {
            let slot = place + (128 << 10) + 25 * 4096;
            world.disk.set(slot, &0x00ba_b10cu64.to_le_bytes());
            world.disk.set(slot + 16, &5000u64.to_le_bytes());
        }
    }
    assert_done(&worker);
    assert_eq!(worker.host.world().zfs.creates, 1);
    worker.call("run zpool import");
}

#[test]
fn a_label_that_a_cut_of_the_create_tore_is_no_foreign_one() {
    let worker = without_pool();
    let device = new_device(&worker);
    {
        let mut world = worker.host.world();
        world.has_unborn_pool("tank", 600, &device);
        let start = world.links[&device].start.0;
        // The rear labels stand where the size rounded down to 256 KiB ends.
        let end = start + (world.links[&device].len.0 >> 18 << 18);
        // The first sector of the first label is there, on top of what had been there.
        world
            .disk
            .set(start + (16 << 10) + 512, &[0xee; (112 << 10) - 512]);
        for place in [start + (256 << 10), end - (512 << 10), end - (256 << 10)] {
            world.disk.set(place, &[0; 256 << 10]);
        }
    }
    assert_eq!(worker.pools_on_disk(), [600]);
    assert_done(&worker);
    assert_eq!(worker.pools_on_disk(), [9001]);
}

#[test]
fn a_pool_that_is_not_imported_is_imported_by_its_guid() {
    let worker = without_pool();
    let guid = worker.intent.plan.new.guid;
    worker.host.world().has_pool("tank", 601, guid);
    worker
        .host
        .world()
        .zfs
        .known
        .get_mut(&601)
        .unwrap()
        .features = ["async_destroy", "lz4_compress"].map(str::to_owned).into();
    assert_done(&worker);
    let device = new_device(&worker);
    worker.call(&format!("run zpool import -N -R / -d {device} 601"));
    assert_eq!(worker.pools_on_disk(), [601]);
    assert_eq!(worker.host.world().zfs.creates, 0);
    assert_eq!(worker.report().new_pool.unwrap().0, 601);
}

#[test]
fn only_the_datasets_that_are_missing_are_made() {
    for lost in ["tank/containerd", "tank/volumes"] {
        let worker = armed(512);
        assert_eq!(worker.run(), Ended::StepsDone);
        worker.reboot();
        {
            let mut world = worker.host.world();
            world
                .zfs
                .known
                .get_mut(&9001)
                .unwrap()
                .datasets
                .remove(lost);
        }
        assert_eq!(worker.run(), Ended::StepsDone);
        let made: Vec<String> = worker
            .calls()
            .into_iter()
            .filter(|call| call.starts_with("run zfs create"))
            .collect();
        assert_eq!(made.len(), 1, "{made:?}");
        assert!(made[0].ends_with(&format!(" {lost}")), "{made:?}");
    }
}

#[test]
fn properties_that_are_missing_are_set_without_mounting() {
    let worker = armed(512);
    assert_eq!(worker.run(), Ended::StepsDone);
    worker.reboot();
    for (dataset, property) in [
        ("tank", "mountpoint"),
        ("tank", "compression"),
        ("tank/containerd", "mountpoint"),
        ("tank/volumes", "canmount"),
    ] {
        let mut world = worker.host.world();
        let pool = world.zfs.known.get_mut(&9001).unwrap();
        pool.datasets
            .get_mut(dataset)
            .unwrap()
            .remove(property)
            .unwrap();
    }
    assert_eq!(worker.run(), Ended::StepsDone);
    let world = worker.host.world();
    assert!(world.zfs.mounted.is_empty(), "{:?}", world.zfs.mounted);
    for (dataset, property, value) in [
        ("tank", "mountpoint", "/tank"),
        ("tank", "compression", "lz4"),
        ("tank", "canmount", "on"),
        ("tank/containerd", "mountpoint", "/var/lib/containerd/snap"),
        ("tank/containerd", "canmount", "on"),
        ("tank/volumes", "canmount", "noauto"),
    ] {
        assert_eq!(
            world.zfs.value(dataset, property),
            value,
            "{dataset} {property}"
        );
    }
}

#[test]
fn r15_an_imported_pool_of_that_name_elsewhere_stops_the_run() {
    for made in [false, true] {
        let worker = without_pool();
        if made {
            let guid = worker.intent.plan.new.guid;
            worker.host.world().has_pool("tank", 601, guid);
        }
        {
            let mut world = worker.host.world();
            world.zfs.elsewhere.insert(58);
            world.import_for_unit("tank", 58);
        }
        let Ended::Stopped(Stop::Neither { step, found }) = worker.run() else {
            panic!("it went on with another pool");
        };
        assert_eq!(step, StepName::PoolCreate);
        let carries = match made {
            true => "guid 601",
            false => "no label",
        };
        assert_eq!(
            found,
            format!("a pool tank with guid 58 is imported, the new partition carries {carries}")
        );
        assert!(worker.is_changed());
        assert_eq!(worker.host.world().zfs.creates, 0);
        assert_eq!(worker.host.world().zfs.imported["tank"].guid, 58);
    }
}

#[test]
fn s10_an_empty_cache_file_is_filled_before_the_import_units_read_it() {
    let worker = armed(512).begun();
    worker.put(cache_file::PATH, b"");
    let (ended, finished) = worker.boot_through();
    assert_eq!(
        (ended, finished),
        (Some(Ended::StepsDone), Some(Finished::Done))
    );
    let world = worker.host.world();
    assert_eq!(world.zfs.imported["store"].guid, STORE);
    let cache = world.files[std::path::Path::new(cache_file::PATH)].clone();
    assert_eq!(
        String::from_utf8(cache).unwrap(),
        format!("store\t{STORE}\ntank\t9001\n")
    );
}

#[test]
fn r1_a_busy_partition_stops_the_run_and_the_next_boot_goes_on() {
    for number in [3, 4] {
        let worker = armed(512);
        worker.host.world().busy.insert(number, u32::MAX);
        let Ended::Stopped(stop @ Stop::KernelStale { .. }) = worker.run() else {
            panic!("a kernel that is stale was passed over");
        };
        let words = format!("have the kernel let go of p{number}: it is in use");
        assert!(stop.to_string().contains(&words), "{stop}");
        assert_eq!(worker.verdict(), Verdict::Stopped(stop));
        assert!(worker.is_changed());
        assert_eq!(worker.host.world().zfs.creates, 0);
        // The next boot reads the table anew.
        worker.host.world().busy.clear();
        worker.reboot();
        assert_done(&worker);
    }
}

#[test]
fn s11_a_partition_that_is_busy_for_a_while_is_waited_for() {
    let worker = armed(512);
    worker.host.world().busy.insert(4, 3);
    assert_eq!(worker.run(), Ended::StepsDone);
}

#[test]
fn a_disk_that_is_gone_or_not_alone_stops_the_run() {
    let worker = armed_with(512, |intent| {
        intent.bound.serial = Some("repave-worker-1".to_owned());
    })
    .begun();
    let mut intent = worker.intent.clone();
    intent.bound.serial = Some("another".to_owned());
    worker.put_intent(&repave_plan::intent::seal(&intent).unwrap());
    let ended = worker.run();
    assert!(
        matches!(ended, Ended::Stopped(Stop::DiskLost { .. })),
        "{ended:?}"
    );
}

#[test]
fn a_run_that_stopped_says_so_everywhere() {
    let worker = armed(512);
    worker.host.world().fails = vec!["disk write 512 ".to_owned()];
    let Ended::Stopped(stop) = worker.run() else {
        panic!("a write that failed was passed over");
    };
    assert_eq!(stop.name(), "step-failed");
    let notice = worker.file("/etc/issue.d/50-repave.issue").unwrap();
    assert_eq!(
        String::from_utf8(notice).unwrap(),
        "\n*** repave stopped (step-failed): k3s is kept out on this node. ***\n*** To see why: \
         repave-boot status     To go on: repave-boot resume ***\n\n"
    );
    worker.call("say STOPPED (step-failed): step table-write failed: ");
    worker.call("say to go on: repave-boot resume");
    let last = worker.records().pop().unwrap();
    assert!(matches!(last, Record::Stopped { name, .. } if name == "step-failed"));
    assert_eq!(worker.verdict(), Verdict::Stopped(stop));
    assert!(worker.is_changed() && worker.has(worker.state.intent()));
    // Finished by a later boot, and the notice is gone.
    worker.host.world().fails.clear();
    worker.reboot();
    assert_done(&worker);
    assert!(!worker.has("/etc/issue.d/50-repave.issue"));
}

#[test]
fn the_module_is_loaded_when_no_label_is_left_for_udev_to_see() {
    // S9: cut after the clear.
    let worker = armed(512);
    let dry = worker.copy();
    assert_eq!(dry.run(), Ended::StepsDone);
    worker.host.world().cut = Some((dry.call("say table-write: begins"), Cut::Lost));
    drop(worker.run());
    worker.reboot();
    assert_eq!(worker.run(), Ended::StepsDone);
    assert!(worker.call("run modprobe zfs") < worker.call("run zpool"));
    let steps = worker.intent.plan.steps.iter().map(Step::name).count();
    assert_eq!(steps, 5);
    assert!(worker.host.now().0 > 0);
}
