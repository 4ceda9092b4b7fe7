//! The frames spoken over the lab's virtio-serial port, shared by both ends.
//!
//! A frame is one header line, `REPAVE1 <nonce> <kind> <length>`, and a body of
//! fields, each a little-endian u32 length and its bytes. The answer carries the
//! nonce of its request. A guest may die or reboot in the middle of a frame, so
//! both readers look for the next header instead of trusting their position.

use std::io::{self, Read, Write};

/// The first bytes of each header line.
pub const MAGIC: &str = "REPAVE1 ";
/// The name of the virtio-serial port in the guest's sysfs.
pub const PORT_NAME: &str = "repave.ctl";
/// Bodies above this are refused before anything is allocated, in bytes.
pub const MAX_BODY: usize = 256 << 20;
const MAX_HEADER: usize = 128;

/// One request or answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Chosen by the host for each request, repeated in the answer.
    pub nonce: u64,
    /// `exec`, `push`, `pull`, `hello`; in answers `ok` or `err`.
    pub kind: String,
    /// The fields, whose meaning depends on the kind.
    pub fields: Vec<Vec<u8>>,
}

/// Why no frame could be read.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The other side closed the port, or is not there yet.
    #[error("the port was closed")]
    Closed,
    /// The port itself failed (a read deadline included).
    #[error("read the port")]
    Io(#[source] io::Error),
    /// The body does not divide into fields.
    #[error("field {index} of a {kind} frame runs past its end")]
    Field {
        /// The kind named in the header.
        kind: String,
        /// The position of the field, from 0.
        index: usize,
    },
}

impl Frame {
    /// Writes the frame in one go.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let length: usize = self.fields.iter().map(|field| field.len() + 4).sum();
        let mut bytes = Vec::with_capacity(length + MAX_HEADER);
        bytes.extend_from_slice(
            format!("{MAGIC}{:016x} {} {length}\n", self.nonce, self.kind).as_bytes(),
        );
        for field in &self.fields {
            let size = u32::try_from(field.len())
                .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "field over 4 GiB"))?;
            bytes.extend_from_slice(&size.to_le_bytes());
            bytes.extend_from_slice(field);
        }
        out.write_all(&bytes)?;
        out.flush()
    }

    /// The field at `index`, empty when the frame is shorter.
    pub fn field(&self, index: usize) -> &[u8] {
        self.fields
            .get(index)
            .map(Vec::as_slice)
            .unwrap_or_default()
    }

    /// The field at `index` as text.
    pub fn text(&self, index: usize) -> String {
        String::from_utf8_lossy(self.field(index)).into_owned()
    }
}

/// Reads frames and skips what is not part of one.
pub struct FrameReader<R> {
    inner: R,
    pending: Vec<u8>,
    /// Kept between reads: the guest's port gives a page at a time.
    chunk: Vec<u8>,
}

impl<R: Read> FrameReader<R> {
    /// Reads from `inner`, which should not be read by anybody else.
    pub fn new(inner: R) -> Self {
        FrameReader {
            inner,
            pending: Vec::new(),
            chunk: vec![0; 64 << 10],
        }
    }

    /// The next whole frame. After an error what was read so far is forgotten,
    /// except after a read deadline (`WouldBlock`, `TimedOut`), where the call may
    /// be repeated.
    pub fn next_frame(&mut self) -> Result<Frame, WireError> {
        loop {
            if let Some(frame) = self.take_frame()? {
                return Ok(frame);
            }
            match self.inner.read(&mut self.chunk) {
                Ok(0) => {
                    self.pending.clear();
                    return Err(WireError::Closed);
                }
                Ok(count) => self.pending.extend_from_slice(&self.chunk[..count]),
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Err(WireError::Io(err)),
            }
        }
    }

    fn take_frame(&mut self) -> Result<Option<Frame>, WireError> {
        loop {
            let Some(start) = find(&self.pending, MAGIC.as_bytes()) else {
                // The tail may hold the first half of a header.
                let keep = self.pending.len().min(MAGIC.len() - 1);
                self.pending.drain(..self.pending.len() - keep);
                return Ok(None);
            };
            self.pending.drain(..start);
            let window = &self.pending[..self.pending.len().min(MAX_HEADER)];
            let header = match window.iter().position(|byte| *byte == b'\n') {
                Some(end) => parse_header(&window[..end]).map(|parsed| (end + 1, parsed)),
                None if window.len() < MAX_HEADER => return Ok(None),
                None => None,
            };
            let Some((body, (nonce, kind, length))) = header else {
                self.pending.drain(..MAGIC.len());
                continue;
            };
            if self.pending.len() < body + length {
                return Ok(None);
            }
            let fields = parse_fields(&kind, &self.pending[body..body + length]);
            self.pending.drain(..body + length);
            return Ok(Some(Frame {
                nonce,
                kind,
                fields: fields?,
            }));
        }
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
}

fn parse_header(line: &[u8]) -> Option<(u64, String, usize)> {
    let text = std::str::from_utf8(line).ok()?.strip_prefix(MAGIC)?;
    let mut words = text.split(' ');
    let nonce = u64::from_str_radix(words.next()?, 16).ok()?;
    let kind = words.next()?.to_owned();
    let length: usize = words.next()?.parse().ok()?;
    (words.next().is_none() && length <= MAX_BODY).then_some((nonce, kind, length))
}

fn parse_fields(kind: &str, mut body: &[u8]) -> Result<Vec<Vec<u8>>, WireError> {
    let mut fields = Vec::new();
    while !body.is_empty() {
        let torn = || WireError::Field {
            kind: kind.to_owned(),
            index: fields.len(),
        };
        let (size, rest) = body.split_first_chunk::<4>().ok_or_else(torn)?;
        let size = u32::from_le_bytes(*size) as usize;
        if rest.len() < size {
            return Err(torn());
        }
        let (field, rest) = rest.split_at(size);
        fields.push(field.to_vec());
        body = rest;
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(nonce: u64, fields: &[&[u8]]) -> Frame {
        Frame {
            nonce,
            kind: "exec".into(),
            fields: fields.iter().map(|field| field.to_vec()).collect(),
        }
    }

    fn bytes(frame: &Frame) -> Vec<u8> {
        let mut out = Vec::new();
        frame.write(&mut out).unwrap();
        out
    }

    #[test]
    fn a_frame_survives_the_way() {
        for wanted in [
            frame(1, &[]),
            frame(2, &[b""]),
            frame(u64::MAX, &[b"a\n", &[0; 70_000]]),
        ] {
            let wire = bytes(&wanted);
            assert_eq!(FrameReader::new(&wire[..]).next_frame().unwrap(), wanted);
        }
    }

    #[test]
    fn a_frame_cut_by_a_reboot_is_skipped() {
        let whole = frame(7, &[b"hello"]);
        let cut = b"garbage REPAVE1 zz exec 4\nREPAVE1 0000000000000001 exec 999999999999\n";
        let wire = [&cut[..], &bytes(&whole)].concat();
        let mut reader = FrameReader::new(&wire[..]);
        assert_eq!(reader.next_frame().unwrap(), whole);
        assert!(matches!(reader.next_frame(), Err(WireError::Closed)));
    }

    #[test]
    fn a_field_past_the_end_is_an_error() {
        let wire = b"REPAVE1 1 exec 6\n\x09\0\0\0ab";
        let found = FrameReader::new(&wire[..]).next_frame();
        assert!(
            matches!(found, Err(WireError::Field { index: 0, .. })),
            "{found:?}"
        );
    }
}
