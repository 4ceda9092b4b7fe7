//! Previews and reports as text for people. Pure.

use std::fmt::Write;

use repave_containerd_clear::{ClearReport, RemoveReport};
use repave_survey::containerd::{
    BadBlob, Fate, ImageVerdict, NamespaceLosses, Preview, image_bytes,
};

/// What clearing would do.
pub fn preview(preview: &Preview) -> String {
    let mut out = format!(
        "{} ({} bytes, schema {})\n",
        preview.database.display(),
        preview.database_bytes,
        preview.schema
    );
    losses(
        &mut out,
        &preview.snapshotter,
        &preview.losses,
        "would lose",
    );
    images(
        &mut out,
        &preview.assessment.images,
        &preview.assessment.bad_blobs,
    );
    out
}

/// What clearing did.
pub fn report(report: &ClearReport) -> String {
    let mut out = String::new();
    if let Some(why) = &report.damaged {
        push(&mut out, format_args!("the database is damaged: {why}"));
    }
    losses(&mut out, &report.snapshotter, &report.removed, "lost");
    images(&mut out, &report.images, &report.bad_blobs);
    if report.images_lost {
        push(
            &mut out,
            format_args!("all images are lost and must be pulled again"),
        );
    }
    for moved in &report.moved {
        let (from, to) = (moved.from.display(), moved.to.display());
        push(&mut out, format_args!("moved {from} to {to}"));
    }
    for left in &report.left {
        push(
            &mut out,
            format_args!("left {}: it is a mount point", left.display()),
        );
    }
    if let Some(path) = &report.kept_database {
        push(
            &mut out,
            format_args!("the old database is in {}", path.display()),
        );
    }
    if out.is_empty() {
        push(&mut out, format_args!("nothing to clear"));
    }
    out
}

/// What was removed.
pub fn removed(report: &RemoveReport) -> String {
    let mut out = String::new();
    let (files, directories) = (report.files, report.directories);
    push(
        &mut out,
        format_args!("removed {files} files and {directories} directories"),
    );
    for stays in &report.left {
        push(
            &mut out,
            format_args!("{} stays: {}", stays.path.display(), stays.why),
        );
    }
    let unnamed = report.left_count - report.left.len() as u64;
    if unnamed > 0 {
        push(&mut out, format_args!("{unnamed} more stay"));
    }
    out
}

fn losses(out: &mut String, snapshotter: &str, losses: &[NamespaceLosses], verb: &str) {
    for loss in losses {
        push(
            out,
            format_args!(
                "namespace {} {verb} {} snapshots of {snapshotter}, {} containers, {} sandboxes, \
                 {} references of leases",
                loss.namespace,
                loss.snapshots,
                loss.containers.len(),
                loss.sandboxes.len(),
                loss.leased
            ),
        );
    }
}

fn images(out: &mut String, images: &[ImageVerdict], blobs: &[BadBlob]) {
    for image in images {
        let ImageVerdict {
            namespace,
            name,
            bytes,
            ..
        } = image;
        match &image.fate {
            Fate::Kept => push(out, format_args!("keep {namespace} {name} ({bytes} bytes)")),
            Fate::Dropped { why } => {
                push(
                    out,
                    format_args!("drop {namespace} {name} ({bytes} bytes): {why}"),
                );
            }
        }
    }
    for BadBlob { namespace, why, .. } in blobs {
        push(out, format_args!("forget a blob of {namespace}: {why}"));
    }
    if !images.is_empty() {
        let (kept, to_pull) = (image_bytes(images, true), image_bytes(images, false));
        push(
            out,
            format_args!("{kept} bytes of images stay, {to_pull} must be pulled again"),
        );
    }
}

fn push(out: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{line}");
}
