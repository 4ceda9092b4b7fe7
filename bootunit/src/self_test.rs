//! `repave-boot self-test`: proves before arming that the program can run on this host.
//!
//! Started once by the host's systemd, so that SELinux, a wrong architecture, a
//! missing mount or a `noexec` shows now and not at the boot that needs it.

use std::path::Path;

use repave_plan::chain::chain;

use crate::host::Host;
use crate::state_dir::StateDir;

/// What could not be done; empty when all is well.
pub fn self_test(host: &dyn Host, state: &StateDir) -> Vec<String> {
    let mut wrong = Vec::new();
    match host.survey() {
        Ok(survey) if survey.disks.is_empty() => wrong.push("no disk was seen".to_owned()),
        Ok(survey) if survey.host.is_none() => {
            wrong.push("this machine's identity was not seen".to_owned());
        }
        Ok(_) => {}
        Err(error) => wrong.push(chain(&error)),
    }
    let probe = state.path().join("self-test");
    let written = host
        .write(&probe, b"self-test\n")
        .and_then(|()| host.remove(&probe));
    if let Err(error) = written {
        wrong.push(chain(&error));
    }
    if let Err(error) = host.read(Path::new("/proc/self/mountinfo")) {
        wrong.push(chain(&error));
    }
    wrong
}
