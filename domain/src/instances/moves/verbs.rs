//! The verbs on a move in flight: `cut` and `abort`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use sqlx::{Connection as _, PgConnection};

use super::{Move, MoveState, open_of_host, policy, store};
use crate::audit::{self, Actor};
use crate::ids::{AppName, Host, MoveId, QueueName};
use crate::instances::record::{Record, RecordMove};
use crate::instances::{Error, Refusal, jobs, sealed};
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
    cut_if(conn, app, host, actor, CutWish { if_revision, ..CutWish::default() }).await
}

/// How a cut is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CutWish {
    /// Only where the record is at this revision.
    pub if_revision: Option<i64>,
    /// Also where the predicted freeze is over the move's budget.
    pub force: bool,
}

/// As [`cut`], as it is wished. What is predicted now stands in the move beside what is measured later.
///
/// # Errors
/// As [`cut`], and last [`Refusal::FreezeOverBudget`].
pub async fn cut_if(
    conn: &mut PgConnection,
    app: &AppName,
    host: &Host,
    actor: Actor,
    wish: CutWish,
) -> Result<Accepted, Error> {
    enter(conn, (app, host), MoveState::Cutting, actor, wish).await
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
    let wish = CutWish { if_revision, ..CutWish::default() };
    enter(conn, (app, host), MoveState::Aborting, actor, wish).await
}

async fn enter(
    conn: &mut PgConnection,
    at: (&AppName, &Host),
    state: MoveState,
    actor: Actor,
    wish: CutWish,
) -> Result<Accepted, Error> {
    let mut tx = conn.begin().await?;
    let done = enter_inside(&mut tx, at, state, actor, wish).await;
    db::finish(tx, done).await
}

async fn enter_inside(
    conn: &mut PgConnection,
    (app, host): (&AppName, &Host),
    state: MoveState,
    actor: Actor,
    wish: CutWish,
) -> Result<Accepted, Error> {
    let record = store::write::lock_record(conn, app, host).await?.ok_or(Refusal::NotFound)?;
    if let Some(expected) = wish.if_revision.filter(|expected| *expected != record.revision) {
        return Err(Refusal::Stale { expected, found: record.revision }.into());
    }
    let open = open_of_host(conn, host).await?;
    policy::gate_record(&record.movable(None, true))?;
    let open: Move = open.ok_or(Refusal::NoMove)?;
    policy::gate_verb(state, &open)?;
    let freeze = match state {
        MoveState::Cutting => {
            gate_target(conn, &open, &record.env).await?;
            Some(weigh(conn, &open, wish.force).await?)
        }
        MoveState::Preparing | MoveState::Ready | MoveState::Aborting => None,
    };
    // The record is locked, and whoever changes a move's state locks it first: the gate's look still holds.
    if !store::cut::enter(conn, open.id, state).await? {
        return Err(sqlx::Error::RowNotFound.into());
    }
    let mut detail =
        serde_json::json!({"move_id": open.id, "from": open.from, "to": open.to, "was": open.state.as_str()});
    if let Some(freeze) = freeze {
        freeze.note(conn, open.id, &mut detail).await?;
    }
    store::write::touch_record(conn, record.id).await?;
    nodes::bump_serial(conn, &open.from).await?;
    let queue = queue::nudge(conn, jobs::MOVE_KIND, &open.id.to_string()).await?;
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

/// How long a cut would freeze its instance, held against the move's budget.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weighed {
    predicted: Option<Duration>,
    /// It is over the budget, and somebody wants it all the same.
    forced: bool,
}

/// Refuses a cut towards a region that could not land it now: until it is let be cut a move waits, and its instance serves;
/// from then on it goes forward.
pub(super) async fn gate_target(
    conn: &mut PgConnection,
    open: &Move,
    env: &BTreeMap<String, String>,
) -> Result<(), Error> {
    let target = nodes::region(conn, &open.to).await?;
    Ok(policy::gate_region(open.to.as_str(), target.as_ref(), sealed::any(env))?)
}

/// Predicts the freeze of a cut, and refuses one over the move's budget unless somebody wants it all the same.
pub(super) async fn weigh(conn: &mut PgConnection, open: &Move, force: bool) -> Result<Weighed, Error> {
    let predicted = crate::instances::freeze(conn, &open.from, &open.to).await?;
    match policy::gate_freeze(&open.to, open.freeze_budget, predicted) {
        Ok(()) => Ok(Weighed { predicted, forced: false }),
        Err(_) if force => Ok(Weighed { predicted, forced: true }),
        Err(over) => Err(over.into()),
    }
}

impl Weighed {
    /// Writes it beside a move that was just let be cut, and into the audit's detail.
    pub(super) async fn note(self, conn: &mut PgConnection, id: MoveId, detail: &mut Value) -> Result<(), Error> {
        let noted = store::cut::note_freeze(conn, id, self.predicted, self.forced).await?;
        assert!(noted, "the same transaction let the move be cut, and its row is locked");
        if let Some(predicted) = self.predicted {
            detail["predicted_freeze_ms"] = u64::try_from(predicted.as_millis()).unwrap_or(u64::MAX).into();
        }
        if self.forced {
            detail["forced"] = true.into();
        }
        Ok(())
    }
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
