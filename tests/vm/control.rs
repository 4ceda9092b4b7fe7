//! The host's side of the guest agent's port.
//!
//! One connection per request. A request that the guest's end is not ready for
//! waits in the socket; one that a reboot swallowed is noticed by the caller's
//! `alive`, asked every 200 ms.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use repave_guest_agent::{Frame, FrameReader, WireError};

use super::deadline::Deadline;

static NONCE: AtomicU64 = AtomicU64::new(1);

/// Sends one request and waits for its answer's fields.
pub fn request(
    socket: &Path,
    kind: &str,
    fields: Vec<Vec<u8>>,
    deadline: Deadline,
    mut alive: impl FnMut() -> Result<()>,
) -> Result<Frame> {
    let mut stream = UnixStream::connect(socket)
        .with_context(|| format!("connect to the guest's port {}", socket.display()))?;
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    stream.set_write_timeout(Some(deadline.left().max(Duration::from_millis(200))))?;
    // Two processes may talk to one guest after another; an answer left over from
    // the other must not pass for ours.
    let nonce = u64::from(std::process::id()) << 32 | NONCE.fetch_add(1, Ordering::Relaxed);
    let frame = Frame {
        nonce,
        kind: kind.to_owned(),
        fields,
    };
    frame
        .write(&mut stream)
        .with_context(|| format!("send {kind} to the guest"))?;
    let mut answers = FrameReader::new(stream);
    loop {
        match answers.next_frame() {
            Ok(answer) if answer.nonce != nonce => {}
            Ok(answer) if answer.kind == "ok" => return Ok(answer),
            Ok(answer) => bail!("the guest refused {kind}: {}", answer.text(0)),
            Err(WireError::Io(err))
                if matches!(err.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
            {
                alive()?;
                if deadline.passed() {
                    bail!("the guest did not answer {kind} in time");
                }
            }
            Err(err) => {
                alive()?;
                return Err(err).with_context(|| format!("wait for the guest's answer to {kind}"));
            }
        }
    }
}
