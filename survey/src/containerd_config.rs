//! Where containerd keeps its things on this host.
//!
//! Takes the configuration of k3s, rke2 or plain containerd (generated files first,
//! then templates, flags and defaults) and the policy's word, which wins; gives root,
//! snapshotter and the file systems they lie on. It reads files and asks no daemon.

use std::io;

use repave_plan::policy::ContainerdPolicy;
use repave_plan::survey::Containerd;

use crate::containerd_parse::{
    BadConfig, Settings, parse_config, parse_exec_flag, parse_k3s_value, parse_template,
};
use crate::host::UNIT_DIRECTORIES;
use crate::mounts::{Mount, MountError, path_facts};
use crate::root::Root;

/// The most files that a configuration may import.
const MAX_IMPORTS: usize = 64;

const PLAIN_CONFIG: &str = "/etc/containerd/config.toml";
const PLAIN_ROOT: &str = "/var/lib/containerd";
const DEFAULT_SNAPSHOTTER: &str = "overlayfs";

/// The metadata database below containerd's root.
pub const DATABASE: &str = "io.containerd.metadata.v1.bolt/meta.db";

/// Why containerd's place could not be found out.
#[derive(Debug, thiserror::Error)]
pub enum ContainerdError {
    /// A file could not be read.
    #[error("read {path}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A file was not understood.
    #[error("understand {path} (correct it, or name root and snapshotter in the policy)")]
    Config {
        /// The file.
        path: String,
        /// Why.
        source: BadConfig,
    },
    /// A file imports more than can be meant.
    #[error("follow the imports of {path}: more than {MAX_IMPORTS} files")]
    Imports {
        /// The file.
        path: String,
    },
    /// A file of k3s has a value in a form that is not one plain text.
    #[error("take {line:?} in {path} as one plain text (name root and snapshotter in the policy)")]
    Value {
        /// The file.
        path: String,
        /// The line.
        line: String,
    },
    /// The file system under a directory could not be seen.
    #[error(transparent)]
    Mount(#[from] MountError),
}

/// A distribution that brings its own containerd.
struct Distribution {
    config_dir: &'static str,
    data_dir: &'static str,
    units: [&'static str; 2],
}

const DISTRIBUTIONS: [Distribution; 2] = [
    Distribution {
        config_dir: "/etc/rancher/k3s",
        data_dir: "/var/lib/rancher/k3s",
        units: ["k3s.service", "k3s-"],
    },
    Distribution {
        config_dir: "/etc/rancher/rke2",
        data_dir: "/var/lib/rancher/rke2",
        units: ["rke2-agent.service", "rke2-server.service"],
    },
];

/// What was found, before the policy is heard.
#[derive(Default)]
struct Found {
    by: String,
    root: String,
    settings: Settings,
}

/// Finds containerd. `None` when nothing of it is there and the policy names no root.
pub fn read_containerd(
    root: &Root,
    mounts: &[Mount],
    policy: Option<&ContainerdPolicy>,
) -> Result<Option<Containerd>, ContainerdError> {
    let wanted_root = policy.and_then(|policy| policy.root.clone());
    let wanted_snapshotter = policy.and_then(|policy| policy.snapshotter.clone());
    let found = match (&wanted_root, &wanted_snapshotter) {
        // Both are named: a file that cannot be understood is then no hindrance.
        (Some(_), Some(_)) => find(root).unwrap_or_default(),
        _ => find(root)?,
    };
    let (found, found_by) = match (found, &wanted_root) {
        (None, None) => return Ok(None),
        (None, Some(_)) => (Found::default(), "the policy".to_owned()),
        (Some(found), None) => {
            let by = found.by.clone();
            (found, by)
        }
        (Some(found), Some(_)) => {
            let by = format!("{} and the policy", found.by);
            (found, by)
        }
    };
    let containerd_root = wanted_root.unwrap_or(found.root);
    let snapshotter = wanted_snapshotter
        .or(found.settings.snapshotter)
        .unwrap_or_else(|| DEFAULT_SNAPSHOTTER.to_owned());
    let base = containerd_root.trim_end_matches('/').to_owned();
    let own = found.settings.snapshotter_roots.get(&snapshotter).cloned();
    let snapshotter_dir =
        own.unwrap_or_else(|| format!("{base}/io.containerd.snapshotter.v1.{snapshotter}"));
    let database = format!("{base}/{DATABASE}");
    Ok(Some(Containerd {
        found_by,
        root: path_facts(root, mounts, &containerd_root)?,
        snapshotter,
        snapshotter_dir: path_facts(root, mounts, &snapshotter_dir)?,
        database: root
            .exists(&database)
            .map_err(|source| read_error(&database, source))?,
    }))
}

fn find(root: &Root) -> Result<Option<Found>, ContainerdError> {
    for distribution in &DISTRIBUTIONS {
        if let Some(found) = find_distribution(root, distribution)? {
            return Ok(Some(found));
        }
    }
    if let Some(settings) = read_config(root, PLAIN_CONFIG)? {
        let containerd_root = settings
            .root
            .clone()
            .unwrap_or_else(|| PLAIN_ROOT.to_owned());
        return Ok(Some(Found {
            by: PLAIN_CONFIG.to_owned(),
            root: containerd_root,
            settings,
        }));
    }
    let there = root
        .exists(PLAIN_ROOT)
        .map_err(|source| read_error(PLAIN_ROOT, source))?;
    Ok(there.then(|| Found {
        by: format!("{PLAIN_ROOT}, which is there"),
        root: PLAIN_ROOT.to_owned(),
        settings: Settings::default(),
    }))
}

fn find_distribution(root: &Root, which: &Distribution) -> Result<Option<Found>, ContainerdError> {
    let units = read_units(root, &which.units)?;
    let flag = |flags: &[&str]| units.iter().find_map(|unit| parse_exec_flag(unit, flags));
    // A flag wins over the file, as it does for the program.
    let data_dir = match flag(&["--data-dir", "-d"]) {
        Some(value) => Some(value),
        None => read_k3s_value(root, which.config_dir, "data-dir")?,
    };
    let data_dir = data_dir.unwrap_or_else(|| which.data_dir.to_owned());
    let agent = format!("{}/agent", data_dir.trim_end_matches('/'));
    let default_root = format!("{agent}/containerd");
    let files = format!("{agent}/etc/containerd");

    // Made anew from the template at each start: what the running containerd was given.
    let generated = format!("{files}/config.toml");
    if let Some(settings) = read_config(root, &generated)? {
        let containerd_root = settings.root.clone().unwrap_or(default_root);
        return Ok(Some(Found {
            by: generated,
            root: containerd_root,
            settings,
        }));
    }
    let snapshotter = match flag(&["--snapshotter"]) {
        Some(value) => Some(value),
        None => read_k3s_value(root, which.config_dir, "snapshotter")?,
    };
    let flags = Settings {
        snapshotter,
        ..Settings::default()
    };
    // containerd 2 takes the second name when it is there, 1.x knows only the first.
    for name in ["config-v3.toml.tmpl", "config.toml.tmpl"] {
        let path = format!("{files}/{name}");
        let Some(text) = read_text(root, &path)? else {
            continue;
        };
        let template = parse_template(&text).map_err(|source| ContainerdError::Config {
            path: path.clone(),
            source,
        })?;
        let settings = flags.with(template);
        let containerd_root = settings.root.clone().unwrap_or(default_root);
        return Ok(Some(Found {
            by: path,
            root: containerd_root,
            settings,
        }));
    }
    let there = !units.is_empty()
        || root
            .exists(&default_root)
            .map_err(|source| read_error(&default_root, source))?;
    Ok(there.then(|| Found {
        by: format!("the defaults below {data_dir}"),
        root: default_root,
        settings: flags,
    }))
}

/// The texts of the units with one of these names; a name that ends in `-` is the
/// beginning of one.
fn read_units(root: &Root, names: &[&str]) -> Result<Vec<String>, ContainerdError> {
    let mut units = Vec::new();
    for directory in UNIT_DIRECTORIES {
        let files = root
            .list(directory)
            .map_err(|source| read_error(directory, source))?;
        for file in files {
            let wanted =
                |name: &&str| file == *name || name.ends_with('-') && file.starts_with(name);
            if file.ends_with(".service") && names.iter().any(wanted) {
                // A link that leads nowhere is a masked or removed unit.
                units.extend(read_text(root, &format!("{directory}/{file}"))?);
            }
        }
    }
    Ok(units)
}

fn read_k3s_value(
    root: &Root,
    config_dir: &str,
    key: &str,
) -> Result<Option<String>, ContainerdError> {
    let mut paths = vec![format!("{config_dir}/config.yaml")];
    let drop_ins = format!("{config_dir}/config.yaml.d");
    let names = root
        .list(&drop_ins)
        .map_err(|source| read_error(&drop_ins, source))?;
    let names = names
        .iter()
        .filter(|name| name.ends_with(".yaml") || name.ends_with(".yml"));
    paths.extend(names.map(|name| format!("{drop_ins}/{name}")));
    let mut found = None;
    for path in paths {
        let text = read_text(root, &path)?.unwrap_or_default();
        let value =
            parse_k3s_value(&text, key).map_err(|line| ContainerdError::Value { path, line })?;
        found = value.or(found);
    }
    Ok(found)
}

/// A configuration and what it imports, later files over earlier ones.
fn read_config(root: &Root, path: &str) -> Result<Option<Settings>, ContainerdError> {
    let Some(mut settings) = read_one(root, path)? else {
        return Ok(None);
    };
    let mut queue: Vec<String> = import_paths(root, path, &settings.imports)?;
    let mut seen = vec![path.to_owned()];
    while !queue.is_empty() {
        let next = queue.remove(0);
        if seen.contains(&next) {
            continue;
        }
        if seen.len() > MAX_IMPORTS {
            return Err(ContainerdError::Imports {
                path: path.to_owned(),
            });
        }
        seen.push(next.clone());
        if let Some(imported) = read_one(root, &next)? {
            queue.extend(import_paths(root, &next, &imported.imports)?);
            settings = settings.with(imported);
        }
    }
    Ok(Some(settings))
}

fn read_one(root: &Root, path: &str) -> Result<Option<Settings>, ContainerdError> {
    let Some(text) = read_text(root, path)? else {
        return Ok(None);
    };
    let settings = parse_config(&text).map_err(|source| ContainerdError::Config {
        path: path.to_owned(),
        source,
    })?;
    Ok(Some(settings))
}

/// The files that patterns name: relative ones from the importing file's directory,
/// `*` in the last component only, as containerd's own defaults have it.
fn import_paths(
    root: &Root,
    from: &str,
    patterns: &[String],
) -> Result<Vec<String>, ContainerdError> {
    let mut paths = Vec::new();
    let here = from.rsplit_once('/').map_or("", |(directory, _)| directory);
    for pattern in patterns {
        let full = match pattern.starts_with('/') {
            true => pattern.clone(),
            false => format!("{here}/{pattern}"),
        };
        let Some((directory, name)) = full.rsplit_once('/') else {
            continue;
        };
        let Some((prefix, suffix)) = name.split_once('*') else {
            paths.push(full);
            continue;
        };
        let names = root
            .list(directory)
            .map_err(|source| read_error(directory, source))?;
        let matching = names.iter().filter(|name| {
            name.len() >= prefix.len() + suffix.len()
                && name.starts_with(prefix)
                && name.ends_with(suffix)
        });
        paths.extend(matching.map(|name| format!("{directory}/{name}")));
    }
    Ok(paths)
}

fn read_text(root: &Root, path: &str) -> Result<Option<String>, ContainerdError> {
    root.read_text_if_there(path)
        .map_err(|source| read_error(path, source))
}

fn read_error(path: &str, source: io::Error) -> ContainerdError {
    ContainerdError::Read {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::mounts::parse_mountinfo;

    const K3S: &str = "var/lib/rancher/k3s/agent/etc/containerd";

    fn find_in(
        files: &[(&str, &str)],
        policy: Option<&ContainerdPolicy>,
    ) -> Result<Option<Containerd>, ContainerdError> {
        let dir = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let mounts = parse_mountinfo(
            "1 0 0:1 / / rw - ext4 /dev/vda2 rw\n2 1 0:2 / /pool rw - zfs tank/c rw\n",
        )
        .unwrap();
        read_containerd(&Root::at(dir.path()).unwrap(), &mounts, policy)
    }

    /// Root, snapshotter, the snapshotter's directory and how it was found.
    fn told(files: &[(&str, &str)]) -> [String; 4] {
        let found = find_in(files, None).unwrap().unwrap();
        [
            found.root.path,
            found.snapshotter,
            found.snapshotter_dir.path,
            found.found_by,
        ]
    }

    #[test]
    fn the_generated_file_of_k3s_wins_over_all_others() {
        let generated = "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\n\
                         snapshotter = \"zfs\"\n";
        let files = [
            (&format!("{K3S}/config.toml")[..], generated),
            (&format!("{K3S}/config.toml.tmpl"), "root = \"/template\""),
            ("etc/rancher/k3s/config.yaml", "snapshotter: native\n"),
            ("etc/containerd/config.toml", "root = \"/plain\""),
        ];
        let root = "/var/lib/rancher/k3s/agent/containerd";
        let directory = format!("{root}/io.containerd.snapshotter.v1.zfs");
        let by = format!("/{K3S}/config.toml");
        assert_eq!(told(&files), [root, "zfs", &directory, &by]);
    }

    #[test]
    fn the_data_directory_is_found_in_the_unit_and_in_the_file() {
        let unit = "[Service]\nExecStart=/usr/local/bin/k3s agent --data-dir=/data/a\n";
        let generated = "[plugins.cri.containerd]\nsnapshotter = \"zfs\"\n\
                         [plugins.'io.containerd.snapshotter.v1.zfs']\nroot_path = \"/pool/s\"\n";
        let by_unit = told(&[
            ("etc/systemd/system/k3s-agent.service", unit),
            ("etc/rancher/k3s/config.yaml", "data-dir: /data/b\n"),
            ("data/a/agent/etc/containerd/config.toml", generated),
        ]);
        let by = "/data/a/agent/etc/containerd/config.toml";
        assert_eq!(by_unit, ["/data/a/agent/containerd", "zfs", "/pool/s", by]);
        let by_file = told(&[
            ("etc/rancher/k3s/config.yaml", "data-dir: /data/a\n"),
            (
                "etc/rancher/k3s/config.yaml.d/10.yaml",
                "data-dir: /data/b\n",
            ),
            ("data/b/agent/etc/containerd/config.toml", generated),
        ]);
        assert_eq!(by_file[0], "/data/b/agent/containerd");
    }

    #[test]
    fn before_the_first_start_template_flags_and_defaults_count() {
        let template = "{{ template \"base\" . }}\nroot = \"/data/c\"\n";
        let found = told(&[
            (&format!("{K3S}/config-v3.toml.tmpl"), template),
            (&format!("{K3S}/config.toml.tmpl"), "root = \"/old\"\n"),
            ("etc/rancher/k3s/config.yaml", "snapshotter: zfs\n"),
        ]);
        assert_eq!(found[..2], ["/data/c", "zfs"]);
        let unit = "[Service]\nExecStart=/k3s agent --snapshotter zfs\n";
        let found = told(&[
            ("usr/lib/systemd/system/k3s-agent.service", unit),
            ("etc/rancher/k3s/config.yaml", "snapshotter: native\n"),
        ]);
        assert_eq!(found[..2], ["/var/lib/rancher/k3s/agent/containerd", "zfs"]);
        let found = told(&[("etc/systemd/system/rke2-agent.service", "")]);
        assert_eq!(
            found[..2],
            ["/var/lib/rancher/rke2/agent/containerd", "overlayfs"]
        );
    }

    #[test]
    fn plain_containerd_is_read_with_its_imports() {
        let found = told(&[
            (
                "etc/containerd/config.toml",
                "version = 2\nimports = [\"conf.d/*.toml\", \"/etc/containerd/config.toml\", \"none.toml\"]\n\
                 root = \"/var/lib/first\"\n",
            ),
            (
                "etc/containerd/conf.d/10.toml",
                "version = 2\nroot = \"/var/lib/second\"\n",
            ),
            (
                "etc/containerd/conf.d/20.toml.off",
                "root = \"/var/lib/third\"\n",
            ),
            (
                "etc/containerd/conf.d/20.toml",
                "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\nsnapshotter = \"zfs\"\n",
            ),
        ]);
        assert_eq!(found[..2], ["/var/lib/second", "zfs"]);
        let found = told(&[("var/lib/containerd/x", "")]);
        assert_eq!(found[..2], ["/var/lib/containerd", "overlayfs"]);
        assert_eq!(find_in(&[], None).unwrap(), None);
    }

    #[test]
    fn imports_do_not_go_on_for_ever() {
        let files: Vec<(String, String)> = (0..80)
            .map(|n| {
                (
                    format!("etc/containerd/{n}.toml"),
                    format!("imports = [\"{}.toml\"]", n + 1),
                )
            })
            .collect();
        let mut all: Vec<(&str, &str)> = files
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
            .collect();
        all.push(("etc/containerd/config.toml", "imports = [\"0.toml\"]"));
        let error = find_in(&all, None).unwrap_err();
        assert!(matches!(error, ContainerdError::Imports { .. }), "{error}");
    }

    #[test]
    fn the_policys_word_wins() {
        let policy = ContainerdPolicy {
            root: Some("/pool/containerd".to_owned()),
            snapshotter: Some("zfs".to_owned()),
            ..ContainerdPolicy::default()
        };
        let files = [
            ("etc/containerd/config.toml", "root = [1]"),
            ("pool/containerd/io.containerd.metadata.v1.bolt/meta.db", ""),
        ];
        assert!(matches!(
            find_in(&files, None),
            Err(ContainerdError::Config { .. })
        ));
        let found = find_in(&files, Some(&policy)).unwrap().unwrap();
        assert_eq!(
            (found.found_by.as_str(), found.database),
            ("the policy", true)
        );
        assert_eq!(
            (found.root.fs_type.as_str(), found.root.source.as_str()),
            ("zfs", "tank/c")
        );
        assert_eq!(
            found.snapshotter_dir.path,
            "/pool/containerd/io.containerd.snapshotter.v1.zfs"
        );
        assert!(!found.snapshotter_dir.exists);
        let only_root = ContainerdPolicy {
            snapshotter: None,
            ..policy
        };
        let plain = [("etc/containerd/config.toml", "root = \"/x\"")];
        let found = find_in(&plain, Some(&only_root)).unwrap().unwrap();
        assert_eq!(found.root.path, "/pool/containerd");
        assert_eq!(found.found_by, "/etc/containerd/config.toml and the policy");
    }

    #[test]
    fn what_is_not_understood_is_an_error_with_its_file() {
        for (path, text, part) in [
            (
                &format!("{K3S}/config.toml")[..],
                "version = 9",
                "understand /var/lib/rancher",
            ),
            (
                &format!("{K3S}/config.toml.tmpl"),
                "root = ",
                "understand /var/lib/rancher",
            ),
            (
                "etc/containerd/config.toml",
                "x",
                "understand /etc/containerd/config.toml",
            ),
            (
                "etc/rancher/k3s/config.yaml",
                "data-dir: [a]",
                "take \"data-dir: [a]\" in /etc",
            ),
        ] {
            let error = find_in(&[(path, text)], None).unwrap_err().to_string();
            assert!(error.starts_with(part), "{error}");
        }
    }
}
