//! containerd's configuration as text, in its three versions and as k3s's template.
//!
//! Takes the text of one file, gives what matters here: root, CRI snapshotter and the
//! snapshotters' own directories. What stands inside a template's blocks depends on
//! values that only k3s has, and is never guessed.

use std::collections::BTreeMap;

use toml::{Table, Value};

/// What one or more configuration files say. `None` is "not said".
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// containerd's root directory.
    pub root: Option<String>,
    /// The snapshotter of CRI.
    pub snapshotter: Option<String>,
    /// Directories of single snapshotters, by the snapshotter's name.
    pub snapshotter_roots: BTreeMap<String, String>,
    /// Further files, as patterns.
    pub imports: Vec<String>,
}

impl Settings {
    /// These settings with those of a file that is read later over them.
    pub fn with(mut self, later: Settings) -> Settings {
        self.root = later.root.or(self.root);
        self.snapshotter = later.snapshotter.or(self.snapshotter);
        self.snapshotter_roots.extend(later.snapshotter_roots);
        self.imports = later.imports;
        self
    }
}

/// Why a configuration could not be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadConfig {
    /// It is not TOML.
    #[error("read it as TOML: {what}")]
    Syntax {
        /// The parser's words.
        what: String,
    },
    /// A key does not have the type it must have.
    #[error("take {key} as {expected}")]
    Type {
        /// The key with its parents.
        key: String,
        /// What it must be.
        expected: &'static str,
    },
    /// Its version is newer than this program.
    #[error("read version {found} of containerd's configuration (1 to 3 are known)")]
    Version {
        /// The version found.
        found: i64,
    },
}

/// Reads a `config.toml` of version 1, 2 or 3.
pub fn parse_config(text: &str) -> Result<Settings, BadConfig> {
    let table: Table = text
        .parse()
        .map_err(|e: toml::de::Error| BadConfig::Syntax {
            what: e.to_string().trim().replace('\n', "; "),
        })?;
    settings_of(&table)
}

/// Reads k3s's template: the lines that stand outside of every block and hold no
/// template action themselves. `{{ template "base" . }}` brings in k3s's own text,
/// which says nothing of root or snapshotter that its flags do not say.
pub fn parse_template(text: &str) -> Result<Settings, BadConfig> {
    let mut depth = 0usize;
    let mut plain = String::new();
    for line in text.lines() {
        let has_action = line.contains("{{");
        if depth == 0 && !has_action {
            plain.push_str(line);
            plain.push('\n');
        }
        for action in line.split("{{").skip(1) {
            let word = action.trim_start_matches(['-', ' ', '\t']);
            let word = word
                .split(|c: char| !c.is_ascii_alphabetic())
                .next()
                .unwrap_or_default();
            match word {
                "if" | "range" | "with" | "block" | "define" => depth += 1,
                "end" => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
    }
    parse_config(&plain)
}

fn settings_of(table: &Table) -> Result<Settings, BadConfig> {
    let version = match table.get("version") {
        None => 1,
        Some(Value::Integer(found @ 1..=3)) => *found,
        Some(Value::Integer(found)) => return Err(BadConfig::Version { found: *found }),
        Some(_) => return Err(bad_type("version", "an integer")),
    };
    // containerd 2 reads older files too, so every version's place is looked at; the
    // file's own version comes first.
    let mut places: Vec<&[&str]> = vec![
        &["plugins", "io.containerd.cri.v1.images", "snapshotter"],
        &[
            "plugins",
            "io.containerd.grpc.v1.cri",
            "containerd",
            "snapshotter",
        ],
        &["plugins", "cri", "containerd", "snapshotter"],
    ];
    places.rotate_left(3 - version as usize);
    let mut snapshotter = None;
    for place in places {
        if snapshotter.is_none() {
            snapshotter = text_at(table, place)?.filter(|text| !text.is_empty());
        }
    }
    let mut imports = Vec::new();
    match table.get("imports") {
        None => {}
        Some(Value::Array(list)) => {
            for item in list {
                let text = item
                    .as_str()
                    .ok_or_else(|| bad_type("imports", "a list of texts"))?;
                imports.push(text.to_owned());
            }
        }
        Some(_) => return Err(bad_type("imports", "a list of texts")),
    }
    Ok(Settings {
        root: text_at(table, &["root"])?.filter(|text| !text.is_empty()),
        snapshotter,
        snapshotter_roots: snapshotter_roots(table)?,
        imports,
    })
}

fn snapshotter_roots(table: &Table) -> Result<BTreeMap<String, String>, BadConfig> {
    let mut roots = BTreeMap::new();
    let Some(Value::Table(plugins)) = table.get("plugins") else {
        return Ok(roots);
    };
    for name in plugins.keys() {
        let Some(short) = name.strip_prefix("io.containerd.snapshotter.v1.") else {
            continue;
        };
        let root = text_at(plugins, &[name, "root_path"])?.filter(|text| !text.is_empty());
        if let Some(root) = root {
            roots.insert(short.to_owned(), root);
        }
    }
    Ok(roots)
}

/// The text at a path of keys; an absent key is `None`, another type an error.
fn text_at(table: &Table, path: &[&str]) -> Result<Option<String>, BadConfig> {
    let bad = |depth: usize, expected| bad_type(&path[..=depth].join("."), expected);
    let mut table = table;
    for (depth, key) in path.iter().enumerate() {
        match table.get(*key) {
            None => return Ok(None),
            Some(Value::Table(inner)) if depth + 1 < path.len() => table = inner,
            Some(Value::String(text)) if depth + 1 == path.len() => return Ok(Some(text.clone())),
            Some(_) if depth + 1 == path.len() => return Err(bad(depth, "a text")),
            Some(_) => return Err(bad(depth, "a table")),
        }
    }
    Ok(None)
}

fn bad_type(key: &str, expected: &'static str) -> BadConfig {
    BadConfig::Type {
        key: key.to_owned(),
        expected,
    }
}

/// The value of a key at the top level of k3s's `config.yaml`, whose keys are the
/// command's flags. `Err` when the value is there in a form that is not one plain text.
pub fn parse_k3s_value(text: &str, key: &str) -> Result<Option<String>, String> {
    let mut found = None;
    for line in text.lines() {
        // The last one counts, and `key+:` (append) makes no sense for one text.
        if let Some(value) = line
            .strip_prefix(key)
            .and_then(|rest| rest.trim_start().strip_prefix(':'))
        {
            found = Some(plain_scalar(value.trim()).ok_or_else(|| line.to_owned())?);
        }
    }
    Ok(found)
}

fn plain_scalar(value: &str) -> Option<String> {
    for quote in ['"', '\''] {
        if let Some(rest) = value.strip_prefix(quote) {
            let (inner, after) = rest.split_once(quote)?;
            let after = after.trim_start();
            let whole = after.is_empty() || after.starts_with('#');
            return (whole && !inner.contains('\\')).then(|| inner.to_owned());
        }
    }
    let value = value.split(" #").next().unwrap_or_default().trim_end();
    let plain = !value.is_empty() && !value.starts_with(['|', '>', '&', '*', '{', '[', '!', '#']);
    plain.then(|| value.to_owned())
}

/// The value of a flag in the `ExecStart=` lines of a unit's text: `--flag value` or
/// `--flag=value`. The last one counts, as it does for the program.
pub fn parse_exec_flag(unit: &str, flags: &[&str]) -> Option<String> {
    let joined = unit.replace("\\\n", " ");
    let mut found = None;
    for line in joined.lines() {
        let Some(command) = line.trim_start().strip_prefix("ExecStart=") else {
            continue;
        };
        let words: Vec<&str> = command
            .split_whitespace()
            .map(|word| word.trim_matches(['"', '\'']))
            .collect();
        for (at, word) in words.iter().enumerate() {
            for flag in flags {
                match word.strip_prefix(flag) {
                    Some("") => found = words.get(at + 1).map(|next| (*next).to_owned()),
                    Some(rest) if rest.starts_with('=') => found = Some(rest[1..].to_owned()),
                    _ => {}
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    // `cat /var/lib/rancher/k3s/agent/etc/containerd/config.toml` of k3s v1.33 started
    // with --snapshotter zfs, shortened.
    const K3S_V3: &str = r#"
# File generated by k3s. DO NOT EDIT. Use config-v3.toml.tmpl instead.
version = 3
imports = ["/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/*.toml"]
root = "/var/lib/rancher/k3s/agent/containerd"
state = "/run/k3s/containerd"

[grpc]
  address = "/run/k3s/containerd/containerd.sock"

[plugins.'io.containerd.internal.v1.opt']
  path = "/var/lib/rancher/k3s/agent/containerd"

[plugins.'io.containerd.cri.v1.images']
  snapshotter = "zfs"
  disable_snapshot_annotations = true
"#;

    // The same of k3s v1.30.
    const K3S_V2: &str = r#"
# File generated by k3s. DO NOT EDIT. Use config.toml.tmpl instead.
version = 2

[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/rancher/k3s/agent/containerd"
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"

[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "zfs"
  disable_snapshot_annotations = true

[plugins."io.containerd.snapshotter.v1.zfs"]
  root_path = "/srv/zfs-snapshots"
"#;

    #[test]
    fn all_three_versions_name_the_snapshotter() {
        let v3 = parse_config(K3S_V3).unwrap();
        assert_eq!(
            v3.root.as_deref(),
            Some("/var/lib/rancher/k3s/agent/containerd")
        );
        assert_eq!(v3.snapshotter.as_deref(), Some("zfs"));
        assert_eq!(v3.imports.len(), 1);
        let v2 = parse_config(K3S_V2).unwrap();
        assert_eq!((v2.root, v2.snapshotter.as_deref()), (None, Some("zfs")));
        assert_eq!(v2.snapshotter_roots["zfs"], "/srv/zfs-snapshots");
        let v1 = parse_config("[plugins.cri.containerd]\nsnapshotter = \"native\"\n").unwrap();
        assert_eq!(v1.snapshotter.as_deref(), Some("native"));
        assert_eq!(parse_config("").unwrap(), Settings::default());
    }

    #[test]
    fn the_files_own_version_comes_first() {
        let both = "[plugins.'io.containerd.cri.v1.images']\nsnapshotter = \"three\"\n\
                    [plugins.'io.containerd.grpc.v1.cri'.containerd]\nsnapshotter = \"two\"\n\
                    [plugins.cri.containerd]\nsnapshotter = \"one\"\n";
        for (version, expected) in [("3", "three"), ("2", "two"), ("1", "one")] {
            let settings = parse_config(&format!("version = {version}\n{both}")).unwrap();
            assert_eq!(settings.snapshotter.as_deref(), Some(expected));
        }
        assert_eq!(
            parse_config(both).unwrap().snapshotter.as_deref(),
            Some("one")
        );
    }

    #[test]
    fn what_is_not_a_configuration_is_an_error() {
        for (text, part) in [
            ("root = ", "read it as TOML"),
            ("root = 1", "take root as a text"),
            ("version = 4", "version 4"),
            ("version = \"2\"", "take version as an integer"),
            ("imports = \"x\"", "take imports as a list of texts"),
            ("[plugins]\ncri = 1", "take plugins.cri as a table"),
            (
                "[plugins.'io.containerd.snapshotter.v1.zfs']\nroot_path = 1",
                "take io.containerd.snapshotter.v1.zfs.root_path as a text",
            ),
        ] {
            let error = parse_config(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_templates_blocks_are_not_guessed() {
        let text = "{{ template \"base\" . }}\nroot = \"/data/containerd\"\n\
                    {{- if .IsRunningInUserNS }}\nroot = \"/home/x\"\n{{ end -}}\n\
                    [plugins.'io.containerd.cri.v1.images']\n\
                    snapshotter = \"{{ .NodeConfig.AgentConfig.Snapshotter }}\"\n\
                    {{ range $k, $v := .X }}{{ if $v }}\nsnapshotter = \"a\"\n{{ end }}\n\
                    snapshotter = \"b\"\n{{end}}\n";
        let settings = parse_template(text).unwrap();
        assert_eq!(settings.root.as_deref(), Some("/data/containerd"));
        assert_eq!(settings.snapshotter, None);
        let plain = "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\n\
                     snapshotter = \"zfs\"\n{{ if .X }}x{{ end }}\n";
        assert_eq!(
            parse_template(plain).unwrap().snapshotter.as_deref(),
            Some("zfs")
        );
    }

    #[test]
    fn k3s_values_are_plain_texts_at_the_top() {
        let text = "node-label:\n  - \"snapshotter: x\"\n  snapshotter: nested\n\
                    snapshotter: zfs # the pool\ndata-dir: \"/data/k3s\"  # moved\n\
                    token: 'a b'\nkubelet-arg: [a]\nempty:\nsnapshotter-x: y\n";
        let value = |key| parse_k3s_value(text, key);
        assert_eq!(value("snapshotter"), Ok(Some("zfs".into())));
        assert_eq!(value("data-dir"), Ok(Some("/data/k3s".into())));
        assert_eq!(value("token"), Ok(Some("a b".into())));
        assert_eq!(value("server"), Ok(None));
        for odd in ["kubelet-arg", "empty", "node-label"] {
            assert!(value(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn flags_of_a_unit_are_found() {
        // The unit that k3s's install.sh writes.
        let unit = "[Service]\nExecStartPre=/bin/sh --data-dir /no\nExecStart=/usr/local/bin/k3s \\\n\
                    \x20   agent \\\n\t'--snapshotter' \\\n\t'zfs' \\\n\t'--data-dir=/data/k3s' \\\n\n";
        assert_eq!(
            parse_exec_flag(unit, &["--snapshotter"]).as_deref(),
            Some("zfs")
        );
        let data_dir = parse_exec_flag(unit, &["--data-dir", "-d"]);
        assert_eq!(data_dir.as_deref(), Some("/data/k3s"));
        assert_eq!(parse_exec_flag(unit, &["--root"]), None);
    }
}
