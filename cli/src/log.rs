//! The one place that decides how log lines look and where they go: stderr, so that stdout carries
//! answers alone; the sandbox's own go to its folder.

use std::fs::OpenOptions;
use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::Mutex;

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;

use crate::environment;
use crate::exit::{Ending, Exit};
use crate::settings::{Settings, table};

/// Sets the subscriber of this process. Call once.
///
/// A line that cannot be written is dropped in silence: to complain of it on the same stderr would be a panic.
///
/// # Errors
/// A filter that cannot be read.
pub(crate) fn start(settings: &Settings) -> anyhow::Result<()> {
    let terminal = std::io::stderr().is_terminal();
    let json = match settings.require(&table::LOG_FORMAT)? {
        "json" => true,
        "human" => false,
        _ => !terminal,
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(settings)?)
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    if json {
        // The spans' fields (job.id, lease.fence and so on) stand beside the event's own.
        builder.json().flatten_event(true).with_current_span(true).with_span_list(false).init();
    } else {
        builder.with_ansi(terminal && environment::var("NO_COLOR").is_none()).with_target(false).init();
    }
    Ok(())
}

/// As [`start`], for the sandbox: the lines go to `logs/leasehold.log` in its folder, and the
/// terminal belongs to what it tells.
///
/// # Errors
/// A filter that cannot be read, a folder that cannot be used.
pub(crate) fn start_in(dir: &Path, settings: &Settings) -> anyhow::Result<()> {
    let logs = dir.join("logs");
    std::fs::create_dir_all(&logs).with_context(|| format!("create {}", logs.display()))?;
    let path = logs.join("leasehold.log");
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let file = file.with_context(|| format!("open {}", path.display()))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(settings)?)
        .with_writer(Mutex::new(file))
        .log_internal_errors(false);
    builder.json().flatten_event(true).with_current_span(true).with_span_list(false).init();
    Ok(())
}

fn filter(settings: &Settings) -> anyhow::Result<EnvFilter> {
    let filter = settings.require(&table::LOG_FILTER)?;
    EnvFilter::try_new(filter).map_err(|error| {
        let message = format!("log.filter cannot be read: {error}");
        Ending { exit: Exit::Usage, message }.into()
    })
}
