//! `cargo xtask test`: set-up and all tests. What CI runs.

use std::time::Instant;

use anyhow::Result;
use repave_tests::vm::{Bed, Order, Progress, set_up};

/// How much is tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Everything but the VM.
    Fast,
    /// The VM too.
    Whole,
}

/// Sets up and tests.
pub fn run(depth: Depth) -> Result<()> {
    let begun = Instant::now();
    let progress = Progress::start();
    set_up(&progress)?;
    crate::check::run()?;
    if depth == Depth::Whole {
        for order in [Order::TankFirst, Order::DeadFirst] {
            Bed::ensure(order)?;
        }
        crate::suite::run(&[])?;
    }
    println!(
        "all of it took {} min",
        begun.elapsed().as_secs().div_ceil(60)
    );
    Ok(())
}
