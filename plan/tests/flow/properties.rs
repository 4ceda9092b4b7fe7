//! Properties of every plan, over workers of many shapes (style: golden scenarios and
//! properties over generated surveys).

use proptest::prelude::*;
use repave_plan::plan::Plan;
use repave_plan::planner::plan;
use repave_plan::step::{KernelPart, Step, StepName};
use repave_plan::survey::Survey;
use repave_plan::table::{BackupPlace, parse_table, parse_table_with};
use repave_plan::units::{Extent, PartNo};

use crate::fixtures::*;
use crate::inputs::policy;

const KEPT: [&str; 4] = ["EFI", "boot", "root", "data"];
const DEAD: [&str; 2] = ["mayastor", "relic"];

/// A worker: the order of its partitions (by name), their sizes and numbers.
#[derive(Debug, Clone)]
struct Shape {
    block: u32,
    order: Vec<&'static str>,
    sizes: Vec<u64>,
    numbers: Vec<u32>,
    tail_gap: u64,
    zeroed: bool,
    grow: bool,
    snapshots: bool,
    clear: &'static str,
}

fn shapes() -> impl Strategy<Value = Shape> {
    let dead = 1usize..=2;
    (
        dead,
        prop::sample::select(vec![512u32, 4096]),
        any::<[bool; 4]>(),
        0u64..64,
    )
        .prop_flat_map(
            |(dead, block, [zeroed, grow, snapshots, shuffled], tail_gap)| {
                let names: Vec<&'static str> = KEPT
                    .into_iter()
                    .chain(["tank"])
                    .chain(DEAD.into_iter().take(dead))
                    .collect();
                let n = names.len();
                // Most workers have their pool at the end; a free shuffle is mostly refused.
                let order = match shuffled {
                    true => Just(names).prop_shuffle().boxed(),
                    false => Just(names[4..].to_vec())
                        .prop_shuffle()
                        .prop_map(|tail| KEPT.into_iter().chain(tail).collect())
                        .boxed(),
                };
                let numbers = Just((1..=24).collect::<Vec<u32>>()).prop_shuffle();
                let sizes = prop::collection::vec(64u64..4096, n);
                let clear = prop::sample::select(vec!["snapshots", "all", "none"]);
                (order, numbers, sizes, clear).prop_map(move |(order, numbers, sizes, clear)| {
                    Shape {
                        block,
                        order,
                        sizes,
                        numbers: numbers[..n].to_vec(),
                        tail_gap,
                        zeroed,
                        grow,
                        snapshots,
                        clear,
                    }
                })
            },
        )
}

impl Shape {
    fn survey(&self) -> Survey {
        let mut at = 1;
        let mut parts = Vec::new();
        for ((name, size), number) in self.order.iter().zip(&self.sizes).zip(&self.numbers) {
            let kind = if *name == "tank" { ZFS } else { LINUX };
            parts.push(part(*number, name, kind, at, at + size));
            at += size;
        }
        let size = (at + self.tail_gap + 1) << 20;
        let worker = Worker {
            size,
            made_for: size,
            ..Worker::new(self.block, parts)
        };
        let mut survey = worker.survey();
        survey.disks[0].partitions.sort_by_key(|p| p.number);
        if !self.zeroed {
            survey.disks[0].zero_runs.clear();
        }
        if !self.snapshots {
            let found = survey.containerd.as_mut().unwrap();
            found.snapshotter_dir = path("/srv/snapshots", "/", "ext4", "/dev/nvme0n1p3");
        }
        survey
    }

    fn policy(&self) -> String {
        let mode = if self.grow { "grow" } else { "recreate" };
        let dead = DEAD.iter().filter(|name| self.order.contains(name));
        let remove: String = dead
            .map(|name| format!("[[remove]]\nlabel = \"{name}\"\ncontains = \"no-filesystem\"\n"))
            .collect();
        format!(
            "version = 1\nmode = \"{mode}\"\n[disk]\npool = \"tank\"\n[pool]\n{remove}\
             [[datasets]]\nname = \"tank/containerd\"\n[containerd]\nclear = \"{}\"\n",
            self.clear
        )
    }

    /// Whether nothing that stays lies between the pool and a dead partition, and, to
    /// grow, every dead one lies behind the pool: said here without the planner's code.
    fn should_be_planned(&self) -> bool {
        let place = |name: &str| self.order.iter().position(|n| *n == name);
        let Some(pool) = place("tank") else {
            return false;
        };
        DEAD.iter().filter_map(|name| place(name)).all(|dead| {
            let run = &self.order[dead.min(pool)..=dead.max(pool)];
            run.iter().all(|name| !KEPT.contains(name)) && !(self.grow && dead < pool)
        })
    }
}

fn touches(step: &Step) -> (Vec<Extent>, Vec<PartNo>) {
    match step {
        Step::LabelClear(clear) => (clear.extents.clone(), Vec::new()),
        Step::TableWrite(write) => (vec![write.change.shadow()], Vec::new()),
        Step::KernelTable(kernel) => {
            let all: Vec<KernelPart> = kernel
                .delete
                .iter()
                .copied()
                .chain(kernel.add)
                .chain(kernel.resize)
                .collect();
            (
                all.iter().map(|p| p.extent).collect(),
                all.iter().map(|p| p.number).collect(),
            )
        }
        Step::PoolCreate(_) | Step::ContainerdClear(_) => (Vec::new(), Vec::new()),
    }
}

fn check_untouched(plan: &Plan) -> Result<(), TestCaseError> {
    for step in &plan.steps {
        let (extents, numbers) = touches(step);
        for part in &plan.untouched {
            prop_assert!(
                !numbers.contains(&part.number),
                "{} names {}",
                step.name(),
                part.number
            );
            for extent in &extents {
                prop_assert!(
                    !extent.overlaps(&part.extent),
                    "{} on {}",
                    step.name(),
                    part.name
                );
            }
        }
        if let Step::TableWrite(write) = step {
            let old = parse_table_with(write.change.old(), BackupPlace::MayMove).unwrap();
            let new = parse_table(write.change.new_image()).unwrap();
            for part in &plan.untouched {
                prop_assert_eq!(old.entry(part.number), new.entry(part.number));
            }
            let stays = plan.untouched.len() + 1;
            prop_assert_eq!(new.entries.len(), stays);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn steps_stand_in_order(shape in shapes()) {
        let result = plan(&policy(&shape.policy()), &shape.survey());
        prop_assert_eq!(result.is_ok(), shape.should_be_planned(), "{:?}", result.err());
        let Ok(plan) = result else { return Ok(()) };
        let mut expected = vec![StepName::LabelClear, StepName::TableWrite, StepName::KernelTable];
        if !shape.grow {
            expected.push(StepName::PoolCreate);
            if shape.snapshots && shape.clear != "none" {
                expected.push(StepName::ContainerdClear);
            }
        }
        prop_assert_eq!(plan.step_names(), expected);
        prop_assert_eq!(plan.snapshots_on.is_some(), shape.snapshots && !shape.grow);
    }

    #[test]
    fn an_untouched_partition_is_in_no_step(shape in shapes()) {
        if let Ok(plan) = plan(&policy(&shape.policy()), &shape.survey()) {
            check_untouched(&plan)?;
            prop_assert_eq!(plan.untouched.len() + plan.touched.len(), shape.order.len());
        }
    }

    #[test]
    fn the_new_partition_takes_all_that_was_given_up(shape in shapes()) {
        if let Ok(plan) = plan(&policy(&shape.policy()), &shape.survey()) {
            for part in &plan.touched {
                prop_assert!(plan.new.extent.contains(&part.extent));
            }
            let first = plan.touched.iter().map(|p| p.extent.first).min();
            prop_assert_eq!(Some(plan.new.extent.first), first);
            let lowest = plan.touched.iter().map(|p| p.number).min();
            if !shape.grow {
                prop_assert_eq!(Some(plan.new.number), lowest);
            }
        }
    }

    #[test]
    fn a_plan_made_twice_and_stored_is_the_same(shape in shapes()) {
        let make = || plan(&policy(&shape.policy()), &shape.survey());
        let (one, two) = (make(), make());
        prop_assert_eq!(&one, &two);
        if let Ok(plan) = one {
            let text = serde_json::to_vec(&plan).unwrap();
            let back: Plan = serde_json::from_slice(&text).unwrap();
            prop_assert_eq!(back, plan);
        }
    }
}
