//! What is read before the answer is decided.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::ids::{NodeId, RegionCode};
use crate::instances::moves::{Move, MoveStep};
use crate::instances::record::Record;
use crate::instances::{NOT_REPLICATED, Refusal, RouteStatus};
use crate::queue;

/// Steps of the journal that an answer looks at: the newest.
pub const STEPS: u16 = 20;

/// Every code by which a box says what holds a move, a cut, an abort or a landing up. Newer boxes may know more.
pub const OBSTACLES: [&str; 53] = [
    // Rounds.
    "busy",
    "source_empty",
    "source_unreadable",
    "source_unreachable",
    "source_throttled",
    "source_failing",
    "source_listing_incomplete",
    "source_format",
    "source_without_etags",
    "target_unreachable",
    "target_throttled",
    "target_failing",
    "target_forbidden",
    "target_no_bucket",
    "target_refused",
    "target_listing_incomplete",
    "target_format",
    "copy_forbidden",
    "delete_forbidden",
    "delete_failing",
    "journal",
    "spill",
    // Any state.
    "target_coordinates_missing",
    "target_unarmed",
    "target_changed",
    "host_invalid",
    "out_of_scope",
    "state_unknown",
    // Ready.
    "freeze_over_budget",
    "target_cannot_host",
    // The cut.
    "cannot_prove",
    "child_hangs",
    "tail_unproven",
    "tail_not_staged",
    "purge_failed",
    // The abort.
    "sweep_failed",
    "delete_refused",
    "staging_not_empty",
    // The landing, and each start.
    "config_key",
    // While it is served.
    NOT_REPLICATED,
    // The landing.
    "store_unreadable",
    "staging_missing",
    "staging_busy",
    "staging_differs",
    "nothing_to_restore",
    "cannot_restore",
    "replica_broken",
    "restore_failed",
    "restore_differs",
    "database_damaged",
    "database_behind",
    "database_unknown",
    "prefix_occupied",
];

/// What is read before the answer is decided.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The moment of the facts, on the database's clock.
    pub now: Timestamp,
    /// The record.
    pub record: Record,
    /// The box that has its route.
    pub seat: Option<Seat>,
    /// Its newest move, in flight or over.
    pub newest: Option<Move>,
    /// The newest rows of that move's journal, newest first.
    pub steps: Vec<MoveStep>,
    /// The live job that carries out the move or the landing, and why it does not run.
    pub job: Option<(queue::Job, queue::why::Why)>,
    /// Why its open move could not be landed now, as the door of its cut would refuse it.
    pub no_landing: Option<Refusal>,
    /// How long the newest cuts between these two regions kept an instance from being served, the median.
    pub predicted_freeze: Option<Duration>,
}

/// The box that has the route of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    /// Its id.
    pub node: NodeId,
    /// Who it is.
    pub identity: String,
    /// Where it stands.
    pub region: RegionCode,
    /// Whether it was heard lately.
    pub live: bool,
    /// When it was heard last.
    pub seen_at: Timestamp,
    /// How far its route is.
    pub status: RouteStatus,
}
