//! Tests of clearing, rewriting and removing, on captured databases.

#![expect(clippy::unwrap_used, reason = "tests")]

mod clear;
mod common;
mod damage;
mod encode;
mod remove;
