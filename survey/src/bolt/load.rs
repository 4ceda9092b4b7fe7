//! Reads a bolt file from disk, also while its owner writes to it.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::format;

/// Largest file that is read, in bytes: 1 GiB. containerd's own files are below 100 MiB even
/// on nodes with thousands of images.
pub const MAX_FILE: u64 = 1 << 30;

/// How often a file that changes while it is read is read again.
const ATTEMPTS: usize = 8;

/// Why a bolt file could not be read.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The kernel said no.
    #[error("read {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file is larger than [`MAX_FILE`].
    #[error("read {path}: {size} bytes are more than the {MAX_FILE} that are read")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
    },
    /// Every attempt met another transaction.
    #[error("read {path}: its owner changed it during each of {ATTEMPTS} attempts")]
    Torn {
        /// The file.
        path: PathBuf,
    },
}

/// The bytes of a bolt file, consistent even while the owner writes.
///
/// Bolt never overwrites a page of the newest committed tree, so a copy is whole when both
/// metas are the same before and after it was made; otherwise it is made again.
pub fn read_database(path: &Path) -> Result<Vec<u8>, LoadError> {
    let io = |source| LoadError::Io {
        path: path.to_owned(),
        source,
    };
    let mut options = File::options();
    let flags = nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_CLOEXEC;
    let mut file = options
        .read(true)
        .custom_flags(flags.bits())
        .open(path)
        .map_err(io)?;
    for _ in 0..ATTEMPTS {
        let info = file.metadata().map_err(io)?;
        if !info.is_file() {
            return Err(io(io::Error::other("not a regular file")));
        }
        if info.len() > MAX_FILE {
            return Err(LoadError::TooLarge {
                path: path.to_owned(),
                size: info.len(),
            });
        }
        let before = metas(&file).map_err(io)?;
        let mut bytes = Vec::with_capacity(info.len() as usize);
        io::Seek::rewind(&mut file).map_err(io)?;
        (&mut file)
            .take(MAX_FILE)
            .read_to_end(&mut bytes)
            .map_err(io)?;
        if before == metas(&file).map_err(io)? {
            return Ok(bytes);
        }
    }
    Err(LoadError::Torn {
        path: path.to_owned(),
    })
}

/// The first bytes of every place where a meta can be.
fn metas(file: &File) -> io::Result<Vec<u8>> {
    let places = std::iter::once(0).chain((9..=16).map(|bits| 1u64 << bits));
    let mut all = Vec::new();
    for place in places {
        let mut meta = [0; format::PAGE_HEADER + format::META];
        match file.read_exact_at(&mut meta, place) {
            Ok(()) => all.extend(meta),
            Err(err) if err.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(err) => return Err(err),
        }
    }
    Ok(all)
}
