//! What a box writes while it cuts a move, and while it aborts one: each write under its lease, each a compare-and-set
//! from the one state in which it is legal.

use std::time::Duration;

use serde_json::Value;
use sqlx::PgConnection;

use super::verbs::{gate_target, record_act, weigh};
use super::{Cas, MoveState, Tail, store};
use crate::audit::Actor;
use crate::ids::{Host, MoveId, NodeId, RegionCode};
use crate::instances::{Error, Refusal, landing};
use crate::lease::Lease;
use crate::queue::{Enqueued, NewJob};
use crate::{nodes, queue};

/// Opens a row of the journal for a step of this state.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn begin_step(
    conn: &mut PgConnection,
    lease: Lease,
    id: MoveId,
    state: MoveState,
    step: &'static str,
) -> Result<Cas<i64>, Error> {
    queue::fenced(conn, lease, async |tx| {
        let found = store::write::state(tx, id).await?;
        let begun = if found.as_ref().and_then(|found| found.known()) == Some(state) {
            Cas::Set(store::write::open_step(tx, lease, id, step, None).await?)
        } else {
            Cas::Lost(found)
        };
        Ok(begun)
    })
    .await
}

/// Closes a row of the journal with what was seen. A row that is closed already stays as it is.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn end_step(
    conn: &mut PgConnection,
    lease: Lease,
    step: i64,
    outcome: &str,
    evidence: &Value,
) -> Result<(), Error> {
    queue::fenced(conn, lease, async |tx| {
        store::write::close_step(tx, step, None, outcome, evidence).await?;
        Ok(())
    })
    .await
}

/// Closes the route of a move that is cut: edges stop serving the host, and nothing may start its child any more
/// (M-063, M-116). Done again, it changes nothing.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn close_route(conn: &mut PgConnection, lease: Lease, id: MoveId, node: NodeId) -> Result<Cas<()>, Error> {
    queue::fenced(conn, lease, async |tx| {
        let Some(record) = store::write::lock_record_of(tx, id).await? else {
            return lost(tx, id).await;
        };
        let state = store::write::state(tx, id).await?;
        if state.as_ref().and_then(|state| state.known()) != Some(MoveState::Cutting) {
            return lost(tx, id).await;
        }
        if store::cut::close_route(tx, &record.host, node).await? {
            store::write::one_step(tx, lease, id, "close_route", "closed", &serde_json::json!({"node_id": node}))
                .await?;
            nodes::bump_serial(tx, &record.from).await?;
        }
        Ok(Cas::Set(()))
    })
    .await
}

/// Records what was proven of the tail. Until the purge begins, a newer proof replaces an older one.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn record_tail(conn: &mut PgConnection, lease: Lease, id: MoveId, tail: &Tail) -> Result<Cas<()>, Error> {
    queue::fenced(conn, lease, async |tx| {
        if !store::cut::set_tail(tx, id, tail).await? {
            return lost(tx, id).await;
        }
        Ok(Cas::Set(()))
    })
    .await
}

/// The last write before the source deletes its own database: from here on only forward, whoever goes on.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn begin_purge(conn: &mut PgConnection, lease: Lease, id: MoveId) -> Result<Cas<()>, Error> {
    queue::fenced(conn, lease, async |tx| {
        if !store::cut::begin_purge(tx, id).await? {
            return lost(tx, id).await;
        }
        Ok(Cas::Set(()))
    })
    .await
}

/// A move that was flipped.
#[derive(Debug, Clone)]
pub struct Flipped {
    /// The region that is now the record's.
    pub to: RegionCode,
    /// Its landing.
    pub landing: NewJob,
    /// What became of that.
    pub made: Enqueued,
}

/// The source's last act: one compare-and-set gives the record to the target and ends the move (M-008).
///
/// One transaction: the record's region and pending landing, the move's end, the kept replica at `prefix`, both regions'
/// serials, the landing's job, the journal, the audit event. The lease is checked last.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn flip(conn: &mut PgConnection, lease: Lease, id: MoveId, prefix: &str) -> Result<Cas<Flipped>, Error> {
    queue::fenced(conn, lease, async |tx| {
        let Some(record) = store::write::lock_record_of(tx, id).await? else {
            return lost(tx, id).await;
        };
        let Some(to) = store::cut::end_moved(tx, id).await? else { return lost(tx, id).await };
        if !store::cut::flip_region(tx, record.id, (&record.from, &to), id).await? {
            // The region was pointed elsewhere by hand: nothing of this transaction stands.
            return Err(Refusal::NotFound.into());
        }
        store::cut::keep_old_replica(tx, id, prefix).await?;
        let evidence = serde_json::json!({"from": record.from, "to": to});
        store::write::one_step(tx, lease, id, "flip", "flipped", &evidence).await?;
        nodes::bump_serial(tx, &record.from).await?;
        nodes::bump_serial(tx, &to).await?;
        // An earlier landing in that region may still have something to delete: it lands this one, too.
        let (landing, made) = landing::order(tx, record.id, &to).await?;
        let detail = serde_json::json!({"move_id": id, "from": record.from, "to": to, "job_id": lease.job,
                                        "fence": lease.fence});
        record_act(tx, &record.host, Actor::System, "instance.move.flip", detail).await?;
        Ok(Cas::Set(Flipped { to, landing, made }))
    })
    .await
}

/// Lets a move that is ready and was asked to cut by itself be cut, by its box (M-127), once its predicted freeze is within
/// its budget.
///
/// # Errors
/// [`Error::LeaseLost`], [`Refusal::FreezeOverBudget`]; the database's.
pub async fn cut_by_itself(conn: &mut PgConnection, lease: Lease, id: MoveId) -> Result<Cas<()>, Error> {
    queue::fenced(conn, lease, async |tx| {
        let Some(record) = store::write::lock_record_of(tx, id).await? else {
            return lost(tx, id).await;
        };
        let Some(open) = store::read::get(tx, id).await? else { return lost(tx, id).await };
        // Nobody is there who could want it all the same.
        let ready = open.state.known() == Some(MoveState::Ready);
        let freeze = if ready {
            gate_target(tx, &open, &record.env).await?;
            Some(weigh(tx, &open, false).await?)
        } else {
            None
        };
        if !store::cut::enter(tx, id, MoveState::Cutting).await? {
            return lost(tx, id).await;
        }
        let mut detail = serde_json::json!({"move_id": id, "by": "itself", "job_id": lease.job, "fence": lease.fence});
        if let Some(freeze) = freeze {
            freeze.note(tx, id, &mut detail).await?;
        }
        store::write::touch_record(tx, record.id).await?;
        nodes::bump_serial(tx, &record.from).await?;
        record_act(tx, &record.host, Actor::System, "instance.move.cut", detail).await?;
        Ok(Cas::Set(()))
    })
    .await
}

/// Notes that a fresh listing of the staging was empty after an abort; the first such moment counts.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn note_swept(conn: &mut PgConnection, lease: Lease, id: MoveId) -> Result<(), Error> {
    queue::fenced(conn, lease, async |tx| {
        store::cut::note_swept(tx, id).await?;
        Ok(())
    })
    .await
}

/// How long ago the staging was first found empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swept {
    /// On the database's clock.
    pub ago: Duration,
    /// Whether a round was cut short, so that its copies may still be under way.
    pub loose: bool,
}

/// When the staging of a move was first found empty after its abort; `None` before.
///
/// # Errors
/// Only the database's.
pub async fn swept(conn: &mut PgConnection, id: MoveId) -> Result<Option<Swept>, sqlx::Error> {
    let found = store::cut::since_swept(conn, id).await?;
    Ok(found.map(|(seconds, loose)| Swept { ago: Duration::from_secs_f64(seconds.max(0.0)), loose }))
}

/// Ends an aborted move: the record has none any more (M-082, M-083). Its staging was found empty twice before.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn clear(conn: &mut PgConnection, lease: Lease, id: MoveId) -> Result<Cas<()>, Error> {
    queue::fenced(conn, lease, async |tx| {
        let Some(record) = store::write::lock_record_of(tx, id).await? else {
            return lost(tx, id).await;
        };
        if !store::cut::end_aborted(tx, id).await? {
            return lost(tx, id).await;
        }
        store::write::one_step(tx, lease, id, "clear", "aborted", &serde_json::json!({})).await?;
        store::write::touch_record(tx, record.id).await?;
        nodes::bump_serial(tx, &record.from).await?;
        let detail = serde_json::json!({"move_id": id, "job_id": lease.job, "fence": lease.fence});
        record_act(tx, &record.host, Actor::System, "instance.move.aborted", detail).await?;
        Ok(Cas::Set(()))
    })
    .await
}

/// Whose rows of the journal of copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copies {
    /// Those of the source's rounds.
    OfRounds,
    /// Those of the landing.
    OfLanding,
}

/// Removes some rows of the journal of copies of a move that is over (M-118); whether any may be left.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn forget_some_keys(
    conn: &mut PgConnection,
    lease: Lease,
    id: MoveId,
    whose: Copies,
    limit: u16,
) -> Result<bool, Error> {
    queue::fenced(conn, lease, async |tx| {
        let of_landing = whose == Copies::OfLanding;
        let forgotten = store::cut::forget_some_keys(tx, id, of_landing, i64::from(limit)).await?;
        Ok(forgotten >= u64::from(limit))
    })
    .await
}

/// Retires the route of a host that is no longer this box's to serve (M-072): its record is in another region. Whether there
/// was one.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn retire_route(conn: &mut PgConnection, lease: Lease, host: &Host, node: NodeId) -> Result<bool, Error> {
    queue::fenced(conn, lease, async |tx| Ok(retire_route_inside(tx, host, node).await?)).await
}

/// As [`retire_route`], in the transaction of a caller who checks its lease.
pub(in crate::instances) async fn retire_route_inside(
    conn: &mut PgConnection,
    host: &Host,
    node: NodeId,
) -> Result<bool, Error> {
    let Some(region) = crate::instances::store::region_of_node(conn, node).await? else { return Ok(false) };
    let retired = store::cut::retire_route(conn, host, node).await?;
    if retired {
        nodes::bump_serial(conn, &region).await?;
    }
    Ok(retired)
}

async fn lost<T>(conn: &mut PgConnection, id: MoveId) -> Result<Cas<T>, Error> {
    Ok(Cas::Lost(store::write::state(conn, id).await?))
}
