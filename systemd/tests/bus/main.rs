//! Arming and disarming against a systemd and a logind of the tests' own, on a private
//! bus (needs dbus-daemon). The host is a directory: its files are real, its systemd
//! does to them what the real one does.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "all of it is test code; the lint's own exception is for test functions only"
)]

mod fake;
mod harness;
mod kill;
mod offline;
mod order;
