//! The commit on a model disk: every state of the resume table, and what it refuses.

use repave_plan::step::{Outcome, StepState};
use repave_plan::table::{
    BackupPlace, MergeMode, TableChange, TableEdit, edit, merged_spec, parse_table_with, relocate,
    shadow_place,
};
use repave_plan::units::{Extent, Lba, PartNo};
use repave_survey::block_io::BlockRead;

use super::*;
use crate::block_io::BlockWrite;
use crate::model_disk::gpt::GptLayout;
use crate::model_disk::{ModelDisk, Op};

fn ext(first: u64, last: u64) -> Extent {
    Extent {
        first: Lba(first),
        last: Lba(last),
    }
}

/// The change that merges p3 and p4 of this disk; the shadow in the gap when there
/// is one, else in what was p3.
fn change_for(disk: &ModelDisk) -> TableChange {
    let old = read_table_image(disk).unwrap();
    let base = relocate(&old).unwrap();
    let table = parse_table_with(&base, BackupPlace::AtEnd).unwrap();
    let put = merged_spec(&table, PartNo(4), &[PartNo(3)], MergeMode::Recreate).unwrap();
    let new = edit(
        &old,
        &TableEdit {
            remove: vec![PartNo(3), PartNo(4)],
            put,
            relocate_backup: true,
        },
    )
    .unwrap();
    let gap = ext(
        table.primary_array.last.0 + 1,
        table.entries[0].extent.first.0 - 1,
    );
    let zero = zero_runs(disk, gap).unwrap();
    let removed = [
        table.entry(PartNo(3)).unwrap().extent,
        table.entry(PartNo(4)).unwrap().extent,
    ];
    let shadow = shadow_place(&old, &new, &zero, &removed).unwrap();
    TableChange::new(old, new, shadow).unwrap()
}

fn before(disk: &ModelDisk, change: &TableChange) -> StepState {
    table_state(change, disk).unwrap()
}

/// The disk after an uncut commit.
fn committed(disk: &ModelDisk, change: &TableChange) -> ModelDisk {
    let mut done = disk.clone();
    assert_eq!(apply_table(change, &mut done).unwrap(), Outcome::Changed);
    done
}

/// Copies blocks from one disk to another.
fn take(to: &mut ModelDisk, from: &ModelDisk, blocks: Extent) {
    let size = u64::from(from.block());
    let mut bytes = vec![0u8; (blocks.blocks() * size) as usize];
    from.read_at(blocks.first.0 * size, &mut bytes).unwrap();
    to.set(blocks.first.0 * size, &bytes);
}

#[test]
fn the_commit_writes_in_this_order() {
    for (block, shadow, home) in [(512u64, 40, 2), (4096, 6, 2)] {
        let mut disk = GptLayout::worker(block as u32).build();
        let change = change_for(&disk);
        assert!(check_table(&change, &disk).is_ok());
        apply_table(&change, &mut disk).unwrap();
        let last = disk.len() / block - 1;
        let mut seen: Vec<Option<u64>> = Vec::new();
        for op in disk.ops() {
            seen.push(match op {
                Op::Write { offset, bytes } => {
                    assert_eq!(bytes.len() as u64 % block, 0);
                    Some(offset / block)
                }
                Op::Flush => None,
            });
        }
        let array = last - 16384 / block;
        let expected = [
            vec![None],               // what an earlier attempt left
            vec![Some(array), None],  // backup array: p1..p4 share one block
            vec![Some(last), None],   // backup header
            vec![Some(shadow), None], // shadow array
            vec![Some(1), None],      // the commit
            vec![Some(home), None],   // array home
            vec![Some(1), None],      // LBA 1 home
            vec![Some(shadow), None], // zeros over the shadow
        ]
        .concat();
        assert_eq!(seen, expected);
    }
}

#[test]
fn the_result_is_proved_and_a_second_run_changes_nothing() {
    let disk = GptLayout::worker(512).build();
    let change = change_for(&disk);
    assert_eq!(before(&disk, &change), StepState::Before);
    assert!(prove_table(&change, &disk).is_err());
    let mut done = committed(&disk, &change);
    assert_eq!(before(&done, &change), StepState::After);
    prove_table(&change, &done).unwrap();
    assert_eq!(&read_table_image(&done).unwrap(), change.new_image());
    done.forget();
    let again = apply_table(&change, &mut done).unwrap();
    assert_eq!(again, Outcome::AlreadyDone);
    assert_eq!(done.ops(), [Op::Flush]);
}

/// The resume table of the design, row by row: what is taken from the finished
/// disk, what is broken, and how it is classified. Every row but the last ones
/// must end in the bytes of the uncut run.
#[test]
fn it_goes_on_from_every_state_by_content() {
    let disk = GptLayout::worker(512).build();
    let change = change_for(&disk);
    let done = committed(&disk, &change);
    let last = disk.len() / 512 - 1;
    let (head, tail) = (ext(1, 33), ext(last - 32, last));
    let (array, header) = (ext(last - 32, last - 1), ext(last, last));
    // At the commit: the new backup, the shadow, LBA 1 pointing at it.
    let mut shadowed = disk.clone();
    shadowed.fail_after(9);
    apply_table(&change, &mut shadowed).unwrap_err();
    shadowed.fail_after(usize::MAX / 2);
    type Row<'r> = (&'r str, Box<dyn Fn(&mut ModelDisk) + 'r>, &'r str);
    let rows: Vec<Row> = vec![
        (
            "old, old",
            Box::new(|_| {}),
            "the primary table is the old one, the backup is the old one",
        ),
        (
            "old, new",
            Box::new(|d| take(d, &done, tail)),
            "the primary table is the old one, the backup is the new one",
        ),
        (
            "old, torn",
            Box::new(|d| take(d, &done, array)),
            "the primary table is the old one, the backup is not whole",
        ),
        (
            "old, gone",
            Box::new(|d| d.set(last * 512, &[0; 512])),
            "the primary table is the old one, the backup is not whole",
        ),
        (
            "shadow, new",
            Box::new(|d| *d = shadowed.clone()),
            "the primary table is the new one at its shadow place, the backup is the new one",
        ),
        (
            "shadow, home torn",
            Box::new(|d| {
                *d = shadowed.clone();
                take(d, &done, ext(2, 2))
            }),
            "the primary table is the new one at its shadow place, the backup is the new one",
        ),
        (
            "shadow, backup gone",
            Box::new(|d| {
                *d = shadowed.clone();
                d.set(last * 512, &[0; 512])
            }),
            "the primary table is the new one at its shadow place, the backup is not whole",
        ),
        (
            "new, old",
            Box::new(|d| take(d, &done, head)),
            "the primary table is the new one, the backup is the old one",
        ),
        (
            "new, torn",
            Box::new(|d| {
                take(d, &done, head);
                take(d, &done, array)
            }),
            "the primary table is the new one, the backup is not whole",
        ),
        (
            "new, new, shadow left",
            Box::new(|d| {
                *d = shadowed.clone();
                take(d, &done, head)
            }),
            "the primary table is the new one, the backup is the new one",
        ),
        (
            "invalid, old",
            Box::new(|d| take(d, &done, ext(2, 2))),
            "the primary table is not whole",
        ),
        (
            "invalid, new",
            Box::new(|d| {
                take(d, &done, tail);
                take(d, &done, ext(2, 2))
            }),
            "the primary table is not whole",
        ),
        (
            "invalid header, new",
            Box::new(|d| {
                take(d, &done, tail);
                d.set(512, &[0; 512])
            }),
            "the primary table is not whole",
        ),
    ];
    let check = |name: &str, breaks: &dyn Fn(&mut ModelDisk), expected: &str| {
        let mut cut = disk.clone();
        breaks(&mut cut);
        let found = classify(&change, &cut).unwrap().to_string();
        assert!(found.starts_with(expected), "{name}: {found}");
        cut.forget();
        (before(&cut, &change), cut)
    };
    for (name, breaks, expected) in &rows {
        let (state, mut cut) = check(name, breaks, expected);
        assert_eq!(state, StepState::Before, "{name}");
        assert_eq!(
            apply_table(&change, &mut cut).unwrap(),
            Outcome::Changed,
            "{name}"
        );
        assert!(cut == done, "{name}: other bytes than an uncut run");
    }
    // Anything else is neither: nothing may be written.
    let foreign = |d: &mut ModelDisk, at: Extent| {
        let mut layout = GptLayout::worker(512);
        layout.parts.truncate(2);
        take(d, &layout.build(), at);
    };
    let rows: Vec<Row> = vec![
        (
            "foreign primary",
            Box::new(|d| foreign(d, head)),
            "the primary table is neither the old nor the new one",
        ),
        (
            "new, foreign",
            Box::new(|d| {
                take(d, &done, head);
                foreign(d, tail)
            }),
            "the primary table is the new one, the backup is neither the old nor the new one",
        ),
        (
            "invalid, foreign",
            Box::new(|d| {
                d.set(512, &[0; 512]);
                foreign(d, tail)
            }),
            "the primary table is not whole",
        ),
        (
            "both gone",
            Box::new(|d| {
                d.set(512, &[0; 512]);
                take(d, &done, array);
                d.set(header.first.0 * 512, &[0; 512])
            }),
            "the primary table is not whole",
        ),
        (
            "no MBR",
            Box::new(|d| d.set(446, &[0; 66])),
            "the primary table is the old one, the backup is the old one, the protective MBR is neither's",
        ),
    ];
    for (name, breaks, expected) in &rows {
        let (state, mut cut) = check(name, breaks, expected);
        assert!(matches!(state, StepState::Neither { .. }), "{name}");
        let err = apply_table(&change, &mut cut).unwrap_err();
        assert!(matches!(err, TableWriteError::Neither { .. }), "{name}");
        assert_eq!(cut.ops(), [Op::Flush], "{name}: it wrote");
    }
}

/// EDK2 makes a broken backup again from the primary, with zeros behind the header
/// and the array directly behind the usable range.
#[test]
fn a_backup_remade_by_firmware_is_known() {
    let mut layout = GptLayout::worker(512);
    layout.header_size = 100;
    let disk = layout.build();
    let change = change_for(&disk);
    let done = committed(&disk, &change);
    let last = disk.len() / 512 - 1;
    // The same header with another reserved byte and its checksum right.
    let remade = |from: &ModelDisk| {
        let mut cut = done.clone();
        take(&mut cut, from, ext(last - 32, last));
        let mut sector = vec![0u8; 512];
        from.read_at(last * 512, &mut sector).unwrap();
        sector[95] = 1;
        sector[16..20].fill(0);
        let crc = repave_plan::table::crc32(&sector[..100]);
        sector[16..20].copy_from_slice(&crc.to_le_bytes());
        cut.set(last * 512, &sector);
        cut
    };
    for (from, entries) in [(&done, Entries::New), (&disk, Entries::Old)] {
        let mut cut = remade(from);
        let state = classify(&change, &cut).unwrap();
        assert_eq!(state.backup, BackupIs::Remade { entries });
        apply_table(&change, &mut cut).unwrap();
        assert!(cut == done);
    }
}

#[test]
fn a_failing_disk_stops_it_and_the_next_run_finishes() {
    let disk = GptLayout::worker(512).build();
    let change = change_for(&disk);
    let done = committed(&disk, &change);
    for n in 0..done.ops().len() {
        let mut cut = disk.clone();
        cut.fail_after(n);
        let err = apply_table(&change, &mut cut).unwrap_err();
        assert!(matches!(err, TableWriteError::Write { .. }), "{n}: {err}");
        cut.fail_after(usize::MAX / 2);
        apply_table(&change, &mut cut).unwrap();
        assert!(cut == done, "after {n}");
    }
}

#[test]
fn a_taken_shadow_is_refused_before_the_first_write() {
    let mut disk = GptLayout::worker(512).build();
    let change = change_for(&disk);
    disk.set(41 * 512, &[1]);
    let taken = |r: Result<(), TableWriteError>| {
        matches!(r, Err(TableWriteError::ShadowTaken { first: Lba(40) }))
    };
    assert!(taken(check_table(&change, &disk)));
    assert!(taken(apply_table(&change, &mut disk).map(|_| ())));
    assert_eq!(disk.ops(), [Op::Flush]);
}

#[test]
fn the_first_run_wants_both_copies_old() {
    let disk = GptLayout::worker(512).build();
    let change = change_for(&disk);
    let last = disk.len() / 512 - 1;
    for at in [512, 1024, (last - 32) * 512, last * 512] {
        let mut torn = disk.clone();
        torn.set(at + 16, &[0xff; 4]);
        assert!(matches!(
            check_table(&change, &torn),
            Err(TableWriteError::Neither { .. })
        ));
    }
    let other = GptLayout {
        blocks: 64 * 2048 + 8,
        ..GptLayout::worker(512)
    };
    assert!(matches!(
        check_table(&change, &other.build()),
        Err(TableWriteError::OtherDisk { .. })
    ));
}

/// Entries far apart fill two blocks of the shadow; the power went while zeros were
/// written over it and one of them is left.
#[test]
fn a_shadow_half_zeroed_is_finished() {
    let mut layout = GptLayout::worker(512);
    layout.parts[1].number = 120;
    let disk = layout.build();
    let change = change_for(&disk);
    let done = committed(&disk, &change);
    for block in [0, 29] {
        let mut cut = done.clone();
        let at = (2 + block) * 512;
        cut.set(
            (40 + block) * 512,
            &change.new_image().head[at as usize..][..512],
        );
        assert_eq!(before(&cut, &change), StepState::Before, "block {block}");
        apply_table(&change, &mut cut).unwrap();
        assert!(cut == done, "block {block}");
    }
}

/// A removed extent serves as the shadow's place when the gap is full: its old
/// content may be anything, and what a new pool wrote there later is not ours.
#[test]
fn a_shadow_in_a_destroyed_extent() {
    let mut disk = GptLayout::worker(512).build();
    disk.set(34 * 512, &vec![0xee; (2048 - 34) * 512]);
    let guard = 9 * 1024;
    let first = 20 * 2048 + guard;
    disk.set(first * 512, &vec![0x77; 32 * 512]);
    let change = change_for(&disk);
    assert_eq!(change.shadow(), ext(first, first + 31));
    check_table(&change, &disk).unwrap();
    let mut done = committed(&disk, &change);
    assert_eq!(before(&done, &change), StepState::After);
    done.set(first * 512, &vec![0x55; 40 * 512]);
    assert_eq!(
        before(&done, &change),
        StepState::After,
        "the pool lives there now"
    );
}

#[test]
fn a_grown_disk_gets_its_backup_and_its_mbr_moved() {
    let layout = GptLayout {
        blocks: 80 * 2048,
        ..GptLayout::worker(512)
    };
    let mut disk = layout.build();
    let change = change_for(&disk);
    check_table(&change, &disk).unwrap();
    // Boot code that changed since the plan stays as it is now.
    disk.set(0, b"other boot code");
    let mut done = committed(&disk, &change);
    assert_eq!(before(&done, &change), StepState::After);
    let mut sector = [0u8; 512];
    done.read_at(0, &mut sector).unwrap();
    assert_eq!(&sector[..15], b"other boot code");
    assert_eq!(sector[458..462], (80u32 * 2048 - 1).to_le_bytes());
    // The MBR alone is a reason to go on.
    take(&mut done, &disk, ext(0, 0));
    assert_eq!(before(&done, &change), StepState::Before);
    done.forget();
    apply_table(&change, &mut done).unwrap();
    assert_eq!(before(&done, &change), StepState::After);
}

#[test]
fn zero_runs_are_exact() {
    let mut disk = ModelDisk::new(512, 100);
    disk.write_at(10 * 512, &[1; 512]).unwrap();
    disk.write_at(20 * 512, &[1; 1024]).unwrap();
    let runs = zero_runs(&disk, ext(5, 30)).unwrap();
    assert_eq!(runs, [ext(5, 9), ext(11, 19), ext(22, 30)]);
    assert!(zero_runs(&disk, ext(90, 100)).is_err());
}
