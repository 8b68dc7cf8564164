//! The end of what boxes run. In production it outlives its worker; in a sandbox it would outlive the sandbox.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use workers::activator::started_below;

use super::SITES;

/// Kills whatever the boxes of a sandbox in `dir` run, and what that has started. What cannot be read runs on, and is
/// found by the next run in the same folder.
pub(crate) fn reap(dir: &Path) {
    for site in SITES {
        let living = started_below(&dir.join("boxes").join(site.code).join("instances"));
        for pid in living.into_iter().filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            // It may be gone by now.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}
