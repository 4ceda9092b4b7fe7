//! The boot run: the only code of repave that writes to a disk.

pub mod block_io;
pub mod by_hand;
pub mod cache_file;
pub mod cleanup;
pub mod clear_labels;
pub mod device;
mod engine;
pub mod finish;
pub mod host;
pub mod ioctl;
pub mod kernel_table;
pub mod label_clear;
pub mod lock;
#[doc(hidden)]
pub mod model_disk;
#[doc(hidden)]
pub mod model_host;
mod preflight;
pub mod real_host;
mod recovery;
pub mod rehearsal;
pub mod report;
pub mod run;
pub mod self_test;
pub mod state_dir;
pub mod status;
pub mod steps;
pub mod table_write;
mod verify;
pub mod wait;
pub mod zfs;

pub use recovery::Attempts;
pub use report::boot_id;

#[cfg(test)]
mod loop_tests;
