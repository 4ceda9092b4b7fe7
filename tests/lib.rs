//! The suites that need more than one crate. Each folder is one suite.

pub mod crash;
#[cfg(test)]
mod deadlines;
pub mod products;
pub mod suite;
#[cfg(test)]
mod table_tools;
pub mod vm;
