//! `repave-agent` as a program, on a worker that is a folder: what it prints, how it
//! ends, and what it writes.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the helpers of tests fail as tests do; the lint knows only functions that are tests"
)]

mod arm;
mod bad_input;
#[path = "../../../plan/tests/flow/fixtures.rs"]
#[expect(
    dead_code,
    reason = "only the table is needed of the surveys made there"
)]
mod fixtures;
mod look;
mod status;
mod worker;
