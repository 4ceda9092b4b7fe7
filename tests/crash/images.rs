//! Disks on which a real kernel's partition scan must agree with [`super::scan`].
//!
//! Gives the disks; the lab attaches them to a guest and compares.

use anyhow::Context as _;
use repave_boot::model_disk::gpt::GptLayout;
use repave_boot::model_disk::{ModelDisk, Op};
use repave_plan::table::crc32;
use repave_survey::block_io::BlockRead as _;

use super::table_cases::table_cases;

/// A disk to show to a kernel.
#[derive(Debug, Clone)]
pub struct KernelImage {
    /// What is special about it.
    pub name: String,
    /// Its content.
    pub disk: ModelDisk,
}

impl KernelImage {
    /// The whole content, for an image file.
    pub fn bytes(&self) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.disk.len() as usize];
        self.disk.read_at(0, &mut bytes)?;
        Ok(bytes)
    }
}

/// Good disks, broken ones, and every flush point of a table commit.
pub fn kernel_images() -> anyhow::Result<Vec<KernelImage>> {
    let mut images = Vec::new();
    let mut add = |name: &str, disk: ModelDisk| {
        images.push(KernelImage {
            name: name.to_owned(),
            disk,
        });
    };
    for block in [512, 4096] {
        let layout = GptLayout::worker(block);
        let size = u64::from(block);
        let good = layout.build();
        let broken = |at: u64, bytes: &[u8]| {
            let mut disk = good.clone();
            disk.set(at, bytes);
            disk
        };
        add(&format!("good-{block}"), good.clone());
        add(&format!("header-torn-{block}"), broken(size + 60, &[0]));
        add(&format!("array-torn-{block}"), broken(2 * size + 40, &[1]));
        add(&format!("no-mbr-{block}"), broken(510, &[0]));
        add(&format!("mbr-at-2-{block}"), broken(446 + 8, &[2]));
        add(&format!("hybrid-{block}"), broken(462 + 4, &[0x0c]));
        add(
            &format!("backup-gone-{block}"),
            broken(good.len() - size, &vec![0; size as usize]),
        );
        for (name, at, bytes) in [
            ("own-address-2", 24, 2u64.to_le_bytes().to_vec()),
            (
                "last-usable-beyond",
                48,
                (1u64 << 40).to_le_bytes().to_vec(),
            ),
            ("entry-size-256", 84, 256u32.to_le_bytes().to_vec()),
            ("header-size-91", 12, 91u32.to_le_bytes().to_vec()),
        ] {
            add(&format!("{name}-{block}"), patched(&good, at, &bytes)?);
        }
    }
    for case in table_cases()?
        .iter()
        .filter(|c| c.name().ends_with("usual"))
    {
        let mut run = case.start().clone();
        case.apply(&mut run)?;
        let mut disk = case.start().clone();
        for (at, op) in run.ops().iter().enumerate() {
            match op {
                Op::Write { offset, bytes } => disk.set(*offset, bytes),
                Op::Flush => add(&format!("commit-{}-{at}", disk.block()), disk.clone()),
            }
        }
    }
    Ok(images)
}

/// A field of the primary header changed and the checksum put right again.
fn patched(disk: &ModelDisk, at: usize, bytes: &[u8]) -> anyhow::Result<ModelDisk> {
    let size = u64::from(disk.block());
    let mut header = vec![0; size as usize];
    disk.read_at(size, &mut header)?;
    header[at..at + bytes.len()].copy_from_slice(bytes);
    header[16..20].fill(0);
    let len = u32::from_le_bytes(header[12..16].try_into()?) as usize;
    let crc = crc32(header.get(..len).context("header size")?);
    header[16..20].copy_from_slice(&crc.to_le_bytes());
    let mut disk = disk.clone();
    disk.set(size, &header);
    Ok(disk)
}
