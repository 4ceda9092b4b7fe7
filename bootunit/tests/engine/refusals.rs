//! Every refusal of a first run: its name, and that nothing is different afterwards
//! (design: verdicts; the list of what must be shown).

use repave_boot::cache_file;
use repave_boot::model_host::Cut;
use repave_boot::run::Ended;
use repave_plan::intent::seal;
use repave_plan::refusal::Refusal;
use repave_plan::report::Verdict;
use repave_plan::survey::{PathFacts, Use};
use repave_plan::units::{Bytes, Digest};
use repave_survey::block_io::BlockRead;

use super::worker::*;

fn place(worker: &Worker, path: &str, change: impl FnOnce(&mut PathFacts)) {
    let mut facts = PathFacts {
        path: path.to_owned(),
        exists: true,
        mount_point: "/var".to_owned(),
        fs_type: "ext4".to_owned(),
        source: "/dev/vda2".to_owned(),
        free: Bytes(1 << 30),
        read_only: false,
    };
    change(&mut facts);
    worker.host.world().places.insert(path.to_owned(), facts);
}

/// Refused by this name with these words, and nothing is different.
fn assert_refused(row: &str, worker: &Worker, name: &str, words: &str) {
    let disk = worker.host.world().disk.clone();
    let ended = worker.run();
    let Ended::Refused(refusal) = ended else {
        panic!("{row}: {ended:?}");
    };
    assert_eq!(refusal.name(), name, "{row}: {refusal}");
    assert!(refusal.to_string().contains(words), "{row}: {refusal}");
    let writes: Vec<String> = worker
        .calls()
        .into_iter()
        .filter(|call| call.starts_with("disk ") || call.starts_with("open "))
        .collect();
    assert_eq!(writes, [""; 0], "{row}");
    assert!(worker.host.world().disk == disk, "{row}: the disk changed");
    assert_unarmed(row, worker);
    assert_eq!(worker.verdict(), Verdict::Refused(refusal), "{row}");
}

/// Disarmed, nothing begun, the cache file as it was, and nothing at the next boot.
fn assert_unarmed(row: &str, worker: &Worker) {
    assert!(!worker.has(worker.state.intent()), "{row}: still armed");
    assert!(!worker.is_changed(), "{row}: changed is there");
    assert_eq!(
        worker.file(cache_file::PATH).unwrap(),
        CACHE.as_bytes(),
        "{row}"
    );
    worker.reboot();
    assert_eq!(worker.run(), Ended::NothingArmed, "{row}");
}

#[test]
fn each_doubt_before_the_first_write_is_a_refusal() {
    type Row<'r> = (&'r str, Box<dyn Fn(&Worker)>, &'r str, &'r str);
    fn row<'r>(
        row: &'r str,
        change: impl Fn(&Worker) + 'static,
        name: &'r str,
        words: &'r str,
    ) -> Row<'r> {
        (row, Box::new(change), name, words)
    }
    let mut rows = vec![
        row(
            "stale",
            |w| w.host.world().clock += 3600,
            "stale",
            "good until",
        ),
        row(
            "clock",
            |w| w.host.world().clock -= 61,
            "clock-before-arming",
            "armed at",
        ),
        row(
            "machine",
            |w| w.host.world().machine_id = "f".repeat(32),
            "other-machine",
            "this is ffff",
        ),
        row(
            "state on zfs",
            |w| place(w, "/var/lib/repave", |f| f.fs_type = "zfs".to_owned()),
            "host",
            "the state directory is not on a plain file system: /var/lib/repave is on zfs",
        ),
        row(
            "state on tmpfs",
            |w| place(w, "/var/lib/repave", |f| f.fs_type = "tmpfs".to_owned()),
            "host",
            "the state directory is not on a plain file system",
        ),
        row(
            "state read-only",
            |w| place(w, "/var/lib/repave", |f| f.read_only = true),
            "host",
            "the state directory cannot be written: /dev/vda2 is mounted read-only at /var",
        ),
        row(
            "state full",
            |w| place(w, "/var/lib/repave", |f| f.free = Bytes((64 << 20) - 1)),
            "host",
            "the file system under /var/lib/repave is too full",
        ),
        row(
            "containerd on zfs",
            |w| place(w, "/var/lib/containerd", |f| f.fs_type = "zfs".to_owned()),
            "host",
            "containerd's root is not on a plain file system",
        ),
        row(
            "versions",
            |w| w.host.world().zfs.module = "2.2.7-1".to_owned(),
            "host",
            "the ZFS tools and module differ: the tools are 2.3.9-1, the module is 2.2.7-1",
        ),
        row(
            "no module",
            |w| w.host.world().zfs.module = String::new(),
            "host",
            "the zfs module cannot be loaded",
        ),
        row(
            "unknown feature",
            |w| {
                w.host.world().zfs.features.remove("lz4_compress");
            },
            "host",
            "does not know all features of pool tank: lz4_compress",
        ),
        row(
            "shadow",
            |w| {
                let shadow = shadow(w);
                w.host.world().disk.set(shadow, &[1]);
            },
            "table",
            "is not zeroed any more",
        ),
        row(
            "one byte of the table",
            // Boot code: bound, though no entry differs.
            |w| w.host.world().disk.set(7, &[0xee]),
            "fact-changed",
            "the digest of the primary table",
        ),
        row(
            "foreign label in the dead partition",
            |w| put_pool(w, 55, 0x13),
            "foreign-label",
            "guid 55",
        ),
        row(
            "stale label inside",
            |w| stale_label(w, 56),
            "foreign-label",
            "guid 56",
        ),
        row(
            "other pool of that name",
            |w| put_pool(w, 57, 0x14),
            "fact-changed",
            "the pool's guid on the label",
        ),
        row(
            "imported with another guid",
            |w| {
                w.host.world().zfs.elsewhere.insert(58);
                w.host.world().import_for_unit("tank", 58);
            },
            "fact-changed",
            "the guid of the imported pool tank was 4242 when the plan was made and is 58",
        ),
        row(
            "imported and mounted",
            |w| {
                w.host.world().import_for_unit("tank", TANK);
                w.host.world().mount_all();
            },
            "in-use",
            "pool tank, imported before this unit, is in use: mounted at /tank",
        ),
    ];
    for name in ["modprobe", "zfs", "zpool"] {
        rows.push(row(
            name,
            move |w| {
                w.host.world().absent.insert(format!("/usr/sbin/{name}"));
            },
            "host",
            " is not there",
        ));
    }
    for (number, what) in [(0, "vda"), (3, "\"dead\""), (4, "\"tank\"")] {
        for used in [
            Use::Mount {
                at: "/mnt".to_owned(),
            },
            Use::Swap,
            Use::Holder {
                name: "dm-0".to_owned(),
            },
            Use::Loop {
                name: "loop0".to_owned(),
            },
        ] {
            rows.push(row(
                what,
                move |w| drop(w.host.world().uses.insert(number, vec![used.clone()])),
                "in-use",
                what,
            ));
        }
    }
    for (row, change, name, words) in rows {
        let worker = armed(512);
        change(&worker);
        assert_refused(row, &worker, name, words);
    }
}

fn shadow(worker: &Worker) -> u64 {
    let change = worker.intent.plan.steps.iter().find_map(|step| match step {
        repave_plan::step::Step::TableWrite(write) => Some(&write.change),
        _ => None,
    });
    change.unwrap().shadow().first.0 * 512 + 700
}

fn put_pool(worker: &Worker, guid: u64, part: u8) {
    let part = repave_plan::units::Guid([part; 16]);
    worker.host.world().has_pool("tank", guid, part);
}

/// A label of another pool where no partition has one today: that of a vdev that was the
/// whole disk, whose end the new partition will reach.
fn stale_label(worker: &Worker, guid: u64) {
    let other = worker.copy();
    put_pool(&other, guid, 0x13);
    let mut label = vec![0; 256 << 10];
    let made = other.host.world().disk.read_at(20 << 20, &mut label);
    made.unwrap();
    let place = (64 << 20) - (512 << 10);
    worker.host.world().disk.set(place, &label);
}

#[test]
fn each_fact_of_the_intent_counts() {
    let image = Digest::of(b"image");
    for (row, change, name) in [
        (
            "same boot",
            Box::new(|w: &Worker, i: &mut repave_plan::intent::Intent| {
                i.armed_boot = w.host.world().boot_id().parse().unwrap();
            }) as Box<dyn Fn(&Worker, &mut repave_plan::intent::Intent)>,
            "same-boot",
        ),
        (
            "image",
            Box::new(move |w, i| {
                i.plan.image = Some(image);
                w.host.world().image = Some(Digest::of(b"another"));
            }),
            "other-image",
        ),
        (
            "no image",
            Box::new(move |_, i| i.plan.image = Some(image)),
            "other-image",
        ),
        (
            "disk",
            Box::new(|_, i| i.bound.serial = Some("other".to_owned())),
            "no-disk",
        ),
        (
            "size",
            Box::new(|_, i| i.bound.size.0 += 512),
            "fact-changed",
        ),
        (
            "program",
            Box::new(|_, i| drop(i.programs.remove("zpool"))),
            "host",
        ),
    ] {
        let worker = armed(512);
        let mut intent = worker.intent.clone();
        change(&worker, &mut intent);
        worker.put_intent(&seal(&intent).unwrap());
        assert_refused(row, &worker, name, "");
    }
}

#[test]
fn a_damaged_intent_is_refused_and_reported_under_its_digest() {
    let worker = armed(512);
    let mut sealed = worker.file(worker.state.intent()).unwrap();
    let middle = sealed.len() / 2;
    sealed[middle] ^= 1;
    worker.put(worker.state.intent(), &sealed);
    let disk = worker.host.world().disk.clone();
    let Ended::Refused(Refusal::IntentDamaged { .. }) = worker.run() else {
        panic!("a damaged intent ran");
    };
    assert!(worker.host.world().disk == disk);
    let hex = Digest::of(&sealed).to_string().replace("sha256:", "");
    let report = format!("/var/lib/repave/runs/unopened-{}/report.json", &hex[..16]);
    assert!(worker.has(&report), "{report}");
    assert_unarmed("damaged", &worker);
}

#[test]
fn a_run_that_was_closed_is_refused_and_its_old_cache_copy_stays_where_it_is() {
    let worker = armed(512);
    let sealed = worker.file(worker.state.intent()).unwrap();
    assert_eq!(worker.boot_through().0, Some(Ended::StepsDone));
    let cache = worker.file(cache_file::PATH).unwrap();
    assert_eq!(cache, b"store\t7777\ntank\t9001\n");
    worker.reboot();
    worker.put_intent(&sealed);
    let disk = worker.host.world().disk.clone();
    assert!(matches!(
        worker.run(),
        Ended::Refused(Refusal::AlreadyRun { .. })
    ));
    assert_eq!(worker.file(cache_file::PATH).unwrap(), cache);
    assert_eq!(worker.verdict(), Verdict::Done);
    assert!(worker.host.world().disk == disk);
}

#[test]
fn a_refusal_removes_the_intent_before_all_else_that_may_fail() {
    let worker = armed(512);
    worker.host.world().clock += 7200;
    worker.host.world().fails = ["write ", "append "].map(str::to_owned).into();
    let Ended::Refused(_) = worker.run() else {
        panic!("a stale intent ran");
    };
    assert!(!worker.has(worker.state.intent()));

    let worker = armed(512);
    worker.host.world().clock += 7200;
    drop(worker.run());
    let removed = worker.call("remove /var/lib/repave/intent.json");
    assert!(
        removed
            < worker.call(&format!(
                "read {}",
                worker.run_file("zpool.cache").display()
            ))
    );
    assert!(
        removed
            < worker.call(&format!(
                "write {}",
                worker.run_file("report.json").display()
            ))
    );
}

#[test]
fn exporting_a_pool_puts_the_cache_file_back() {
    let with_import = || {
        let worker = armed(512);
        worker.host.world().import_for_unit("tank", TANK);
        worker
    };
    // A run that goes on: the other pool is still listed when it ends.
    let worker = with_import();
    assert_eq!(worker.run(), Ended::StepsDone);
    let export = worker.call("run zpool export tank");
    let emptied = worker.call("kernel-cache");
    let restored = worker.call("write /etc/zfs/zpool.cache");
    let changed = worker.call("write /var/lib/repave/changed");
    assert!([export, emptied, restored, changed].is_sorted());
    let saved = worker.call(&format!(
        "write {}",
        worker.run_file("zpool.cache").display()
    ));
    assert!(saved < export);
    assert_eq!(worker.file(cache_file::PATH).unwrap(), CACHE.as_bytes());

    // An export that fails after the kernel wrote the file: refused, and put back.
    let worker = with_import();
    worker.host.world().fails = vec!["run zpool export".to_owned()];
    let Ended::Refused(Refusal::Host { what, .. }) = worker.run() else {
        panic!("an export that failed was passed over");
    };
    assert_eq!(what, "pool tank cannot be released");
    assert_unarmed("export", &worker);

    // A cut anywhere between: the next boot refuses and puts it back.
    for at in export..changed {
        for how in [Cut::Lost, Cut::Kept, Cut::Torn(3)] {
            let worker = with_import();
            worker.host.world().cut = Some((at, how));
            drop(worker.run());
            worker.host.boot(how);
            assert!(matches!(
                worker.run(),
                Ended::Refused(Refusal::AlreadyRun { .. })
            ));
            assert_unarmed("cut", &worker);
        }
    }
}
