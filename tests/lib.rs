//! The suites that need more than one crate. Each folder is one suite.

pub mod crash;
pub mod products;
pub mod suite;
#[cfg(test)]
mod table_tools;
pub mod vm;
