//! The subcommands that no help tells: what one of our executables becomes when the sandbox starts it.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::{edge, exec, ledger};

/// Becomes what the first argument names, where it is one of the hidden subcommands: the launcher of children (which
/// never comes back), the demo's application, or an edge.
///
/// Call it first thing in `main`, before any thread or runtime exists and before anything is parsed: the words after the
/// first belong to another program.
#[must_use]
pub fn hidden(args: &[OsString]) -> Option<ExitCode> {
    let (first, rest) = args.split_first()?;
    match first.to_str()? {
        exec::SUBCOMMAND => exec::internal_exec(rest),
        ledger::SUBCOMMAND => Some(ledger::internal_ledger()),
        edge::SUBCOMMAND => Some(edge::internal_edge(rest)),
        _ => None,
    }
}
