//! What a box writes of a move: each write under its lease, each a compare-and-set.

use serde_json::Value;
use sqlx::PgConnection;

use super::{Obstacle, RoundNumbers, Status, StoredState, policy, store};
use crate::audit::{self, Actor};
use crate::clock::Timestamp;
use crate::ids::MoveId;
use crate::instances::{Error, Refusal};
use crate::lease::Lease;
use crate::nodes::{self, Bucket};
use crate::queue;

/// Fixes where a move stages, at its first round; returns what is fixed, now or before.
///
/// # Errors
/// [`Error::LeaseLost`], [`Refusal::NotFound`] for a move that is over; the database's.
pub async fn pin_target(conn: &mut PgConnection, lease: Lease, id: MoveId, target: &Bucket) -> Result<Bucket, Error> {
    queue::fenced(conn, lease, async |tx| {
        if store::write::pin(tx, id, target).await? {
            let evidence = serde_json::json!({"bucket": target.name, "region": target.region});
            store::write::one_step(tx, lease, id, "pin_target", "pinned", &evidence).await?;
        }
        let pinned = store::write::pinned(tx, id).await?.ok_or(Refusal::NotFound)?;
        Ok(pinned)
    })
    .await
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
    queue::fenced(conn, lease, async |tx| {
        let begun = match store::write::count_round(tx, id).await? {
            Some(number) => {
                let step = store::write::open_step(tx, lease, id, "round", Some(number)).await?;
                Cas::Set(Round { number, step })
            }
            None => Cas::Lost(store::write::state(tx, id).await?),
        };
        Ok(begun)
    })
    .await
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
    queue::fenced(conn, lease, async |tx| {
        let (mut status, now) = store::write::lock_status(tx, id).await?.ok_or(Refusal::NotFound)?;
        if let Some(numbers) = end.numbers {
            status.last = Some(numbers);
            status.last_round = Some(round.number);
        }
        status.failures = policy::failures_after(status.failures, end.bearing);
        set_obstacle(&mut status, end.obstacle.clone(), now);
        store::write::set_status(tx, id, &status).await?;
        let iterations = end.numbers.map(|numbers| i32::try_from(numbers.iterations).unwrap_or(i32::MAX));
        let mut evidence = end.evidence.clone();
        if let (Value::Object(fields), Some(numbers)) = (&mut evidence, end.numbers) {
            fields.insert("numbers".to_owned(), serde_json::json!(numbers));
        }
        store::write::close_step(tx, round.step, iterations, end.outcome, &evidence).await?;
        Ok(status)
    })
    .await
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
    queue::fenced(conn, lease, async |tx| {
        let (mut status, now) = store::write::lock_status(tx, id).await?.ok_or(Refusal::NotFound)?;
        set_obstacle(&mut status, Some(obstacle), now);
        store::write::set_status(tx, id, &status).await?;
        Ok(status)
    })
    .await
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
    queue::fenced(conn, lease, async |tx| {
        let Some(record) = store::write::lock_record_of(tx, id).await? else {
            return Ok(Cas::Lost(None));
        };
        let Some(ready_at) = store::write::promote(tx, id).await? else {
            let state = store::write::state(tx, id).await?;
            return Ok(Cas::Lost(state));
        };
        let evidence = serde_json::json!({"round": round});
        store::write::one_step(tx, lease, id, "ready", "ready", &evidence).await?;
        store::write::touch_record(tx, record.id).await?;
        nodes::bump_serial(tx, &record.from).await?;
        let event = audit::Event {
            actor: Actor::System,
            action: "instance.move.ready",
            subject_kind: "instance",
            subject: record.host.to_string(),
            reason: None,
            detail: serde_json::json!({"move_id": id, "round": round, "job_id": lease.job, "fence": lease.fence}),
        };
        audit::record(tx, &event).await?;
        Ok(Cas::Set(ready_at))
    })
    .await
}
