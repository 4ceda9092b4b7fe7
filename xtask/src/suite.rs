//! `cargo xtask vm test`: the VM suite, whole or by name.

use std::time::Instant;

use anyhow::{Result, bail, ensure};
use repave_tests::suite::{Case, all, run_cases};

/// Runs the cases of these names, or all; fails when one fails.
pub fn run(names: &[String]) -> Result<()> {
    let mut cases = all();
    for name in names {
        if !cases.iter().any(|case| case.name == name) {
            let known: Vec<&str> = cases.iter().map(|case| case.name).collect();
            bail!("{name:?} is no case; there are {}", known.join(", "));
        }
    }
    if !names.is_empty() {
        cases.retain(|case: &Case| names.iter().any(|name| name == case.name));
    }
    ensure!(!cases.is_empty(), "no case is left to run");
    let begun = Instant::now();
    let outcomes = run_cases(&cases);
    println!();
    for outcome in &outcomes {
        let word = if outcome.failure.is_none() {
            "ok"
        } else {
            "FAILED"
        };
        println!("{word:>8}  {:>4} s  {}", outcome.seconds, outcome.name);
    }
    let failed = outcomes.iter().filter(|o| o.failure.is_some()).count();
    println!("{} passed, {failed} failed", outcomes.len() - failed);
    println!("the VM suite took {} s", begun.elapsed().as_secs());
    ensure!(failed == 0, "{failed} of {} cases failed", outcomes.len());
    Ok(())
}
