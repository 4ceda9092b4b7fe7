//! The flow's pure stages together, from a policy and a survey to a plan, a picture,
//! a digest and a sealed intent.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the helpers of tests fail as tests do; the lint knows only functions that are tests"
)]

mod bound;
mod essence;
mod fixtures;
mod inputs;
mod intent;
mod preview;
mod properties;
mod scenarios;
