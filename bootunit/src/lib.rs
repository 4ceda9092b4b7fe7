//! The boot run: the only code of repave that writes to a disk.

pub mod block_io;
#[doc(hidden)]
pub mod model_disk;
pub mod table_write;
