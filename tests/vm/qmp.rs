//! QEMU's control socket (QMP): commands, and the events that say that the guest
//! was reset or that a saved guest goes on.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};

use super::deadline::Deadline;

/// A connection to one QEMU.
pub struct Qmp {
    line: Mutex<Line>,
    resets: Arc<AtomicU32>,
}

struct Line {
    stream: UnixStream,
    answers: Receiver<Value>,
}

impl Qmp {
    /// Connects as soon as the socket is there.
    pub fn connect(socket: &Path, deadline: Deadline) -> Result<Self> {
        let stream = deadline.poll("QEMU's control socket", || {
            Ok(UnixStream::connect(socket).ok())
        })?;
        let resets = Arc::new(AtomicU32::new(0));
        let (send, answers) = channel();
        let reader = BufReader::new(stream.try_clone()?);
        let count = Arc::clone(&resets);
        std::thread::spawn(move || {
            for line in reader.lines().map_while(Result::ok) {
                let Ok(message) = serde_json::from_str::<Value>(&line) else {
                    return;
                };
                if message["event"] == "RESET" {
                    count.fetch_add(1, Ordering::SeqCst);
                }
                let answers = message.get("return").is_some() || message.get("error").is_some();
                if answers && send.send(message).is_err() {
                    return;
                }
            }
        });
        let qmp = Qmp {
            line: Mutex::new(Line { stream, answers }),
            resets,
        };
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// How often the guest was reset, by itself or by us.
    pub fn resets(&self) -> u32 {
        self.resets.load(Ordering::SeqCst)
    }

    /// Runs one command and gives what it returns.
    pub fn execute(&self, command: &str, arguments: Value) -> Result<Value> {
        let mut line = self.line.lock().map_err(|_| anyhow!("QMP is poisoned"))?;
        let request = json!({ "execute": command, "arguments": arguments });
        line.stream
            .write_all(format!("{request}\n").as_bytes())
            .context("write to QEMU")?;
        let answer = line
            .answers
            .recv_timeout(Duration::from_secs(30))
            .with_context(|| format!("QEMU did not answer {command}"))?;
        match answer.get("return") {
            Some(value) => Ok(value.clone()),
            None => bail!("QEMU refused {command}: {}", answer["error"]["desc"]),
        }
    }
}
