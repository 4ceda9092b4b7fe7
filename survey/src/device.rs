//! A real disk, or an image of one in a file, opened for reading.
//!
//! Takes a path and gives a [`BlockRead`]. A device is read past the page cache: ZFS
//! writes its labels past it too, and a partition's cache is another than its disk's
//! (OpenZFS `lib/libzutil/os/linux/zutil_import_os.c` reads labels so as well), so
//! that cached pages can show labels that are long gone. Never opens for writing.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::libc;

use crate::block_io::BlockRead;
use crate::ioctl;

/// The largest single read past the page cache, in bytes.
const CHUNK: usize = 1 << 20;
/// What memory and lengths are aligned to: no logical block is larger.
const ALIGN: usize = 4096;

/// Why a disk or an image cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system said no.
    #[error("open {}", path.display())]
    Open {
        /// What was to be opened.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It is a directory, a terminal, …
    #[error("open {}: neither a block device nor a file", path.display())]
    Kind {
        /// What was to be opened.
        path: PathBuf,
    },
    /// A block size other than 512 or 4096, or one that is not the device's.
    #[error("open {}: logical block of {found} bytes, expected {expected}", path.display())]
    Block {
        /// What was to be opened.
        path: PathBuf,
        /// The block size in bytes.
        found: u32,
        /// What it should be.
        expected: String,
    },
    /// The file is not a whole number of blocks.
    #[error("open {}: {len} bytes are not whole blocks of {block}", path.display())]
    Length {
        /// What was to be opened.
        path: PathBuf,
        /// Its length in bytes.
        len: u64,
        /// The block size in bytes.
        block: u32,
    },
}

/// A disk or an image, read-only.
#[derive(Debug)]
pub struct FileDev {
    file: File,
    shape: Shape,
}

/// What an opened path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Size in bytes.
    pub len: u64,
    /// Logical block size in bytes, 512 or 4096.
    pub block: u32,
    /// Whether it is a block device, which is read and written past the page cache.
    pub device: bool,
}

impl FileDev {
    /// Opens a device with the block size the kernel gives, or an image with `block`,
    /// 512 when it is not given. A `block` that is not the device's is an error.
    pub fn open(path: &Path, block: Option<u32>) -> Result<FileDev, OpenError> {
        let (file, shape) = open(path, OpenOptions::new().read(true), block)?;
        Ok(FileDev { file, shape })
    }

    /// What was opened.
    pub fn shape(&self) -> Shape {
        self.shape
    }
}

impl BlockRead for FileDev {
    fn len(&self) -> u64 {
        self.shape.len
    }

    fn block(&self) -> u32 {
        self.shape.block
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        read_at(&self.file, self.shape, offset, buf)
    }
}

/// Opens a path with these options, never followed by an exec and a device past the
/// page cache, and looks at what it is. Shared with the program that writes.
pub fn open(
    path: &Path,
    options: &mut OpenOptions,
    block: Option<u32>,
) -> Result<(File, Shape), OpenError> {
    let failed = |source| OpenError::Open {
        path: path.to_owned(),
        source,
    };
    let kind = std::fs::metadata(path).map_err(failed)?.file_type();
    if !kind.is_block_device() && !kind.is_file() {
        return Err(OpenError::Kind {
            path: path.to_owned(),
        });
    }
    let direct = match kind.is_block_device() {
        true => libc::O_DIRECT,
        false => 0,
    };
    let file = options
        .custom_flags(libc::O_CLOEXEC | direct)
        .open(path)
        .map_err(failed)?;
    // Looked at again on the descriptor: the path may have become another thing.
    let opened = file.metadata().map_err(failed)?;
    let shape = if opened.file_type().is_block_device() {
        Shape {
            len: ioctl::device_size(&file).map_err(failed)?,
            block: ioctl::device_block(&file).map_err(failed)?,
            device: true,
        }
    } else {
        Shape {
            len: opened.len(),
            block: block.unwrap_or(512),
            device: false,
        }
    };
    check(path, shape, block)?;
    Ok((file, shape))
}

fn check(path: &Path, shape: Shape, asked: Option<u32>) -> Result<(), OpenError> {
    let wrong = |expected| OpenError::Block {
        path: path.to_owned(),
        found: shape.block,
        expected,
    };
    if shape.block != 512 && shape.block != 4096 {
        return Err(wrong("512 or 4096".to_owned()));
    }
    if let Some(asked) = asked.filter(|asked| *asked != shape.block) {
        return Err(wrong(format!("{asked} as asked for")));
    }
    if !shape.len.is_multiple_of(u64::from(shape.block)) {
        return Err(OpenError::Length {
            path: path.to_owned(),
            len: shape.len,
            block: shape.block,
        });
    }
    Ok(())
}

/// Fills `buf` from `offset` of an opened path, through aligned memory where the page
/// cache is passed by. An end before that is `UnexpectedEof`.
pub fn read_at(file: &File, shape: Shape, offset: u64, buf: &mut [u8]) -> io::Result<()> {
    match offset.checked_add(buf.len() as u64) {
        Some(end) if end <= shape.len => {}
        _ => return Err(io::ErrorKind::UnexpectedEof.into()),
    }
    if !shape.device {
        return file.read_exact_at(buf, offset);
    }
    let block = u64::from(shape.block);
    let mut done = 0;
    while done < buf.len() {
        let at = offset + done as u64;
        let start = at / block * block;
        let skip = (at - start) as usize;
        let len = (buf.len() - done).min(CHUNK - skip);
        let mut bounce = AlignedBuf::new((skip + len).next_multiple_of(block as usize));
        file.read_exact_at(bounce.bytes(), start)?;
        buf[done..done + len].copy_from_slice(&bounce.bytes()[skip..skip + len]);
        done += len;
    }
    Ok(())
}

/// Memory aligned for I/O past the page cache.
pub struct AlignedBuf {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuf {
    /// So many zero bytes.
    pub fn new(len: usize) -> AlignedBuf {
        let memory = vec![0; len + ALIGN];
        // The heap block does not move while the Vec is not resized, and it is not.
        let start = memory.as_ptr().align_offset(ALIGN).min(ALIGN);
        AlignedBuf { memory, start, len }
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_reads_at_any_offset_and_ends_where_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let content: Vec<u8> = (0..8192u32).map(|i| (i / 7) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let dev = FileDev::open(&path, None).unwrap();
        assert_eq!((dev.len(), dev.block(), dev.is_empty()), (8192, 512, false));
        assert!(!dev.shape().device);
        let mut buf = [0; 1000];
        dev.read_at(777, &mut buf).unwrap();
        assert_eq!(buf, content[777..1777]);
        for offset in [7193, 8192, u64::MAX - 5] {
            let error = dev.read_at(offset, &mut buf).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{offset}");
        }
        assert_eq!(FileDev::open(&path, Some(4096)).unwrap().block(), 4096);
    }

    #[test]
    fn what_is_no_disk_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, vec![0; 4096 + 512]).unwrap();
        let text = |path: &Path, block| FileDev::open(path, block).unwrap_err().to_string();
        assert!(text(&path, Some(1024)).ends_with("block of 1024 bytes, expected 512 or 4096"));
        assert!(text(&path, Some(4096)).ends_with("4608 bytes are not whole blocks of 4096"));
        assert!(text(dir.path(), None).ends_with("neither a block device nor a file"));
        let missing = FileDev::open(&dir.path().join("none"), None).unwrap_err();
        assert!(matches!(missing, OpenError::Open { .. }), "{missing}");
    }

    #[test]
    fn memory_for_direct_io_is_aligned() {
        for len in [512, 4096, 12288] {
            let mut buf = AlignedBuf::new(len);
            assert_eq!(buf.bytes().len(), len);
            assert_eq!(buf.bytes().as_ptr().addr() % ALIGN, 0);
        }
    }
}
