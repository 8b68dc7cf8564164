//! The files that say what runs for a host: `child.json` and `litestream.json`.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::durable;
use super::identity::Identity;

/// A process that was started, and how it ended where that was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) identity: Identity,
    /// The child's address; which of litestream's commands it is.
    pub(super) note: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ended: Option<Ended>,
}

/// The proof that a process has ended, and everything that it started in its group and session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Which process it was.
    #[serde(flatten)]
    pub identity: Identity,
    /// Its exit code, where its worker was there to see it and it was not ended by a signal.
    pub exit_code: Option<i32>,
    /// The signal that ended it, where its worker was there to see it.
    pub exit_signal: Option<i32>,
    /// Whether nothing lived any more in the process group and the session that it led. Always so: without it there is
    /// no proof.
    pub group_empty: bool,
    /// From the request to the proof, milliseconds.
    pub waited_ms: u64,
}

/// The process that the record at `path` names; `None` where nothing can be read there.
#[must_use]
pub fn identity_in(path: &Path) -> Option<Identity> {
    Some(Record::read(path).ok()??.identity)
}

/// The numbers of what lives of all that any activator of this folder started: each process that a record of a host names,
/// and whatever lives of its group and session. What cannot be read is left out.
///
/// For who ends a whole sandbox: in production what runs outlives its worker, and nobody else may end it.
#[must_use]
pub fn started_below(instances: &Path) -> BTreeSet<u32> {
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut living = BTreeSet::new();
    for host in entries(instances) {
        // Every record, also one that somebody put aside.
        for path in entries(&host).filter(|path| path.extension() == Some(OsStr::new("json"))) {
            let Some(identity) = identity_in(&path) else { continue };
            living.extend(identity.living().unwrap_or_default());
            // Also one without a group of its own.
            if identity.lives().unwrap_or_default() {
                living.insert(identity.pid);
            }
        }
    }
    living
}

impl Record {
    pub(super) fn begun(identity: Identity, note: &str) -> Self {
        Self { identity, note: note.to_owned(), ended: None }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and numbers are JSON")
    }

    /// The record at `path`; `None` where nothing was ever started.
    pub(super) fn read(path: &Path) -> io::Result<Option<Self>> {
        match std::fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        durable::write(path, &self.to_bytes())
    }
}
