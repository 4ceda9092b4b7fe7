//! The old database, kept for people under the run's own directory.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::rewrite::sync_dir;

/// What a kept database is called.
const NAME: &str = "containerd-meta.db";

/// Writes a copy into `dir` and gives its path; a copy that is there already is not doubled,
/// and one of other content is not replaced.
pub fn keep(dir: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    fs::create_dir_all(dir)?;
    let mut path = dir.join(NAME);
    for number in 2.. {
        match fs::read(&path) {
            Ok(there) if there == bytes => return Ok(path),
            Ok(_) => path = dir.join(format!("{NAME}.{number}")),
            Err(err) if err.kind() == io::ErrorKind::NotFound => break,
            Err(err) => return Err(err),
        }
    }
    // Renamed into place when it is whole: a torn copy must not pass for the old file.
    let part = dir.join(format!(".{NAME}.part"));
    let mut file = File::create(&part)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&part, &path)?;
    sync_dir(dir)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_neither_doubled_nor_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("runs/1");
        assert_eq!(keep(&run, b"one").unwrap(), run.join("containerd-meta.db"));
        assert_eq!(keep(&run, b"one").unwrap(), run.join("containerd-meta.db"));
        assert_eq!(
            keep(&run, b"two").unwrap(),
            run.join("containerd-meta.db.2")
        );
        assert_eq!(
            keep(&run, b"two").unwrap(),
            run.join("containerd-meta.db.2")
        );
        assert_eq!(fs::read(run.join("containerd-meta.db")).unwrap(), b"one");
        assert_eq!(fs::read_dir(&run).unwrap().count(), 2);
    }
}
