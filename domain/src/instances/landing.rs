//! Landings: how a box takes a record that is newly in scope, and what it writes until it serves it.
//!
//! # Consistency
//! The route is inserted first, so one box of the region lands a record. What it restores is decided by the pending landing
//! alone ([`super::source`]); that is cleared in the transaction that makes the route serve, before
//! the child's first start.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use sqlx::{Connection as _, PgConnection};

use super::moves::{self, Obstacle, Tail};
use super::{Error, RouteStatus, config_key, jobs, store};
use crate::audit::{self, Actor};
use crate::ids::{AppName, Host, InstanceId, MoveId, NodeId, QueueName, RegionCode};
use crate::lease::Lease;
use crate::queue::{Enqueued, NewJob};
use crate::{db, nodes, queue};

/// Most records without a route that one sweep takes on.
const SWEEP_LIMIT: i64 = 500;

/// What became of a landing so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Landing {
    /// The route is this box's, and does not serve yet: restore what there is, then [`serve`].
    Begun(Landfall),
    /// This box serves it.
    Serving {
        /// The host.
        host: Host,
        /// The moves that landed here and whose staging is left to delete.
        staged: Vec<MoveId>,
    },
    /// Another box has it.
    Elsewhere {
        /// The box.
        node: NodeId,
    },
    /// It is another box's to land, which holds a key for its sealed values: this one has none.
    Left {
        /// The box.
        node: NodeId,
    },
    /// The record's region is not this box's (M-037).
    OutOfScope {
        /// Where the record is.
        region: RegionCode,
    },
    /// A move is in flight: whoever serves the host goes on, nobody else begins.
    Moving,
    /// What an earlier move left in the prefix is being purged: a landing waits until that is over.
    Purging,
    /// No such record.
    Gone,
}

/// A record that a box lands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Landfall {
    /// The record's application.
    pub app: AppName,
    /// Its host.
    pub host: Host,
    /// Whether a box served it before: then nothing to restore is an error, not a beginning.
    pub served_before: bool,
    /// The move whose staging is authoritative, and what a restore of it must be.
    pub pending: Option<(MoveId, Tail)>,
    /// What holds it up.
    pub held: Option<Obstacle>,
    /// Whether it is not to run until somebody starts it.
    pub parked: bool,
    /// The tenant's own environment of the child.
    pub env: BTreeMap<String, String>,
    /// How often a new start was asked for.
    pub restarts: i64,
}

/// Takes a record on a box, under the lease of its landing: inserts the route, unless there is one.
///
/// One transaction. The job goes on as the box's own. A record of another region, one whose move is in flight, or one that
/// another box has is left alone, unless that one is silent and had not come to serve it: then this one lands it. A route of
/// a box whose region the record has left is no route any more.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn land(conn: &mut PgConnection, lease: Lease, id: InstanceId, node: NodeId) -> Result<Landing, Error> {
    queue::fenced(conn, lease, async |tx| land_inside(tx, lease, id, node).await).await
}

async fn land_inside(conn: &mut PgConnection, lease: Lease, id: InstanceId, node: NodeId) -> Result<Landing, Error> {
    let Some(own) = store::region_of_node(conn, node).await? else {
        return Ok(Landing::Gone);
    };
    let Some(place) = store::landing::lock_place(conn, id).await? else {
        return Ok(Landing::Gone);
    };
    if place.region != own {
        return Ok(Landing::OutOfScope { region: place.region });
    }
    let route = match store::landing::route(conn, &place.host).await? {
        Some(route) if route.region != own => {
            moves::retire_route_inside(conn, &place.host, route.node).await?;
            None
        }
        other => other,
    };
    match route {
        Some(route) if route.node != node => {
            let died = !route.lives && route.status == RouteStatus::Landing;
            if !(died && store::landing::take_over(conn, &place.host, (route.node, node)).await?) {
                return Ok(Landing::Elsewhere { node: route.node });
            }
        }
        Some(route) => match route.status {
            RouteStatus::Serving => {
                let staged = store::landing::staged(conn, id, &own).await?;
                return Ok(Landing::Serving { host: place.host, staged });
            }
            RouteStatus::Landing => {}
            RouteStatus::Moving => return Ok(Landing::Moving),
        },
        None => {
            if moves::is_open(conn, &place.host).await? {
                return Ok(Landing::Moving);
            }
            if store::residency::is_purging(conn, &place.host, &own).await? {
                return Ok(Landing::Purging);
            }
            let taker = config_key::taker(conn, id, &own, node).await?;
            store::landing::mint(conn, id, &place.host, taker).await?;
            nodes::bump_serial(conn, &own).await?;
            if taker != node {
                queue::hand_to(conn, lease, &QueueName::of_node(taker)).await?;
                return Ok(Landing::Left { node: taker });
            }
        }
    }
    queue::hand_to(conn, lease, &QueueName::of_node(node)).await?;
    let landfall = store::landing::landfall(conn, id).await?.ok_or(sqlx::Error::RowNotFound)?;
    Ok(Landing::Begun(landfall))
}

/// Makes a landed record serve: the end of a landing, and of the move that it belongs to.
///
/// One transaction: the pending landing and what held it up are cleared, the route serves, the old replica's time of
/// `undo_window` begins, the region's serial, the audit event. `false` where the record is no longer this box's to land:
/// nothing was written.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn serve(
    conn: &mut PgConnection,
    lease: Lease,
    id: InstanceId,
    node: NodeId,
    landed: Option<MoveId>,
    undo_window: Duration,
) -> Result<bool, Error> {
    let mut tx = conn.begin().await?;
    let done = async {
        let own = store::region_of_node(&mut tx, node).await?;
        let place = store::landing::lock_place(&mut tx, id).await?;
        let (Some(own), Some(place)) = (own, place) else {
            queue::require_lease(&mut tx, lease).await?;
            return Ok(false);
        };
        let serves = place.region == own
            && store::landing::clear_pending(&mut tx, id, landed).await?
            && store::landing::serve(&mut tx, &place.host, node).await?;
        queue::require_lease(&mut tx, lease).await?;
        if !serves {
            return Ok(false);
        }
        if let Some(landed) = landed {
            store::landing::note_landed(&mut tx, landed).await?;
            store::landing::keep_until(&mut tx, landed, undo_window).await?;
            store::residency::supersede(&mut tx, &place.host, &own, Some(landed)).await?;
        }
        nodes::bump_serial(&mut tx, &own).await?;
        let detail = serde_json::json!({"node_id": node, "region": own, "move_id": landed, "job_id": lease.job,
                                        "fence": lease.fence});
        let subject = place.host.to_string();
        let (actor, action) = (Actor::System, "instance.landed");
        let event = audit::Event { actor, action, subject_kind: "instance", subject, reason: None, detail };
        audit::record(&mut tx, &event).await?;
        Ok::<_, Error>(true)
    }
    .await;
    match done {
        // Nothing of a landing that is no longer this box's may stand.
        Ok(false) => {
            tx.rollback().await?;
            Ok(false)
        }
        done => db::finish(tx, done).await,
    }
}

/// Notes what holds a landing up, for the record's page; `None` clears it.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn hold(
    conn: &mut PgConnection,
    lease: Lease,
    host: &Host,
    node: NodeId,
    obstacle: Option<&Obstacle>,
) -> Result<(), Error> {
    queue::fenced(conn, lease, async |tx| {
        store::hold(tx, (host, node), (RouteStatus::Landing, None), obstacle).await?;
        Ok(())
    })
    .await
}

/// Opens a row of a move's journal for a step of its landing.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn begin_step(conn: &mut PgConnection, lease: Lease, id: MoveId, step: &'static str) -> Result<i64, Error> {
    queue::fenced(conn, lease, async |tx| Ok(moves::store::write::open_step(tx, lease, id, step, None).await?)).await
}

/// Notes that nothing of a landed move is staged any more.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn staging_deleted(conn: &mut PgConnection, lease: Lease, id: MoveId, evidence: &Value) -> Result<(), Error> {
    queue::fenced(conn, lease, async |tx| {
        if store::landing::staging_deleted(tx, id).await? {
            moves::store::write::one_step(tx, lease, id, "delete_staging", "deleted", evidence).await?;
        }
        Ok(())
    })
    .await
}

/// Orders the landing of a record in a region, in the transaction that gave it to that region. One that is there already
/// looks again, and is any box's of the region: the box that had it may be gone.
pub(in crate::instances) async fn order(
    conn: &mut PgConnection,
    id: InstanceId,
    region: &RegionCode,
) -> Result<(NewJob, Enqueued), Error> {
    let landing = jobs::land_job(id, region);
    let made = queue::enqueue(conn, &landing).await?;
    if !made.is_new() {
        queue::recall(conn, jobs::LAND_KIND, &jobs::land_key(id, region), &landing.queue).await?;
    }
    Ok((landing, made))
}

/// Enqueues a landing for every record that no box serves and that no move holds, and for every move whose staging is left,
/// and gives landings whose box is silent to the others of its region; at most 500 of each at a time. Returns the queue of
/// each that is new there. Safe from any worker at any time: a record has at most one
/// landing in a region.
///
/// # Errors
/// The database's, or the queue's.
pub async fn requeue_landings(conn: &mut PgConnection) -> Result<Vec<QueueName>, Error> {
    let waiting = store::landing::of_silent_boxes(conn, SWEEP_LIMIT).await?;
    let back: Vec<_> = waiting.into_iter().map(|(read, region)| (read, QueueName::of_region(&region))).collect();
    let freed = queue::give(conn, &back).await?;
    let unserved = store::landing::without_landing(conn, SWEEP_LIMIT).await?;
    let jobs = unserved.iter().map(|left| {
        let job = jobs::land_job(left.id, &left.region);
        match left.node {
            Some(node) => job.on(QueueName::of_node(node)),
            None => job,
        }
    });
    let mut queues = super::enqueue_missing(conn, jobs.collect()).await?;
    queues.extend(freed);
    Ok(queues)
}
