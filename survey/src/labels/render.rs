//! Labels as a table for people.
//!
//! Pure: takes a [`LabelSet`] and gives text. What a label says of itself comes from
//! the disk, so control characters in it are shown as `?`: a pool's name must not
//! move a terminal's cursor.

use std::fmt::{Display, Write as _};

use super::{LabelInfo, LabelSet, Place, Verdict};

const HEAD: [&str; 8] = [
    "LABEL",
    "OFFSET",
    "IS",
    "POOL",
    "POOL GUID",
    "VDEV GUID",
    "STATE",
    "TXG",
];

/// The table of an extent's labels, then the devices the first label names, then
/// what is worth a remark.
pub fn render(set: &LabelSet) -> String {
    if set.places.is_empty() {
        let size = set.extent.end.saturating_sub(set.extent.start);
        return format!("{size} bytes: too small for ZFS labels\n");
    }
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(set.places.iter().map(row));
    let mut out = columns(&rows);
    if let Some(info) = set.labels().next() {
        tree(info, &mut out);
    }
    for place in &set.places {
        remarks(place, &mut out);
    }
    if set.l2arc_header {
        out.push_str("a cache device's header stands at 4 MiB\n");
    }
    out
}

fn row(place: &Place) -> [String; 8] {
    let dash = || "-".to_owned();
    let or_dash = |value: Option<&dyn Display>| value.map_or_else(dash, |v| clean(&v.to_string()));
    let (index, offset) = (place.index.to_string(), place.offset.to_string());
    match &place.verdict {
        Verdict::Label(info) => [
            index,
            offset,
            "label".to_owned(),
            or_dash(info.pool_name.as_ref().map(|v| v as _)),
            or_dash(info.pool_guid.as_ref().map(|v| v as _)),
            info.vdev_guid.to_string(),
            info.state.as_str().to_owned(),
            or_dash(info.txg.as_ref().map(|v| v as _)),
        ],
        Verdict::Remnant(remnant) => [
            index,
            offset,
            "remnant".to_owned(),
            dash(),
            or_dash(remnant.pool_guid.as_ref().map(|v| v as _)),
            or_dash(remnant.vdev_guid.as_ref().map(|v| v as _)),
            remnant
                .state
                .map_or_else(dash, |state| state.as_str().to_owned()),
            dash(),
        ],
        Verdict::Clear => [
            index,
            offset,
            "clear".to_owned(),
            dash(),
            dash(),
            dash(),
            dash(),
            dash(),
        ],
    }
}

fn columns(rows: &[[String; 8]]) -> String {
    let mut widths = [0; 8];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            // Writing to a String cannot fail.
            let _ = write!(line, "{cell:<width$}  ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

fn tree(info: &LabelInfo, out: &mut String) {
    let Some(tree) = &info.tree else {
        return;
    };
    let _ = writeln!(
        out,
        "{} of {}:",
        clean(&tree.kind),
        count(tree.leaves.len(), "device")
    );
    for leaf in &tree.leaves {
        let guid = leaf
            .guid
            .map_or_else(|| "-".to_owned(), |guid| guid.to_string());
        let path = leaf.path.as_deref().unwrap_or("-");
        let _ = writeln!(out, "  {} {guid} {}", clean(&leaf.kind), clean(path));
    }
}

fn remarks(place: &Place, out: &mut String) {
    let index = place.index;
    match &place.verdict {
        Verdict::Label(info) => {
            if !info.checksum_ok {
                let _ = writeln!(out, "label {index}: its checksum is not that of this place");
            }
            if info.txg == Some(0) {
                let _ = writeln!(
                    out,
                    "label {index}: txg 0, a pool whose creation did not finish"
                );
            }
        }
        Verdict::Remnant(remnant) => {
            let uberblocks = count(place.uberblocks as usize, "uberblock");
            let _ = writeln!(
                out,
                "label {index}: {uberblocks} left; {}",
                clean(&remnant.damage)
            );
        }
        Verdict::Clear => {}
    }
}

fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}

fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}
