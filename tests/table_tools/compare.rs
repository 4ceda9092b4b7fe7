//! The same edit by sgdisk and by us: equal bytes, and tools that are content.

use std::path::Path;

use repave_boot::device::DiskDev;
use repave_boot::rehearsal::rehearse;
use repave_boot::table_write::{apply_table, check_table, read_table_image, zero_runs};
use repave_plan::table::{
    EntrySpec, MergeMode, TableChange, TableEdit, edit, export_sgdisk, import_sgdisk, merged_spec,
    parse_table, shadow_place,
};
use repave_plan::units::{BlockSize, Extent, Lba, PartNo};

use super::run::{Attached, empty, tool};

/// One image and what is merged on it.
struct Row {
    name: &'static str,
    block: u32,
    /// Arguments to sgdisk that make it.
    make: &'static [&'static str],
    pool: u32,
    dead: &'static [u32],
}

/// EFI, root, dead, pool; starts in MiB through sgdisk's own suffix.
const EFI: &str = "-n1:1M:+3M";
const ROOT: &str = "-n2:4M:+16M";
const DEAD: &str = "-n3:20M:+20M";
const POOL: &str = "-n4:40M:+20M";

const ROWS: &[Row] = &[
    Row {
        name: "usual",
        block: 512,
        make: &[EFI, ROOT, DEAD, POOL, "-t1:ef00", "-t4:bf01", "-c4:tank"],
        pool: 4,
        dead: &[3],
    },
    Row {
        name: "dead behind",
        block: 512,
        make: &[EFI, ROOT, DEAD, POOL, "-t3:bf01"],
        pool: 3,
        dead: &[4],
    },
    Row {
        name: "dead on both sides",
        block: 512,
        make: &[EFI, ROOT, DEAD, "-n4:40M:+10M", "-n5:50M:+10M", "-t4:bf01"],
        pool: 4,
        dead: &[3, 5],
    },
    Row {
        name: "holes in the numbering",
        block: 512,
        make: &["-n1:1M:+3M", "-n2:4M:+16M", "-n7:20M:+20M", "-n5:40M:+20M"],
        pool: 5,
        dead: &[7],
    },
    Row {
        name: "numbers against the order on the disk",
        block: 512,
        make: &["-n4:1M:+3M", "-n3:4M:+16M", "-n2:20M:+20M", "-n1:40M:+20M"],
        pool: 1,
        dead: &[2],
    },
    Row {
        name: "56 entries",
        block: 512,
        make: &["-S56", EFI, ROOT, DEAD, POOL],
        pool: 4,
        dead: &[3],
    },
    Row {
        name: "256 entries, high numbers",
        block: 512,
        make: &["-S256", EFI, ROOT, "-n200:20M:+20M", "-n201:40M:+20M"],
        pool: 201,
        dead: &[200],
    },
    Row {
        name: "attributes",
        block: 512,
        make: &[
            EFI,
            ROOT,
            DEAD,
            POOL,
            "-A1:set:0",
            "-A2:set:2",
            "-A2:set:60",
            "-A4:set:63",
            "-A4:set:48",
        ],
        pool: 4,
        dead: &[3],
    },
    Row {
        name: "names outside the basic plane",
        block: 512,
        make: &[
            EFI,
            ROOT,
            DEAD,
            POOL,
            "-c1:\u{1f4be} EFI",
            "-c2:r\u{f6}\u{f6}t",
            "-c4:\u{1f3ca} tank \u{1d11e}",
        ],
        pool: 4,
        dead: &[3],
    },
    Row {
        name: "a partition behind the pool",
        block: 512,
        make: &[EFI, ROOT, DEAD, "-n4:40M:+10M", "-n6:55M:+5M", "-c6:kept"],
        pool: 4,
        dead: &[3],
    },
    Row {
        name: "free space between",
        block: 512,
        make: &[EFI, ROOT, "-n3:20M:+10M", "-n4:40M:+10M"],
        pool: 4,
        dead: &[3],
    },
    Row {
        name: "an unaligned start",
        block: 512,
        make: &["-a1", EFI, ROOT, "-n3:40969:+19M", POOL, "-a2048"],
        pool: 4,
        dead: &[3],
    },
    Row {
        name: "usual",
        block: 4096,
        make: &[EFI, ROOT, DEAD, POOL, "-t1:ef00", "-t4:bf01", "-c4:tank"],
        pool: 4,
        dead: &[3],
    },
    Row {
        name: "dead behind, holes",
        block: 4096,
        make: &["-n1:1M:+3M", "-n3:4M:+16M", "-n9:20M:+20M", "-n5:40M:+20M"],
        pool: 9,
        dead: &[5],
    },
    Row {
        name: "256 entries, attributes, names",
        block: 4096,
        make: &[
            "-S256",
            EFI,
            ROOT,
            DEAD,
            "-n130:40M:+20M",
            "-A130:set:63",
            "-c130:\u{1f3ca}",
            "-c1:\u{e4}",
        ],
        pool: 130,
        dead: &[3],
    },
];

#[test]
fn the_same_edit_gives_the_same_bytes_as_sgdisk() {
    assert!(ROWS.len() >= 12);
    // Each call of sgdisk sleeps for a second: the rows do so side by side.
    std::thread::scope(|scope| {
        let rows: Vec<_> = ROWS
            .iter()
            .map(|row| (row, scope.spawn(|| same_as_sgdisk(row))))
            .collect();
        for (row, handle) in rows {
            assert!(handle.join().is_ok(), "{} at {}", row.name, row.block);
        }
    });
}

fn same_as_sgdisk(row: &Row) {
    let what = format!("{} at {}", row.name, row.block);
    let dir = tempfile::tempdir().unwrap();
    let theirs = empty(dir.path(), "theirs.img", 64);
    {
        let disk = Attached::new(&theirs, row.block);
        tool("sgdisk", &[row.make, &[&disk.path]].concat());
    }
    let ours = dir.path().join("ours.img");
    std::fs::copy(&theirs, &ours).unwrap();

    let put = repave(&ours, row);
    {
        let disk = Attached::new(&theirs, row.block);
        let args = sgdisk_edit(row, &put);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        tool("sgdisk", &[&args[..], &[&disk.path]].concat());
    }
    let (a, b) = (
        std::fs::read(&theirs).unwrap(),
        std::fs::read(&ours).unwrap(),
    );
    let differs = a.iter().zip(&b).position(|(a, b)| a != b);
    assert_eq!(
        differs, None,
        "{what}: first byte that differs from sgdisk's"
    );
    assert_eq!(a.len(), b.len());
    judge(&ours, row.block, &what);
}

/// Our own run on the image; the slot that was written.
fn repave(image: &Path, row: &Row) -> EntrySpec {
    let mut disk = DiskDev::open(image, Some(row.block)).unwrap();
    let old = read_table_image(&disk).unwrap();
    let table = parse_table(&old).unwrap();
    let dead: Vec<PartNo> = row.dead.iter().copied().map(PartNo).collect();
    let put = merged_spec(&table, PartNo(row.pool), &dead, MergeMode::Recreate).unwrap();
    let edited = TableEdit {
        remove: [dead, vec![PartNo(row.pool)]].concat(),
        put: put.clone(),
        relocate_backup: false,
    };
    let new = edit(&old, &edited).unwrap();
    let first = table
        .entries
        .iter()
        .map(|e| e.extent.first.0)
        .min()
        .unwrap();
    let gap = Extent {
        first: Lba(table.primary_array.last.0 + 1),
        last: Lba(first - 1),
    };
    let shadow = shadow_place(&old, &new, &zero_runs(&disk, gap).unwrap(), &[]).unwrap();
    let change = TableChange::new(old, new, shadow).unwrap();
    check_table(&change, &disk).unwrap();
    rehearse(&change).unwrap();
    apply_table(&change, &mut disk).unwrap();
    put
}

fn sgdisk_edit(row: &Row, put: &EntrySpec) -> Vec<String> {
    let n = put.number.0;
    let mut args = vec!["-a1".to_owned(), format!("-d{}", row.pool)];
    args.extend(row.dead.iter().map(|d| format!("-d{d}")));
    args.extend([
        format!("-n{n}:{}:{}", put.extent.first.0, put.extent.last.0),
        format!("-t{n}:{}", put.type_guid),
        format!("-u{n}:{}", put.guid),
        format!("-c{n}:{}", put.name_raw),
        format!("-A{n}:=:{:016x}", put.attributes),
    ]);
    args
}

/// sgdisk, sfdisk and parted must have nothing to say.
fn judge(image: &Path, block: u32, what: &str) {
    let disk = Attached::new(image, block);
    let said = tool("sgdisk", &["--verify", &disk.path]);
    assert!(said.contains("No problems found."), "{what}: {said}");
    // The merged partition ends where the free space ends, which is no whole MiB;
    // sgdisk says so and does not count it as a problem. Nor does it count an array
    // of less than 16 KiB, which was there before.
    assert_eq!(
        said.matches("Caution").count(),
        said.matches("doesn't end on a").count(),
        "{what}: {said}"
    );
    assert_eq!(
        said.matches("Warning").count(),
        said.matches("The size of the partition table").count(),
        "{what}: {said}"
    );
    let said = tool("sfdisk", &["--verify", &disk.path]);
    assert!(said.contains("No errors detected."), "{what}: {said}");
    let said = tool("parted", &["--script", &disk.path, "print"]);
    assert!(said.contains("Partition Table: gpt"), "{what}: {said}");
    // parted cannot print a name outside the basic plane and says so.
    assert_eq!(
        said.matches("Warning").count(),
        said.matches("failed to translate partition name").count(),
        "{what}: {said}"
    );
    for bad in ["Error", "corrupt"] {
        assert!(!said.contains(bad), "{what}: {said}");
    }
}

#[test]
fn backup_files_go_both_ways() {
    for row in ROWS
        .iter()
        .filter(|r| r.name == "usual" || r.name == "56 entries")
    {
        let dir = tempfile::tempdir().unwrap();
        let image = empty(dir.path(), "disk.img", 64);
        let theirs = dir.path().join("theirs.gpt");
        let disk = Attached::new(&image, row.block);
        tool("sgdisk", &[row.make, &[&disk.path]].concat());
        let to = format!("--backup={}", theirs.display());
        tool("sgdisk", &[&to, &disk.path]);

        let table = {
            let dev = DiskDev::open(&image, Some(row.block)).unwrap();
            read_table_image(&dev).unwrap()
        };
        let file = export_sgdisk(&table).unwrap();
        assert!(file == std::fs::read(&theirs).unwrap(), "{}", row.block);
        let back = import_sgdisk(&file, BlockSize(row.block), table.disk_blocks).unwrap();
        assert_eq!(back, table);

        // Ours puts the table back on a disk that has lost it.
        let before = std::fs::read(&image).unwrap();
        tool("sgdisk", &["--zap-all", &disk.path]);
        assert!(std::fs::read(&image).unwrap() != before);
        let ours = dir.path().join("ours.gpt");
        std::fs::write(&ours, &file).unwrap();
        tool(
            "sgdisk",
            &[&format!("--load-backup={}", ours.display()), &disk.path],
        );
        assert!(std::fs::read(&image).unwrap() == before, "{}", row.block);
    }
}
