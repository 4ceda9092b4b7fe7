//! Forgets the snapshots that died with a pool, and keeps the images.
//!
//! Takes a containerd root whose containerd is not running and gives a [`ClearReport`]. The
//! database is written anew, never edited in place; trees are moved aside, never removed at
//! boot. What would be done is told by `repave_survey::containerd::inspect`, which the agent
//! uses: it must not link this crate.

#![forbid(unsafe_code)]

mod aside;
mod clear;
mod edit;
pub mod encode;
mod keep;
mod lock;
mod remove;
mod report;
mod rewrite;

pub use aside::{ASIDE_PREFIX, AsideError, Moved};
pub use clear::{ClearError, ClearRequest, clear, state};
pub use lock::LockError;
pub use remove::{RemoveError, RemoveReport, Stays, remove_aside};
pub use report::ClearReport;
pub use rewrite::RewriteError;
