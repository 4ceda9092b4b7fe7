//! The list of cases and the loop that runs them.

use std::time::Instant;

use anyhow::Result;

use super::{cuts, gate, main_job, not_run, readme, refusals, second_pool, trap};

/// One case of the suite.
pub struct Case {
    /// Its name, for the command line.
    pub name: &'static str,
    /// What it shows, in one line.
    pub shows: &'static str,
    /// The case.
    pub run: fn() -> Result<()>,
}

/// How a case ended.
pub struct Outcome {
    /// Its name.
    pub name: &'static str,
    /// What went wrong, when something did.
    pub failure: Option<String>,
    /// How long it took, in seconds.
    pub seconds: u64,
}

/// Every case, in the order in which they run: what later ones stand on comes first.
pub fn all() -> Vec<Case> {
    vec![
        Case {
            name: "main-job-tank-first",
            shows: "the whole flow with the dead partition behind the pool, and a plain boot after",
            run: main_job::tank_first,
        },
        Case {
            name: "main-job-dead-first",
            shows: "the whole flow with the dead partition in front, a second pool in the cache",
            run: second_pool::dead_first_with_second_pool,
        },
        Case {
            name: "readme",
            shows: "the README's commands for a node, run as they stand there",
            run: readme::commands_for_a_node,
        },
        Case {
            name: "trap",
            shows: "without the containerd step the node can start no container",
            run: trap::without_clear,
        },
        Case {
            name: "gate",
            shows: "a run that stopped keeps k3s out and sshd up; resume brings the node back",
            run: gate::stopped_and_resumed,
        },
        Case {
            name: "not-run",
            shows: "a program that cannot run, a unit that is gone, a /var that is late: no harm",
            run: not_run::three_ways,
        },
        Case {
            name: "refusals",
            shows: "what is not what was armed is refused, and nothing is written",
            run: refusals::many_in_one_boot,
        },
        Case {
            name: "refused-boot",
            shows: "a refusal at a real boot writes nothing outside the root partition",
            run: refusals::at_a_real_boot,
        },
        Case {
            name: "initrd-pool",
            shows: "a pool imported before the run is exported, or refused when it is mounted",
            run: second_pool::imported_before,
        },
        Case {
            name: "cuts",
            shows: "a power cut in every step, and again in the resume, with the clock far off",
            run: cuts::in_every_step,
        },
    ]
}

/// Runs these cases one after another; says how each ended as it ends.
pub fn run_cases(cases: &[Case]) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for case in cases {
        println!("case {}: {}", case.name, case.shows);
        let begun = Instant::now();
        let failure = (case.run)().err().map(|error| format!("{error:#}"));
        let seconds = begun.elapsed().as_secs();
        match &failure {
            None => println!("case {}: ok ({seconds} s)", case.name),
            Some(why) => println!("case {}: FAILED ({seconds} s)\n{why}", case.name),
        }
        outcomes.push(Outcome {
            name: case.name,
            failure,
            seconds,
        });
    }
    outcomes
}
