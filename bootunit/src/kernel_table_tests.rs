//! The kernel step on a model of the kernel's rules, and on a folder like sysfs.

use std::cell::{Cell, RefCell};

use repave_plan::units::{Extent, Guid, Lba};

use super::*;

/// A kernel with the rules of `BLKPG` (Linux `block/ioctl.c`, `partitions/core.c`).
#[derive(Default)]
struct Model {
    parts: RefCell<Vec<Held>>,
    /// How many more tries find this partition open.
    busy: Cell<Option<(PartNo, u32)>>,
    pauses_left: Cell<u32>,
    calls: RefCell<Vec<String>>,
    /// Adds are accepted and forgotten.
    deaf: bool,
}

impl KernelView for Model {
    fn parts(&self) -> Result<Vec<Held>, KernelTableError> {
        let mut parts = self.parts.borrow().clone();
        parts.sort();
        Ok(parts)
    }

    fn del(&self, number: PartNo) -> io::Result<()> {
        if let Some((part, tries)) = self.busy.get()
            && part == number
            && tries > 0
        {
            self.busy.set(Some((part, tries - 1)));
            return Err(Errno::EBUSY.into());
        }
        self.calls.borrow_mut().push(format!("del {number}"));
        let mut parts = self.parts.borrow_mut();
        let count = parts.len();
        parts.retain(|p| p.number != number);
        match parts.len() < count {
            true => Ok(()),
            false => Err(Errno::ENXIO.into()),
        }
    }

    fn add(&self, part: Held) -> io::Result<()> {
        self.calls.borrow_mut().push(format!("add {}", part.number));
        let mut parts = self.parts.borrow_mut();
        let clash = |p: &Held| {
            p.number == part.number
                || (p.start.0 < part.start.0 + part.len.0 && part.start.0 < p.start.0 + p.len.0)
        };
        if parts.iter().any(clash) {
            return Err(Errno::EBUSY.into());
        }
        if !self.deaf {
            parts.push(part);
        }
        Ok(())
    }

    fn resize(&self, part: Held) -> io::Result<()> {
        self.calls
            .borrow_mut()
            .push(format!("resize {}", part.number));
        let mut parts = self.parts.borrow_mut();
        match parts.iter_mut().find(|p| p.number == part.number) {
            Some(p) => {
                *p = part;
                Ok(())
            }
            None => Err(Errno::ENXIO.into()),
        }
    }

    fn pause(&self) -> bool {
        let left = self.pauses_left.get();
        self.pauses_left.set(left.saturating_sub(1));
        left > 0
    }
}

const BLOCK: BlockSize = BlockSize(4096);

fn part(number: u32, first: u64, last: u64) -> KernelPart {
    KernelPart {
        number: PartNo(number),
        extent: Extent {
            first: Lba(first),
            last: Lba(last),
        },
    }
}

fn model(parts: &[KernelPart]) -> Model {
    Model {
        parts: RefCell::new(parts.iter().map(|p| held(*p, BLOCK)).collect()),
        ..Model::default()
    }
}

/// p3 and p4 become a larger p3; p1 and p2 are mounted and not of the plan.
fn recreate() -> KernelTable {
    KernelTable {
        delete: vec![part(3, 1000, 1999), part(4, 2000, 2999)],
        add: Some(part(3, 1000, 3999)),
        resize: None,
        partuuid: Guid([1; 16]),
    }
}

/// p4 is dead behind p3, which grows.
fn grow_plan() -> KernelTable {
    KernelTable {
        delete: vec![part(4, 2000, 2999)],
        add: None,
        resize: Some(part(3, 1000, 3999)),
        partuuid: Guid([1; 16]),
    }
}

const MOUNTED: [KernelPart; 2] = [
    KernelPart {
        number: PartNo(1),
        extent: Extent {
            first: Lba(10),
            last: Lba(99),
        },
    },
    KernelPart {
        number: PartNo(2),
        extent: Extent {
            first: Lba(100),
            last: Lba(999),
        },
    },
];

fn with(more: &[KernelPart]) -> Model {
    model(&[&MOUNTED, more].concat())
}

#[test]
fn states_are_told_from_what_the_kernel_holds() {
    let rows = [
        (
            recreate(),
            vec![part(3, 1000, 1999), part(4, 2000, 2999)],
            "before",
        ),
        // Cut after one or both removals.
        (recreate(), vec![part(4, 2000, 2999)], "before"),
        (recreate(), vec![], "before"),
        (recreate(), vec![part(3, 1000, 3999)], "after"),
        // Another p3, a stranger in the place, a p4 where none should be.
        (
            recreate(),
            vec![part(3, 1000, 1998)],
            "it holds p3 at byte 4096000 with 4091904 bytes",
        ),
        (
            recreate(),
            vec![part(7, 3500, 3999)],
            "it holds p7 at byte 14336000 with 2048000 bytes",
        ),
        (
            recreate(),
            vec![part(3, 1000, 3999), part(4, 5000, 5999)],
            "it holds p4 at byte 20480000 with 4096000 bytes",
        ),
        (
            grow_plan(),
            vec![part(3, 1000, 1999), part(4, 2000, 2999)],
            "before",
        ),
        (grow_plan(), vec![part(3, 1000, 1999)], "before"),
        (grow_plan(), vec![part(3, 1000, 3999)], "after"),
        (
            grow_plan(),
            vec![part(3, 1000, 4999)],
            "it holds p3 at byte 4096000 with 16384000 bytes",
        ),
        (
            grow_plan(),
            vec![part(3, 1001, 1999)],
            "it holds p3 at byte 4100096 with 4091904 bytes",
        ),
        // A partition elsewhere is nobody's business.
        (
            recreate(),
            vec![part(3, 1000, 3999), part(9, 5000, 5999)],
            "after",
        ),
    ];
    for (plan, held, expected) in rows {
        let found = match kernel_state(&with(&held), &plan, BLOCK).unwrap() {
            StepState::Before => "before".to_owned(),
            StepState::After => "after".to_owned(),
            StepState::Neither { found } => found,
        };
        assert_eq!(found, expected, "{held:?}");
    }
}

#[test]
fn it_removes_resizes_and_adds_in_order_and_only_what_is_planned() {
    let both = [part(3, 1000, 1999), part(4, 2000, 2999)];
    let rows: [(KernelTable, &[KernelPart], &[&str]); 4] = [
        (recreate(), &both, &["del p3", "del p4", "add p3"]),
        (recreate(), &both[1..], &["del p4", "add p3"]),
        (recreate(), &[], &["add p3"]),
        (grow_plan(), &both, &["del p4", "resize p3"]),
    ];
    for (plan, held_now, calls) in rows {
        let kernel = with(held_now);
        assert_eq!(
            apply_kernel(&kernel, &plan, BLOCK).unwrap(),
            Outcome::Changed
        );
        assert_eq!(*kernel.calls.borrow(), *calls);
        let expected = with(&[part(3, 1000, 3999)]).parts().unwrap();
        assert_eq!(kernel.parts().unwrap(), expected);
        // A second run asks and does nothing.
        kernel.calls.borrow_mut().clear();
        assert_eq!(
            apply_kernel(&kernel, &plan, BLOCK).unwrap(),
            Outcome::AlreadyDone
        );
        assert_eq!(*kernel.calls.borrow(), [] as [&str; 0]);
    }
}

/// Case S11: a probe has the partition open for a while; a mount for ever.
#[test]
fn a_busy_partition_is_tried_again_until_the_deadline() {
    let kernel = with(&[part(3, 1000, 1999), part(4, 2000, 2999)]);
    kernel.busy.set(Some((PartNo(4), 150)));
    kernel.pauses_left.set(500);
    assert_eq!(
        apply_kernel(&kernel, &recreate(), BLOCK).unwrap(),
        Outcome::Changed
    );
    assert_eq!(kernel.pauses_left.get(), 350);

    let kernel = with(&[part(3, 1000, 1999), part(4, 2000, 2999)]);
    kernel.busy.set(Some((PartNo(4), u32::MAX)));
    kernel.pauses_left.set(500);
    let err = apply_kernel(&kernel, &recreate(), BLOCK).unwrap_err();
    assert!(
        matches!(err, KernelTableError::Busy { number: PartNo(4) }),
        "{err}"
    );
    // Case R1: the table is written and the kernel is stale: that is Before, and the
    // next boot, whose kernel reads the new table, is After.
    assert_eq!(
        kernel_state(&kernel, &recreate(), BLOCK).unwrap(),
        StepState::Before
    );
}

#[test]
fn what_is_not_planned_is_not_done() {
    // A shorter target, even for the planned partition.
    let kernel = with(&[part(3, 1000, 3999)]);
    let mut plan = grow_plan();
    plan.resize = Some(part(3, 1000, 2999));
    let err = apply_kernel(&kernel, &plan, BLOCK).unwrap_err();
    assert!(matches!(err, KernelTableError::Neither { .. }), "{err}");
    assert_eq!(*kernel.calls.borrow(), [] as [&str; 0]);
    let err = grow(
        &kernel,
        &kernel.parts().unwrap(),
        held(part(3, 1000, 2999), BLOCK),
    );
    assert!(matches!(err, Err(KernelTableError::NoGrowth { .. })));

    // A stranger in the way.
    let kernel = with(&[part(3, 1000, 1999), part(7, 3000, 3100)]);
    let err = apply_kernel(&kernel, &recreate(), BLOCK).unwrap_err();
    assert!(matches!(err, KernelTableError::Neither { .. }), "{err}");
    assert_eq!(*kernel.calls.borrow(), [] as [&str; 0]);

    // A kernel that says yes and does nothing.
    let mut kernel = with(&[]);
    kernel.deaf = true;
    let err = apply_kernel(&kernel, &recreate(), BLOCK).unwrap_err();
    assert!(matches!(err, KernelTableError::Neither { .. }), "{err}");
}

#[test]
fn sysfs_counts_in_512_bytes_on_every_disk() {
    // Case R3. The layout of /sys/dev/block/259:0 of a 4096-byte disk: start and size
    // are in units of 512 all the same.
    let dir = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    put("size", "8388608\n");
    put("queue/logical_block_size", "4096\n");
    for (name, number, start, size) in [
        ("nvme0n1p2", "2", "8192", "16"),
        ("nvme0n1p1", "1", "2048", "6144"),
    ] {
        put(&format!("{name}/partition"), &format!("{number}\n"));
        put(&format!("{name}/start"), &format!("{start}\n"));
        put(&format!("{name}/size"), &format!("{size}\n"));
    }
    let held = |number, start, len| Held {
        number: PartNo(number),
        start: Bytes(start),
        len: Bytes(len),
    };
    assert_eq!(
        read_parts(dir.path()).unwrap(),
        [held(1, 1 << 20, 3 << 20), held(2, 4 << 20, 8192)]
    );
    put("nvme0n1p2/size", "many\n");
    let err = read_parts(dir.path()).unwrap_err();
    assert!(matches!(err, KernelTableError::NotANumber { .. }), "{err}");
    std::fs::remove_file(dir.path().join("nvme0n1p2/size")).unwrap();
    let err = read_parts(dir.path()).unwrap_err();
    assert!(matches!(err, KernelTableError::Sysfs { .. }), "{err}");
    assert!(read_parts(&dir.path().join("none")).is_err());
}
