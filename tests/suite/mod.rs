//! The VM suite: real boots of a worker with the shipped products.
//!
//! DESTRUCTIVE, and only inside guests of the bed. Each case starts from a healthy
//! worker's copy, does what a person would do, and asserts on values read in the
//! guest, on its console, or on its disk. What a case stands on is said in its text.

mod case;
mod cuts;
mod gate;
mod job;
mod main_job;
mod not_run;
mod readme;
mod refusals;
mod second_pool;
mod trap;

pub use case::{Case, Outcome, all, run_cases};
pub use job::{BOOT, Job, POLICY, start_worker};
