//! The end of what boxes run. In production it outlives its worker; in a sandbox it would outlive the sandbox.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use workers::activator::Identity;

use super::SITES;

/// What says who a process of a host is.
const RECORDS: [&str; 2] = ["child.json", "litestream.json"];

/// Kills whatever the boxes of a sandbox in `dir` run, and what that has started. What cannot be read runs on, and is
/// found by the next run in the same folder.
pub(crate) fn reap(dir: &Path) {
    for site in SITES {
        let instances = dir.join("boxes").join(site.code).join("instances");
        for host in std::fs::read_dir(instances).into_iter().flatten().flatten() {
            for record in RECORDS {
                let Some(identity) = identity_in(&host.path().join(record)) else { continue };
                for pid in identity.living().unwrap_or_default() {
                    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                        // It may be gone by now.
                        let _ = kill_process(pid, Signal::KILL);
                    }
                }
            }
        }
    }
}

fn identity_in(record: &Path) -> Option<Identity> {
    let value: serde_json::Value = serde_json::from_slice(&std::fs::read(record).ok()?).ok()?;
    serde_json::from_value(value.get("identity")?.clone()).ok()
}
