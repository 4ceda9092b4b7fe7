//! The host's systemd and logind over D-Bus.
//!
//! Stage: arm. Blocking calls over one connection on a runtime of its own: a caller
//! inside an async runtime uses `spawn_blocking`. Interfaces: org.freedesktop.systemd1(5)
//! and org.freedesktop.login1(5). Every call has a time limit.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use zbus::export::futures_core::Stream;
use zbus::fdo::PropertiesProxy;
use zbus::names::InterfaceName;
use zbus::{OwnedObjectPath, Variant, proxy};

use crate::host_systemd::{CallError, ExitState, Inhibitor, Oneshot, OrderCheck, Systemd};
use crate::order_check::ENVIRONMENT;

/// Where the system bus is, on a host and where a pod mounts it.
pub const SYSTEM_BUS: &str = "unix:path=/run/dbus/system_bus_socket";

/// A reload reads every unit file of the host, on a disk that may be busy.
const CALL_LIMIT: Duration = Duration::from_secs(90);

type UnitFileChanges = Vec<(String, String, String)>;

#[proxy(
    interface = "org.freedesktop.systemd1.Manager",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
trait Systemd1 {
    fn enable_unit_files(
        &self,
        files: &[&str],
        runtime: bool,
        force: bool,
    ) -> zbus::Result<(bool, UnitFileChanges)>;
    fn disable_unit_files(&self, files: &[&str], runtime: bool) -> zbus::Result<UnitFileChanges>;
    fn reload(&self) -> zbus::Result<()>;
    fn subscribe(&self) -> zbus::Result<()>;
    fn start_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;
    fn stop_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;
    fn reset_failed_unit(&self, name: &str) -> zbus::Result<()>;
    fn load_unit(&self, name: &str) -> zbus::Result<OwnedObjectPath>;
    fn start_transient_unit(
        &self,
        name: &str,
        mode: &str,
        properties: &[(&str, Variant<'_>)],
        auxiliary: &[(&str, Vec<(&str, Variant<'_>)>)],
    ) -> zbus::Result<OwnedObjectPath>;
    #[zbus(signal)]
    fn job_removed(
        &self,
        id: u32,
        job: OwnedObjectPath,
        unit: String,
        result: String,
    ) -> zbus::Result<()>;
}

#[proxy(
    interface = "org.freedesktop.login1.Manager",
    default_service = "org.freedesktop.login1",
    default_path = "/org/freedesktop/login1"
)]
trait Login1 {
    fn list_inhibitors(&self) -> zbus::Result<Vec<(String, String, String, String, u32, u32)>>;
    fn reboot(&self, interactive: bool) -> zbus::Result<()>;
}

/// A connection to the host's bus.
pub struct BusSystemd {
    runtime: tokio::runtime::Runtime,
    connection: zbus::Connection,
}

impl BusSystemd {
    /// Connects to the bus at this address; [`SYSTEM_BUS`] is the host's.
    pub fn connect(address: &str) -> Result<Self, CallError> {
        let fail = |source: zbus::Error| CallError::Connect {
            address: address.to_owned(),
            source: Box::new(source),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| fail(e.into()))?;
        let connection = runtime
            .block_on(
                zbus::connection::Builder::address(address)
                    .method_timeout(CALL_LIMIT)
                    .build(),
            )
            .map_err(fail)?;
        Ok(Self {
            runtime,
            connection,
        })
    }

    async fn systemd1(&self, name: &'static str) -> Result<Systemd1Proxy<'_>, CallError> {
        Systemd1Proxy::new(&self.connection)
            .await
            .map_err(call(name))
    }

    async fn login1(&self, name: &'static str) -> Result<Login1Proxy<'_>, CallError> {
        Login1Proxy::new(&self.connection).await.map_err(call(name))
    }

    /// One property, never from a cache.
    async fn property<T>(
        &self,
        path: &OwnedObjectPath,
        interface: &'static str,
        name: &'static str,
    ) -> Result<T, CallError>
    where
        T: TryFrom<zbus::OwnedVariant>,
        T::Error: Into<zbus::Error>,
    {
        let fail = call("Properties.Get");
        let properties = PropertiesProxy::builder(&self.connection)
            .destination("org.freedesktop.systemd1")
            .path(path.clone())
            .build()
            .await
            .map_err(&fail)?;
        let interface = InterfaceName::from_static_str_unchecked(interface);
        let value = properties
            .get(interface, name)
            .await
            .map_err(|e| fail(e.into()))?;
        T::try_from(value).map_err(|e| fail(e.into()))
    }

    async fn run(&self, oneshot: &Oneshot<'_>) -> Result<ExitState, CallError> {
        const NAME: &str = "StartTransientUnit";
        let systemd = self.systemd1(NAME).await?;
        let mut removed = subscribe(&systemd).await?;
        let program = oneshot.argv.first().copied().unwrap_or_default();
        let environment: Vec<String> = oneshot
            .env
            .iter()
            .map(|(k, v)| format!("{k}={v}"))
            .collect();
        // Stays loaded after success, so that its result can still be read.
        let properties = [
            ("Description", Variant::from(format!("repave: {program}"))),
            ("Type", Variant::from("oneshot")),
            ("RemainAfterExit", Variant::from(true)),
            (
                "ExecStart",
                Variant::from(vec![(program, oneshot.argv.to_vec(), false)]),
            ),
            ("Environment", Variant::from(environment)),
            (
                "TimeoutStartUSec",
                Variant::from(oneshot.deadline.as_micros() as u64),
            ),
            (
                "StandardOutputFileToTruncate",
                Variant::from(oneshot.output),
            ),
            ("StandardError", Variant::from("inherit")),
        ];
        let job = systemd
            .start_transient_unit(oneshot.unit, "fail", &properties, &[])
            .await
            .map_err(call(NAME))?;
        // systemd ends the unit at the deadline; ours is only for a systemd that does not.
        let limit = oneshot.deadline + Duration::from_secs(15);
        wait_for_job(&mut removed, &job, NAME, oneshot.unit, limit).await?;
        let state = self.exit_state(&systemd, oneshot.unit).await?;
        if state.is_success() {
            systemd
                .stop_unit(oneshot.unit, "replace")
                .await
                .map_err(call("StopUnit"))?;
        } else if let Err(error) = systemd.reset_failed_unit(oneshot.unit).await {
            tracing::debug!(unit = oneshot.unit, err = %error, "a failed transient unit stays listed");
        }
        Ok(state)
    }

    async fn exit_state(
        &self,
        systemd: &Systemd1Proxy<'_>,
        unit: &str,
    ) -> Result<ExitState, CallError> {
        const SERVICE: &str = "org.freedesktop.systemd1.Service";
        let path = systemd.load_unit(unit).await.map_err(call("LoadUnit"))?;
        let result: String = self.property(&path, SERVICE, "Result").await?;
        let code: i32 = self.property(&path, SERVICE, "ExecMainCode").await?;
        let status: i32 = self.property(&path, SERVICE, "ExecMainStatus").await?;
        // CLD_EXITED (waitid(2)): only then is the status an exit status.
        let status = (code == 1).then_some(status);
        Ok(ExitState { result, status })
    }

    async fn start(&self, unit: &str, deadline: Duration) -> Result<(), CallError> {
        const NAME: &str = "StartUnit";
        let systemd = self.systemd1(NAME).await?;
        let mut removed = subscribe(&systemd).await?;
        let job = systemd
            .start_unit(unit, "replace")
            .await
            .map_err(call(NAME))?;
        let result = wait_for_job(&mut removed, &job, NAME, unit, deadline).await?;
        match result.as_str() {
            "done" => Ok(()),
            _ => Err(CallError::Job {
                call: NAME,
                unit: unit.to_owned(),
                result,
            }),
        }
    }
}

/// Makes the error of a call.
fn call(name: &'static str) -> impl Fn(zbus::Error) -> CallError {
    move |source| CallError::Call {
        call: name,
        source: Box::new(source),
    }
}

/// Listens before the job is made: a short job's end would be missed otherwise.
async fn subscribe<'s>(systemd: &Systemd1Proxy<'s>) -> Result<JobRemovedStream, CallError> {
    let stream = systemd
        .receive_job_removed()
        .await
        .map_err(call("AddMatch"))?;
    match systemd.subscribe().await {
        // A second subscription of one connection is an error by that name; it is one already.
        Err(zbus::Error::MethodError(name, ..))
            if name.as_str() == "org.freedesktop.systemd1.AlreadySubscribed" =>
        {
            Ok(stream)
        }
        other => other.map(|()| stream).map_err(call("Subscribe")),
    }
}

async fn wait_for_job(
    removed: &mut JobRemovedStream,
    job: &OwnedObjectPath,
    name: &'static str,
    unit: &str,
    limit: Duration,
) -> Result<String, CallError> {
    let ended = async {
        while let Some(signal) = poll_fn(|cx| Pin::new(&mut *removed).poll_next(cx)).await {
            let args = signal.args().map_err(call("JobRemoved"))?;
            if args.job == *job {
                return Ok(args.result.clone());
            }
        }
        let gone = io::Error::from(io::ErrorKind::ConnectionAborted);
        Err(call("JobRemoved")(gone.into()))
    };
    match tokio::time::timeout(limit, ended).await {
        Ok(result) => result,
        Err(_) => Err(CallError::Deadline {
            call: name,
            unit: unit.to_owned(),
            seconds: limit.as_secs(),
        }),
    }
}

impl Systemd for BusSystemd {
    fn is_running(&self) -> bool {
        true
    }

    fn enable(&self, units: &[&str]) -> Result<bool, CallError> {
        const NAME: &str = "EnableUnitFiles";
        self.runtime.block_on(async {
            let systemd = self.systemd1(NAME).await?;
            let (carries, changes) = systemd
                .enable_unit_files(units, false, true)
                .await
                .map_err(call(NAME))?;
            tracing::debug!(changes = changes.len(), "units enabled");
            Ok(carries)
        })
    }

    fn disable(&self, units: &[&str]) -> Result<(), CallError> {
        const NAME: &str = "DisableUnitFiles";
        self.runtime.block_on(async {
            let systemd = self.systemd1(NAME).await?;
            let changes = systemd
                .disable_unit_files(units, false)
                .await
                .map_err(call(NAME))?;
            tracing::debug!(changes = changes.len(), "units disabled");
            Ok(())
        })
    }

    fn reload(&self) -> Result<(), CallError> {
        const NAME: &str = "Reload";
        self.runtime.block_on(async {
            self.systemd1(NAME)
                .await?
                .reload()
                .await
                .map_err(call(NAME))
        })
    }

    fn run_oneshot(&self, oneshot: &Oneshot<'_>) -> Result<ExitState, CallError> {
        self.runtime.block_on(self.run(oneshot))
    }

    fn verify_order(&self, check: &OrderCheck<'_>) -> Result<ExitState, CallError> {
        // The generators make the mount units of fstab: a cycle may go through one.
        let mut argv = vec![
            "/usr/bin/systemd-analyze",
            "verify",
            "--man=no",
            "--generators=yes",
            "default.target",
        ];
        argv.extend(check.units);
        argv.push(check.control);
        self.run_oneshot(&Oneshot {
            unit: check.unit,
            argv: &argv,
            env: &ENVIRONMENT,
            output: check.output,
            deadline: check.deadline,
        })
    }

    fn start_and_wait(&self, unit: &str, deadline: Duration) -> Result<(), CallError> {
        self.runtime.block_on(self.start(unit, deadline))
    }

    fn active_state(&self, unit: &str) -> Result<String, CallError> {
        const NAME: &str = "LoadUnit";
        self.runtime.block_on(async {
            let systemd = self.systemd1(NAME).await?;
            let path = systemd.load_unit(unit).await.map_err(call(NAME))?;
            self.property(&path, "org.freedesktop.systemd1.Unit", "ActiveState")
                .await
        })
    }

    fn inhibitors(&self) -> Result<Vec<Inhibitor>, CallError> {
        const NAME: &str = "ListInhibitors";
        self.runtime.block_on(async {
            let listed = self
                .login1(NAME)
                .await?
                .list_inhibitors()
                .await
                .map_err(call(NAME))?;
            let inhibitor = |(what, who, why, mode, _uid, _pid)| Inhibitor {
                what,
                who,
                why,
                mode,
            };
            Ok(listed.into_iter().map(inhibitor).collect())
        })
    }

    fn reboot(&self) -> Result<(), CallError> {
        const NAME: &str = "Reboot";
        // Never systemd1's Reboot: it does not stop services, so ostree would not finalize.
        self.runtime.block_on(async {
            self.login1(NAME)
                .await?
                .reboot(false)
                .await
                .map_err(call(NAME))
        })
    }
}
