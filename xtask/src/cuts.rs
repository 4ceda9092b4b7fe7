//! `cargo xtask cuts`: the power goes after every write of the table's commit.

use anyhow::{Result, ensure};
use repave_tests::crash::{Options, run as replay, table_cases};

/// Replays every cut on every disk and prints the table.
pub fn run(seed: u64, samples: usize) -> Result<()> {
    let summary = replay(&table_cases()?, &Options { seed, samples })?;
    print!("{summary}");
    ensure!(
        summary.passed(),
        "a state was lost, or a control lost nothing"
    );
    Ok(())
}
