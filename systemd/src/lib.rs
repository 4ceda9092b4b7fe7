//! The units of repave, and the host side of arming and disarming.
//!
//! Stage: arm. It takes the sealed intent and the run's files and gives an armed
//! host: units first, intent last. It never plans, and it never touches a disk
//! that is not the file system of `/etc`, `/run` and `/var/lib/repave`.

pub mod arm;
pub mod binary;
pub mod bus;
pub mod disarm;
pub mod files;
pub mod host_systemd;
pub mod offline;
pub mod order_check;
pub mod paths;
pub mod units;

pub use arm::{ArmError, ArmFault, ArmRequest, Armed, arm};
pub use bus::BusSystemd;
pub use disarm::{DisarmError, Disarmed, disarm, uninstall};
pub use files::{FileError, HostFiles, RootFiles};
pub use host_systemd::{CallError, ExitState, Inhibitor, Oneshot, Systemd};
pub use offline::OfflineSystemd;
