//! Reads the policy's files, by the rule of systemd's drop-ins: a name in /etc hides the
//! same name in /run, that one /usr/lib's; then they are read in order of name. No more
//! of a file is read than a policy may have.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use repave_plan::policy::{DropIn, MAX_FILE, Policy, PolicyError, parse_policy};
use repave_survey::root::Root;

/// The places, the weakest first.
const PLACES: [&str; 3] = [
    "/usr/lib/repave/policy.d",
    "/run/repave/policy.d",
    "/etc/repave/policy.d",
];

/// Why there is no policy.
#[derive(Debug, thiserror::Error)]
pub enum PolicyFilesError {
    /// A file or a folder could not be read.
    #[error("read the policy {path}")]
    Read {
        /// The path.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// What was read is no policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// The policy of these files, in their order, or of the host's drop-ins.
pub fn read_policy(root: &Root, files: &[PathBuf]) -> Result<Policy, PolicyFilesError> {
    let drop_ins = match files.is_empty() {
        true => read_drop_ins(root)?,
        false => files
            .iter()
            .map(|path| read_given(path))
            .collect::<Result<_, _>>()?,
    };
    Ok(parse_policy(&drop_ins)?)
}

/// A file named on the command line.
pub fn read_given(path: &Path) -> Result<DropIn, PolicyFilesError> {
    let shown = path.display().to_string();
    let fail = |source| PolicyFilesError::Read {
        path: shown.clone(),
        source,
    };
    // A pipe without a writer must not hang the command.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)
        .map_err(fail)?;
    let size = file.metadata().map_err(fail)?.len();
    check_size(&shown, size)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(fail)?;
    Ok(DropIn { path: shown, bytes })
}

fn read_drop_ins(root: &Root) -> Result<Vec<DropIn>, PolicyFilesError> {
    let fail = |path: &str, source| PolicyFilesError::Read {
        path: path.to_owned(),
        source,
    };
    let mut chosen: BTreeMap<String, String> = BTreeMap::new();
    for place in PLACES {
        for name in root.list(place).map_err(|e| fail(place, e))? {
            if name.ends_with(".toml") && !name.starts_with('.') {
                let path = format!("{place}/{name}");
                chosen.insert(name, path);
            }
        }
    }
    if chosen.is_empty() {
        return Err(PolicyError::None {
            places: PLACES.join(", "),
        }
        .into());
    }
    let mut drop_ins = Vec::new();
    for path in chosen.into_values() {
        let stat = root.stat(&path).map_err(|e| fail(&path, e))?;
        check_size(&path, stat.map_or(0, |s| s.st_size.unsigned_abs()))?;
        let bytes = root
            .read_bytes(&path, MAX_FILE as u64)
            .map_err(|e| fail(&path, e))?;
        drop_ins.push(DropIn { path, bytes });
    }
    Ok(drop_ins)
}

fn check_size(path: &str, size: u64) -> Result<(), PolicyError> {
    match size > MAX_FILE as u64 {
        false => Ok(()),
        true => Err(PolicyError::TooLarge {
            path: path.to_owned(),
            size,
            max: MAX_FILE,
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const POLICY: &str = "version = 1\nmode = \"grow\"\n[pool]\n";

    fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = Root::at(dir.path()).unwrap();
        (dir, root)
    }

    fn pool(files: &[(&str, &str)]) -> Result<String, String> {
        let (_dir, root) = host(files);
        let found = read_policy(&root, &[]);
        found
            .map(|p| p.disk.pool.to_string())
            .map_err(|e| e.to_string())
    }

    #[test]
    fn a_stronger_place_hides_a_name_and_names_decide_the_order() {
        let base = ("usr/lib/repave/policy.d/10-base.toml", POLICY);
        let usr = (
            "usr/lib/repave/policy.d/50-pool.toml",
            "disk.pool = \"usr\"",
        );
        let run = ("run/repave/policy.d/50-pool.toml", "disk.pool = \"run\"");
        let etc = ("etc/repave/policy.d/50-pool.toml", "disk.pool = \"etc\"");
        // The order of names, not of places: /usr/lib's 90 is read after /etc's 50.
        let late = (
            "usr/lib/repave/policy.d/90-late.toml",
            "disk.pool = \"late\"",
        );
        let other = ("etc/repave/policy.d/95-note.txt", "disk.pool = \"txt\"");
        let hidden = ("etc/repave/policy.d/.96.toml", "disk.pool = \"hidden\"");
        assert_eq!(pool(&[base, usr]).unwrap(), "usr");
        assert_eq!(pool(&[base, usr, run]).unwrap(), "run");
        assert_eq!(pool(&[base, etc, usr, run]).unwrap(), "etc");
        assert_eq!(pool(&[base, etc, late, other, hidden]).unwrap(), "late");
        // An empty file in a stronger place takes the weaker one away.
        let mask = ("etc/repave/policy.d/90-late.toml", "");
        assert_eq!(pool(&[base, etc, late, mask]).unwrap(), "etc");
    }

    #[test]
    fn no_policy_anywhere_names_the_places() {
        assert_eq!(
            pool(&[]).unwrap_err(),
            "no policy was found in /usr/lib/repave/policy.d, /run/repave/policy.d, \
             /etc/repave/policy.d"
        );
    }

    #[test]
    fn a_policy_of_100_mb_is_not_read() {
        let (dir, root) = host(&[("etc/repave/policy.d/10.toml", POLICY)]);
        let path = dir.path().join("etc/repave/policy.d/10.toml");
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(100 << 20).unwrap();
        let too_large = |error: PolicyFilesError| match error {
            PolicyFilesError::Policy(PolicyError::TooLarge { size, max, .. }) => (size, max),
            other => panic!("{other}"),
        };
        let expected = (100 << 20, MAX_FILE);
        assert_eq!(too_large(read_policy(&root, &[]).unwrap_err()), expected);
        assert_eq!(
            too_large(read_policy(&root, &[path]).unwrap_err()),
            expected
        );
    }
}
