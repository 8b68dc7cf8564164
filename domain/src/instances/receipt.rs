//! What a move did and left: for whoever asks later what became of the data.

use super::moves::{Move, MoveStep};
use super::residency::Remains;

/// Steps of the journal that a receipt holds: the newest, without the rounds.
pub const STEPS: u16 = 200;

/// A move's receipt.
#[derive(Debug, Clone)]
pub struct Receipt {
    /// The move: what was proven at its cut, and when each thing was done.
    pub moved: Move,
    /// What it left in the source's region; `None` before the flip, and where nothing was left.
    pub old_replica: Option<Remains>,
    /// Its journal without the rounds, oldest first: at most [`STEPS`], the newest.
    pub steps: Vec<MoveStep>,
}
