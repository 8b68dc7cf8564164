//! Moves as operators and progress bars see them.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

/// A move, in flight or over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MoveView {
    /// Its id.
    pub id: Uuid,
    /// The instance's application.
    pub app: String,
    /// The instance's host.
    pub host: String,
    /// Where it began.
    pub from: String,
    /// Where it goes.
    pub to: String,
    /// `preparing`, `ready`, `cutting` or `aborting`: how far it is, or was.
    pub state: String,
    /// When it was asked for.
    pub requested_at: DateTime<Utc>,
    /// When the staged copy first equalled the source.
    pub ready_at: Option<DateTime<Utc>>,
    /// When it was over.
    pub finished_at: Option<DateTime<Utc>>,
    /// How it ended: `moved` or `aborted`.
    pub outcome: Option<String>,
    /// Whether the platform cuts it by itself as soon as it is ready.
    pub cut_auto: bool,
    /// The longest freeze that its cut may be predicted to take, whole seconds; null: any.
    pub freeze_budget: Option<u32>,
    /// When it was let be cut.
    pub cut_at: Option<DateTime<Utc>>,
    /// How long its freeze was predicted to be when it was let be cut, milliseconds; null before, and where no cut between
    /// the two regions predicted it.
    pub predicted_freeze_ms: Option<i64>,
    /// Whether it was let be cut although that was over its budget.
    #[serde(default)]
    pub cut_forced: bool,
    /// When it was asked to end.
    pub aborted_at: Option<DateTime<Utc>>,
    /// What the cut proved of the database that it left.
    pub tail: Option<Tail>,
    /// Since when the source's own database may be gone.
    pub purge_began_at: Option<DateTime<Utc>>,
    /// When the target began to serve.
    pub landed_at: Option<DateTime<Utc>>,
    /// When nothing of it was staged any more.
    pub staging_deleted_at: Option<DateTime<Utc>>,
    /// When an operator gave its landing up, and pointed the instance to another region.
    pub given_up_at: Option<DateTime<Utc>>,
    /// The box that serves the instance.
    pub node_id: Option<Uuid>,
    /// The live job that carries it out.
    pub job_id: Option<Uuid>,
    /// Rounds begun.
    pub round: i32,
    /// The number of the newest round that listed both sides.
    pub last_round: Option<i32>,
    /// What that round came to.
    pub last: Option<RoundNumbers>,
    /// Why the move is not ready, or cannot go on.
    pub obstacle: Option<Obstacle>,
    /// Rounds in a row that failed.
    pub failures: u32,
}

/// The proof of the tail: restored at this transaction, the database is this file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tail {
    /// The newest transaction, 16 hexadecimal digits.
    pub txid: String,
    /// The SHA-256 of the database file, lower-case hexadecimal.
    pub sha256: String,
    /// The file's size, bytes.
    pub size: u64,
}

/// What a move did and left.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MoveReceipt {
    /// The move: what its cut proved, and when each thing was done.
    #[serde(rename = "move")]
    pub moved: MoveView,
    /// Since it was let be cut until the target served, milliseconds; null before. `move` tells what was predicted, and the
    /// budget.
    pub frozen_ms: Option<i64>,
    /// What it left in the source's region; null before the record was given to the target.
    pub old_replica: Option<OldReplica>,
    /// Its journal without the rounds, oldest first: 200 at most, the newest.
    pub steps: Vec<MoveStep>,
}

/// The replica that a move left in the source's bucket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OldReplica {
    /// The source's region.
    pub region: String,
    /// The bucket.
    pub bucket: String,
    /// The prefix below which it lies.
    pub prefix: String,
    /// Until when it is kept, at least; null until the target serves.
    pub keep_until: Option<DateTime<Utc>>,
    /// Since when it may be partly gone.
    pub purge_began_at: Option<DateTime<Utc>>,
    /// Keys that the purge deleted so far, at least.
    pub deleted_keys: u64,
    /// Versions of keys, and markers of deletions, its own among them, that it deleted so far, at least.
    pub deleted_versions: u64,
    /// When nothing of it was left.
    pub purged_at: Option<DateTime<Utc>>,
    /// What the purge deleted, and what it could not.
    #[schema(value_type = Option<Object>)]
    pub receipt: Option<Value>,
    /// Since when it is the instance's own again, as that came back to the region: then it is not purged.
    pub superseded_at: Option<DateTime<Utc>>,
    /// The move that landed there; null where the record was pointed there by hand.
    pub superseded_by: Option<Uuid>,
}

/// The numbers of one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct RoundNumbers {
    /// Times that it copied or deleted, each followed by a fresh listing of both sides.
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
    /// The staging is at most this far behind the source.
    pub lag_ms: Option<u64>,
    /// The newest transaction that the source's keys name.
    pub newest_txid: Option<u64>,
    /// Requests to both stores.
    pub requests: u64,
    /// Time from the beginning to the end.
    pub elapsed_ms: u64,
}

/// Why a move is not ready, or cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Obstacle {
    /// Stable, e.g. `busy` or `source_empty`.
    pub code: String,
    /// A sentence for people.
    pub message: String,
    /// Whether somebody must act before it goes on.
    pub permanent: bool,
    /// Since when it stands.
    pub since: Option<DateTime<Utc>>,
}

/// A row of a move's journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MoveStep {
    /// Rises with time.
    pub id: i64,
    /// `pin_target`, `round`, `ready`, …
    pub step: String,
    /// The round's number.
    pub round: Option<i32>,
    /// Iterations of the round.
    pub iterations: Option<i32>,
    /// When it began.
    pub started_at: DateTime<Utc>,
    /// When it ended; null for one that runs, or whose lease was lost.
    pub ended_at: Option<DateTime<Utc>>,
    /// How it ended.
    pub outcome: Option<String>,
    /// What was seen.
    #[schema(value_type = Object)]
    pub evidence: Value,
    /// The job that wrote it.
    pub job_id: Uuid,
    /// Under which lease.
    pub fence: i64,
}
