//! A private bus with org.freedesktop.systemd1 and org.freedesktop.login1 on it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use repave_systemd::units::ALL;
use zbus::object_server::SignalEmitter;
use zbus::{ObjectPath, OwnedObjectPath, OwnedVariant, fdo, interface};

/// Every call and every file effect, in order.
pub type Log = Arc<Mutex<Vec<String>>>;

/// What `systemd-analyze verify` (252) says of the control and of nothing else.
pub const CONTROL_SEEN: &str =
    "repave-control-b.service: Found ordering cycle on repave-control-a.service/start\n";

/// How the fake behaves; the default is a host where all is well.
#[derive(Debug, Clone)]
pub struct Behaviour {
    /// The call that is answered with an error.
    pub fail: Option<&'static str>,
    /// How the self-test ends: result, CLD code, status, and what it prints.
    pub self_test: (&'static str, i32, i32, &'static str),
    /// How the order check ends and what it prints.
    pub order: (&'static str, i32, i32, &'static str),
    /// Whether EnableUnitFiles says that it found install information.
    pub carries_install_info: bool,
    /// A unit whose link EnableUnitFiles does not make.
    pub unlinked: Option<&'static str>,
    /// What logind lists: what, who, why, mode.
    pub inhibitors: Vec<(&'static str, &'static str, &'static str, &'static str)>,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            fail: None,
            self_test: ("success", 1, 0, "ok\n"),
            order: ("exit-code", 1, 1, CONTROL_SEEN),
            carries_install_info: true,
            unlinked: None,
            inhibitors: vec![("shutdown", "kubelet", "graceful shutdown", "delay")],
        }
    }
}

/// The bus and its services; gone when dropped.
pub struct FakeBus {
    pub address: String,
    daemon: Child,
    service: Option<(tokio::sync::oneshot::Sender<()>, JoinHandle<()>)>,
    _dir: tempfile::TempDir,
}

impl Drop for FakeBus {
    fn drop(&mut self) {
        if let Some((stop, service)) = self.service.take() {
            // A service that panicked is reported by the test that it served.
            let _ = stop.send(());
            let _ = service.join();
        }
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
    }
}

impl FakeBus {
    /// Starts a bus for the host in `root`.
    pub fn start(root: &Path, log: &Log, behaviour: Behaviour) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("bus.conf");
        let text = format!(
            "<busconfig><type>custom</type><listen>unix:path={}/bus</listen>\
             <auth>EXTERNAL</auth><policy context=\"default\">\
             <allow send_destination=\"*\" eavesdrop=\"true\"/><allow eavesdrop=\"true\"/>\
             <allow own=\"*\"/></policy></busconfig>",
            dir.path().display()
        );
        std::fs::write(&config, text).unwrap();
        let mut daemon = Command::new("dbus-daemon")
            .arg(format!("--config-file={}", config.display()))
            .args(["--nofork", "--print-address"])
            .stdout(Stdio::piped())
            // It complains of its own file limit where it may not raise it.
            .stderr(Stdio::null())
            .spawn()
            .expect("dbus-daemon (Debian package dbus-daemon) is needed");
        let mut address = String::new();
        BufReader::new(daemon.stdout.take().unwrap())
            .read_line(&mut address)
            .unwrap();
        let address = address.trim().to_owned();
        let host = Host {
            root: root.to_owned(),
            log: log.clone(),
            behaviour,
        };
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let at = address.clone();
        let service = std::thread::spawn(move || serve(&at, host, &ready, stopped));
        is_ready.recv().unwrap();
        Self {
            address,
            daemon,
            service: Some((stop, service)),
            _dir: dir,
        }
    }
}

/// Serves until told to stop.
fn serve(
    address: &str,
    host: Host,
    ready: &std::sync::mpsc::Sender<()>,
    stopped: tokio::sync::oneshot::Receiver<()>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let _connection = zbus::connection::Builder::address(address)
            .name("org.freedesktop.systemd1")
            .name("org.freedesktop.login1")
            .serve_at("/org/freedesktop/systemd1", Systemd1(host.clone()))
            .serve_at("/org/freedesktop/login1", Login1(host))
            .build()
            .await
            .unwrap();
        ready.send(()).unwrap();
        stopped.await.unwrap();
    });
}

#[derive(Clone)]
struct Host {
    root: PathBuf,
    log: Log,
    behaviour: Behaviour,
}

impl Host {
    /// Records the call; an error where it is the one that fails.
    fn call(&self, name: &'static str, detail: &str) -> fdo::Result<()> {
        let entry = match detail {
            "" => name.to_owned(),
            _ => format!("{name} {detail}"),
        };
        self.log.lock().unwrap().push(entry);
        match self.behaviour.fail == Some(name) {
            true => Err(fdo::Error::AccessDenied("injected".into())),
            false => Ok(()),
        }
    }

    fn here(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

struct Systemd1(Host);

type Changes = Vec<(String, String, String)>;

fn job() -> OwnedObjectPath {
    ObjectPath::try_from("/org/freedesktop/systemd1/job/7")
        .unwrap()
        .into()
}

fn object_of(unit: &str) -> String {
    let name: String = unit
        .bytes()
        .map(|b| match b.is_ascii_alphanumeric() {
            true => char::from(b).to_string(),
            false => format!("_{b:02x}"),
        })
        .collect();
    format!("/org/freedesktop/systemd1/unit/{name}")
}

fn text(properties: &HashMap<String, OwnedVariant>, name: &str) -> String {
    let value = properties
        .get(name)
        .unwrap_or_else(|| panic!("no property {name}"));
    String::try_from(value.try_clone().unwrap()).unwrap()
}

#[interface(name = "org.freedesktop.systemd1.Manager")]
impl Systemd1 {
    fn enable_unit_files(
        &self,
        files: Vec<String>,
        runtime: bool,
        force: bool,
    ) -> fdo::Result<(bool, Changes)> {
        self.0.call("EnableUnitFiles", &files.join(" "))?;
        assert!(!runtime && force);
        for unit in ALL.iter().filter(|u| files.iter().any(|f| f == u.name)) {
            assert!(
                self.0.here(&unit.path()).exists(),
                "{} is enabled unwritten",
                unit.name
            );
            let link = self.0.here(&unit.link());
            std::fs::create_dir_all(link.parent().unwrap()).unwrap();
            if self.0.behaviour.unlinked != Some(unit.name) && !link.is_symlink() {
                std::os::unix::fs::symlink(unit.path(), &link).unwrap();
            }
        }
        Ok((self.0.behaviour.carries_install_info, Vec::new()))
    }

    fn disable_unit_files(&self, files: Vec<String>, runtime: bool) -> fdo::Result<Changes> {
        self.0.call("DisableUnitFiles", &files.join(" "))?;
        assert!(!runtime);
        for unit in ALL.iter().filter(|u| files.iter().any(|f| f == u.name)) {
            let link = self.0.here(&unit.link());
            if link.is_symlink() {
                std::fs::remove_file(link).unwrap();
            }
        }
        Ok(Vec::new())
    }

    fn reload(&self) -> fdo::Result<()> {
        self.0.call("Reload", "")
    }

    fn subscribe(&self) -> fdo::Result<()> {
        self.0.call("Subscribe", "")
    }

    async fn start_transient_unit(
        &self,
        name: String,
        mode: String,
        properties: Vec<(String, OwnedVariant)>,
        auxiliary: Vec<(String, Vec<(String, OwnedVariant)>)>,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
        #[zbus(object_server)] server: &zbus::ObjectServer,
    ) -> fdo::Result<OwnedObjectPath> {
        let properties: HashMap<_, _> = properties.into_iter().collect();
        let exec = properties["ExecStart"].try_clone().unwrap();
        let exec = Vec::<(String, Vec<String>, bool)>::try_from(exec).unwrap();
        self.0.call(
            "StartTransientUnit",
            &format!("{name}: {}", exec[0].1.join(" ")),
        )?;
        assert_eq!((mode.as_str(), auxiliary.len(), exec.len()), ("fail", 0, 1));
        assert_eq!(text(&properties, "Type"), "oneshot");
        assert_eq!(text(&properties, "StandardError"), "inherit");
        let ended = match exec[0].0.as_str() {
            "/usr/bin/systemd-analyze" => self.0.behaviour.order,
            program => {
                assert!(self.0.here(program).exists(), "{program} is run unwritten");
                self.0.behaviour.self_test
            }
        };
        let output = self
            .0
            .here(&text(&properties, "StandardOutputFileToTruncate"));
        std::fs::write(output, ended.3).unwrap();
        let service = Service {
            host: self.0.clone(),
            result: ended.0,
            code: ended.1,
            status: ended.2,
        };
        server.at(object_of(&name), service).await?;
        let result = match ended.0 {
            "success" => "done",
            _ => "failed",
        };
        Self::other_job(&emitter).await?;
        Self::job_removed(&emitter, 7, job(), name, result.into()).await?;
        Ok(job())
    }

    async fn start_unit(
        &self,
        name: String,
        mode: String,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> fdo::Result<OwnedObjectPath> {
        self.0.call("StartUnit", &format!("{name} {mode}"))?;
        let result = match name.as_str() {
            "good.service" => "done",
            _ => "failed",
        };
        Self::other_job(&emitter).await?;
        Self::job_removed(&emitter, 7, job(), name, result.into()).await?;
        Ok(job())
    }

    fn load_unit(&self, name: String) -> fdo::Result<OwnedObjectPath> {
        self.0.call("LoadUnit", &name)?;
        Ok(ObjectPath::try_from(object_of(&name)).unwrap().into())
    }

    fn stop_unit(&self, name: String, mode: String) -> fdo::Result<OwnedObjectPath> {
        self.0.call("StopUnit", &format!("{name} {mode}"))?;
        Ok(job())
    }

    fn reset_failed_unit(&self, name: String) -> fdo::Result<()> {
        self.0.call("ResetFailedUnit", &name)
    }

    #[zbus(signal)]
    async fn job_removed(
        emitter: &SignalEmitter<'_>,
        id: u32,
        job: OwnedObjectPath,
        unit: String,
        result: String,
    ) -> zbus::Result<()>;
}

impl Systemd1 {
    /// The end of somebody else's job: only our own may be taken for ours.
    async fn other_job(emitter: &SignalEmitter<'_>) -> zbus::Result<()> {
        let other = ObjectPath::try_from("/org/freedesktop/systemd1/job/6").unwrap();
        let unit = "ssh.service".to_owned();
        Self::job_removed(emitter, 6, other.into(), unit, "canceled".into()).await
    }
}

struct Service {
    host: Host,
    result: &'static str,
    code: i32,
    status: i32,
}

#[interface(name = "org.freedesktop.systemd1.Service")]
impl Service {
    #[zbus(property)]
    fn result(&self) -> fdo::Result<String> {
        self.host.call("Properties.Get", "Result")?;
        Ok(self.result.to_owned())
    }

    #[zbus(property)]
    fn exec_main_code(&self) -> i32 {
        self.code
    }

    #[zbus(property)]
    fn exec_main_status(&self) -> i32 {
        self.status
    }
}

struct Login1(Host);

/// What, who, why, mode, uid, pid.
type Listed = (String, String, String, String, u32, u32);

#[interface(name = "org.freedesktop.login1.Manager")]
impl Login1 {
    fn list_inhibitors(&self) -> fdo::Result<Vec<Listed>> {
        self.0.call("ListInhibitors", "")?;
        let listed = self
            .0
            .behaviour
            .inhibitors
            .iter()
            .map(|(what, who, why, mode)| {
                let own = str::to_owned;
                (own(what), own(who), own(why), own(mode), 0, 1)
            });
        Ok(listed.collect())
    }

    fn reboot(&self, interactive: bool) -> fdo::Result<()> {
        assert!(!interactive);
        self.0.call("Reboot", "")
    }
}
