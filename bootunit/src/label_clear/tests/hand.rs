//! The rows of the ZFS test suite's `zpool_labelclear` group, on labels in a file.

use repave_survey::labels::LabelState;

use super::*;
use crate::label_clear::hand::{HandClear, HandError, clear_by_hand};
use crate::label_clear::verdict::{Force, InCore, LabelclearVerdict};

fn asked(extent: &Range<u64>) -> HandClear {
    HandClear {
        extent: extent.clone(),
        pools: vec![SOLO],
        vdevs: vec![SPARE, CACHE],
        in_core: InCore::NotImported,
        force: Force::No,
    }
}

/// A genuine label's state turned into another one.
fn with_state(disk: &mut ModelDisk, extent: &Range<u64>, state: LabelState) {
    let number = match state {
        LabelState::Active => 0,
        LabelState::Exported => 1,
        LabelState::Destroyed => 2,
        LabelState::Spare | LabelState::L2cache => panic!("those have fixtures of their own"),
    };
    for (_, offset) in label_places(extent) {
        let label = bytes(disk, cleared_part(offset));
        // Name of 5 bytes, padded; type 8 (uint64); one element; then the value.
        let key = b"\0\0\0\x05state\0\0\0\0\0\0\x08\0\0\0\x01";
        let at = label
            .windows(key.len())
            .position(|window| window == key)
            .unwrap()
            + key.len();
        disk.set(offset + 16 * KIB + at as u64 + 7, &[number]);
    }
}

#[test]
fn exported_active_and_destroyed_go_as_the_tool_lets_them() {
    use LabelState::{Active, Destroyed, Exported};
    for (state, in_core, force, refused) in [
        (
            Active,
            InCore::InUse,
            Force::Yes,
            Some(LabelclearVerdict::InUse),
        ),
        (
            Active,
            InCore::NotImported,
            Force::No,
            Some(LabelclearVerdict::NeedsForce),
        ),
        (Active, InCore::NotImported, Force::Yes, None),
        (Active, InCore::Removed, Force::No, None),
        (
            Exported,
            InCore::NotImported,
            Force::No,
            Some(LabelclearVerdict::NeedsForce),
        ),
        (Exported, InCore::NotImported, Force::Yes, None),
        (Destroyed, InCore::NotImported, Force::No, None),
    ] {
        let mut disk = disk(SOLO_SIZE);
        let pool = put(&mut disk, "solo", 0);
        with_state(&mut disk, &pool, state);
        let before = disk.clone();
        let asked = HandClear {
            in_core,
            force,
            ..asked(&pool)
        };
        let row = format!("{state:?} {in_core:?} {force:?}");
        match (clear_by_hand(&mut disk, &asked), refused) {
            (Ok(outcome), None) => {
                assert_eq!(outcome, Outcome::Changed, "{row}");
                assert!(disk == with_zeros(&before, &cleared_parts(&pool)), "{row}");
                // Once more: the tool fails here, this does not.
                assert_eq!(
                    clear_by_hand(&mut disk, &asked).unwrap(),
                    Outcome::AlreadyDone
                );
            }
            (Err(HandError::Verdict { verdict, .. }), Some(wanted)) => {
                assert_eq!(verdict, wanted, "{row}");
                assert_eq!(disk.ops(), [], "{row}");
            }
            (got, _) => panic!("{row}: {got:?}"),
        }
    }
}

#[test]
fn auxiliary_devices_go_plainly_unless_a_pool_uses_them() {
    for name in ["spare", "cache"] {
        let mut disk = disk(AUX_SIZE);
        let extent = put(&mut disk, name, 0);
        let used = HandClear {
            in_core: InCore::InUse,
            force: Force::Yes,
            ..asked(&extent)
        };
        assert!(matches!(
            clear_by_hand(&mut disk, &used),
            Err(HandError::Verdict {
                verdict: LabelclearVerdict::InUse,
                ..
            })
        ));
        assert_eq!(disk.ops(), []);
        assert_eq!(
            clear_by_hand(&mut disk, &asked(&extent)).unwrap(),
            Outcome::Changed
        );
        assert!(read_labels(&disk, extent).unwrap().is_clear());
    }
}

#[test]
fn only_what_was_named_goes() {
    let mut disk = disk(SOLO_SIZE);
    let pool = put(&mut disk, "solo", 0);
    let other = HandClear {
        pools: vec![PoolGuid(1)],
        force: Force::Yes,
        ..asked(&pool)
    };
    let error = clear_by_hand(&mut disk, &other).unwrap_err();
    assert!(
        matches!(error, HandError::Clear(ClearError::Foreign { .. })),
        "{error}"
    );
    assert_eq!(disk.ops(), []);
}

/// A header whose array is 128 entries of 128 bytes at this block.
fn header(block: u32, array: u64) -> Vec<u8> {
    let mut header = vec![0x33; block as usize];
    header[..8].copy_from_slice(b"EFI PART");
    header[72..80].copy_from_slice(&array.to_le_bytes());
    header[80..84].copy_from_slice(&128u32.to_le_bytes());
    header[84..88].copy_from_slice(&128u32.to_le_bytes());
    header
}

#[test]
fn no_copy_of_a_table_is_written_wherever_its_array_is() {
    const ARRAY: u64 = 16 * KIB;
    for (block, head, tail) in [
        (512, Some(2 * 512), Some(SOLO_SIZE - 512 - ARRAY)),
        (512, None, Some(SOLO_SIZE - 512 - ARRAY)),
        (512, Some(2 * 512), None),
        // An array inside label 1, and a backup array inside label 2.
        (512, Some(300 * KIB), Some(SOLO_SIZE - 300 * KIB)),
        (4096, Some(2 * 4096), Some(SOLO_SIZE - 4096 - ARRAY)),
    ] {
        let size = u64::from(block);
        let mut disk = ModelDisk::new(block, SOLO_SIZE / size);
        put(&mut disk, "solo", 0);
        let mut copies = vec![0..2 * size + ARRAY, SOLO_SIZE - size - ARRAY..SOLO_SIZE];
        for (at, array) in [(size, head), (SOLO_SIZE - size, tail)] {
            if let Some(array) = array {
                disk.set(at, &header(block, array / size));
                copies.push(array..array + ARRAY);
            }
        }
        let mut wanted = with_zeros(&disk, &cleared_parts(&(0..SOLO_SIZE)));
        for copy in copies {
            wanted.set(copy.start, &bytes(&disk, copy));
        }
        let force = HandClear {
            force: Force::Yes,
            ..asked(&(0..SOLO_SIZE))
        };
        assert_eq!(clear_by_hand(&mut disk, &force).unwrap(), Outcome::Changed);
        assert!(disk == wanted, "{block} {head:?} {tail:?}");
        assert_eq!(
            clear_by_hand(&mut disk, &force).unwrap(),
            Outcome::AlreadyDone
        );
    }
}

#[test]
fn a_table_that_claims_too_much_is_refused() {
    let mut disk = disk(SOLO_SIZE);
    put(&mut disk, "solo", 0);
    let mut absurd = header(512, 2);
    absurd[80..88].fill(0xff);
    disk.set(SOLO_SIZE - 512, &absurd);
    let force = HandClear {
        force: Force::Yes,
        ..asked(&(0..SOLO_SIZE))
    };
    let error = clear_by_hand(&mut disk, &force).unwrap_err();
    assert!(matches!(error, HandError::Table { .. }), "{error}");
    assert_eq!(disk.ops(), []);
}
