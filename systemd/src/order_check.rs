//! Whether the next boot has an ordering cycle.
//!
//! Stage: arm. systemd breaks a cycle by dropping a job it picks, and the boot run is
//! one it may pick; `systemd-analyze verify` says so before the boot does. The check
//! brings a cycle of its own along: where that one is not seen, the output is not
//! understood and proves nothing.

use crate::files::{FileError, HostFiles};

/// The output goes to a file and in words, whatever the host's defaults are.
pub(crate) const ENVIRONMENT: [(&str, &str); 3] = [
    ("SYSTEMD_LOG_TARGET", "console"),
    ("SYSTEMD_LOG_LEVEL", "info"),
    ("SYSTEMD_COLORS", "0"),
];

/// The unit that is in a cycle with [`CONTROL_PEER`].
pub const CONTROL: &str = "repave-control-a.service";
/// The other unit of the control's cycle.
pub const CONTROL_PEER: &str = "repave-control-b.service";

const CONTROL_TEXT: &str = "# The order check's own cycle: it must be seen. Never installed.\n\
    [Unit]\nRequires=repave-control-b.service\nAfter=repave-control-b.service\n\
    [Service]\nType=oneshot\nExecStart=/bin/true\n";
const CONTROL_PEER_TEXT: &str = "# The order check's own cycle: it must be seen. Never installed.\n\
    [Unit]\nAfter=repave-control-a.service\n\
    [Service]\nType=oneshot\nExecStart=/bin/true\n";

/// What the output of the check says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderFault {
    /// The control's cycle is not reported: the check cannot see cycles here.
    #[error("systemd-analyze verify does not report the cycle that was put before it")]
    Blind,
    /// A cycle among the units of the next boot.
    #[error("the next boot would have an ordering cycle: {line}")]
    Cycle {
        /// The first line that says so.
        line: String,
    },
}

/// Writes the control's units into a run's folder; the path of the one to verify.
pub(crate) fn write_control(files: &dyn HostFiles, dir: &str) -> Result<String, FileError> {
    let control = format!("{dir}/{CONTROL}");
    files.write(&control, CONTROL_TEXT.as_bytes(), 0o644)?;
    let peer = format!("{dir}/{CONTROL_PEER}");
    files.write(&peer, CONTROL_PEER_TEXT.as_bytes(), 0o644)?;
    Ok(control)
}

/// Judges the output of `systemd-analyze verify`.
pub fn judge(output: &str) -> Result<(), OrderFault> {
    let mut control_seen = false;
    for line in output.lines() {
        // systemd: "Found ordering cycle on …" up to 257, "Found ordering cycle: …" since.
        if !line.to_ascii_lowercase().contains("ordering cycle") {
            continue;
        }
        if line.contains("repave-control-") {
            control_seen = true;
            continue;
        }
        return Err(OrderFault::Cycle {
            line: line.trim().chars().take(200).collect(),
        });
    }
    match control_seen {
        true => Ok(()),
        false => Err(OrderFault::Blind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `systemd-analyze verify --man=no default.target ./repave-control-a.service`, systemd 252.
    const CONTROL_ONLY: &str = "\
repave-control-b.service: Found ordering cycle on repave-control-a.service/start
repave-control-b.service: Found dependency on repave-control-b.service/start
repave-control-b.service: Unable to break cycle starting with repave-control-b.service/start
Requested transaction contains an unfixable cyclic ordering dependency: Transaction order is cyclic. See system logs for details.
repave-control-a.service: Failed to create repave-control-a.service/start: Transaction order is cyclic. See system logs for details.
";

    /// The same with `After=local-fs.target` added to repave-boot.service.
    const WITH_CYCLE: &str = "\
local-fs.target: Found ordering cycle on repave-boot.service/start
local-fs.target: Found dependency on local-fs.target/start
local-fs.target: Job repave-boot.service/start deleted to break ordering cycle starting with local-fs.target/start
";

    #[test]
    fn only_the_control_is_clean() {
        assert_eq!(judge(CONTROL_ONLY), Ok(()));
        let noise = format!("foo.service: Unknown key name 'X'\n{CONTROL_ONLY}");
        assert_eq!(judge(&noise), Ok(()));
    }

    #[test]
    fn a_cycle_beside_the_control_is_named() {
        let line = "local-fs.target: Found ordering cycle on repave-boot.service/start";
        let cycle = OrderFault::Cycle { line: line.into() };
        assert_eq!(
            judge(&format!("{CONTROL_ONLY}{WITH_CYCLE}")),
            Err(cycle.clone())
        );
        assert_eq!(judge(&format!("{WITH_CYCLE}{CONTROL_ONLY}")), Err(cycle));
    }

    #[test]
    fn an_output_without_the_control_proves_nothing() {
        for blind in ["", "Failed to initialize manager: Permission denied\n"] {
            assert_eq!(judge(blind), Err(OrderFault::Blind));
        }
    }
}
