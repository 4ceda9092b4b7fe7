//! The words of repave and its pure functions. No file system, no process and no
//! clock: the lints of this crate's `clippy.toml` keep it so.

pub mod units;
