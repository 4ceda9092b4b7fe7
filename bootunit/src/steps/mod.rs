//! The steps: what each asks of the disk, does to it and reads back.
//!
//! Each step is three functions of a [`Scene`]: `state` looks, `apply` destroys,
//! `prove` reads back. None of them knows which attempt this is or what the journal
//! says: the disk decides.

mod closed;
mod containerd_clear;
mod dispatch;
mod kernel_table;
mod label_clear;
mod pool_create;
mod scene;

pub use closed::closed_txg;
pub use containerd_clear::CLEARED;
pub use dispatch::{StepError, apply, prove, state};
pub use kernel_table::LINK_LIMIT;
pub use pool_create::{NewPool, new_pool};
pub use scene::Scene;
