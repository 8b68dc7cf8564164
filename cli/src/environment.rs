//! The one file of this program that reads the process's environment.

use std::collections::BTreeMap;
use std::ffi::OsString;

/// The value of `name`, or nothing where it is unset or empty: an empty variable means "not set".
#[allow(clippy::disallowed_methods, reason = "this is the one file that reads the environment")]
pub(crate) fn var(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Every `LEASEHOLD_*` variable that is UTF-8; another cannot be one of ours.
#[allow(clippy::disallowed_methods, reason = "this is the one file that reads the environment")]
pub(crate) fn leasehold() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with("LEASEHOLD_"))
        .collect()
}
