//! The boot run: the only code of repave that writes to a disk.

pub mod block_io;
pub mod device;
pub mod ioctl;
pub mod kernel_table;
pub mod label_clear;
#[doc(hidden)]
pub mod model_disk;
pub mod rehearsal;
pub mod table_write;
