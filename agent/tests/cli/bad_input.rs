//! Bad input, command by command: one clear error, the documented exit code,
//! and nothing changed.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::worker::{Answer, POLICY, Worker, agent};

/// One line of error, perhaps one with the way out, and no panic.
fn assert_one_error(answer: &Answer, code: i32, message: &str) {
    assert_eq!(answer.code, Some(code), "{message}\n{}", answer.err);
    assert!(answer.err.contains(message), "{message}\n{}", answer.err);
    let lines: Vec<&str> = answer.err.lines().collect();
    assert!(lines.len() <= 2, "{}", answer.err);
    if let Some(way_out) = lines.get(1) {
        assert!(way_out.starts_with("way out: "), "{}", answer.err);
    }
}

#[test]
fn wrong_calls_exit_with_2() {
    let rows: [&[&str]; 11] = [
        &[],
        &["fly"],
        &["survey", "--fast"],
        &["plan", "--image", "x"],
        &["plan", "--block", "512"],
        &["plan", "--image", "x", "--block", "513"],
        &["plan", "--image", "x", "--block", "512", "--root", "/"],
        &["arm", "--approve", "sha256:12"],
        &["arm", "--approve"],
        &["arm", "--reboot"],
        &["disarm", "now"],
    ];
    for args in rows {
        let answer = agent(args);
        assert_eq!(answer.code, Some(2), "{args:?}");
        assert_eq!(answer.out, "", "{args:?}");
        let told = answer.err.starts_with("error: ") || answer.err.contains("Usage: ");
        assert!(told, "{args:?}: {}", answer.err);
    }
}

#[test]
fn policies_that_are_none_are_named() {
    let worker = Worker::new();
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let large = file("large.toml", b"#");
    fs::OpenOptions::new()
        .write(true)
        .open(&large)
        .and_then(|f| f.set_len(100 << 20))
        .unwrap();
    let folder = dir.path().to_str().unwrap().to_owned();
    let rows = [
        (
            "/no/such/policy.toml".to_owned(),
            "read the policy /no/such/policy.toml: No such file",
        ),
        (folder, "Is a directory"),
        (
            file("cut.toml", &POLICY.as_bytes()[..40]),
            "is not valid TOML",
        ),
        (
            file("binary.toml", &[0x7f, b'E', b'L', b'F', 0xff]),
            "is not UTF-8 text (byte 4)",
        ),
        (file("empty.toml", b""), "missing field `version`"),
        (
            file("key.toml", format!("{POLICY}moed = 1\n").as_bytes()),
            "unknown field `moed`",
        ),
        (
            file(
                "newer.toml",
                POLICY.replace("version = 1", "version = 2").as_bytes(),
            ),
            "its version is 2",
        ),
        (large, "has 104857600 bytes; a policy has 1048576 at most"),
    ];
    let before = worker.tree();
    for (path, message) in rows {
        for command in ["plan", "arm"] {
            let answer = worker.run(command, &["--policy", &path]);
            assert_one_error(&answer, 2, message);
        }
    }
    assert_eq!(worker.tree(), before);
    fs::rename(worker.path("etc/repave"), worker.path("etc/else")).unwrap();
    let none = worker.run("plan", &[]);
    assert_one_error(&none, 2, "no policy was found in /usr/lib/repave/policy.d");
}

#[test]
fn hosts_and_images_that_are_none_are_named() {
    let worker = Worker::new();
    for command in ["survey", "plan", "arm", "disarm", "status"] {
        let answer = agent(&[command, "--root", "/no/such/root"]);
        assert_one_error(
            &answer,
            2,
            "open the root directory /no/such/root: No such file",
        );
    }
    let policy = worker.path("etc/repave/policy.d/50-worker.toml");
    let policy = policy.to_str().unwrap();
    let image = |path: &str| {
        agent(&[
            "plan", "--image", path, "--block", "512", "--policy", policy,
        ])
    };
    assert_one_error(
        &image("/no/such.img"),
        2,
        "survey the image: open /no/such.img: No such file",
    );
    assert_one_error(&image("/tmp"), 2, "/tmp");
    assert_one_error(&image("/dev/null"), 2, "/dev/null");
    let text = worker.path("etc/fstab");
    let odd = image(text.to_str().unwrap());
    assert_one_error(&odd, 2, "27 bytes are not whole blocks of 512");
    let zeros = worker.path("zeros.img");
    fs::File::create(&zeros)
        .and_then(|f| f.set_len(1 << 30))
        .unwrap();
    assert_one_error(&image(zeros.to_str().unwrap()), 10, "no disk matches");
}

#[test]
fn no_such_disk_and_two_of_them_are_refused() {
    let worker = Worker::new();
    let before = worker.tree();
    worker.policy("[disk]", "[disk]\nserial = \"OTHER\"");
    let none = worker.run("plan", &[]);
    assert_one_error(
        &none,
        10,
        "no disk matches: a partition with a label of pool solo",
    );
    worker.policy("[disk]\nserial = \"OTHER\"", "[disk]");
    assert_eq!(worker.tree(), before);

    // The same disk a second time, as a clone that was attached to look at it.
    let twin = worker.path("sys/class/block/vdb");
    let copied = Command::new("/bin/cp")
        .arg("-r")
        .arg(worker.path("sys/class/block/vda"))
        .arg(&twin)
        .status()
        .unwrap();
    assert!(copied.success());
    for n in 1..=4 {
        fs::rename(twin.join(format!("vda{n}")), twin.join(format!("vdb{n}"))).unwrap();
        worker.write(
            &format!("sys/class/block/vdb/vdb{n}/dev"),
            &format!("253:{n}\n"),
        );
    }
    worker.write("sys/class/block/vdb/dev", "253:0\n");
    worker.write("sys/class/block/vdb/serial", "CLONE\n");
    fs::copy(worker.path("dev/vda"), worker.path("dev/vdb")).unwrap();
    let two = worker.run("plan", &[]);
    assert_one_error(
        &two,
        10,
        "2 disks match a partition with a label of pool solo: vda",
    );
    assert!(two.err.contains("CLONE"), "{}", two.err);
}

#[test]
fn a_boot_program_that_is_none_is_named() {
    let worker = Worker::new();
    let digest = worker.digest();
    let empty = worker.path("var/empty-program");
    fs::write(&empty, b"").unwrap();
    let before = worker.tree();
    for (path, message) in [
        (
            "/no/such/program",
            "read the boot program /no/such/program: No such file",
        ),
        ("/tmp", "read the boot program /tmp: it is not a file"),
    ] {
        let answer = worker.run("arm", &["--approve", &digest, "--boot-binary", path]);
        assert_one_error(&answer, 2, message);
        assert!(
            answer.err.contains("way out: put repave-boot next to"),
            "{}",
            answer.err
        );
    }
    let path = empty.to_str().unwrap();
    let answer = worker.run("arm", &["--approve", &digest, "--boot-binary", path]);
    assert_one_error(&answer, 2, "it is empty");
    // Without one it is looked for next to the agent.
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("repave-agent");
    fs::copy(env!("CARGO_BIN_EXE_repave-agent"), &program).unwrap();
    let answer: Answer = Command::new(&program)
        .args(["arm", "--approve", &digest, "--root"])
        .arg(worker.path(""))
        .output()
        .unwrap()
        .into();
    let expected = dir.path().join("repave-boot");
    assert_one_error(&answer, 2, &format!("boot program {}", expected.display()));
    assert_eq!(worker.tree(), before);
}

/// Runs the agent as nobody. Only root can become nobody.
fn as_nobody(args: &[&str]) -> Option<Answer> {
    if !nix::unistd::geteuid().is_root() {
        return None;
    }
    // The build folder may be closed to nobody: the program is handed over open.
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("repave-agent");
    fs::copy(env!("CARGO_BIN_EXE_repave-agent"), &program).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(dir.path(), open).unwrap();
    let output = Command::new(&program)
        .args(args)
        .env_clear()
        .uid(65534)
        .gid(65534)
        .output();
    Some(output.unwrap().into())
}

#[test]
fn who_is_not_root_is_told_so() {
    for (command, what) in [
        ("survey", "a survey"),
        ("plan", "a plan"),
        ("arm", "arming"),
        ("disarm", "disarming"),
        ("status", "the status"),
    ] {
        let answer = match nix::unistd::geteuid().is_root() {
            true => as_nobody(&[command]).unwrap(),
            false => agent(&[command]),
        };
        assert_one_error(&answer, 2, &format!("error: {what} needs root"));
        assert!(
            answer.err.ends_with("way out: run it as root\n"),
            "{}",
            answer.err
        );
    }
}

#[test]
fn a_policy_that_may_not_be_read_is_named() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let policy = dir.path().join("closed.toml");
    fs::write(&policy, POLICY).unwrap();
    fs::set_permissions(&policy, fs::Permissions::from_mode(0o000)).unwrap();
    let path = policy.to_str().unwrap();
    let args = ["plan", "--image", path, "--block", "512", "--policy", path];
    let answer = match nix::unistd::geteuid().is_root() {
        true => as_nobody(&args).unwrap(),
        false => agent(&args),
    };
    assert_one_error(&answer, 2, "closed.toml: Permission denied");
    assert!(
        answer.err.ends_with("way out: run it as root\n"),
        "{}",
        answer.err
    );
}

/// A file-size limit makes every write fail as a full disk does: half written.
#[test]
fn a_state_directory_without_room_is_not_armed() {
    let worker = Worker::new();
    let digest = worker.digest();
    let binary = worker.path("boot/repave-boot");
    let units = worker.path("etc/systemd/system");
    let before = fs::read_dir(&units).unwrap().count();
    let script = format!(
        "ulimit -f 8; trap '' XFSZ; exec {} arm --root {} --approve {digest} --boot-binary {}",
        env!("CARGO_BIN_EXE_repave-agent"),
        worker.path("").display(),
        binary.display()
    );
    let answer: Answer = Command::new("/bin/bash")
        .args(["-c", &script])
        .output()
        .unwrap()
        .into();
    assert_one_error(&answer, 2, "nothing is armed");
    assert!(answer.err.contains("File too large"), "{}", answer.err);
    assert!(!worker.path("var/lib/repave/intent.json").exists());
    assert_eq!(fs::read_dir(&units).unwrap().count(), before);
}
