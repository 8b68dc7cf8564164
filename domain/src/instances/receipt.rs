//! What a move did and left: for whoever asks later what became of the data.

use serde_json::Value;

use super::moves::{Move, MoveStep};
use crate::clock::Timestamp;
use crate::ids::RegionCode;

/// Steps of the journal that a receipt holds: the newest, without the rounds.
pub const STEPS: u16 = 200;

/// A move's receipt.
#[derive(Debug, Clone)]
pub struct Receipt {
    /// The move: what was proven at its cut, and when each thing was done.
    pub moved: Move,
    /// What it left in the source's region; `None` before the flip, and where nothing was left.
    pub old_replica: Option<OldReplica>,
    /// Its journal without the rounds, oldest first: at most [`STEPS`], the newest.
    pub steps: Vec<MoveStep>,
}

/// The replica that a move left in the source's bucket.
#[derive(Debug, Clone, PartialEq)]
pub struct OldReplica {
    /// The source's region.
    pub region: RegionCode,
    /// The bucket.
    pub bucket: String,
    /// The prefix below which it lies.
    pub prefix: String,
    /// Until when it is kept, at least; `None` until the landing serves.
    pub keep_until: Option<Timestamp>,
    /// Since when it may be partly gone.
    pub purge_began_at: Option<Timestamp>,
    /// When nothing of it was left.
    pub purged_at: Option<Timestamp>,
    /// What the purge deleted, and what it could not.
    pub receipt: Option<Value>,
}
