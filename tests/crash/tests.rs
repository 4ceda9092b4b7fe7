//! The harness on itself and on the table-write step.

use super::*;
use repave_boot::model_disk::Op;
use repave_survey::block_io::BlockRead as _;

fn quick() -> Options {
    Options {
        seed: 7,
        samples: 32,
    }
}

#[test]
fn a_table_is_never_lost_and_every_control_loses_something() {
    // The whole list is replayed by `cargo xtask cuts`; here one disk of each kind.
    let mut cases = table_cases().unwrap();
    assert_eq!(cases.len(), 18);
    let kinds = [
        "512, usual",
        "512, numbers far apart",
        "4096, shadow in a removed extent",
        "4096, grown disk",
    ];
    cases.retain(|case| kinds.contains(&case.name()));
    let summary = run(&cases, &quick()).unwrap();
    println!("{summary}");
    assert_eq!(summary.rows.len(), kinds.len());
    assert_eq!(summary.controls.len(), 8 + 9 + 4);
    for row in &summary.rows {
        assert_eq!(
            row.lost,
            Losses::default(),
            "{}: {:?}",
            row.name,
            row.first_loss
        );
        assert!(row.distinct >= 8, "{}", row.name);
    }
    for control in &summary.controls {
        assert!(control.lost.total() > 0, "{} lost nothing", control.name);
    }
    // The orders of the usual tools leave moments without a valid primary.
    let tools: Vec<&Row> = summary
        .controls
        .iter()
        .filter(|r| r.name.contains("the order of"))
        .collect();
    assert_eq!(tools.len(), 4);
    for row in tools {
        assert!(row.lost.unsafe_states > 0, "{}", row.name);
    }
    assert!(summary.passed());
    assert!(summary.to_string().ends_with(" states, 0 lost"));
}

/// Which flush protects from what, on the usual disk. The first guards a run that
/// takes over from a killed process; 2 and 3 keep the backup's order, and Linux never
/// looks at the backup; 4 to 7 each prevent a primary that is not valid; the last
/// makes the report true.
#[test]
fn every_flush_is_needed() {
    let cases = table_cases().unwrap();
    let usual = cases.iter().find(|c| c.name() == "512, usual").unwrap();
    assert_eq!(judge::flushes(usual.as_ref()).unwrap(), 8);
    let lost: Vec<Losses> = (0..8)
        .map(|n| {
            let row = judge_without_flush(usual.as_ref(), n, &quick()).unwrap();
            row.lost
        })
        .collect();
    for n in [0, 3, 4, 5, 6] {
        assert!(lost[n].unsafe_states > 0, "flush {}: {:?}", n + 1, lost[n]);
    }
    for n in [1, 2] {
        assert_eq!(lost[n].unsafe_states, 0, "flush {}", n + 1);
        assert!(lost[n].out_of_order > 0, "flush {}", n + 1);
    }
    assert!(lost[7].not_durable > 0);
}

#[test]
fn the_subsets_between_two_flushes_are_all_tried() {
    let start = ModelDisk::new(512, 64);
    let write = |lba: u64, byte: u8, blocks: usize| Op::Write {
        offset: lba * 512,
        bytes: vec![byte; blocks * 512],
    };
    let count = |ops: &[Op]| {
        let mut seen = Vec::new();
        let mut sampling = Sampling::new(1, 100);
        cuts(&start, ops, 0, &mut sampling, &mut |cut| {
            seen.push((cut.disk, cut.returned));
            Ok(())
        })
        .unwrap();
        seen
    };
    // Two blocks of one write and one of another: 8 subsets, then the end.
    let seen = count(&[write(0, 1, 2), write(9, 2, 1), Op::Flush]);
    assert_eq!(seen.len(), 8 + 1);
    let mut distinct: Vec<ModelDisk> = Vec::new();
    for (disk, _) in &seen {
        if !distinct.contains(disk) {
            distinct.push(disk.clone());
        }
    }
    assert_eq!(distinct.len(), 8);
    // A block written twice may hold either.
    assert_eq!(
        count(&[write(0, 1, 1), write(0, 2, 1), Op::Flush]).len(),
        3 + 1
    );
    // A flush in between cuts the subsets down.
    assert_eq!(
        count(&[write(0, 1, 1), Op::Flush, write(1, 1, 1), Op::Flush]).len(),
        2 + 2 + 1
    );
    // Not flushed at the end: still open when the step has returned.
    let seen = count(&[write(0, 1, 1)]);
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(|(_, returned)| *returned));
    // Twelve are tried in full, thirteen are drawn.
    assert_eq!(count(&[write(0, 1, 12), Op::Flush]).len(), 4096 + 1);
    assert_eq!(count(&[write(0, 1, 13), Op::Flush]).len(), 4 * 14 + 100 + 1);
}

#[test]
fn the_same_seed_draws_the_same() {
    let draw = |seed| {
        let mut disks = Vec::new();
        let ops = [Op::Write {
            offset: 0,
            bytes: vec![1; 20 * 512],
        }];
        cuts(
            &ModelDisk::new(512, 64),
            &ops,
            0,
            &mut Sampling::new(seed, 10),
            &mut |cut| {
                disks.push(cut.disk);
                Ok(())
            },
        )
        .unwrap();
        disks
    };
    assert!(draw(1) == draw(1));
    assert!(draw(1) != draw(2));
}

/// The port of the kernel's rules on the disks that the lab shows to a real kernel
/// (measured there with Linux 6.1: no partitions for a bad primary header, a bad
/// primary array, no protective MBR, an entry size of 256).
#[test]
fn the_kernels_rules() {
    let images = kernel_images().unwrap();
    assert!(images.len() >= 36, "{}", images.len());
    for KernelImage { name, disk } in images {
        let expected = match &name {
            n if n.starts_with("header-torn") => Some("header checksum"),
            n if n.starts_with("array-torn") => Some("array checksum"),
            n if n.starts_with("no-mbr") => Some("no MBR signature"),
            n if n.starts_with("mbr-at-2") => Some("no protective entry"),
            n if n.starts_with("own-address-2") => Some("own address"),
            n if n.starts_with("last-usable-beyond") => Some("usable range"),
            n if n.starts_with("entry-size-256") => Some("array's shape"),
            n if n.starts_with("header-size-91") => Some("header size"),
            _ => None,
        };
        match (scan(&disk), expected) {
            (Scanned::Nothing { why }, Some(expected)) => assert_eq!(why, expected, "{name}"),
            (Scanned::Gpt(parts), None) => {
                let mib = 1024 * 1024 / u64::from(disk.block());
                assert_eq!(parts[0], (1, mib, 4 * mib - 1), "{name}");
                assert_eq!(parts[1], (2, 4 * mib, 20 * mib - 1), "{name}");
            }
            (scanned, expected) => panic!("{name}: {scanned:?}, not {expected:?}"),
        }
    }
}
