//! Read-only probes. Nothing in this crate opens a device for writing.

pub mod block_io;
pub mod labels;
pub mod bolt;
pub mod containerd;
