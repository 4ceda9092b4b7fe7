//! Read-only probes. Nothing in this crate opens a device for writing.

pub mod block;
pub mod block_io;
pub mod bolt;
pub mod containerd;
pub mod containerd_config;
pub mod containerd_parse;
pub mod device;
pub mod disk;
pub mod host;
pub mod host_tools;
pub mod ioctl;
pub mod labels;
pub mod mounts;
pub mod read;
pub mod root;
pub mod signature;
pub mod zpool;
pub mod zpool_parse;

#[cfg(test)]
mod golden_tests;

pub use read::{Detail, SurveyError, SurveyRequest, read_image_survey, read_survey};
