//! Where the boot program's log goes: to journald with structured fields, and while
//! journald is not there yet, to the kernel's ring buffer.

use std::fs::OpenOptions;
use std::sync::Mutex;

use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::Registry;
use tracing_subscriber::util::SubscriberInitExt;

/// Starts logging. A log that cannot be had is no reason not to run.
pub fn start() {
    let layer: Option<Box<dyn Layer<Registry> + Send + Sync>> = match tracing_journald::layer() {
        Ok(journald) => Some(
            journald
                .with_syslog_identifier("repave-boot".to_owned())
                .boxed(),
        ),
        Err(_) => OpenOptions::new()
            .write(true)
            .open("/dev/kmsg")
            .ok()
            .map(|kmsg| {
                tracing_subscriber::fmt::layer()
                    .without_time()
                    .with_ansi(false)
                    .with_writer(Mutex::new(kmsg))
                    .boxed()
            }),
    };
    let _ = Registry::default()
        .with(layer)
        .with(LevelFilter::INFO)
        .try_init();
}
