//! What a move's newest round came to: kept in the move's row, replaced by each round.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clock::Timestamp;
use crate::instances::plan::Differences;

/// Why a move is not ready, or cannot go on; `code` is stable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obstacle {
    /// Stable, e.g. `busy`, `source_empty`, `target_coordinates_missing`.
    pub code: String,
    /// A sentence for people.
    pub message: String,
    /// Whether somebody must act before it goes on (M-056).
    pub permanent: bool,
}

impl Obstacle {
    /// Something that may pass by itself.
    #[must_use]
    pub fn passing(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into(), permanent: false }
    }

    /// Something that somebody must act on.
    #[must_use]
    pub fn lasting(code: &str, message: impl Into<String>) -> Self {
        Self { permanent: true, ..Self::passing(code, message) }
    }
}

/// The numbers of one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RoundNumbers {
    /// Times that the round copied or deleted, each followed by a fresh listing of both sides.
    pub iterations: u32,
    /// Objects of the source that take part.
    pub source_keys: u64,
    /// Objects copied.
    pub copied: u64,
    /// Their bytes.
    pub copied_bytes: u64,
    /// Objects deleted at the target.
    pub deleted: u64,
    /// Objects that vanished or changed before their turn.
    pub lost: u64,
    /// Keys that the last complete listing still had to copy.
    pub differ_copies: u64,
    /// Their bytes.
    pub differ_bytes: u64,
    /// Keys that the last complete listing still had to delete.
    pub differ_deletes: u64,
    /// The staging is at most this far behind the source; `None` when no iteration moved all that it had found.
    pub lag_ms: Option<u64>,
    /// The newest transaction that the source's keys name.
    pub newest_txid: Option<u64>,
    /// Requests to both stores.
    pub requests: u64,
    /// Time from the beginning to the end.
    pub elapsed_ms: u64,
}

impl RoundNumbers {
    /// What the last complete listing found.
    #[must_use]
    pub const fn found(&self) -> Differences {
        Differences { copies: self.differ_copies, copy_bytes: self.differ_bytes, deletes: self.differ_deletes }
    }
}

/// How the newest round ended.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The numbers of the newest round that listed both sides; differences stay visible after `ready` (M-060).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<RoundNumbers>,
    /// The number of that round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_round: Option<i32>,
    /// What holds the move up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<Obstacle>,
    /// Since when the present obstacle stands, on the database's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub obstacle_since: Option<Timestamp>,
    /// Rounds in a row that failed.
    pub failures: u32,
    /// Fields of another version.
    #[serde(flatten)]
    pub other: std::collections::BTreeMap<String, Value>,
}
