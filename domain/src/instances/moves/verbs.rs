//! The verbs on a move in flight: `cut` and `abort`.

use serde_json::Value;
use sqlx::{Connection as _, PgConnection};

use super::{Move, MoveState, open_of_host, policy, store};
use crate::audit::{self, Actor};
use crate::ids::{AppName, Host, MoveId, QueueName};
use crate::instances::record::{Record, RecordMove};
use crate::instances::{Error, Refusal, jobs};
use crate::{db, nodes, queue};

/// A verb that was taken.
#[derive(Debug, Clone, PartialEq)]
pub struct Accepted {
    /// The move.
    pub id: MoveId,
    /// The queue of its job, which is due now; `None` where a sweep must bring the job back first.
    pub queue: Option<QueueName>,
    /// The record's `move`.
    pub moving: RecordMove,
    /// The record with it.
    pub record: Record,
}

/// Lets a ready move be cut: from here forward only (M-026, M-027). That the tenant has frozen its writes is not verified
/// (M-028).
///
/// One transaction: the record's lock, the gate, the state, the record's revision, the source region's serial, the nudge
/// of the move's job, the audit event. A refused call changes nothing.
///
/// # Errors
/// A [`Refusal`], the first in the stated order; the database's.
pub async fn cut(
    conn: &mut PgConnection,
    app: &AppName,
    host: &Host,
    actor: Actor,
    if_revision: Option<i64>,
) -> Result<Accepted, Error> {
    enter(conn, (app, host), MoveState::Cutting, actor, if_revision).await
}

/// Ends a move that is not being cut yet (M-029, M-030): its box deletes what is staged, and then clears it.
///
/// One transaction, as [`cut`].
///
/// # Errors
/// As [`cut`].
pub async fn abort(
    conn: &mut PgConnection,
    app: &AppName,
    host: &Host,
    actor: Actor,
    if_revision: Option<i64>,
) -> Result<Accepted, Error> {
    enter(conn, (app, host), MoveState::Aborting, actor, if_revision).await
}

async fn enter(
    conn: &mut PgConnection,
    at: (&AppName, &Host),
    state: MoveState,
    actor: Actor,
    if_revision: Option<i64>,
) -> Result<Accepted, Error> {
    let mut tx = conn.begin().await?;
    let done = enter_inside(&mut tx, at, state, actor, if_revision).await;
    db::finish(tx, done).await
}

async fn enter_inside(
    conn: &mut PgConnection,
    (app, host): (&AppName, &Host),
    state: MoveState,
    actor: Actor,
    if_revision: Option<i64>,
) -> Result<Accepted, Error> {
    let record = store::write::lock_record(conn, app, host).await?.ok_or(Refusal::NotFound)?;
    if let Some(expected) = if_revision.filter(|expected| *expected != record.revision) {
        return Err(Refusal::Stale { expected, found: record.revision }.into());
    }
    let open = open_of_host(conn, host).await?;
    policy::gate_record(&record.movable(None, true))?;
    let open: Move = open.ok_or(Refusal::NoMove)?;
    policy::gate_verb(state, &open)?;
    // The record is locked, and whoever changes a move's state locks it first: the gate's look still holds.
    if !store::cut::enter(conn, open.id, state).await? {
        return Err(sqlx::Error::RowNotFound.into());
    }
    store::write::touch_record(conn, record.id).await?;
    nodes::bump_serial(conn, &open.from).await?;
    let queue = queue::nudge(conn, jobs::MOVE_KIND, &open.id.to_string()).await?;
    let detail = serde_json::json!({"move_id": open.id, "from": open.from, "to": open.to, "was": open.state.as_str()});
    let action = match state {
        MoveState::Cutting => "instance.move.cut",
        MoveState::Aborting => "instance.move.abort",
        MoveState::Preparing | MoveState::Ready => "instance.move",
    };
    record_act(conn, host, actor, action, detail).await?;
    accepted(conn, open.id, queue, (app, host)).await
}

/// What a verb answers that was taken, inside its transaction.
pub(in crate::instances) async fn accepted(
    conn: &mut PgConnection,
    id: MoveId,
    queue: Option<QueueName>,
    (app, host): (&AppName, &Host),
) -> Result<Accepted, Error> {
    let record = crate::instances::get(conn, app, host).await?.ok_or(sqlx::Error::RowNotFound)?;
    let moving = record.moving.clone().ok_or(sqlx::Error::RowNotFound)?;
    Ok(Accepted { id, queue, moving, record })
}

/// The audit of an act on an instance.
pub(super) async fn record_act(
    conn: &mut PgConnection,
    host: &Host,
    actor: Actor,
    action: &'static str,
    detail: Value,
) -> Result<(), Error> {
    let subject = host.to_string();
    audit::record(conn, &audit::Event { actor, action, subject_kind: "instance", subject, reason: None, detail })
        .await?;
    Ok(())
}
