//! The texts of `zpool` and `zfs`, as values.
//!
//! Takes what the programs print with `-Hp` (one line per row, fields between tabs,
//! exact numbers), gives rows. A line that is not what the format says is an error and
//! never left out: a pool that is not seen is a pool that is destroyed.

use std::collections::BTreeMap;

use repave_plan::survey::{DatasetKind, Property};
use repave_plan::units::{Bytes, DatasetGuid, DatasetName, PoolGuid, PoolName, VdevGuid};

/// Why a program's answer could not be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("understand line {line} of `{command}`, {why}: {text:?}")]
pub struct BadAnswer {
    /// The command without its path.
    pub command: &'static str,
    /// The line's number, from 1; 0 when a line is missing.
    pub line: usize,
    /// What is wrong.
    pub why: &'static str,
    /// The line, cut to 200 characters.
    pub text: String,
}

/// A row of `zpool list`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolRow {
    /// The pool.
    pub name: PoolName,
    /// Its guid.
    pub guid: PoolGuid,
    /// Its health.
    pub health: String,
    /// Its size; 0 when the pool cannot say.
    pub size: Bytes,
    /// Bytes allocated; 0 when the pool cannot say.
    pub allocated: Bytes,
}

/// A row of `zfs list`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetRow {
    /// The dataset.
    pub name: DatasetName,
    /// Its guid.
    pub guid: DatasetGuid,
    /// What it is.
    pub kind: DatasetKind,
    /// Bytes it and its children use.
    pub used: Bytes,
}

/// A row of `zfs get`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PropertyRow {
    /// The dataset.
    pub dataset: String,
    /// The property's name.
    pub name: String,
    /// Value and source.
    pub property: Property,
}

/// The columns [`parse_pool_list`] reads.
pub const POOL_COLUMNS: &str = "name,guid,health,size,allocated";
/// The columns [`parse_dataset_list`] reads.
pub const DATASET_COLUMNS: &str = "name,guid,type,used";

/// Reads `zpool list -Hp -o name,guid,health,size,allocated`.
pub fn parse_pool_list(text: &str) -> Result<Vec<PoolRow>, BadAnswer> {
    let command = "zpool list";
    let parse = |line: &Line| {
        let [name, guid, health, size, allocated] = line.fields()?;
        Ok(PoolRow {
            name: line.value(name, "no pool name")?,
            guid: line.value(guid, "no guid")?,
            health: health.to_owned(),
            size: line.size_or_dash(size)?,
            allocated: line.size_or_dash(allocated)?,
        })
    };
    lines(command, text).map(|line| parse(&line)).collect()
}

/// Reads `zfs list -Hp -o name,guid,type,used`.
pub fn parse_dataset_list(text: &str) -> Result<Vec<DatasetRow>, BadAnswer> {
    let parse = |line: &Line| {
        let [name, guid, kind, used] = line.fields()?;
        Ok(DatasetRow {
            name: line.value(name, "no dataset name")?,
            guid: line.value(guid, "no guid")?,
            kind: match kind {
                "filesystem" => DatasetKind::Filesystem,
                "volume" => DatasetKind::Volume,
                _ => return Err(line.bad("an unknown type")),
            },
            used: line.size(used)?,
        })
    };
    lines("zfs list", text).map(|line| parse(&line)).collect()
}

/// Reads `zpool get -Hp -o property,value,source all POOL`.
pub fn parse_pool_properties(text: &str) -> Result<BTreeMap<String, Property>, BadAnswer> {
    let mut properties = BTreeMap::new();
    for line in lines("zpool get", text) {
        let (name, rest) = line.text.split_once('\t').ok_or_else(|| line.bad(FIELDS))?;
        let property = line.property(rest)?;
        if properties.insert(name.to_owned(), property).is_some() {
            return Err(line.bad("a property that was there before"));
        }
    }
    Ok(properties)
}

/// Reads `zfs get -Hp -o name,property,value,source …`.
///
/// A value may hold tabs (user properties may): it is what stands between the second
/// field and the last. A value with a line break cannot be told from two rows, and is
/// an error: its second half is no row, or names a source that does not exist.
pub fn parse_dataset_properties(text: &str) -> Result<Vec<PropertyRow>, BadAnswer> {
    let parse = |line: &Line| {
        let (dataset, rest) = line.text.split_once('\t').ok_or_else(|| line.bad(FIELDS))?;
        let (name, rest) = rest.split_once('\t').ok_or_else(|| line.bad(FIELDS))?;
        let property = line.property(rest)?;
        Ok(PropertyRow {
            dataset: dataset.to_owned(),
            name: name.to_owned(),
            property,
        })
    };
    lines("zfs get", text).map(|line| parse(&line)).collect()
}

/// Reads the guids of the leaf vdevs from `zpool status -g POOL`.
///
/// The tree stands under `config:`: a heading, then one row per vdev, two more spaces
/// for each level; a leaf is a row whose next row is not deeper. Log, cache and spare
/// devices are rows under a heading of their own, and leaves like the others.
pub fn parse_leaves(text: &str) -> Result<Vec<VdevGuid>, BadAnswer> {
    let command = "zpool status -g";
    let mut all = lines(command, text).skip_while(|line| line.text.trim_end() != "config:");
    let mut rows: Vec<(usize, Line)> = Vec::new();
    let missing = |why| BadAnswer {
        command,
        line: 0,
        why,
        text: String::new(),
    };
    all.next().ok_or_else(|| missing("no `config:`"))?;
    // An empty line, the heading, the rows, an empty line.
    let heading = all
        .find(|line| !line.text.is_empty())
        .ok_or_else(|| missing("no heading"))?;
    if !heading.text.starts_with("\tNAME") {
        return Err(heading.bad("no heading NAME"));
    }
    for line in all.take_while(|line| !line.text.is_empty()) {
        let row = line
            .text
            .strip_prefix('\t')
            .ok_or_else(|| line.bad("no tab in front"))?;
        let depth = row.len() - row.trim_start_matches(' ').len();
        rows.push((depth, line));
    }
    let mut leaves = Vec::new();
    for (at, (depth, line)) in rows.iter().enumerate() {
        let has_children = rows.get(at + 1).is_some_and(|(next, _)| next > depth);
        // The pool itself and the headings `logs`, `cache`, `spares`, …
        if *depth == 0 {
            if !has_children {
                return Err(line.bad("nothing below it"));
            }
            continue;
        }
        if !has_children {
            let guid = line.text.split_whitespace().next().unwrap_or_default();
            leaves.push(line.value(guid, "no vdev guid")?);
        }
    }
    match leaves.is_empty() {
        true => Err(missing("no vdev")),
        false => Ok(leaves),
    }
}

/// Whether `zfs allow DATASET` shows a delegation on the dataset itself. Those of its
/// parents are printed too, under a heading with the parent's name.
pub fn has_delegation(text: &str, dataset: &DatasetName) -> Result<bool, BadAnswer> {
    const HEADING: &str = "---- Permissions on ";
    let mut headings = 0;
    let mut found = false;
    for line in lines("zfs allow", text) {
        if let Some(rest) = line.text.strip_prefix(HEADING) {
            headings += 1;
            found |= rest.trim_end_matches('-').trim_end_matches(' ') == dataset.as_str();
        } else if headings == 0 && !line.text.trim().is_empty() {
            return Err(line.bad("no heading `---- Permissions on`"));
        }
    }
    Ok(found)
}

/// Whether `zfs userspace -Hp -o type,name,quota …` (or `groupspace`, `projectspace`)
/// shows a quota. Users without one are rows too: `0`, `none` or `-`.
pub fn has_quota(text: &str) -> Result<bool, BadAnswer> {
    let mut found = false;
    for line in lines("zfs userspace", text) {
        let [_kind, _name, quota] = line.fields()?;
        found |= !matches!(quota, "0" | "none" | "-");
    }
    Ok(found)
}

/// Reads `zpool version`: the version of the programs, as `2.3.9-1`.
pub fn parse_version(text: &str) -> Result<String, BadAnswer> {
    // zfs-2.3.9-1
    // zfs-kmod-2.3.9-1
    let command = "zpool version";
    for line in lines(command, text) {
        let version = line
            .text
            .strip_prefix("zfs-")
            .filter(|rest| !rest.starts_with("kmod-"));
        if let Some(version) = version {
            return Ok(version.trim_end().to_owned());
        }
    }
    let why = "no line `zfs-VERSION`";
    Err(BadAnswer {
        command,
        line: 0,
        why,
        text: text.chars().take(200).collect(),
    })
}

const FIELDS: &str = "another number of fields";

struct Line<'a> {
    command: &'static str,
    number: usize,
    text: &'a str,
}

fn lines<'a>(command: &'static str, text: &'a str) -> impl Iterator<Item = Line<'a>> {
    // Not `str::lines`: that also takes a carriage return away, which belongs to a value.
    let text = text.strip_suffix('\n').unwrap_or(text);
    let rows = text
        .split('\n')
        .enumerate()
        .filter(move |_| !text.is_empty());
    rows.map(move |(at, text)| Line {
        command,
        number: at + 1,
        text,
    })
}

impl<'a> Line<'a> {
    fn bad(&self, why: &'static str) -> BadAnswer {
        let text = self.text.chars().take(200).collect();
        BadAnswer {
            command: self.command,
            line: self.number,
            why,
            text,
        }
    }

    fn fields<const N: usize>(&self) -> Result<[&'a str; N], BadAnswer> {
        let fields: Vec<&str> = self.text.split('\t').collect();
        fields.try_into().map_err(|_| self.bad(FIELDS))
    }

    fn value<T: std::str::FromStr>(&self, field: &str, why: &'static str) -> Result<T, BadAnswer> {
        field.parse().map_err(|_| self.bad(why))
    }

    fn size(&self, field: &str) -> Result<Bytes, BadAnswer> {
        self.value(field, "no size").map(Bytes)
    }

    fn size_or_dash(&self, field: &str) -> Result<Bytes, BadAnswer> {
        if field == "-" {
            Ok(Bytes(0))
        } else {
            self.size(field)
        }
    }

    fn property(&self, rest: &str) -> Result<Property, BadAnswer> {
        let (value, source) = rest.rsplit_once('\t').ok_or_else(|| self.bad(FIELDS))?;
        let known = matches!(
            source,
            "local" | "default" | "received" | "temporary" | "none" | "-"
        ) || source.starts_with("inherited from ");
        match known {
            true => Ok(Property {
                value: value.to_owned(),
                source: source.to_owned(),
            }),
            false => Err(self.bad("an unknown source")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_listed() {
        // OpenZFS 2.3.9, `zpool list -Hp -o name,guid,health,size,allocated`; the second
        // pool lost its device and says nothing about its size.
        let text = "tank\t8927562153812367501\tONLINE\t153545080832\t1503232\n\
                    back up\t17209822139871238712\tUNAVAIL\t-\t-\n";
        let rows = parse_pool_list(text).unwrap();
        assert_eq!(rows[0].name.as_str(), "tank");
        assert_eq!(rows[0].guid, PoolGuid(8_927_562_153_812_367_501));
        assert_eq!(
            (rows[0].size, rows[0].allocated),
            (Bytes(153_545_080_832), Bytes(1_503_232))
        );
        assert_eq!((rows[1].name.as_str(), rows[1].size), ("back up", Bytes(0)));
        assert_eq!(parse_pool_list("").unwrap(), []);
    }

    #[test]
    fn a_bad_row_is_an_error_and_never_left_out() {
        let good = "tank\t1\tONLINE\t2\t3\n";
        for (bad, why) in [
            ("\n", FIELDS),
            ("no pools available\n", FIELDS),
            ("x\t1\tONLINE\t2\n", FIELDS),
            ("x\t1\tONLINE\t2\t3\t4\n", FIELDS),
            ("x\t-\tONLINE\t2\t3\n", "no guid"),
            ("x\t18446744073709551616\tONLINE\t2\t3\n", "no guid"),
            ("1x\t1\tONLINE\t2\t3\n", "no pool name"),
            ("x\t1\tONLINE\t1.5G\t3\n", "no size"),
            ("x\t1\tONLINE\t2\t-1\n", "no size"),
        ] {
            let error = parse_pool_list(&format!("{good}{bad}")).unwrap_err();
            assert_eq!((error.why, error.line), (why, 2), "{bad:?}");
        }
    }

    #[test]
    fn datasets_are_listed() {
        // OpenZFS 2.3.9, `zfs list -Hp -r -t filesystem,volume -o name,guid,type,used tank`.
        let text = "tank\t10412\tfilesystem\t1503232\n\
                    tank/containerd\t881\tfilesystem\t24576\n\
                    tank/pvc-0f3c\t882\tvolume\t55574528\n";
        let rows = parse_dataset_list(text).unwrap();
        assert_eq!(rows.len(), 3);
        assert_eq!(
            (rows[2].kind, rows[2].used),
            (DatasetKind::Volume, Bytes(55_574_528))
        );
        for bad in [
            "tank@a\t1\tsnapshot\t0",
            "tank\t1\tsnapshot\t0",
            "tank\t1\tfilesystem\t-",
        ] {
            assert!(parse_dataset_list(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn pool_properties_keep_value_and_source() {
        // OpenZFS 2.3.9, `zpool get -Hp -o property,value,source all tank`, shortened.
        let text = "size\t153545080832\t-\nashift\t12\tlocal\ncomment\ta b\tlocal\n\
                    altroot\t-\tdefault\nfeature@async_destroy\tenabled\tlocal\n\
                    repave:note\tone\ttwo\tlocal\n";
        let properties = parse_pool_properties(text).unwrap();
        assert_eq!(properties.len(), 6);
        assert_eq!(properties["ashift"].value, "12");
        assert_eq!(properties["feature@async_destroy"].source, "local");
        assert_eq!(properties["repave:note"].value, "one\ttwo");
        for (bad, why) in [
            ("ashift\t9\tlocal\n", "a property that was there before"),
            ("failmode\twait\n", FIELDS),
            ("failmode\twait\tmaybe\n", "an unknown source"),
        ] {
            let error = parse_pool_properties(&format!("{text}{bad}")).unwrap_err();
            assert_eq!((error.why, error.line), (why, 7));
        }
    }

    #[test]
    fn dataset_properties_keep_tabs_and_refuse_line_breaks() {
        // OpenZFS 2.3.9, `zfs get -Hp -s local,received -o name,property,value,source all …`
        // and `zfs get -Hp -o … utf8only …`.
        let text = "tank\tcompression\tlz4\tlocal\ntank/c\tx:y\ta\tb\treceived\n\
                    tank/c\tutf8only\toff\t-\ntank/c\tatime\toff\tinherited from tank\n";
        let rows = parse_dataset_properties(text).unwrap();
        assert_eq!(rows.len(), 4);
        assert_eq!(rows[1].property.value, "a\tb");
        assert_eq!(rows[3].property.source, "inherited from tank");
        for bad in [
            "tank\tx:y\ta\nb\tlocal\n",
            "tank\tx:y\ta\n\n",
            "tank\tx:y\n",
        ] {
            assert!(parse_dataset_properties(bad).is_err(), "{bad:?}");
        }
    }

    // OpenZFS 2.3.9, `zpool status -g tank`.
    const ONE_LEAF: &str = "  pool: tank
 state: ONLINE
status: Some supported and requested features are not enabled on the pool.
\tThe pool can still be used, but some features are unavailable.
action: Enable all features using 'zpool upgrade'. Once this is done,
\tthe pool may no longer be accessible by software that does not support
\tthe features. See zpool-features(7) for details.
config:

\tNAME                   STATE     READ WRITE CKSUM
\ttank                   ONLINE       0     0     0
\t  4416034781938420312  ONLINE       0     0     0

errors: No known data errors
";

    // OpenZFS 2.3.9, `zpool status -g big` of a pool made with `mirror /f1 /f2 log /f3
    // cache /f4 spare /f5`; the notes behind two rows are of a pool that lost a disk.
    const MANY: &str = "  pool: big
 state: ONLINE
config:

\tNAME                      STATE     READ WRITE CKSUM
\tbig                       ONLINE       0     0     0
\t  631798604734858786      ONLINE       0     0     0
\t    17523470256540368831  ONLINE       0     0     0  (resilvering)
\t    3682226425347591509   UNAVAIL      0     0     0  was /dev/sdc1
\tlogs\t
\t  12660598745191910103    ONLINE       0     0     0
\tcache
\t  8682421515771244122     ONLINE       0     0     0
\tspares
\t  14053653615247852966    AVAIL   

errors: No known data errors
";

    #[test]
    fn leaves_are_the_deepest_rows() {
        assert_eq!(
            parse_leaves(ONE_LEAF).unwrap(),
            [VdevGuid(4_416_034_781_938_420_312)]
        );
        let guids: Vec<u64> = parse_leaves(MANY)
            .unwrap()
            .iter()
            .map(|guid| guid.0)
            .collect();
        assert_eq!(
            guids,
            [
                17_523_470_256_540_368_831,
                3_682_226_425_347_591_509,
                12_660_598_745_191_910_103,
                8_682_421_515_771_244_122,
                14_053_653_615_247_852_966,
            ]
        );
    }

    #[test]
    fn a_tree_that_is_not_understood_is_an_error() {
        for (from, to) in [
            ("config:", "konfig:"),
            ("\tNAME", "NAME"),
            ("  4416034781938420312", "  vda4"),
            ("\t  4416034781938420312", "  4416034781938420312"),
            ("\t  4416034781938420312", "\t4416034781938420312"),
            ("\t  4416034781938420312  ONLINE       0     0     0\n", ""),
        ] {
            let text = ONE_LEAF.replacen(from, to, 1);
            assert_ne!(text, ONE_LEAF);
            assert!(parse_leaves(&text).is_err(), "{from:?} as {to:?}");
        }
        assert!(parse_leaves("").is_err());
        assert!(parse_leaves("config:\n").is_err());
    }

    #[test]
    fn a_delegation_counts_on_its_own_dataset_only() {
        // OpenZFS 2.3.9, `zfs allow tank/k8s/volumes` after `zfs allow -l -u 1000
        // create,mount tank/k8s`, and the heading of its own.
        let parent = "---- Permissions on tank/k8s -----------------------------------------\n\
                      Local permissions:\n\tuser (unknown: 1000) create,mount\n";
        let own = "---- Permissions on tank/k8s/volumes ---------------------------------\n\
                   Local+Descendent permissions:\n\tgroup wheel snapshot\n";
        let dataset: DatasetName = "tank/k8s/volumes".parse().unwrap();
        assert!(!has_delegation("", &dataset).unwrap());
        assert!(!has_delegation(parent, &dataset).unwrap());
        assert!(has_delegation(&format!("{own}{parent}"), &dataset).unwrap());
        assert!(has_delegation("Local permissions:\n", &dataset).is_err());
    }

    #[test]
    fn a_quota_is_a_number() {
        // OpenZFS 2.3.9, `zfs userspace -Hpn -t all -o type,name,quota …` without and with
        // a quota, and `zfs projectspace -Hp -o type,name,quota …`; older ones print `none`.
        let none = "POSIX Group\t0\t0\nPOSIX User\t0\t0\nPOSIX User\t7\tnone\n";
        assert!(!has_quota(none).unwrap());
        assert!(!has_quota("Project\t0\t0\nProject\t1\t-\n").unwrap());
        assert!(has_quota(&format!("{none}POSIX User\t1000\t1048576\n")).unwrap());
        assert!(has_quota(&format!("Project\t5\t10\n{none}")).unwrap());
        assert!(has_quota("POSIX User\t0\n").is_err());
    }

    #[test]
    fn versions_are_read() {
        // `zpool version` of Debian 13 and of Ubuntu 24.04.
        assert_eq!(
            parse_version("zfs-2.3.9-1\nzfs-kmod-2.3.9-1\n").unwrap(),
            "2.3.9-1"
        );
        assert_eq!(
            parse_version("zfs-kmod-2.2\nzfs-2.2.2-0ubuntu9\n").unwrap(),
            "2.2.2-0ubuntu9"
        );
        assert!(parse_version("zfs-kmod-2.3.9-1\n").is_err());
    }
}
