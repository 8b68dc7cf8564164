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

/// What every program gets that the box runs for a tenant: where programs are and where temporary files go. All else of
/// ours, above all secrets, stays here.
const PLAIN: [&str; 5] = ["PATH", "HOME", "TMPDIR", "LANG", "TZ"];
/// What AWS's default chain of credentials reads. `AWS_CA_BUNDLE` is left out on purpose: litestream refuses every URL
/// where it is set.
const AWS: [&str; 18] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_STS_REGIONAL_ENDPOINTS",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_EC2_METADATA_DISABLED",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE",
    "AWS_EC2_METADATA_V1_DISABLED",
];

/// The plain variables that are set here.
pub(crate) fn plain() -> BTreeMap<OsString, OsString> {
    some(&PLAIN)
}

/// The variables of AWS's default chain that are set here.
pub(crate) fn aws_chain() -> BTreeMap<OsString, OsString> {
    some(&AWS)
}

fn some(names: &[&str]) -> BTreeMap<OsString, OsString> {
    names.iter().filter_map(|name| Some((OsString::from(name), var(name)?))).collect()
}
