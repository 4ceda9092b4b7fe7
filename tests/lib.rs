//! The suites that need more than one crate. Each folder is one suite.

pub mod crash;
pub mod vm;
