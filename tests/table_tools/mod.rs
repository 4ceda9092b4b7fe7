//! Our table commit against sgdisk, sfdisk and parted, on images that sgdisk made.
//!
//! The same edit is made by sgdisk and by us from the same image; the bytes of the
//! two disks must be equal, but where sgdisk normalises what it should not: those
//! places are listed, and there the original bytes stay. A missing tool fails the
//! test. Images of 4096-byte blocks reach the tools through a loop device.

mod compare;
mod normalised;
mod run;
