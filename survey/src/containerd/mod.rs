//! What containerd has on disk: its metadata, and which images are whole.
//!
//! Takes containerd's root directory and gives, per namespace, what would be lost with a
//! snapshotter and which images could still be started from the content store alone. It
//! never writes; containerd may run meanwhile. The records' layout is containerd's
//! (`core/metadata/buckets.go`), schema versions 1 to 4.

mod content;
mod images;
mod inspect;
mod layout;
mod losses;
mod metadata;

pub use content::{ContentStore, FileState};
pub use images::{
    Assessment, BadBlob, Checks, Fate, ImageVerdict, Platform, Unsound, assess, image_bytes,
};
pub use inspect::{InspectError, Preview, inspect};
pub use layout::{
    CONTENT, DATABASE, database_path, lost_snapshotters, snapshotter_dir, snapshotters,
};
pub use losses::{NamespaceLosses, losses};
pub use metadata::{
    Blob, Container, Descriptor, Image, Metadata, MetadataError, Namespace, SCHEMA_VERSIONS, parse,
};
