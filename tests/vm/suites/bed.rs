//! The bed itself: what the other suites stand on.
//!
//! Needs the machine prepared by `cargo xtask vm setup`; run by `cargo xtask test`.

use std::process::Command;
use std::time::{Duration, Instant};

use repave_tests::vm::{Bed, DISK_SERIAL, Deadline, Inject, Layout, Order, SECOND_SERIAL};
use repave_tests::vm::{StartOptions, make_disk};

fn say(start: Instant, text: &str) {
    eprintln!("[{:6.1} s] {text}", start.elapsed().as_secs_f32());
}

#[test]
fn a_worker_is_run_rebooted_cut_and_started_again() {
    let start = Instant::now();
    let bed = Bed::ensure(Order::TankFirst).unwrap();
    let mut options = StartOptions::new("bed");
    options
        .inject
        .push(Inject::file("/etc/injected", 0o600, "by the initrd"));
    let machine = bed.start_running(options).unwrap();
    say(start, "the saved worker answers");

    // Outputs, exit codes, and a time limit that is kept.
    let out = machine.exec("echo one; echo two >&2; exit 3").unwrap();
    assert_eq!((out.rc, &*out.stdout, &*out.stderr), (3, "one\n", "two\n"));
    let err = machine
        .exec_for(1, "echo begun; sleep 600")
        .unwrap_err()
        .to_string();
    assert!(
        err.contains("still running after 1 s") && err.contains("begun"),
        "{err}"
    );
    assert!(machine.exec_ok("exit 4").is_err());
    // A daemon left behind does not hold the answer back.
    assert_eq!(machine.exec_ok("sleep 600 & echo left").unwrap(), "left\n");
    say(start, "commands run");

    let data: Vec<u8> = (0..10 << 20)
        .map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let pushed = Instant::now();
    machine.push("/root/new/data", 0o640, &data).unwrap();
    assert!(
        pushed.elapsed() < Duration::from_secs(20),
        "{:?}",
        pushed.elapsed()
    );
    assert_eq!(machine.pull("/root/new/data").unwrap(), data);
    assert_eq!(
        machine.exec_ok("stat -c %a /root/new/data").unwrap(),
        "640\n"
    );
    assert!(machine.pull("/nothing").is_err());
    say(start, "10 MB went in and out");

    // The worker is what its name says.
    let disk = machine
        .exec_ok("lsblk -dno SERIAL,PTUUID /dev/vda")
        .unwrap();
    assert_eq!(
        disk.split_whitespace().collect::<Vec<_>>(),
        [DISK_SERIAL, "11111111-2222-4333-8444-555555555555"]
    );
    let names = machine
        .exec_ok("lsblk -nro PARTLABEL /dev/vda | grep .")
        .unwrap();
    assert_eq!(names, "EFI\nboot\nroot\ntank\nmayastor\n");
    assert_eq!(
        machine.exec_ok("zpool list -Ho name,health").unwrap(),
        "tank\tONLINE\n"
    );
    let ends = machine
        .exec_ok("sgdisk -p /dev/vda | grep -o 'last usable sector is .*'; sgdisk -i5 /dev/vda | grep -o 'Last sector: [0-9]*'")
        .unwrap();
    let numbers: Vec<&str> = ends
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    assert_eq!(numbers.len(), 2, "{ends}");
    assert_eq!(
        numbers[0], numbers[1],
        "the last partition ends at the last usable sector"
    );
    assert_eq!(
        machine.exec_ok("cri ps | grep -c 'svc2 Running'").unwrap(),
        "1\n"
    );
    let ran = machine
        .exec_ok("cri run again docker.io/library/lab:1")
        .unwrap();
    assert!(ran.starts_with("hello from layer 2\nfour\n"), "{ran}");
    say(start, "the worker is healthy and runs a new pod");

    let line = machine.ssh(&["hostname"]);
    let ssh = Command::new(&line[0]).args(&line[1..]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ssh.stdout), "worker1\n", "{ssh:?}");

    // A second disk comes to the running guest.
    let second = machine.logs().join("second.raw");
    make_disk(&second, &Layout::worker(Order::DeadFirst).retagged('a')).unwrap();
    machine.attach_second(&second).unwrap();
    let serial = machine.exec_ok("lsblk -dno SERIAL /dev/vdb").unwrap();
    assert_eq!(serial.trim(), SECOND_SERIAL);
    say(start, "a second disk was attached");

    let (before, _) = machine.hello().unwrap();
    let boot = machine.reboot(Deadline::secs(600)).unwrap();
    assert_ne!(boot.id, before);
    assert_eq!(
        boot.state,
        "running",
        "{}",
        machine.exec_ok("systemctl --failed").unwrap()
    );
    machine
        .wait_active("k3s-agent.service", Deadline::secs(120))
        .unwrap();
    assert_eq!(
        machine.exec_ok("cat /etc/injected").unwrap(),
        "by the initrd"
    );
    let earlier = machine
        .exec_ok("journalctl -b -1 -o cat | grep -c .")
        .unwrap();
    assert!(
        earlier.trim().parse::<u32>().unwrap() > 10,
        "the earlier boot's journal is kept"
    );
    say(start, "the guest rebooted within one QEMU");

    // The clock goes on after a power cut; writes are logged when asked for.
    machine.exec_ok("echo kept > /root/kept; sync").unwrap();
    let machine = machine
        .start_again(|options| {
            options.log_writes = true;
            options.no_reboot = true;
            options.second_disk = None;
        })
        .unwrap();
    let boot = machine.wait_boot(Deadline::secs(600)).unwrap();
    assert_ne!(boot.id, before);
    assert_eq!(machine.exec_ok("cat /root/kept").unwrap(), "kept\n");
    assert!(
        machine
            .exec_ok("ls /dev/vdb 2>/dev/null || echo gone")
            .unwrap()
            == "gone\n"
    );
    let shown: i64 = machine.exec_ok("date +%s").unwrap().trim().parse().unwrap();
    let wanted = machine
        .guest_time()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    assert!(
        (shown - wanted as i64).abs() < 60,
        "clock {shown}, wanted {wanted}"
    );
    assert!(std::fs::metadata(machine.write_log()).unwrap().len() > 4096);
    say(start, "the power was cut and came back");

    machine.exec_ok("systemctl reboot --no-block").unwrap();
    machine.wait_end(Deadline::secs(300)).unwrap();
    assert!(
        machine.exec("true").is_err(),
        "a dead guest does not answer"
    );
    say(start, "with no_reboot QEMU ended");
}
