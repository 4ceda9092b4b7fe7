//! The plan for a person: the disk before and after, what goes and what stays, the
//! warnings, the steps in their order and the digest to approve.
//!
//! Pure: takes a [`Plan`] or a [`Preview`], gives text of at most [`WIDTH`] columns, or
//! JSON. Names come from the disk, so whatever a terminal would act on is replaced.

use serde::Serialize;

use crate::plan::{Loss, Plan, PlanDisk, Preview, Touched};
use crate::policy::{ClearMode, Mode};
use crate::step::Step;
use crate::units::{Digest, PoolName};

/// The widest line, in characters.
pub const WIDTH: usize = 100;

/// Where the text begins: left of it stand the section's names.
const INDENT: usize = 10;
/// The bar's width, its ends included.
const BAR: usize = WIDTH - INDENT;
/// The least width of a partition in the bar, without its separator.
const NARROWEST: usize = 3;
/// How many datasets of a loss are named.
const NAMED: usize = 6;

/// The picture of a plan and the digest of its essence.
pub fn picture(plan: &Plan, digest: &Digest) -> String {
    let mut page = draw(&Scene {
        mode: plan.mode,
        disk: &plan.disk,
        pool: &plan.pool,
        touched: &plan.touched,
        new: &plan.new,
        untouched: &plan.untouched,
        steps: &plan.steps,
        lost: &plan.lost,
        warnings: &plan.warnings,
    });
    if let Some(image) = plan.image {
        page.entry("image", &format!("only while {image} is booted"));
    }
    page.gap();
    page.entry("digest", &digest.to_string());
    page.text
}

/// The picture of a preview, with what is not known and without a digest.
pub fn picture_preview(preview: &Preview) -> String {
    let mut page = draw(&Scene {
        mode: preview.mode,
        disk: &preview.disk,
        pool: &preview.pool,
        touched: &preview.touched,
        new: &preview.new,
        untouched: &preview.untouched,
        steps: &preview.steps,
        lost: &preview.lost,
        warnings: &preview.warnings,
    });
    page.list("unknown", preview.unknown.iter().cloned());
    page.gap();
    page.entry(
        "digest",
        "none: this is a preview of the disk alone, and cannot be approved",
    );
    page.text
}

/// A plan and its digest, as `--json` prints them.
pub fn plan_json(plan: &Plan, digest: &Digest) -> Result<String, serde_json::Error> {
    #[derive(Serialize)]
    struct Approvable<'a> {
        digest: &'a Digest,
        plan: &'a Plan,
    }
    serde_json::to_string_pretty(&Approvable { digest, plan })
}

/// What plan and preview have in common.
struct Scene<'a> {
    mode: Mode,
    disk: &'a PlanDisk,
    pool: &'a PoolName,
    touched: &'a [Touched],
    new: &'a Touched,
    untouched: &'a [Touched],
    steps: &'a [Step],
    lost: &'a [Loss],
    warnings: &'a [String],
}

impl Scene<'_> {
    /// What becomes of a partition that is there now.
    fn fate(&self, part: &Touched) -> Fate {
        let stays = self.untouched.iter().any(|u| u.number == part.number);
        match (stays, self.mode) {
            (true, _) => Fate::Kept,
            (false, Mode::Grow) if part.guid == self.new.guid => Fate::Grown,
            (false, _) if self.new.extent.overlaps(&part.extent) => Fate::Merged,
            (false, _) => Fate::Freed,
        }
    }

    fn in_order(parts: impl Iterator<Item = Touched>) -> Vec<Touched> {
        let mut parts: Vec<Touched> = parts.collect();
        parts.sort_by_key(|part| part.extent.first);
        parts
    }

    fn before(&self) -> Vec<Touched> {
        Self::in_order(self.untouched.iter().chain(self.touched).cloned())
    }

    fn after(&self) -> Vec<Touched> {
        Self::in_order(self.untouched.iter().chain([self.new]).cloned())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Bit for bit.
    Kept,
    /// Its end moves, its data stays.
    Grown,
    /// Destroyed, and its place becomes part of the new partition.
    Merged,
    /// Destroyed, and its place is free.
    Freed,
}

fn draw(scene: &Scene) -> Page {
    let mut page = Page::default();
    let disk = scene.disk;
    let verb = match scene.mode {
        Mode::Recreate => "destroy it and make it again over the disk's tail, empty",
        Mode::Grow => "grow it over the disk's tail and keep its data",
    };
    page.entry("pool", &format!("{}: {verb}", scene.pool));
    let serial = disk.serial.as_deref().unwrap_or("unknown");
    page.entry(
        "disk",
        &format!(
            "{}, serial {serial}, {} in blocks of {} bytes, table {}",
            disk.name, disk.size, disk.block.0, disk.guid
        ),
    );
    page.gap();
    bars(&mut page, scene);
    partitions(&mut page, scene);
    losses(&mut page, scene);
    page.list("kept", kept(scene).into_iter());
    page.list("warning", scene.warnings.iter().cloned());
    let steps = scene.steps.iter().zip(1..);
    page.list(
        "steps",
        steps.map(|(step, n)| format!("{n} {}: {}", step.name(), describe(step, scene))),
    );
    page
}

fn bars(page: &mut Page, scene: &Scene) {
    let before = |part: &Touched| match scene.fate(part) {
        Fate::Kept => '-',
        Fate::Grown => '=',
        Fate::Merged | Fate::Freed => 'x',
    };
    let after = |part: &Touched| match (part.number == scene.new.number, scene.mode) {
        (true, Mode::Recreate) => '#',
        (true, Mode::Grow) => '=',
        (false, _) => '-',
    };
    let (Some(old), Some(new)) = (
        bar(scene.disk, &scene.before(), before),
        bar(scene.disk, &scene.after(), after),
    ) else {
        return;
    };
    page.entry("before", &old);
    page.entry("after", &new);
    let legend = match scene.mode {
        Mode::Recreate => "- kept   x destroyed   # new and empty   . free",
        Mode::Grow => "- kept   x destroyed   = kept and grown   . free",
    };
    page.entry("", legend);
    page.gap();
}

/// The disk to scale, or nothing where it has more partitions than fit.
fn bar(disk: &PlanDisk, parts: &[Touched], fill: impl Fn(&Touched) -> char) -> Option<String> {
    let all = disk.size.0 / u64::from(disk.block.0).max(1);
    let mut pieces: Vec<(String, char, u64)> = Vec::new();
    let mut at = 0;
    let free = |from: u64, to: u64| {
        let blocks = to.saturating_sub(from);
        // Alignment gaps are not worth a place in the picture.
        (blocks > all / 100).then(|| (String::new(), '.', blocks))
    };
    for part in parts {
        pieces.extend(free(at, part.extent.first.0));
        let label = format!("{} {}", part.number, part.name);
        pieces.push((label, fill(part), part.extent.blocks()));
        at = part.extent.last.0.saturating_add(1);
    }
    pieces.extend(free(at, all));
    let fixed = pieces.len() * (NARROWEST + 1) + 1;
    let spare = BAR.checked_sub(fixed)? as u64;
    let sum = pieces.iter().map(|(.., blocks)| blocks).sum::<u64>().max(1);
    let share = |blocks: u64| (u128::from(spare) * u128::from(blocks) / u128::from(sum)) as usize;
    let mut widths: Vec<usize> = pieces
        .iter()
        .map(|(.., blocks)| NARROWEST + share(*blocks))
        .collect();
    let missing = BAR - 1 - widths.iter().map(|w| w + 1).sum::<usize>();
    if let Some(widest) = widths.iter_mut().max() {
        *widest += missing;
    }
    let mut text = String::from("|");
    for ((label, fill, _), width) in pieces.iter().zip(widths) {
        text.push_str(&filled(label, *fill, width));
        text.push('|');
    }
    Some(text)
}

/// The label in the middle of its piece, or as much of its number as fits.
fn filled(label: &str, fill: char, width: usize) -> String {
    let number = label.split(' ').next().unwrap_or("");
    let inner = [format!(" {label} "), number.to_owned(), String::new()]
        .into_iter()
        .map(|text| {
            if label.is_empty() {
                String::new()
            } else {
                text
            }
        })
        .find(|text| text.chars().count() <= width)
        .unwrap_or_default();
    let rest = width - inner.chars().count();
    let run = |n: usize| fill.to_string().repeat(n);
    format!("{}{inner}{}", run(rest / 2), run(rest - rest / 2))
}

fn partitions(page: &mut Page, scene: &Scene) {
    let block = scene.disk.block;
    let row = |part: &Touched, then: &str| {
        format!(
            "{} {} {:>10}  {} {then}",
            cell(&part.number.to_string(), 4),
            cell(&part.name, 16),
            part.extent.bytes(block).to_string(),
            cell(&part.holds, 28),
        )
    };
    for (index, part) in scene.before().iter().enumerate() {
        let then = match scene.fate(part) {
            Fate::Kept => "kept bit for bit".to_owned(),
            Fate::Grown => "kept, its end moves".to_owned(),
            Fate::Merged => format!("destroyed, part of {}", scene.new.number),
            Fate::Freed => "destroyed".to_owned(),
        };
        page.raw(if index == 0 { "before" } else { "" }, &row(part, &then));
    }
    let then = match scene.mode {
        Mode::Recreate => "new and empty",
        Mode::Grow => "grown, data kept",
    };
    page.raw("after", &row(scene.new, then));
    let extent = scene.new.extent;
    page.entry(
        "",
        &format!(
            "{} to {}, PARTUUID {}",
            extent.first, extent.last, scene.new.guid
        ),
    );
    page.gap();
}

/// Cut or padded to its width.
fn cell(text: &str, width: usize) -> String {
    let text = plain(text);
    match text.chars().count() > width {
        true => text.chars().take(width - 1).chain(['\u{2026}']).collect(),
        false => format!("{text:width$}"),
    }
}

fn losses(page: &mut Page, scene: &Scene) {
    let all = scene.lost.iter().map(|loss| {
        let count = match loss.datasets.len() {
            0 => String::new(),
            _ => format!("{} ", loss.count),
        };
        let mut text = format!("{count}{}, {}", loss.what, loss.bytes);
        let names: Vec<&str> = loss
            .datasets
            .iter()
            .take(NAMED)
            .map(|d| d.as_str())
            .collect();
        if !names.is_empty() {
            text.push_str(": ");
            text.push_str(&names.join(", "));
        }
        if loss.datasets.len() > NAMED {
            text.push_str(&format!(" and {} more", loss.datasets.len() - NAMED));
        }
        text
    });
    page.list("destroyed", all);
}

fn kept(scene: &Scene) -> Vec<String> {
    let mut kept = Vec::new();
    let names: Vec<String> = scene
        .untouched
        .iter()
        .map(|part| format!("{} {}", part.number, part.name))
        .collect();
    if !names.is_empty() {
        kept.push(format!(
            "{}: entry and content, bit for bit",
            names.join(", ")
        ));
    }
    if scene.mode == Mode::Grow {
        kept.push(format!("pool {} with all of its data", scene.pool));
    }
    for step in scene.steps {
        match step {
            Step::PoolCreate(create) => {
                let recipe = &create.recipe;
                let names: Vec<&str> = recipe.datasets.iter().map(|d| d.name.as_str()).collect();
                kept.push(format!(
                    "properties and {} features of pool {}, and, empty, the datasets {}",
                    recipe.features.len(),
                    recipe.pool,
                    names.join(", ")
                ));
            }
            Step::ContainerdClear(clear) if clear.mode == ClearMode::Snapshots => {
                kept.push("containerd's images, as far as their content is there".to_owned());
            }
            _ => {}
        }
    }
    kept
}

/// A step in one sentence.
fn describe(step: &Step, scene: &Scene) -> String {
    match step {
        Step::LabelClear(clear) => {
            let pools: Vec<String> = clear.pool_guids.iter().map(ToString::to_string).collect();
            match pools.is_empty() {
                true => "make sure that no ZFS label lies where the pool grows".to_owned(),
                false => format!("erase the ZFS labels of pool guid {}", pools.join(", ")),
            }
        }
        Step::TableWrite(write) => {
            let shadow = write.change.shadow();
            format!(
                "commit the new table with one sector, by way of a copy at {} to {}",
                shadow.first, shadow.last
            )
        }
        Step::KernelTable(kernel) => {
            let gone: Vec<String> = kernel.delete.iter().map(|p| p.number.to_string()).collect();
            let verb = match (&kernel.add, &kernel.resize) {
                (Some(part), _) => format!("add {}", part.number),
                (None, Some(part)) => format!("resize {}", part.number),
                (None, None) => "add nothing".to_owned(),
            };
            format!("have the kernel drop {} and {verb}", gone.join(", "))
        }
        Step::PoolCreate(create) => format!(
            "make pool {} with ashift {} and its datasets",
            create.recipe.pool, create.recipe.ashift
        ),
        Step::ContainerdClear(clear) => {
            let what = match clear.mode {
                ClearMode::Snapshots => "the snapshots and containers that went with pool",
                ClearMode::All => "everything, images too, that stood on pool",
                ClearMode::None => "nothing of pool",
            };
            format!(
                "have containerd in {} forget {what} {}",
                clear.root, scene.pool
            )
        }
    }
}

/// The text as it grows, line by line.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn gap(&mut self) {
        self.text.push('\n');
    }

    /// One line, as it is.
    fn raw(&mut self, name: &str, text: &str) {
        let line = format!("{name:INDENT$}{}", plain(text));
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    /// A name and its text, broken between words.
    fn entry(&mut self, name: &str, text: &str) {
        let mut name = name;
        for line in wrap(text, WIDTH - INDENT) {
            self.raw(name, &line);
            name = "";
        }
    }

    /// A name and one entry an item; nothing where there are none.
    fn list(&mut self, name: &str, items: impl Iterator<Item = String>) {
        for (index, item) in items.enumerate() {
            self.entry(if index == 0 { name } else { "" }, &item);
        }
    }
}

/// Lines of at most `width` characters; a longer word is broken.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        loop {
            let Some(line) = lines.last_mut() else {
                return lines;
            };
            let used = line.chars().count();
            let space = usize::from(used > 0);
            if used + space + word.len() <= width {
                if used > 0 {
                    line.push(' ');
                }
                line.extend(&word);
                break;
            }
            if used == 0 {
                line.extend(word.drain(..width));
            }
            lines.push(String::new());
        }
    }
    lines
}

/// Without characters that a terminal acts on: controls, and marks that turn the
/// direction of the text or have no width (Unicode, general category Cf).
pub fn plain(text: &str) -> String {
    let acts = |c: char| {
        c.is_control()
            || matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
            || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    text.chars()
        .map(|c| {
            if acts(c) {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{BlockSize, Bytes, Extent, Guid, Lba, PartNo};

    fn part(number: u32, name: &str, first: u64, last: u64) -> Touched {
        Touched {
            number: PartNo(number),
            name: name.to_owned(),
            type_guid: Guid::UNUSED,
            guid: Guid::UNUSED,
            extent: Extent {
                first: Lba(first),
                last: Lba(last),
            },
            holds: String::new(),
        }
    }

    fn bar_of(parts: &[Touched]) -> Option<String> {
        let disk = PlanDisk {
            name: "disk".to_owned(),
            serial: None,
            wwn: None,
            size: Bytes(512 * 10_000),
            block: BlockSize(512),
            guid: Guid::UNUSED,
        };
        bar(&disk, parts, |_| '-')
    }

    #[test]
    fn a_bar_is_to_scale_and_always_as_wide() {
        let half = [part(1, "a", 0, 4999), part(2, "b", 5000, 9999)];
        let run = "-".repeat(18);
        let expected = format!("|{run} p1 a {run}-|{run}- p2 b {run}-|");
        assert_eq!(bar_of(&half).unwrap(), expected);
        // Free space shows from a hundredth of the disk on.
        let gap = bar_of(&[part(1, "a", 100, 4999), part(2, "b", 5101, 9999)]).unwrap();
        assert_eq!(gap.matches('.').count(), 3, "{gap}");
        for n in 1..=21u64 {
            let parts: Vec<Touched> = (0..n)
                .map(|i| part(i as u32 + 1, "x", i * 400, i * 400 + 399))
                .collect();
            let text = bar_of(&parts).unwrap();
            assert_eq!(text.chars().count(), BAR, "{n}: {text}");
        }
    }

    #[test]
    fn a_disk_of_many_partitions_has_no_bar() {
        let parts: Vec<Touched> = (0..23)
            .map(|i| part(i as u32 + 1, "x", i * 400, i * 400 + 399))
            .collect();
        assert_eq!(bar_of(&parts), None);
    }

    #[test]
    fn what_a_terminal_acts_on_is_replaced() {
        for bad in [
            '\u{1b}', '\u{7}', '\n', '\u{85}', '\u{202e}', '\u{2066}', '\u{200b}',
        ] {
            assert_eq!(plain(&format!("a{bad}b")), "a\u{fffd}b", "{bad:?}");
        }
        assert_eq!(plain("\u{e9}\u{4e2d}~"), "\u{e9}\u{4e2d}~");
        let mut page = Page::default();
        page.entry("name", "x\u{1b}[2J");
        assert_eq!(page.text, "name      x\u{fffd}[2J\n");
    }

    #[test]
    fn lines_break_between_words_and_a_long_word_is_broken() {
        assert_eq!(wrap("aa bb cc", 5), ["aa bb", "cc"]);
        assert_eq!(
            wrap("aa bbbbbbbbbbbb c", 5),
            ["aa", "bbbbb", "bbbbb", "bb c"]
        );
        assert_eq!(wrap("", 5), [""]);
        assert_eq!(cell("abcdef", 4), "abc\u{2026}");
        assert_eq!(cell("ab", 4), "ab  ");
    }
}
