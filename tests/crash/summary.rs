//! What the harness prints.

use std::fmt;

use super::judge::Losses;
use super::{Case, Options};

/// One case, judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The step.
    pub step: &'static str,
    /// The disk, and what was taken out in a control.
    pub name: String,
    /// Cuts replayed.
    pub states: usize,
    /// How many of them left different bytes.
    pub distinct: usize,
    /// What went wrong.
    pub lost: Losses,
    /// The first thing that went wrong, in words.
    pub first_loss: Option<String>,
}

impl Row {
    pub(super) fn new(case: &dyn Case, swallow: Option<usize>) -> Row {
        Row {
            step: case.step(),
            name: match swallow {
                None => case.name().to_owned(),
                Some(n) => format!("{}, without flush {}", case.name(), n + 1),
            },
            states: 0,
            distinct: 0,
            lost: Losses::default(),
            first_loss: None,
        }
    }

    pub(super) fn add(&mut self, losses: &Losses) {
        self.states += 1;
        let sum = &mut self.lost;
        sum.unsafe_states += losses.unsafe_states;
        sum.not_resumed += losses.not_resumed;
        sum.not_settled += losses.not_settled;
        sum.not_durable += losses.not_durable;
        sum.out_of_order += losses.out_of_order;
    }
}

/// Everything that was judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Where sampling began.
    pub seed: u64,
    /// The steps as they are: nothing may be lost.
    pub rows: Vec<Row>,
    /// The controls: each must lose something.
    pub controls: Vec<Row>,
}

impl Summary {
    pub(super) fn new(options: &Options) -> Summary {
        Summary {
            seed: options.seed,
            rows: Vec::new(),
            controls: Vec::new(),
        }
    }

    /// Cuts replayed, without the controls.
    pub fn states(&self) -> usize {
        self.rows.iter().map(|r| r.states).sum()
    }

    /// States in which something went wrong, without the controls.
    pub fn lost(&self) -> usize {
        self.rows.iter().map(|r| r.lost.total()).sum()
    }

    /// Whether nothing was lost and every control lost something.
    pub fn passed(&self) -> bool {
        !self.rows.is_empty()
            && self.rows.iter().all(|r| r.states > 0)
            && self.lost() == 0
            && self.controls.iter().all(|r| r.lost.total() > 0)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = |f: &mut fmt::Formatter<'_>, rows: &[Row]| {
            let wide = rows.iter().map(|r| r.name.len()).max().unwrap_or(0);
            writeln!(
                f,
                "{:<12} {:<wide$} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
                "step",
                "disk",
                "cuts",
                "distinct",
                "unsafe",
                "resume",
                "settle",
                "durable",
                "order",
            )?;
            for row in rows {
                let lost = &row.lost;
                writeln!(
                    f,
                    "{:<12} {:<wide$} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
                    row.step,
                    row.name,
                    row.states,
                    row.distinct,
                    lost.unsafe_states,
                    lost.not_resumed,
                    lost.not_settled,
                    lost.not_durable,
                    lost.out_of_order,
                )?;
            }
            Ok(())
        };
        table(f, &self.rows)?;
        writeln!(f, "\ncontrols (each must lose something)")?;
        table(f, &self.controls)?;
        let idle = self.controls.iter().filter(|r| r.lost.total() == 0).count();
        writeln!(
            f,
            "\nseed {}, {} controls, {idle} of them lost nothing",
            self.seed,
            self.controls.len()
        )?;
        write!(f, "{} states, {} lost", self.states(), self.lost())
    }
}
