//! The boot run: the only code of repave that writes to a disk.

pub mod block_io;
