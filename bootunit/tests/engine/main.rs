//! The boot run on a worker in memory: every rule of its order, every refusal, every way
//! to go on, and the power cut at every effect.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the helpers of tests fail as tests do; the lint knows only functions that are tests"
)]

mod by_hand;
mod closing;
mod cuts;
mod going_on;
mod order;
mod refusals;
mod status_text;
mod worker;
