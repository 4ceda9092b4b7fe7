//! The boot binary's place on the host.
//!
//! Stage: arm. It takes the binary's bytes and the digest they must have and gives the
//! path the units execute. A baked binary of that digest is preferred; otherwise the
//! bytes go under `/var/lib/repave/bin`, named by content, so that an armed run never
//! finds another version in its place. Nothing is executed here.

use repave_plan::units::Digest;

use crate::files::{FileError, HostFiles, temporary};
use crate::paths::{BAKED_BINARY, BIN, binary_dir};

/// No boot binary is anywhere near this; a bound for what is read back.
const LIMIT: u64 = 64 * 1024 * 1024;

/// The type that systemd may execute (SELinux reference policy, `init.te`, `corecommands.fc`);
/// the default under `/var/lib` is one it may not.
pub const EXECUTABLE_LABEL: &str = "system_u:object_r:bin_t:s0";

/// Why the binary is not in place.
#[derive(Debug, thiserror::Error)]
pub enum BinaryError {
    /// A file effect failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// Other bytes than the digest says.
    #[error("the boot binary at {path} is {found}, expected {expected}")]
    Digest {
        /// Where; `the request` before anything was written.
        path: String,
        /// What was expected.
        expected: Digest,
        /// What was found.
        found: Digest,
    },
    /// The label is not what was set.
    #[error("the label of {path} reads back as {found:?}, expected {EXECUTABLE_LABEL}")]
    Label {
        /// The path.
        path: String,
        /// What was found.
        found: Option<String>,
    },
}

/// Puts the binary in place and gives its path.
pub fn place(
    files: &dyn HostFiles,
    bytes: &[u8],
    expected: &Digest,
) -> Result<String, BinaryError> {
    check("the request", bytes, expected)?;
    if let Some(baked) = files.read(BAKED_BINARY, LIMIT)?
        && Digest::of(&baked) == *expected
    {
        return Ok(BAKED_BINARY.to_owned());
    }
    let dir = binary_dir(expected);
    let path = format!("{dir}/repave-boot");
    let new = temporary(&path);
    files.make_dir(BIN)?;
    files.make_dir(&dir)?;
    files.write(&new, bytes, 0o755)?;
    // A host without SELinux has no such file, and labels there mean nothing.
    if files.exists("/sys/fs/selinux/enforce")? {
        files.set_label(&new, EXECUTABLE_LABEL)?;
        let found = files.label(&new)?;
        if found.as_deref() != Some(EXECUTABLE_LABEL) {
            return Err(BinaryError::Label { path, found });
        }
    }
    files.rename(&new, &path)?;
    files.sync_dir(&dir)?;
    files.sync_dir(BIN)?;
    let back = files.read(&path, LIMIT)?.unwrap_or_default();
    check(&path, &back, expected)?;
    Ok(path)
}

fn check(path: &str, bytes: &[u8], expected: &Digest) -> Result<(), BinaryError> {
    let found = Digest::of(bytes);
    match found == *expected {
        true => Ok(()),
        false => Err(BinaryError::Digest {
            path: path.to_owned(),
            expected: *expected,
            found,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::RootFiles;

    fn files() -> (tempfile::TempDir, RootFiles) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("var/lib/repave")).unwrap();
        std::fs::create_dir_all(dir.path().join("usr/libexec/repave")).unwrap();
        let files = RootFiles::open(dir.path()).unwrap();
        (dir, files)
    }

    #[test]
    fn the_path_is_named_by_content() {
        let (_dir, files) = files();
        let path = place(&files, b"abc", &Digest::of(b"abc")).unwrap();
        assert_eq!(
            path,
            "/var/lib/repave/bin/ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad/repave-boot"
        );
        assert_eq!(files.read(&path, 9).unwrap().unwrap(), b"abc");
    }

    #[test]
    fn a_baked_binary_counts_only_with_the_same_digest() {
        let (_dir, files) = files();
        files.write(BAKED_BINARY, b"old", 0o755).unwrap();
        assert_ne!(
            place(&files, b"abc", &Digest::of(b"abc")).unwrap(),
            BAKED_BINARY
        );
        files.write(BAKED_BINARY, b"abc", 0o755).unwrap();
        assert_eq!(
            place(&files, b"abc", &Digest::of(b"abc")).unwrap(),
            BAKED_BINARY
        );
    }

    #[test]
    fn other_bytes_are_not_put_in_place() {
        let (_dir, files) = files();
        let error = place(&files, b"abd", &Digest::of(b"abc")).unwrap_err();
        assert!(matches!(error, BinaryError::Digest { .. }));
        assert!(!files.exists(BIN).unwrap());
    }
}
