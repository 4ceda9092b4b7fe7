//! Bolt files, as containerd keeps its metadata in them: bytes in, a tree out.
//!
//! Takes a whole file and gives a [`Database`] that borrows from it, or the first
//! thing that is wrong with the file. It never writes, never maps a file into
//! memory and trusts no number in it: every page is reached at most once, lies
//! inside the file, carries its own number and holds its keys in order. The format
//! is bbolt's (`page.go`, `meta.go`, `bucket.go`, `freelist.go`), the same since
//! version 1.3.0.

pub mod format;
mod load;
mod tree;
mod walk;

pub use load::{LoadError, MAX_FILE, read_database};
pub use tree::{Bucket, Database, FreelistMode, Item};
pub use walk::{BoltError, MAX_DEPTH, parse};
