//! The imported pools, asked of the host's own `zpool` and `zfs`.
//!
//! Takes the datasets somebody wants to keep, gives every imported pool; of the pool
//! that is the matter also its datasets, and the properties of the wanted ones. When
//! the zfs module is not loaded no program is started: it would load the module, and
//! without it no pool is imported.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use repave_plan::recipe::CREATION_ONLY;
use repave_plan::survey::{Dataset, DatasetKind, Pool, Property};
use repave_plan::units::{DatasetName, PoolName};

use crate::host_tools::{ToolError, Tools, ask};
use crate::mounts::Mount;
use crate::root::Root;
use crate::zpool_parse::{
    BadAnswer, DATASET_COLUMNS, DatasetRow, POOL_COLUMNS, PoolRow, has_delegation, has_quota,
    parse_dataset_list, parse_dataset_properties, parse_leaves, parse_pool_list,
    parse_pool_properties,
};

/// How long one question may take. A pool that is suspended never answers.
const LIMIT: Duration = Duration::from_secs(120);

/// How many datasets are named in one call: far below the kernel's limit on arguments.
const CHUNK: usize = 200;

/// One-time properties of volumes, and those whose value says that a dataset cannot be
/// made again as it was (OpenZFS `module/zcommon/zfs_prop.c`).
const ALSO_ASKED: &str = "encryption,volblocksize,volsize";

/// Why the pools could not be seen.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// Whether the module is loaded could not be seen.
    #[error("look at /sys/module/zfs")]
    Module {
        /// Why.
        source: io::Error,
    },
    /// The module is loaded and the programs are not there.
    #[error("find {program} although the zfs module is loaded (install the ZFS tools)")]
    NoProgram {
        /// The program.
        program: &'static str,
    },
    /// A program gave no answer.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// A program's answer was not understood.
    #[error(transparent)]
    Answer(#[from] BadAnswer),
    /// Two answers do not fit together: the pools changed in between.
    #[error("see pool {pool} twice the same ({what}); survey again")]
    Moved {
        /// The pool.
        pool: String,
        /// What changed.
        what: String,
    },
}

/// Whether the zfs module is loaded.
pub fn module_is_loaded(root: &Root) -> Result<bool, PoolError> {
    root.exists("/sys/module/zfs")
        .map_err(|source| PoolError::Module { source })
}

/// The host's programs for pools, and its mounts.
pub struct PoolReader<'a> {
    tools: &'a dyn Tools,
    zpool: &'a str,
    zfs: &'a str,
    mounted: BTreeMap<&'a str, &'a str>,
}

impl<'a> PoolReader<'a> {
    /// A reader that asks these programs (absolute paths by name).
    pub fn new(
        tools: &'a dyn Tools,
        programs: &'a BTreeMap<String, String>,
        mounts: &'a [Mount],
    ) -> Result<Self, PoolError> {
        let find = |program: &'static str| {
            let path = programs.get(program).map(String::as_str);
            path.ok_or(PoolError::NoProgram { program })
        };
        let mut mounted = BTreeMap::new();
        for mount in mounts.iter().filter(|mount| mount.fs_type == "zfs") {
            // The first place is the dataset's own; later ones are binds of it.
            mounted
                .entry(mount.source.as_str())
                .or_insert(mount.at.as_str());
        }
        Ok(PoolReader {
            tools,
            zpool: find("zpool")?,
            zfs: find("zfs")?,
            mounted,
        })
    }

    /// Names, guids and sizes of all imported pools, and nothing below them.
    pub fn read_names(&self) -> Result<Vec<Pool>, PoolError> {
        let text = self.ask(self.zpool, &["list", "-Hp", "-o", POOL_COLUMNS])?;
        Ok(parse_pool_list(&text)?.into_iter().map(bare_pool).collect())
    }

    /// Leaves and properties of a pool.
    pub fn read_pool(&self, pool: &mut Pool) -> Result<(), PoolError> {
        let name = pool.name.as_str();
        pool.leaves = parse_leaves(&self.ask(self.zpool, &["status", "-g", name])?)?;
        let get = ["get", "-Hp", "-o", "property,value,source", "all", name];
        pool.properties = parse_pool_properties(&self.ask(self.zpool, &get)?)?;
        let guid = pool
            .properties
            .get("guid")
            .map(|property| property.value.as_str());
        match guid == Some(pool.guid.to_string().as_str()) {
            true => Ok(()),
            false => Err(moved(&pool.name, "its guid".to_owned())),
        }
    }

    /// The datasets of a pool, and all that a recipe needs of the wanted ones.
    pub fn read_datasets(
        &self,
        pool: &PoolName,
        wanted: &BTreeSet<DatasetName>,
    ) -> Result<Vec<Dataset>, PoolError> {
        let list = [
            "list",
            "-Hp",
            "-r",
            "-t",
            "filesystem,volume",
            "-o",
            DATASET_COLUMNS,
        ];
        let text = self.ask(self.zfs, &[&list[..], &[pool.as_str()]].concat())?;
        let rows = parse_dataset_list(&text)?;
        let mut datasets: Vec<Dataset> = rows.into_iter().map(|row| self.bare(row)).collect();
        // `zfs list` sorts by name, and a parent's name is the shorter one; where a name
        // has a character below `/`, other names come between the two all the same.
        datasets.sort_by(|a, b| a.name.cmp(&b.name));
        if datasets
            .first()
            .is_none_or(|first| first.name.as_str() != pool.as_str())
        {
            return Err(moved(pool, "its own dataset".to_owned()));
        }
        let mut kept: Vec<&mut Dataset> = datasets
            .iter_mut()
            .filter(|dataset| wanted.contains(&dataset.name))
            .collect();
        for chunk in kept.chunks_mut(CHUNK) {
            self.read_properties(pool, chunk)?;
        }
        for dataset in kept {
            self.read_unsupported(dataset)?;
        }
        Ok(datasets)
    }

    fn bare(&self, row: DatasetRow) -> Dataset {
        let mounted_at = self
            .mounted
            .get(row.name.as_str())
            .map(|at| (*at).to_owned());
        Dataset {
            name: row.name,
            guid: row.guid,
            kind: row.kind,
            used: row.used,
            properties: BTreeMap::new(),
            mounted_at,
            unsupported: Vec::new(),
        }
    }

    fn read_properties(
        &self,
        pool: &PoolName,
        datasets: &mut [&mut Dataset],
    ) -> Result<(), PoolError> {
        let names: Vec<String> = datasets.iter().map(|d| d.name.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let columns = ["-o", "name,property,value,source"];
        let local = [
            &["get", "-Hp", "-s", "local,received"],
            &columns[..],
            &["all"],
        ]
        .concat();
        // These have no source, so a list of local properties misses them.
        let asked = format!("{},{ALSO_ASKED}", CREATION_ONLY.join(","));
        let one_time = [&["get", "-Hp"], &columns[..], &[asked.as_str()]].concat();

        let mut by_name: BTreeMap<&str, BTreeMap<String, Property>> = BTreeMap::new();
        for row in parse_dataset_properties(&self.ask(self.zfs, &[local, names.clone()].concat())?)?
        {
            let name = names.iter().find(|name| **name == row.dataset);
            let name = name.ok_or_else(|| moved(pool, format!("dataset {}", row.dataset)))?;
            let own = by_name.entry(name).or_default();
            if own.insert(row.name.clone(), row.property).is_some() {
                return Err(moved(pool, format!("property {} of {name}", row.name)));
            }
        }
        for row in
            parse_dataset_properties(&self.ask(self.zfs, &[one_time, names.clone()].concat())?)?
        {
            let name = names.iter().find(|name| **name == row.dataset);
            let name = name.ok_or_else(|| moved(pool, format!("dataset {}", row.dataset)))?;
            // `-` is the answer for a property that this kind of dataset does not have.
            if row.property.value != "-" {
                by_name
                    .entry(name)
                    .or_default()
                    .entry(row.name)
                    .or_insert(row.property);
            }
        }
        drop(names);
        let mut by_name: BTreeMap<String, _> = by_name
            .into_iter()
            .map(|(name, own)| (name.to_owned(), own))
            .collect();
        for dataset in datasets {
            let own = by_name.remove(dataset.name.as_str());
            dataset.properties =
                own.ok_or_else(|| moved(pool, format!("dataset {}", dataset.name)))?;
        }
        Ok(())
    }

    fn read_unsupported(&self, dataset: &mut Dataset) -> Result<(), PoolError> {
        let name = dataset.name.as_str();
        if dataset
            .properties
            .remove("encryption")
            .is_some_and(|p| p.value != "off")
        {
            dataset.unsupported.push("encryption".to_owned());
        }
        if has_delegation(&self.ask(self.zfs, &["allow", name])?, &dataset.name)? {
            dataset.unsupported.push("delegation".to_owned());
        }
        if dataset.kind == DatasetKind::Filesystem && self.has_user_quota(name)? {
            dataset.unsupported.push("user-quota".to_owned());
        }
        Ok(())
    }

    fn has_user_quota(&self, name: &str) -> Result<bool, PoolError> {
        // -n: numbers, so that no name service is asked. Projects have no names.
        let columns = "type,name,quota";
        let users = ["userspace", "-Hpn", "-t", "all", "-o", columns, name];
        let projects = ["projectspace", "-Hp", "-o", columns, name];
        Ok(has_quota(&self.ask(self.zfs, &users)?)? || has_quota(&self.ask(self.zfs, &projects)?)?)
    }

    fn ask(&self, program: &str, args: &[&str]) -> Result<String, ToolError> {
        ask(self.tools, program, args, LIMIT)
    }
}

/// The datasets to keep and all their parents, the pool's own dataset included.
pub fn with_parents<'a>(names: impl Iterator<Item = &'a DatasetName>) -> BTreeSet<DatasetName> {
    let mut all = BTreeSet::new();
    for name in names {
        let text = name.as_str();
        let ends = text
            .match_indices('/')
            .map(|(at, _)| at)
            .chain([text.len()]);
        // A parent of a valid name is a valid name.
        all.extend(ends.filter_map(|end| text[..end].parse().ok()));
    }
    all
}

fn bare_pool(row: PoolRow) -> Pool {
    Pool {
        name: row.name,
        guid: row.guid,
        health: row.health,
        size: row.size,
        allocated: row.allocated,
        leaves: Vec::new(),
        properties: BTreeMap::new(),
        datasets: Vec::new(),
    }
}

fn moved(pool: &PoolName, what: String) -> PoolError {
    PoolError::Moved {
        pool: pool.to_string(),
        what,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::host_tools::ToolOutput;

    /// A pool of many datasets.
    struct Many {
        datasets: usize,
        calls: RefCell<Vec<String>>,
    }

    impl Tools for Many {
        fn run(&self, program: &str, args: &[&str], _: Duration) -> Result<ToolOutput, ToolError> {
            self.calls
                .borrow_mut()
                .push(format!("{program} {}", args[..args.len().min(8)].join(" ")));
            let named = || args.iter().filter(|arg| arg.starts_with("tank"));
            let stdout = match (args[0], args.contains(&"all")) {
                ("list", _) => (0..self.datasets)
                    .map(|n| {
                        format!("tank/localpv/pvc-{n:05}-4f6c-9c1e-0242ac120002\t{n}\tvolume\t1\n")
                    })
                    .chain(["tank\t1\tfilesystem\t1\n".to_owned()])
                    .chain(["tank/localpv\t2\tfilesystem\t1\n".to_owned()])
                    .collect(),
                ("get", true) => String::new(),
                ("get", false) => named()
                    .map(|name| format!("{name}\tutf8only\toff\t-\n"))
                    .collect(),
                _ => String::new(),
            };
            Ok(ToolOutput {
                code: Some(0),
                stdout,
                stderr: String::new(),
            })
        }
    }

    fn programs() -> BTreeMap<String, String> {
        ["zpool", "zfs"]
            .map(|name| (name.to_owned(), format!("/sbin/{name}")))
            .into()
    }

    fn names(texts: &[&str]) -> BTreeSet<DatasetName> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn ten_thousand_datasets_take_no_time_and_no_further_calls() {
        let tools = Many {
            datasets: 10_000,
            calls: RefCell::default(),
        };
        let programs = programs();
        let reader = PoolReader::new(&tools, &programs, &[]).unwrap();
        let before = std::time::Instant::now();
        let wanted = names(&["tank", "tank/localpv"]);
        let datasets = reader
            .read_datasets(&"tank".parse().unwrap(), &wanted)
            .unwrap();
        // The bound is 3 s; a build for tests on a busy machine stays far below.
        assert!(
            before.elapsed() < Duration::from_secs(3),
            "{:?}",
            before.elapsed()
        );
        assert_eq!(datasets.len(), 10_002);
        assert_eq!(datasets[1].name.as_str(), "tank/localpv");
        assert_eq!(datasets[0].properties.len(), 1);
        assert!(
            datasets[2..]
                .iter()
                .all(|dataset| dataset.properties.is_empty())
        );
        // One list, two gets, and three questions for each of the two.
        assert_eq!(tools.calls.borrow().len(), 1 + 2 + 2 * 3);
    }

    #[test]
    fn many_wanted_datasets_are_asked_for_in_parts() {
        let tools = Many {
            datasets: 450,
            calls: RefCell::default(),
        };
        let programs = programs();
        let reader = PoolReader::new(&tools, &programs, &[]).unwrap();
        let pool: PoolName = "tank".parse().unwrap();
        let all = reader.read_datasets(&pool, &BTreeSet::new()).unwrap();
        let wanted = all.iter().map(|dataset| dataset.name.clone()).collect();
        tools.calls.borrow_mut().clear();
        let datasets = reader.read_datasets(&pool, &wanted).unwrap();
        assert!(datasets.iter().all(|dataset| dataset.properties.len() == 1));
        let calls = tools.calls.borrow();
        let gets = calls
            .iter()
            .filter(|call| call.starts_with("/sbin/zfs get"))
            .count();
        assert_eq!(gets, 2 * 3);
        // No quotas of users on volumes.
        let quotas = calls
            .iter()
            .filter(|call| call.contains("userspace"))
            .count();
        assert_eq!(quotas, 2);
    }

    #[test]
    fn parents_are_wanted_too() {
        let wanted = with_parents(names(&["tank/a/b/c", "tank/a/x"]).iter());
        assert_eq!(
            wanted,
            names(&["tank", "tank/a", "tank/a/b", "tank/a/b/c", "tank/a/x"])
        );
    }

    /// Answers by the first two arguments.
    struct Fixed(&'static [(&'static str, &'static str)]);

    impl Tools for Fixed {
        fn run(&self, _: &str, args: &[&str], _: Duration) -> Result<ToolOutput, ToolError> {
            let key = args.join(" ");
            let answer = self.0.iter().find(|(start, _)| key.starts_with(start));
            let stdout = answer
                .map(|(_, text)| (*text).to_owned())
                .unwrap_or_default();
            Ok(ToolOutput {
                code: Some(0),
                stdout,
                stderr: String::new(),
            })
        }
    }

    #[test]
    fn a_pool_that_changes_under_the_survey_is_an_error() {
        let programs = programs();
        let pool: PoolName = "tank".parse().unwrap();
        let wanted = names(&["tank"]);
        let rows: [(&'static [_], &str); 5] = [
            (&[("list", "")], "its own dataset"),
            (
                &[("list", "tank\t1\tfilesystem\t1\n"), ("get", "")],
                "dataset tank",
            ),
            (
                &[
                    ("list", "tank\t1\tfilesystem\t1\n"),
                    ("get -Hp -s", "tank/x\ta\tb\tlocal\n"),
                ],
                "dataset tank/x",
            ),
            (
                &[
                    ("list", "tank\t1\tfilesystem\t1\n"),
                    ("get -Hp -s", "tank\ta\tb\tlocal\ntank\ta\tc\tlocal\n"),
                ],
                "property a of tank",
            ),
            (
                &[
                    ("list", "tank\t1\tfilesystem\t1\n"),
                    ("get -Hp -o", "tank/x\ta\tb\t-\n"),
                ],
                "dataset tank/x",
            ),
        ];
        for (answers, expected) in rows {
            let tools = Fixed(answers);
            let reader = PoolReader::new(&tools, &programs, &[]).unwrap();
            let error = reader.read_datasets(&pool, &wanted).unwrap_err();
            let PoolError::Moved { what, .. } = &error else {
                panic!("{error}")
            };
            assert_eq!(what, expected);
        }
    }
}
