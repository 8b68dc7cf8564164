//! The files that say what runs for a host: `child.json` and `litestream.json`.

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
