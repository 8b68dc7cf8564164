//! The one place that reads this process's environment.

use std::ffi::OsString;

/// The value of `name`, or nothing where it is unset or empty: an empty setting means "not set".
#[allow(clippy::disallowed_methods, reason = "this is the one file that reads the environment")]
pub(crate) fn var(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// What every child gets unless its caller says otherwise: where to find programs and where to put
/// temporary files. Everything else is added by name, so that nothing of the user's (above all
/// `AWS_*`, which litestream would obey) leaks into a child.
pub(crate) fn base() -> Vec<(OsString, OsString)> {
    ["PATH", "HOME", "TMPDIR", "LANG", "TZ"]
        .into_iter()
        .filter_map(|name| var(name).map(|value| (name.into(), value)))
        .collect()
}
