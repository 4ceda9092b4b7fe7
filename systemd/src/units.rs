//! The unit files and drop-ins, as they are shipped and as they are written.
//!
//! Stage: arm. It takes the binary's path, the starters and the file system under
//! the containerd root and gives texts with their paths. `units/` holds the only
//! copy of each text: packages ship it, arming writes it, the tests verify it.

use std::time::Duration;

use crate::paths::UNITS;

/// The boot run's unit, with `@BINARY@` for the program's path.
pub const BOOT: &str = include_str!("../units/repave-boot.service");
/// The unit that takes away an intent that did not run.
pub const LATE: &str = include_str!("../units/repave-late.service");
/// The unit that closes a run, with `@BINARY@`.
pub const FINISH: &str = include_str!("../units/repave-finish.service");
/// The unit that removes what was moved aside, with `@BINARY@`.
pub const CLEANUP: &str = include_str!("../units/repave-cleanup.service");
/// The gate, a drop-in of every starter.
pub const GATE: &str = include_str!("../units/50-repave.conf");

/// The name of the gate drop-in in a starter's folder.
pub const GATE_NAME: &str = "50-repave.conf";
/// The name of the cleanup unit.
pub const CLEANUP_UNIT: &str = "repave-cleanup.service";
/// The boot unit's drop-in with what only the run knows.
pub const RUN_DROP_IN: &str = "/etc/systemd/system/repave-boot.service.d/50-this-run.conf";

/// A unit of repave, its text, and the link that enables it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// Its name.
    pub name: &'static str,
    /// Its text, with `@BINARY@` where the program's path belongs.
    pub text: &'static str,
    /// The target that wants it.
    pub wanted_by: &'static str,
}

impl Unit {
    /// Where its file is.
    pub fn path(&self) -> String {
        format!("{UNITS}/{}", self.name)
    }

    /// Where the link is that enables it.
    pub fn link(&self) -> String {
        format!("{UNITS}/{}.wants/{}", self.wanted_by, self.name)
    }
}

/// All units, in the order in which they start.
pub const ALL: [Unit; 4] = [
    Unit {
        name: "repave-boot.service",
        text: BOOT,
        wanted_by: "sysinit.target",
    },
    Unit {
        name: "repave-late.service",
        text: LATE,
        wanted_by: "multi-user.target",
    },
    Unit {
        name: "repave-finish.service",
        text: FINISH,
        wanted_by: "multi-user.target",
    },
    Unit {
        name: CLEANUP_UNIT,
        text: CLEANUP,
        wanted_by: "multi-user.target",
    },
];

/// The units that start containers, gated whether they are there or not: one that is
/// installed between arm and boot must find the gate.
pub const STARTERS: [&str; 8] = [
    "k3s.service",
    "k3s-agent.service",
    "containerd.service",
    "kubelet.service",
    "crio.service",
    "docker.service",
    "rke2-server.service",
    "rke2-agent.service",
];

/// Why a text cannot be written into a unit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not the name of a service.
    #[error("{name:?} is not the name of a service unit")]
    Name {
        /// What was given.
        name: String,
    },
    /// A path that a unit file cannot carry plainly.
    #[error("{path:?} is not an absolute path of letters, digits and ._-/+:@")]
    Path {
        /// What was given.
        path: String,
    },
}

/// A file to write: where and what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitFile {
    /// Its path on the host.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// How long the boot run may take, for a skeleton of this many datasets: above the sum
/// of the deadlines inside. Every dataset is a create and a check, of 300 s and 60 s.
pub fn boot_limit(datasets: usize) -> Duration {
    Duration::from_secs(3000) + Duration::from_secs(360) * u32::try_from(datasets).unwrap_or(60)
}

/// All unit files and drop-ins for a boot binary at `binary`, gating the fixed
/// starters and `found`, waiting for `containerd_mount` where it is given, with the
/// time that `datasets` need.
pub fn render(
    binary: &str,
    found: &[String],
    containerd_mount: Option<&str>,
    datasets: usize,
) -> Result<Vec<UnitFile>, UnitError> {
    check_path(binary)?;
    let mut files: Vec<UnitFile> = ALL
        .iter()
        .map(|unit| UnitFile {
            path: unit.path(),
            text: unit.text.replace("@BINARY@", binary),
        })
        .collect();
    let mut starters: Vec<&str> = STARTERS.to_vec();
    for name in found {
        check_name(name)?;
        if !starters.contains(&name.as_str()) {
            starters.push(name);
        }
    }
    files.extend(starters.iter().map(|name| UnitFile {
        path: gate_path(name),
        text: GATE.to_owned(),
    }));
    let mut text = "# Written when this node was armed: what only the run knows.\n".to_owned();
    if let Some(mount) = containerd_mount {
        check_path(mount)?;
        text.push_str(&format!(
            "\n[Unit]\n# The file system under the containerd root, whose metadata the run clears. Never\n\
             # one on the pool: that would be a cycle.\nRequiresMountsFor={mount}\n"
        ));
    }
    text.push_str(&format!(
        "\n[Service]\n# Above the sum of all deadlines inside, for {datasets} datasets.\n\
         TimeoutStartSec={}\n",
        boot_limit(datasets).as_secs()
    ));
    files.push(UnitFile {
        path: RUN_DROP_IN.to_owned(),
        text,
    });
    Ok(files)
}

/// Where the gate of a starter is.
pub fn gate_path(starter: &str) -> String {
    format!("{UNITS}/{starter}.d/{GATE_NAME}")
}

/// A service's name without what systemd or a shell would read as more (systemd.unit(5)).
fn check_name(name: &str) -> Result<(), UnitError> {
    let stem = name.strip_suffix(".service").unwrap_or_default();
    let plain = |b: u8| b.is_ascii_alphanumeric() || b":-_.@".contains(&b);
    match !stem.is_empty() && !stem.starts_with('.') && stem.bytes().all(plain) {
        true if name.len() < 256 => Ok(()),
        _ => Err(UnitError::Name {
            name: name.chars().take(80).collect(),
        }),
    }
}

/// Unit files split at blanks and expand `%`; paths with either are refused, not quoted.
fn check_path(path: &str) -> Result<(), UnitError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-/+:@".contains(&b);
    let dots = path.split('/').any(|part| part == "..");
    match path.starts_with('/') && !dots && path.bytes().all(plain) && path.len() < 4096 {
        true => Ok(()),
        false => Err(UnitError::Path {
            path: path.chars().take(80).collect(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of a directive, one list over all its lines.
    fn values<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
        text.lines()
            .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .flat_map(str::split_whitespace)
            .collect()
    }

    #[test]
    fn rendering_leaves_no_placeholder_and_gates_every_starter_once() {
        let found = [
            "k3s-agent.service".to_owned(),
            "k3s-edge.service".to_owned(),
        ];
        let files = render(
            "/var/lib/repave/bin/ab/repave-boot",
            &found,
            Some("/var/lib"),
            5,
        )
        .unwrap();
        assert_eq!(files.len(), 4 + 9 + 1);
        assert!(files.iter().all(|f| !f.text.contains("@BINARY@ ")));
        assert_eq!(
            values(&files[0].text, "ExecStart"),
            ["/var/lib/repave/bin/ab/repave-boot", "run"]
        );
        assert_eq!(
            files[12].path,
            "/etc/systemd/system/k3s-edge.service.d/50-repave.conf"
        );
        assert_eq!(files[13].path, RUN_DROP_IN);
        assert_eq!(values(&files[13].text, "RequiresMountsFor"), ["/var/lib"]);
        assert_eq!(values(&files[13].text, "TimeoutStartSec"), ["4800"]);
        let plain = render("/b", &[], None, 0).unwrap();
        assert!(values(&plain[12].text, "RequiresMountsFor").is_empty());
        assert_eq!(values(&plain[12].text, "TimeoutStartSec"), ["3000"]);
    }

    #[test]
    fn names_and_paths_that_a_unit_would_read_as_more_are_refused() {
        for bad in [
            "",
            ".service",
            "a b.service",
            "../x.service",
            "k3s",
            "a/b.service",
            "%n.service",
        ] {
            let found = [bad.to_owned()];
            assert!(render("/b", &found, None, 1).is_err(), "{bad:?}");
        }
        for bad in ["", "b", "/a b", "/a%b", "/a/../b", "/a\nExecStart=/x"] {
            assert!(render(bad, &[], None, 1).is_err(), "{bad:?}");
            assert!(render("/b", &[], Some(bad), 1).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_units_are_enabled_where_the_links_are_looked_for() {
        for unit in ALL {
            assert_eq!(
                values(unit.text, "WantedBy"),
                [unit.wanted_by],
                "{}",
                unit.name
            );
        }
    }

    #[test]
    fn starters_are_ordered_in_every_unit_that_must_end_before_them() {
        for text in [BOOT, LATE, FINISH] {
            let before = values(text, "Before");
            assert!(STARTERS.iter().all(|s| before.contains(s)), "{before:?}");
        }
        assert_eq!(
            values(GATE, "After"),
            [
                "repave-boot.service",
                "repave-late.service",
                "repave-finish.service"
            ]
        );
        assert_eq!(
            values(GATE, "AssertPathExists"),
            ["!/var/lib/repave/changed"]
        );
    }

    #[test]
    fn the_boot_run_is_before_all_that_imports_and_never_after_the_local_file_systems() {
        let before = values(BOOT, "Before");
        for unit in [
            "zfs-load-module.service",
            "zfs-import-cache.service",
            "zfs-import-scan.service",
            "zfs-import.target",
            "zfs-load-key.service",
            "zfs-mount.service",
            "local-fs.target",
            "repave-late.service",
            "repave-finish.service",
            "shutdown.target",
        ] {
            assert!(before.contains(&unit), "{unit}");
        }
        let after = values(BOOT, "After");
        for target in [
            "local-fs.target",
            "sysinit.target",
            "basic.target",
            "network.target",
        ] {
            assert!(!after.contains(&target), "{target}");
        }
        assert_eq!(values(BOOT, "RequiresMountsFor"), ["/var/lib/repave"]);
        assert!(values(BOOT, "Wants").is_empty() && values(BOOT, "Requires").is_empty());
        assert!(values(BOOT, "FailureAction").is_empty());
    }

    #[test]
    fn one_boot_is_one_turn_and_never_the_boot_that_armed() {
        let conditions = values(BOOT, "ConditionPathExists");
        assert_eq!(
            conditions,
            [
                "|/var/lib/repave/intent.json",
                "|/var/lib/repave/changed",
                "!/run/repave/armed",
                "!/run/repave/boot"
            ]
        );
        assert_eq!(values(BOOT, "RuntimeDirectory"), ["repave/boot"]);
        assert_eq!(values(BOOT, "RuntimeDirectoryPreserve"), ["yes"]);
        assert!(values(LATE, "ConditionPathExists").contains(&"!/run/repave/armed"));
        assert!(values(LATE, "ConditionPathExists").contains(&"!/var/lib/repave/changed"));
    }

    #[test]
    fn late_executes_nothing_of_repave() {
        assert!(!LATE.contains("@BINARY@"));
        assert_eq!(
            values(LATE, "ExecStart"),
            [
                "/bin/rm",
                "-f",
                "/var/lib/repave/intent.json",
                "-/bin/sync",
                "/var/lib/repave"
            ]
        );
    }
}
