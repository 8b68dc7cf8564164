//! The one place that decides how log lines look and where they go: stderr, so that stdout carries
//! answers alone.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::environment;
use crate::settings::{Settings, table};

/// Sets the subscriber of this process. Call once.
///
/// # Errors
/// A filter that cannot be read.
pub(crate) fn start(settings: &Settings) -> anyhow::Result<()> {
    let filter = settings.require(&table::LOG_FILTER)?;
    let filter = EnvFilter::try_new(filter).map_err(|error| crate::exit::Ending {
        exit: crate::exit::Exit::Usage,
        message: format!("log.filter cannot be read: {error}"),
    })?;
    let terminal = std::io::stderr().is_terminal();
    let json = match settings.require(&table::LOG_FORMAT)? {
        "json" => true,
        "human" => false,
        _ => !terminal,
    };
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_span_events(FmtSpan::NONE);
    if json {
        // The spans' fields (job.id, lease.fence and so on) stand beside the event's own.
        builder.json().flatten_event(true).with_current_span(true).with_span_list(false).init();
    } else {
        builder.with_ansi(terminal && environment::var("NO_COLOR").is_none()).with_target(false).init();
    }
    Ok(())
}
