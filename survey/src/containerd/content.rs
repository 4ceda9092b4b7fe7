//! The content store on disk: a file per blob, named by its digest.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256, Sha512};

use super::layout::CONTENT;

/// What the disk has for a digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileState {
    /// A regular file of so many bytes.
    Present(u64),
    /// Nothing.
    Missing,
    /// Something that cannot be used: the kernel's words, or what it is instead of a file.
    Unreadable(String),
}

/// The blobs of a containerd root.
#[derive(Debug, Clone)]
pub struct ContentStore {
    blobs: PathBuf,
}

impl ContentStore {
    /// The store under a containerd root. Nothing is opened yet.
    pub fn of(root: &Path) -> ContentStore {
        ContentStore {
            blobs: root.join(CONTENT).join("blobs"),
        }
    }

    /// The file of a digest; `None` if the text is not a digest and could lead elsewhere.
    pub fn path(&self, digest: &str) -> Option<PathBuf> {
        let (algorithm, hex) = digest.split_once(':')?;
        let named = !algorithm.is_empty() && algorithm.bytes().all(|b| b.is_ascii_alphanumeric());
        let hexed = !hex.is_empty() && hex.bytes().all(|b| b.is_ascii_hexdigit());
        (named && hexed).then(|| self.blobs.join(algorithm).join(hex))
    }

    /// What the disk has for a digest.
    pub fn file(&self, digest: &str) -> FileState {
        let Some(path) = self.path(digest) else {
            return FileState::Unreadable("not a digest".to_owned());
        };
        match fs::symlink_metadata(path) {
            Ok(info) if info.is_file() => FileState::Present(info.len()),
            Ok(_) => FileState::Unreadable("not a regular file".to_owned()),
            Err(err) if err.kind() == io::ErrorKind::NotFound => FileState::Missing,
            Err(err) => FileState::Unreadable(err.to_string()),
        }
    }

    /// The content of a blob of at most `limit` bytes.
    pub fn read(&self, digest: &str, limit: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(digest)?.take(limit + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            return Err(io::Error::other(format!("more than {limit} bytes")));
        }
        Ok(bytes)
    }

    /// Whether a blob's content is what its digest says.
    pub fn verify(&self, digest: &str) -> io::Result<bool> {
        let mut file = self.open(digest)?;
        let actual = match digest.split_once(':') {
            Some(("sha256", _)) => hash::<Sha256>(&mut file)?,
            Some(("sha512", _)) => hash::<Sha512>(&mut file)?,
            _ => return Err(io::Error::other("unknown digest algorithm")),
        };
        Ok(digest.split_once(':').is_some_and(|(_, hex)| hex == actual))
    }

    fn open(&self, digest: &str) -> io::Result<File> {
        let path = self.path(digest);
        let path = path.ok_or_else(|| io::Error::other("not a digest"))?;
        let flags = nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_CLOEXEC;
        File::options()
            .read(true)
            .custom_flags(flags.bits())
            .open(path)
    }
}

fn hash<D: sha2::Digest>(file: &mut File) -> io::Result<String> {
    let mut hasher = D::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => hasher.update(&buffer[..n]),
        }
    }
    let hex = |byte: &u8| format!("{byte:02x}");
    Ok(hasher.finalize().iter().map(hex).collect())
}

/// The hexadecimal SHA-256 or SHA-512 of bytes, by the algorithm of a digest, compared to it.
pub(super) fn bytes_match(digest: &str, bytes: &[u8]) -> bool {
    let hex = |raw: &[u8]| -> String { raw.iter().map(|byte| format!("{byte:02x}")).collect() };
    match digest.split_once(':') {
        Some(("sha256", want)) => hex(&Sha256::digest(bytes)) == want,
        Some(("sha512", want)) => hex(&Sha512::digest(bytes)) == want,
        _ => false,
    }
}
