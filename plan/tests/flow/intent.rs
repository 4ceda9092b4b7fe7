//! Sealing and opening, and the moment of a first run (design 4, 5 and 6.1).

use repave_plan::essence::approval_digest;
use repave_plan::intent::{Intent, MAX_SIZE, Moment, VERSION, check_moment, open, seal};
use repave_plan::journal::{line, parse_journal};
use repave_plan::planner::{bind, volumes};
use repave_plan::refusal::Refusal;
use repave_plan::units::{BootId, Bytes, Digest, UnixTime};

use crate::fixtures::*;
use crate::inputs::{plan_of, policy};

fn intent() -> Intent {
    let survey = worker();
    let plan = plan_of(&survey).unwrap();
    let host = survey.host.clone().unwrap();
    Intent {
        version: VERSION,
        run_id: "20261130t163500-a1b2".parse().unwrap(),
        approval: approval_digest(&plan).unwrap(),
        bound: bind(&policy(POLICY), &survey).unwrap(),
        armed_boot: host.boot_id,
        armed_at: UnixTime(1000),
        not_after: UnixTime(4600),
        attempts: 5,
        min_state_free: Bytes(64 << 20),
        programs: host.programs,
        volumes: volumes(&plan, &survey.pools[0]),
        starters: host.starters,
        plan,
    }
}

#[test]
fn what_was_sealed_is_what_is_opened() {
    let intent = intent();
    let bytes = seal(&intent).unwrap();
    assert_eq!(open(&bytes).unwrap(), intent);
    assert_eq!(seal(&open(&bytes).unwrap()).unwrap(), bytes);
    let names: Vec<&str> = intent.volumes.iter().map(|v| v.name.as_str()).collect();
    assert_eq!(names, ["tank/localpv/pvc-0a", "tank/localpv/pvc-0b"]);
}

/// Kept for ever: a program that cannot open this strands a node that was armed by the
/// one before it.
#[test]
fn an_intent_of_format_1_stays_readable() {
    let stored = include_bytes!("golden/intent-1.sealed");
    let mut expected = intent();
    // The digest of the policy as its type was when this was stored.
    expected.plan.policy =
        "sha256:9768e8e3ac81551a60163bf0c5c40337a5b571045e114ecfe3dceea1ebee6a42"
            .parse()
            .unwrap();
    assert_eq!(open(stored).unwrap(), expected);
}

#[test]
fn a_journal_of_format_1_stays_readable() {
    let stored = include_bytes!("golden/journal-1.jsonl");
    let (records, whole) = parse_journal(stored).unwrap();
    assert_eq!((records.len(), whole), (5, stored.len()));
    let written: Vec<u8> = records.iter().flat_map(|r| line(r).unwrap()).collect();
    assert_eq!(written, stored);
}

#[test]
fn a_flipped_bit_at_any_byte_is_never_accepted() {
    let bytes = seal(&intent()).unwrap();
    let header = bytes.iter().position(|b| *b == b'\n').unwrap();
    let mut newer = 0;
    for at in 0..bytes.len() {
        // All eight bits of the header, which is parsed; one of each byte behind it.
        let bits = if at <= header {
            0..8
        } else {
            at % 8..at % 8 + 1
        };
        for bit in bits {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            match open(&flipped) {
                Err(Refusal::IntentDamaged { .. }) => {}
                Err(Refusal::NewerFormat { .. }) => newer += 1,
                other => panic!("byte {at}, bit {bit}: {other:?}"),
            }
        }
    }
    // "1" becomes "3", "5" and "9"; as "0" it is a version that the value contradicts.
    assert_eq!(newer, 3);
}

#[test]
fn a_cut_or_a_longer_file_is_never_accepted() {
    let bytes = seal(&intent()).unwrap();
    for cut in (0..bytes.len()).step_by(97).chain([bytes.len() - 1]) {
        let result = open(&bytes[..cut]);
        assert!(
            matches!(result, Err(Refusal::IntentDamaged { .. })),
            "cut at {cut}"
        );
    }
    let longer = [bytes.as_slice(), b" "].concat();
    assert!(matches!(open(&longer), Err(Refusal::IntentDamaged { .. })));
}

#[test]
fn a_newer_format_is_named_before_its_value_is_read() {
    let body = b"{\"a value\": \"of the future\"}";
    let bytes = [
        format!("repave-intent 2 {}\n", Digest::of(body)).as_bytes(),
        body,
    ]
    .concat();
    assert_eq!(
        open(&bytes),
        Err(Refusal::NewerFormat { found: 2, known: 1 })
    );
}

#[test]
fn an_older_seal_over_an_unknown_field_is_not_guessed_at() {
    let mut value = serde_json::to_value(intent()).unwrap();
    value["extra"] = serde_json::json!(1);
    let body = serde_json::to_vec(&value).unwrap();
    let header = format!("repave-intent 1 {}\n", Digest::of(&body));
    let result = open(&[header.as_bytes(), &body].concat());
    let Err(Refusal::IntentDamaged { why }) = result else {
        panic!("{result:?}")
    };
    assert!(why.contains("unknown field `extra`"), "{why}");
}

#[test]
fn what_is_too_large_is_not_even_hashed() {
    let result = open(&vec![b' '; MAX_SIZE + 1]);
    let Err(Refusal::IntentDamaged { why }) = result else {
        panic!("{result:?}")
    };
    assert_eq!(
        why,
        format!("it has {} bytes, {MAX_SIZE} at most", MAX_SIZE + 1)
    );
}

#[test]
fn the_moment_of_a_first_run() {
    let boot = |n: u32| {
        format!("b0071d0000000000000000000000000{n}")
            .parse::<BootId>()
            .unwrap()
    };
    let one = Digest::of(b"image one");
    let two = Digest::of(b"image two");
    let at = |boot_id, now, booted_image| Moment {
        boot_id,
        now: UnixTime(now),
        booted_image,
    };
    // wanted image, moment, the refusal's name
    let rows = [
        (None, at(boot(2), 1000, None), None),
        (None, at(boot(2), 4600, None), None),
        (None, at(boot(2), 2000, Some(two)), None),
        (None, at(boot(1), 2000, None), Some("same-boot")),
        (None, at(boot(2), 999, None), Some("clock-before-arming")),
        (None, at(boot(2), 0, None), Some("clock-before-arming")),
        (None, at(boot(2), 4601, None), Some("stale")),
        (Some(one), at(boot(2), 2000, Some(one)), None),
        (Some(one), at(boot(2), 2000, Some(two)), Some("other-image")),
        (Some(one), at(boot(2), 2000, None), Some("other-image")),
        (Some(one), at(boot(1), 2000, Some(one)), Some("same-boot")),
        (Some(one), at(boot(2), 4601, Some(one)), Some("stale")),
    ];
    for (image, moment, expected) in rows {
        let mut intent = intent();
        intent.plan.image = image;
        let refused = check_moment(&intent, &moment).err();
        assert_eq!(refused.as_ref().map(Refusal::name), expected, "{moment:?}");
    }
}
