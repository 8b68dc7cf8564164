//! Keys of single instances, as a box's `node.credentials_command` gives them in production.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use sandbox::s3;
use serde::{Deserialize, Serialize};

use super::regions::Site;

/// The name of the hidden subcommand.
pub(crate) const SUBCOMMAND: &str = "internal-instance-key";

/// A key in the form of AWS's `credential_process`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Credentials {
    version: u8,
    access_key_id: String,
    secret_access_key: String,
}

/// Draws a key for each host, limited to its own prefix in a region, and keeps them in a file that only we may read.
///
/// # Errors
/// The file cannot be written.
pub(super) fn draw(path: &Path, site: Site, hosts: &[&str], s3: &s3::Server) -> anyhow::Result<()> {
    let keys: BTreeMap<&str, Credentials> = hosts
        .iter()
        .map(|host| {
            let key = site.tenant_key(host);
            let credentials = Credentials {
                version: 1,
                access_key_id: key.access_key.clone(),
                secret_access_key: key.secret_key.clone(),
            };
            s3.add_identity(key);
            (*host, credentials)
        })
        .collect();
    let text = serde_json::to_vec(&keys)?;
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(&text));
    written.with_context(|| format!("keep the instances' keys in {}", path.display()))
}

/// Prints the key of a host: `internal-instance-key <file> <host>`.
pub(crate) fn internal_instance_key(args: &[OsString]) -> ExitCode {
    let told = || {
        let [path, host] = args else { anyhow::bail!("usage: {SUBCOMMAND} <file> <host>") };
        let host = host.to_str().context("the host is no text")?;
        let mut keys: BTreeMap<String, serde_json::Value> = serde_json::from_slice(&std::fs::read(path)?)?;
        let key = keys.remove(host).with_context(|| format!("{host} has no key"))?;
        writeln!(std::io::stdout(), "{key}")?;
        anyhow::Ok(())
    };
    match told() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{SUBCOMMAND}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
