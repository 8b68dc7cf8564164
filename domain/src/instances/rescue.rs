//! Operators' doors: what no box and no tenant may do by itself, for nights when a region is gone.

use sqlx::{Connection as _, PgConnection};

use super::moves::{self, Accepted, MoveState, policy};
use super::{Error, Refusal, jobs, landing, sealed, store};
use crate::audit::{self, Actor};
use crate::ids::{AppName, Host, MoveId, QueueName, RegionCode};
use crate::{db, nodes, queue};

/// A record that was pointed to another region by hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pointed {
    /// Where it was.
    pub from: RegionCode,
    /// Where it is.
    pub to: RegionCode,
    /// The transaction of the cut whose landing was given up; what was written after it elsewhere is lost.
    pub given_up: Option<(MoveId, String)>,
    /// The queue of its landing.
    pub queue: QueueName,
    /// The record's revision, now.
    pub revision: i64,
}

/// Points a record to a region by hand (M-100): its boxes land what that region has of it.
///
/// Refused while a move is in flight, and while a box that lives serves the record: two boxes would write. A landing that was
/// pending is given up, and what it had staged is purged by its region's boxes. What an earlier move left in `to` is the
/// record's own again.
///
/// One transaction: the record, its route, both regions' serials, the landing's job, the audit event with its reason.
///
/// # Errors
/// A [`Refusal`]; the database's.
pub async fn set_region(
    conn: &mut PgConnection,
    (app, host): (&AppName, &Host),
    to: &str,
    actor: Actor,
    reason: &str,
    if_revision: Option<i64>,
) -> Result<Pointed, Error> {
    let mut tx = conn.begin().await?;
    let done = set_region_inside(&mut tx, (app, host), to, actor, reason, if_revision).await;
    db::finish(tx, done).await
}

async fn set_region_inside(
    conn: &mut PgConnection,
    (app, host): (&AppName, &Host),
    asked: &str,
    actor: Actor,
    reason: &str,
    if_revision: Option<i64>,
) -> Result<Pointed, Error> {
    let record = store::rescue::lock(conn, app, host).await?.ok_or(Refusal::NotFound)?;
    if let Some(expected) = if_revision.filter(|expected| *expected != record.revision) {
        return Err(Refusal::Stale { expected, found: record.revision }.into());
    }
    if record.region.as_str() == asked {
        return Err(Refusal::SameRegion(record.region).into());
    }
    let to = RegionCode::new(asked).map_err(|_| Refusal::RegionUnknown(asked.to_owned()))?;
    policy::gate_region(asked, nodes::region(conn, &to).await?.as_ref(), sealed::any(&record.env))?;
    if let Some(open) = moves::open_of_host(conn, host).await? {
        return Err(Refusal::InFlight { to: open.to, state: open.state }.into());
    }
    if let Some(node) = record.serves.filter(|_| record.lives) {
        return Err(Refusal::Serves(node).into());
    }
    if store::residency::is_purging(conn, host, &to).await? {
        return Err(Refusal::Purging(to).into());
    }
    let revision = store::rescue::point(conn, record.id, &to).await?;
    store::rescue::drop_route(conn, host).await?;
    if let Some((landing, _)) = &record.pending {
        // Its staging will never land; the boxes of its region delete it.
        store::rescue::leave_staging(conn, *landing, &format!("moves/{host}/")).await?;
    }
    store::residency::supersede(conn, host, &to, None).await?;
    nodes::bump_serial(conn, &record.region).await?;
    nodes::bump_serial(conn, &to).await?;
    let (ordered, _) = landing::order(conn, record.id, &to).await?;
    let detail = serde_json::json!({"from": record.region, "to": to, "given_up": record.pending});
    let event = audit::Event {
        actor,
        action: "instance.region",
        subject_kind: "instance",
        subject: host.to_string(),
        reason: Some(reason),
        detail,
    };
    audit::record(conn, &event).await?;
    Ok(Pointed { from: record.region, to, given_up: record.pending, queue: ordered.queue, revision })
}

/// Takes a cut back before its purge step, which the public doors never do: the move is aborted, and the source serves
/// again. Once the purge has begun there is no way back but the landing's.
///
/// One transaction: the state, the route, the record's revision, the serial, the nudge, the audit event with its reason.
/// The answer is that of the verbs beside it.
///
/// # Errors
/// A [`Refusal`]; the database's.
pub async fn unstick(
    conn: &mut PgConnection,
    (app, host): (&AppName, &Host),
    actor: Actor,
    reason: &str,
    if_revision: Option<i64>,
) -> Result<Accepted, Error> {
    let mut tx = conn.begin().await?;
    let done = async {
        let record = store::rescue::lock(&mut tx, app, host).await?.ok_or(Refusal::NotFound)?;
        if let Some(expected) = if_revision.filter(|expected| *expected != record.revision) {
            return Err(Refusal::Stale { expected, found: record.revision }.into());
        }
        let open = moves::open_of_host(&mut tx, host).await?.ok_or(Refusal::NoMove)?;
        if open.state.known() != Some(MoveState::Cutting) {
            return Err(Refusal::NotCutting(open.state).into());
        }
        if !store::rescue::unstick(&mut tx, open.id).await? {
            return Err(Refusal::PastRecall.into());
        }
        store::rescue::open_route(&mut tx, host).await?;
        store::rescue::touch(&mut tx, record.id).await?;
        nodes::bump_serial(&mut tx, &open.from).await?;
        let queue = queue::nudge(&mut tx, jobs::MOVE_KIND, &open.id.to_string()).await?;
        let event = audit::Event {
            actor,
            action: "instance.move.unstick",
            subject_kind: "instance",
            subject: host.to_string(),
            reason: Some(reason),
            detail: serde_json::json!({"move_id": open.id, "from": open.from, "to": open.to}),
        };
        audit::record(&mut tx, &event).await?;
        moves::accepted(&mut tx, open.id, queue, (app, host)).await
    }
    .await;
    db::finish(tx, done).await
}
