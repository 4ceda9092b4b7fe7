//! Standard output, where a closed pipe is an error and not a panic.

use std::io::Write as _;

use anyhow::Context as _;

/// Prints the text.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("write to standard output")
}

/// Prints a value as JSON.
pub fn print_json<T: serde::Serialize>(value: &T) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value).context("write the value as JSON")?;
    print(&(text + "\n"))
}
