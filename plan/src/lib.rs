//! The words of repave and its pure functions. No file system, no process and no
//! clock: the lints of this crate's `clippy.toml` keep it so.

pub mod bound;
pub mod chain;
pub mod essence;
pub mod intent;
pub mod journal;
mod names;
pub mod picture;
pub mod plan;
pub mod planner;
pub mod policy;
pub mod recipe;
pub mod refusal;
pub mod report;
pub mod step;
pub mod stop;
pub mod survey;
pub mod table;
pub mod units;
