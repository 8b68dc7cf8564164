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

use serde_json::Value;
use sqlx::{Connection as _, PgConnection};

use super::record::{Record, RecordMove};
use super::{Error, Refusal, jobs};
use crate::audit::{self, Actor};
use crate::clock::Timestamp;
use crate::db;
use crate::ids::{AppName, Host, InstanceId, JobId, MoveId, NodeId, RegionCode};
use crate::lease::{Fence, Lease};
use crate::nodes::{self, Bucket};
use crate::queue;

pub mod policy;
mod state;
mod status;
mod store;

pub use state::{MoveState, StoredState};
pub use status::{Obstacle, RoundNumbers, Status};
pub use store::keys::{forget_keys, keys_page, record_keys};
pub use store::marks::change_mark;
pub use store::read::{get, is_open, list, of_instance, open_of_host, steps};

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
    /// How: `moved` or `aborted`.
    pub outcome: Option<String>,
    /// The box that serves the host.
    pub node: Option<NodeId>,
    /// The live job that carries it out.
    pub job: Option<JobId>,
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
    start_if(conn, app, host, to, actor, None).await
}

/// As [`start`], only where the record is at this revision.
///
/// # Errors
/// As [`start`], and [`Refusal::Stale`] right after what does not exist.
pub async fn start_if(
    conn: &mut PgConnection,
    app: &AppName,
    host: &Host,
    to: &str,
    actor: Actor,
    if_revision: Option<i64>,
) -> Result<Started, Error> {
    for _ in 0..MAX_TRIES {
        let mut tx = conn.begin().await?;
        match start_inside(&mut tx, app, host, to, actor, if_revision).await {
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
    if_revision: Option<i64>,
) -> Result<Started, Error> {
    let record = store::write::lock_record(conn, app, host).await?.ok_or(Refusal::NotFound)?;
    if let Some(expected) = if_revision.filter(|expected| *expected != record.revision) {
        return Err(Refusal::Stale { expected, found: record.revision }.into());
    }
    let code = RegionCode::new(to).ok();
    let target = match &code {
        Some(code) => nodes::region(conn, code).await?,
        None => None,
    };
    let open = open_of_host(conn, host).await?;
    let movable = policy::Movable {
        kind: record.kind,
        backing: &record.backing,
        role: record.role,
        placement: record.placement.as_deref(),
        pool: &record.pool,
        hibernate: record.hibernate,
        region: &record.region,
        open: open.as_ref().map(|open| (&open.to, &open.state)),
        placed: record.node.is_some(),
    };
    policy::gate_move(&movable, to, target.as_ref())?;
    let (Some(node), Some(code)) = (record.node, code) else { return Err(Refusal::NotPlaced.into()) };
    let id = MoveId::generate();
    store::write::insert(conn, id, record.id, host, &record.region, &code).await?;
    store::write::touch_record(conn, record.id).await?;
    nodes::bump_serial(conn, &record.region).await?;
    let job = queue::enqueue(conn, &jobs::move_job(id, node)).await?.job();
    let detail = serde_json::json!({"move_id": id, "from": record.region, "to": code});
    let subject = host.to_string();
    let event =
        audit::Event { actor, action: "instance.move", subject_kind: "instance", subject, reason: None, detail };
    audit::record(conn, &event).await?;
    let record = super::get(conn, app, host).await?.ok_or(sqlx::Error::RowNotFound)?;
    let moving = record.moving.clone().ok_or(sqlx::Error::RowNotFound)?;
    Ok(Started { id, job, moving, record })
}

/// Fixes where a move stages, at its first round; returns what is fixed, now or before.
///
/// # Errors
/// [`Error::LeaseLost`], [`Refusal::NotFound`] for a move that is over; the database's.
pub async fn pin_target(conn: &mut PgConnection, lease: Lease, id: MoveId, target: &Bucket) -> Result<Bucket, Error> {
    let mut tx = conn.begin().await?;
    let done = async {
        if store::write::pin(&mut tx, id, target).await? {
            let evidence = serde_json::json!({"bucket": target.name, "region": target.region});
            store::write::one_step(&mut tx, lease, id, "pin_target", "pinned", &evidence).await?;
        }
        let pinned = store::write::pinned(&mut tx, id).await?.ok_or(Refusal::NotFound)?;
        queue::require_lease(&mut tx, lease).await?;
        Ok::<_, Error>(pinned)
    }
    .await;
    db::finish(tx, done).await
}

/// A round that was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Round {
    /// Its number, from 1.
    pub number: i32,
    /// Its row in the journal.
    pub step: i64,
}

/// What became of a compare-and-set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cas<T> {
    /// It was set.
    Set(T),
    /// The move is in another state than it may be entered from; `None` where it is over. Read again, decide again.
    Lost(Option<StoredState>),
}

/// Begins a round: counts it and opens its row in the journal, if the state is one in which rounds run.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn begin_round(conn: &mut PgConnection, lease: Lease, id: MoveId) -> Result<Cas<Round>, Error> {
    let mut tx = conn.begin().await?;
    let done = async {
        let begun = match store::write::count_round(&mut tx, id).await? {
            Some(number) => {
                let step = store::write::open_step(&mut tx, lease, id, "round", Some(number)).await?;
                Cas::Set(Round { number, step })
            }
            None => Cas::Lost(store::write::state(&mut tx, id).await?),
        };
        queue::require_lease(&mut tx, lease).await?;
        Ok::<_, Error>(begun)
    }
    .await;
    db::finish(tx, done).await
}

/// How a round ended.
#[derive(Debug, Clone)]
pub struct RoundEnd {
    /// One word for the journal: `in_sync`, `within_bars`, `not_ready`, `failed`, `cancelled`.
    pub outcome: &'static str,
    /// Its numbers, where both sides were listed.
    pub numbers: Option<RoundNumbers>,
    /// What else was seen.
    pub evidence: Value,
    /// What holds the move up; `None` clears what held it up before.
    pub obstacle: Option<Obstacle>,
    /// What it says of the failures before it, by which the waits grow.
    pub bearing: policy::Bearing,
}

/// Ends a round: closes its row in the journal and replaces the move's status, which it returns.
///
/// # Errors
/// [`Error::LeaseLost`], [`Refusal::NotFound`]; the database's.
pub async fn end_round(
    conn: &mut PgConnection,
    lease: Lease,
    id: MoveId,
    round: Round,
    end: &RoundEnd,
) -> Result<Status, Error> {
    let mut tx = conn.begin().await?;
    let done = async {
        let (mut status, now) = store::write::lock_status(&mut tx, id).await?.ok_or(Refusal::NotFound)?;
        if let Some(numbers) = end.numbers {
            status.last = Some(numbers);
            status.last_round = Some(round.number);
        }
        status.failures = policy::failures_after(status.failures, end.bearing);
        set_obstacle(&mut status, end.obstacle.clone(), now);
        store::write::set_status(&mut tx, id, &status).await?;
        let iterations = end.numbers.map(|numbers| i32::try_from(numbers.iterations).unwrap_or(i32::MAX));
        let mut evidence = end.evidence.clone();
        if let (Value::Object(fields), Some(numbers)) = (&mut evidence, end.numbers) {
            fields.insert("numbers".to_owned(), serde_json::json!(numbers));
        }
        store::write::close_step(&mut tx, round.step, iterations, end.outcome, &evidence).await?;
        queue::require_lease(&mut tx, lease).await?;
        Ok::<_, Error>(status)
    }
    .await;
    db::finish(tx, done).await
}

/// Notes what holds a move up before a round could begin; returns the new status.
///
/// # Errors
/// [`Error::LeaseLost`], [`Refusal::NotFound`]; the database's.
pub async fn note_obstacle(
    conn: &mut PgConnection,
    lease: Lease,
    id: MoveId,
    obstacle: Obstacle,
) -> Result<Status, Error> {
    let mut tx = conn.begin().await?;
    let done = async {
        let (mut status, now) = store::write::lock_status(&mut tx, id).await?.ok_or(Refusal::NotFound)?;
        set_obstacle(&mut status, Some(obstacle), now);
        store::write::set_status(&mut tx, id, &status).await?;
        queue::require_lease(&mut tx, lease).await?;
        Ok::<_, Error>(status)
    }
    .await;
    db::finish(tx, done).await
}

fn set_obstacle(status: &mut Status, obstacle: Option<Obstacle>, now: Timestamp) {
    let same = |old: &Obstacle, new: &Obstacle| old.code == new.code;
    let stands = matches!((&status.obstacle, &obstacle), (Some(old), Some(new)) if same(old, new));
    if !stands {
        status.obstacle_since = obstacle.is_some().then_some(now);
    }
    status.obstacle = obstacle;
}

/// Makes a move ready (M-057, M-058): one compare-and-set from `preparing`, stamped by the database's clock.
///
/// One transaction: the state, the record's revision, the source region's serial, the journal, the audit event.
/// Touches no other column (M-010). Lost to an abort, it promotes nothing (M-061).
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn promote(conn: &mut PgConnection, lease: Lease, id: MoveId, round: i32) -> Result<Cas<Timestamp>, Error> {
    let mut tx = conn.begin().await?;
    let done = async {
        let Some(record) = store::write::lock_record_of(&mut tx, id).await? else {
            queue::require_lease(&mut tx, lease).await?;
            return Ok(Cas::Lost(None));
        };
        let Some(ready_at) = store::write::promote(&mut tx, id).await? else {
            let state = store::write::state(&mut tx, id).await?;
            queue::require_lease(&mut tx, lease).await?;
            return Ok(Cas::Lost(state));
        };
        let evidence = serde_json::json!({"round": round});
        store::write::one_step(&mut tx, lease, id, "ready", "ready", &evidence).await?;
        store::write::touch_record(&mut tx, record.id).await?;
        nodes::bump_serial(&mut tx, &record.from).await?;
        queue::require_lease(&mut tx, lease).await?;
        let event = audit::Event {
            actor: Actor::System,
            action: "instance.move.ready",
            subject_kind: "instance",
            subject: record.host.to_string(),
            reason: None,
            detail: serde_json::json!({"move_id": id, "round": round, "job_id": lease.job, "fence": lease.fence}),
        };
        audit::record(&mut tx, &event).await?;
        Ok::<_, Error>(Cas::Set(ready_at))
    }
    .await;
    db::finish(tx, done).await
}

/// Enqueues a job for every open move that has none, on the box that serves its host, at most 500 at a time; returns
/// how many are new. Safe from any worker at any time: a move has at most one live job.
///
/// # Errors
/// The database's, or the queue's.
pub async fn requeue_orphans(conn: &mut PgConnection) -> Result<u64, Error> {
    let orphans = store::read::orphans(conn, SWEEP_LIMIT).await?;
    if orphans.is_empty() {
        return Ok(0);
    }
    let jobs: Vec<queue::NewJob> = orphans.iter().map(|(id, node)| jobs::move_job(*id, *node)).collect();
    let made = queue::enqueue_many(conn, &jobs).await?;
    let created = |made: &&queue::Enqueued| matches!(made, queue::Enqueued::Created(_));
    Ok(made.iter().filter(created).count() as u64)
}
