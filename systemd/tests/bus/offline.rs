//! A root directory without a running systemd, judged by the real `systemd-analyze`.

use std::path::Path;

use repave_plan::units::RunId;
use repave_systemd::arm::Then;
use repave_systemd::{OfflineSystemd, RootFiles, arm, disarm};

use crate::harness::{FOREIGN, HostDir, chain, request, starters};

/// The ordering lines of OpenZFS's units (`etc/systemd/system/*.in`, 2.1 to 2.4).
const ZFS_UNITS: [(&str, &str); 6] = [
    (
        "zfs-load-module.service",
        "DefaultDependencies=no\nAfter=systemd-udev-settle.service cryptsetup.target\n\
         After=systemd-remount-fs.service\nBefore=dracut-mount.service",
    ),
    (
        "zfs-import-cache.service",
        "DefaultDependencies=no\nRequires=systemd-udev-settle.service zfs-load-module.service\n\
         After=systemd-udev-settle.service zfs-load-module.service cryptsetup.target\n\
         After=multipathd.service systemd-remount-fs.service\nBefore=zfs-import.target",
    ),
    (
        "zfs-import-scan.service",
        "DefaultDependencies=no\nRequires=systemd-udev-settle.service zfs-load-module.service\n\
         After=systemd-udev-settle.service zfs-load-module.service cryptsetup.target\n\
         After=multipathd.service\nBefore=zfs-import.target",
    ),
    (
        "zfs-load-key.service",
        "DefaultDependencies=no\nAfter=zfs-import.target\nBefore=zfs-mount.service",
    ),
    (
        "zfs-mount.service",
        "DefaultDependencies=no\nAfter=systemd-udev-settle.service zfs-import.target\n\
         After=systemd-remount-fs.service zfs-load-module.service\nBefore=local-fs.target",
    ),
    (
        "zfs-volume-wait.service",
        "DefaultDependencies=no\nAfter=systemd-udev-settle.service zfs-import.target",
    ),
];

/// A root with this machine's own systemd units, ZFS's, and k3s.
fn root() -> HostDir {
    let host = HostDir::new();
    let units = host.at("/usr/lib/systemd/system");
    copy_dir(Path::new("/usr/lib/systemd/system"), &units);
    std::fs::copy("/etc/os-release", host.at("/etc/os-release")).unwrap();
    let service = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n";
    for (name, ordering) in ZFS_UNITS {
        let text = format!("[Unit]\n{ordering}\n{service}");
        std::fs::write(units.join(name), text).unwrap();
    }
    let import = "[Unit]\nRequires=zfs-import-cache.service zfs-import-scan.service\n";
    std::fs::write(units.join("zfs-import.target"), import).unwrap();
    let mut wants = "network-online.target zfs-import.target".to_owned();
    for (name, _) in ZFS_UNITS {
        wants = format!("{wants} {name}");
    }
    let k3s = format!("[Unit]\nWants={wants}\nAfter=network-online.target\n{service}");
    std::fs::write(units.join("k3s-agent.service"), k3s).unwrap();
    let wants = host.at("/etc/systemd/system/multi-user.target.wants");
    std::fs::create_dir(&wants).unwrap();
    let link = wants.join("k3s-agent.service");
    std::os::unix::fs::symlink("/usr/lib/systemd/system/k3s-agent.service", link).unwrap();
    host
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).expect("Debian's package systemd is needed") {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_symlink() {
            std::os::unix::fs::symlink(entry.path().read_link().unwrap(), target).unwrap();
        } else if entry.path().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn arm_offline(host: &HostDir) -> Result<repave_systemd::Armed, repave_systemd::ArmError> {
    let run: RunId = "r1".parse().unwrap();
    let files = RootFiles::open(host.root()).unwrap();
    let systemd = OfflineSystemd::open(host.root()).unwrap();
    std::fs::remove_file(host.at("/sys/fs/selinux/enforce")).unwrap();
    arm(&files, &systemd, &request(&run, &starters(), Then::Wait))
}

#[test]
fn a_root_is_armed_with_the_links_of_systemctl_and_has_no_cycle() {
    let host = root();
    let before: Vec<String> = host.etc().into_keys().collect();
    let armed = arm_offline(&host).unwrap();
    assert!(host.at("/var/lib/repave/intent.json").exists());
    let etc = host.etc();
    for (link, target) in [
        (
            "sysinit.target.wants/repave-boot.service",
            "repave-boot.service",
        ),
        (
            "multi-user.target.wants/repave-late.service",
            "repave-late.service",
        ),
        (
            "multi-user.target.wants/repave-finish.service",
            "repave-finish.service",
        ),
    ] {
        let found = &etc[&format!("etc/systemd/system/{link}")];
        assert_eq!(*found, format!("/etc/systemd/system/{target}"));
    }
    let tested = std::fs::read_to_string(host.at("/var/lib/repave/runs/r1/self-test.txt")).unwrap();
    assert_eq!(tested, "self-test ok\n");
    assert!(host.at(&armed.binary).exists());
    // A root that is not booted has no boot to protect from itself.
    assert!(!host.at("/run/repave").exists());
    let files = RootFiles::open(host.root()).unwrap();
    disarm(&files, &OfflineSystemd::open(host.root()).unwrap()).unwrap();
    assert_eq!(host.etc().into_keys().collect::<Vec<_>>(), before);
}

#[test]
fn the_real_analyzer_finds_a_cycle_that_a_drop_in_makes() {
    // zfs-mount.service is before local-fs.target, and so is the run.
    let host = root();
    let folder = host.at("/etc/systemd/system/repave-boot.service.d");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(
        folder.join("10-admin.conf"),
        "[Unit]\nAfter=local-fs.target\n",
    )
    .unwrap();
    let text = chain(&arm_offline(&host).unwrap_err());
    assert!(
        text.contains("the next boot would have an ordering cycle"),
        "{text}"
    );
    assert!(!host.at("/var/lib/repave/intent.json").exists());
    assert!(host.at(FOREIGN).exists() && folder.join("10-admin.conf").exists());
}

#[test]
fn a_root_cannot_be_rebooted() {
    let host = root();
    let run: RunId = "r1".parse().unwrap();
    let files = RootFiles::open(host.root()).unwrap();
    let systemd = OfflineSystemd::open(host.root()).unwrap();
    std::fs::remove_file(host.at("/sys/fs/selinux/enforce")).unwrap();
    let error = arm(&files, &systemd, &request(&run, &starters(), Then::Reboot)).unwrap_err();
    assert!(chain(&error).contains("call ListInhibitors: no systemd is running in this root"));
    assert!(!host.at("/var/lib/repave/intent.json").exists());
}
