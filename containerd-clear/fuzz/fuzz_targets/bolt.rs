//! Any bytes: read without a crash; what is read survives being written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use repave_containerd_clear::encode::encode;
use repave_survey::{bolt, containerd};

fuzz_target!(|bytes: &[u8]| {
    let Ok(database) = bolt::parse(bytes) else {
        return;
    };
    let _ = containerd::parse(&database);
    let Ok(written) = encode(&database) else {
        return;
    };
    let back = bolt::parse(&written).expect("what was written is whole");
    assert!(back.root == database.root);
});
