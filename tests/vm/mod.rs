//! The VM bed: a Debian guest on a disk that mirrors a worker's, real boots under QEMU.
//!
//! [`Bed::ensure`] builds (once per machine, kept in `~/.cache/repave`) or finds
//! the images; [`Bed::start`] boots a copy-on-write overlay of one of them and gives
//! a [`Machine`] to run commands in, reboot, and cut the power of. Nothing here
//! knows the products; the suites do.

mod accel;
mod bed;
mod boots;
mod cache;
mod clock;
mod command;
mod control;
mod deadline;
mod disk;
mod guest;
mod host;
mod initrd;
mod keeping;
mod machine;
mod modules;
mod oci;
mod options;
mod programs;
mod progress;
mod qemu;
mod qmp;
mod recipe;
mod tree;
mod worker;
mod write_log;

pub use bed::{Bed, IMAGES};
pub use boots::Boot;
pub use cache::folder as cache_folder;
pub use clock::rtc_base;
pub use command::Run;
pub use deadline::Deadline;
pub use disk::{DISK_GUID, DISK_SERIAL, Layout, Order, Part, SECOND_SERIAL, make_disk};
pub use host::set_up;
pub use initrd::Inject;
pub use machine::{Machine, Output};
pub use options::{Image, StartOptions};
pub use programs::target_folder;
pub use progress::Progress;
pub use write_log::{LoggedWrite, read_write_log};
