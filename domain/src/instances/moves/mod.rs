//! Moves of instances between regions: the verbs, the box's writes, and what readers see.
//!
//! # Consistency
//! Each write is a narrow compare-and-set under the legal former states; a lost one is told with the present state, and
//! the caller reads again and decides again (M-010, M-011). Writes that change the record's `move` raise the record's
//! revision and the source region's serial (M-035). The newest round's numbers and the journal change neither.
//!
//! # Crash consistency
//! A box writes under its lease, which is checked last, in the same transaction. A step that was begun and never ended
//! stays open in the journal: the next lease begins it anew.

use std::time::Duration;

use serde_json::Value;
use sqlx::{Connection as _, PgConnection};

use super::record::{Record, RecordMove};
use super::{Error, Refusal, RouteStatus, jobs};
use crate::audit::{self, Actor};
use crate::clock::Timestamp;
use crate::ids::{AppName, Host, InstanceId, JobId, MoveId, NodeId, QueueName, RegionCode};
use crate::lease::Fence;
use crate::nodes::{self, Bucket, Region};
use crate::queue;

mod cutting;
mod door;
pub mod policy;
pub mod rehearsal;
mod rounds;
mod state;
mod status;
pub(in crate::instances) mod store;
mod tail;
mod verbs;

use door::Door;

pub(in crate::instances) use cutting::retire_route_inside;
pub use cutting::{
    Copies, Flipped, Swept, begin_purge, begin_step, clear, close_route, cut_by_itself, end_step, flip,
    forget_some_keys, note_swept, record_tail, retire_route, swept,
};
pub use rounds::{Cas, Round, RoundEnd, begin_round, end_round, note_obstacle, pin_target, promote};
pub use state::{MoveState, Outcome, StoredState};
pub use status::{Obstacle, RoundNumbers, Status};
pub use store::keys::{forget_keys, keys_page, record_keys};
pub use store::list::list;
pub use store::marks::change_mark;
pub use store::read::{get, is_open, of_instance, open_of_host, steps};
pub use tail::Tail;
pub(in crate::instances) use verbs::accepted;
pub use verbs::{Accepted, CutWish, abort, cut, cut_if};

/// The number of the pair whose copies a landing makes; those of the source's rounds come before it.
pub const LANDING_PAIR: i16 = 100;

/// Tries of a start whose move met another that ended at once.
const MAX_TRIES: usize = 3;
/// Most open moves without a job that one sweep takes on.
const SWEEP_LIMIT: i64 = 500;

/// A move, in flight or over.
#[derive(Debug, Clone, PartialEq)]
pub struct Move {
    /// Its id.
    pub id: MoveId,
    /// The record.
    pub instance: InstanceId,
    /// The record's application.
    pub app: AppName,
    /// The record's host.
    pub host: Host,
    /// The record's present region.
    pub region: RegionCode,
    /// Where it began.
    pub from: RegionCode,
    /// Where it goes.
    pub to: RegionCode,
    /// How far it is, or was.
    pub state: StoredState,
    /// When it was asked for.
    pub requested_at: Timestamp,
    /// When it first was ready.
    pub ready_at: Option<Timestamp>,
    /// Where it stages; fixed at the first round.
    pub target: Option<Bucket>,
    /// Rounds begun.
    pub round: i32,
    /// How the newest round ended.
    pub status: Status,
    /// When it was over.
    pub finished_at: Option<Timestamp>,
    /// How.
    pub outcome: Option<Outcome>,
    /// Whether the platform cuts it by itself as soon as it is ready.
    pub cut_auto: bool,
    /// The longest freeze that its cut may be predicted to take, whole seconds; `None`: any.
    pub freeze_budget: Option<Duration>,
    /// When it was let be cut.
    pub cut_at: Option<Timestamp>,
    /// How long its freeze was predicted to be when it was let be cut; `None` where nothing predicted it.
    pub predicted_freeze: Option<Duration>,
    /// Whether it was let be cut although that was over its budget.
    pub cut_forced: bool,
    /// When it was asked to end.
    pub aborted_at: Option<Timestamp>,
    /// What the cut proved of the tail.
    pub tail: Option<Tail>,
    /// Since when the source's own database may be gone.
    pub purge_began_at: Option<Timestamp>,
    /// When the target began to serve.
    pub landed_at: Option<Timestamp>,
    /// When nothing of it was staged any more.
    pub staging_deleted_at: Option<Timestamp>,
    /// When an operator gave its landing up, and pointed the record elsewhere.
    pub given_up_at: Option<Timestamp>,
    /// The box that serves the host.
    pub node: Option<NodeId>,
    /// The live job that carries it out.
    pub job: Option<JobId>,
}

impl Move {
    /// Whether the target is still to serve what the cut gave it.
    #[must_use]
    pub fn is_landing(&self) -> bool {
        self.outcome == Some(Outcome::Moved) && self.landed_at.is_none() && self.given_up_at.is_none()
    }
}

/// A row of a move's journal.
#[derive(Debug, Clone, PartialEq)]
pub struct MoveStep {
    /// Rises with time; also the cursor.
    pub id: i64,
    /// `pin_target`, `round`, `ready`, …
    pub step: String,
    /// The round's number.
    pub round: Option<i32>,
    /// Iterations of the round.
    pub iterations: Option<i32>,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended; `None` for one that runs, or whose lease was lost.
    pub ended_at: Option<Timestamp>,
    /// How it ended.
    pub outcome: Option<String>,
    /// What was seen.
    pub evidence: Value,
    /// The job that wrote it.
    pub job: JobId,
    /// Under which lease.
    pub fence: Fence,
}

/// Which moves to list.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only moves in flight, or only those that are over; `None` is both.
    pub open: Option<bool>,
    /// Only this state.
    pub state: Option<MoveState>,
    /// Only moves from or to this region.
    pub region: Option<RegionCode>,
    /// Only moves of these applications; `None` is of all.
    pub apps: Option<Vec<String>>,
    /// Only moves with ids below this one: lists run from the newest to the oldest.
    pub before: Option<MoveId>,
}

/// A page of the list.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// The moves, newest first.
    pub items: Vec<Move>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<MoveId>,
}

/// One copied key, as the journal of copies keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiedKey {
    /// The part of the key behind the prefix.
    pub key: String,
    /// The source's `ETag` when it was copied.
    pub src_etag: String,
    /// The source's size when it was copied, bytes.
    pub size: i64,
    /// The `ETag` that the target gave to the copy.
    pub copied_etag: String,
}

/// A move that began.
#[derive(Debug, Clone, PartialEq)]
pub struct Started {
    /// The move.
    pub id: MoveId,
    /// Its job.
    pub job: JobId,
    /// That job's queue.
    pub queue: QueueName,
    /// The record's `move`.
    pub moving: RecordMove,
    /// The record with it.
    pub record: Record,
}

/// Begins a move: `POST …/move` (M-015…M-025, M-033, M-035).
///
/// One transaction: the record's lock, the gate, the move, the record's revision, the source region's serial, one
/// `instance.move` job on the queue of the box that serves the host, the audit event. Called inside a transaction, it
/// is part of it. A refused call changes nothing.
///
/// # Errors
/// A [`Refusal`], the first in the stated order; the database's.
pub async fn start(
    conn: &mut PgConnection,
    app: &AppName,
    host: &Host,
    to: &str,
    actor: Actor,
) -> Result<Started, Error> {
    start_if(conn, app, host, to, actor, Wish::default()).await
}

/// How a move is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wish {
    /// Only where the record is at this revision.
    pub if_revision: Option<i64>,
    /// The platform cuts it by itself as soon as it is ready, for tenants without a freeze of their own (M-127).
    pub cut_auto: bool,
    /// The longest freeze that its cut may be predicted to take: whole seconds, see [`policy::check_freeze_budget`].
    pub freeze_budget: Option<Duration>,
}

/// As [`start`], as it is wished.
///
/// # Errors
/// As [`start`], and [`Refusal::Stale`] right after what does not exist; [`Error::Invalid`] for a budget out of its bounds.
pub async fn start_if(
    conn: &mut PgConnection,
    app: &AppName,
    host: &Host,
    to: &str,
    actor: Actor,
    wish: Wish,
) -> Result<Started, Error> {
    policy::check_freeze_budget(wish.freeze_budget)?;
    for _ in 0..MAX_TRIES {
        let mut tx = conn.begin().await?;
        match start_inside(&mut tx, app, host, to, actor, wish).await {
            Ok(started) => {
                tx.commit().await?;
                return Ok(started);
            }
            Err(Error::Store(error)) if store::met_an_open_move(&error) => {
                // Whoever holds the host's one place did not hold the record: read again and decide again (M-011).
                tx.rollback().await?;
                if let Some(open) = open_of_host(conn, host).await? {
                    return Err(Refusal::InFlight { to: open.to, state: open.state }.into());
                }
            }
            Err(error) => {
                tx.rollback().await?;
                return Err(error);
            }
        }
    }
    Err(Error::Invalid {
        field: "move",
        rule: "moves of this host begin and end faster than one can be read: try again",
    })
}

async fn start_inside(
    conn: &mut PgConnection,
    app: &AppName,
    host: &Host,
    to: &str,
    actor: Actor,
    wish: Wish,
) -> Result<Started, Error> {
    let record = store::write::lock_record(conn, app, host).await?.ok_or(Refusal::NotFound)?;
    if let Some(expected) = wish.if_revision.filter(|expected| *expected != record.revision) {
        return Err(Refusal::Stale { expected, found: record.revision }.into());
    }
    let Door { target, node, gates } = door::at(conn, &record, host, to).await?;
    policy::enter(&gates)?;
    let (Some(node), Some(Region { code, .. })) = (node, target) else { return Err(Refusal::NotPlaced.into()) };
    let id = MoveId::generate();
    store::write::insert(conn, id, (record.id, host), (&record.region, &code), wish).await?;
    store::write::touch_record(conn, record.id).await?;
    nodes::bump_serial(conn, &record.region).await?;
    let new = jobs::move_job(id, node);
    let job = queue::enqueue(conn, &new).await?.job();
    let mut detail = serde_json::json!({"move_id": id, "from": record.region, "to": code});
    if wish.cut_auto {
        detail["cut"] = "auto".into();
    }
    if let Some(budget) = wish.freeze_budget {
        detail["freeze_budget"] = budget.as_secs().into();
    }
    let subject = host.to_string();
    let event =
        audit::Event { actor, action: "instance.move", subject_kind: "instance", subject, reason: None, detail };
    audit::record(conn, &event).await?;
    let record = super::get(conn, app, host).await?.ok_or(sqlx::Error::RowNotFound)?;
    let moving = record.moving.clone().ok_or(sqlx::Error::RowNotFound)?;
    Ok(Started { id, job, queue: new.queue, moving, record })
}

/// Enqueues a job for every open move that has none, on the box that serves its host, at most 500 at a time; returns
/// the queue of each that is new. Safe from any worker at any time: a move has at most one live job.
///
/// # Errors
/// The database's, or the queue's.
pub async fn requeue_orphans(conn: &mut PgConnection) -> Result<Vec<QueueName>, Error> {
    let orphans = store::read::orphans(conn, SWEEP_LIMIT).await?;
    super::enqueue_missing(conn, orphans.iter().map(|(id, node)| jobs::move_job(*id, *node)).collect()).await
}
