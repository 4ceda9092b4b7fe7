//! Read-only probes. Nothing in this crate opens a device for writing.

pub mod block_io;
