//! What a move leaves behind: the old replica is kept for a while after the landing serves, and then purged, with a receipt.
//!
//! # Consistency
//! A purge begins only while the record is served in another region and nothing is on its way back; it says so first, under
//! the record's lock. From then on it goes to its end, and until then no move to that region begins and no landing there
//! touches the prefix.

use std::time::Duration;

use serde_json::Value;
use sqlx::PgConnection;

use super::{Error, jobs, store};
use crate::audit::{self, Actor};
use crate::clock::Timestamp;
use crate::ids::{Host, MoveId, NodeId, QueueName, RegionCode};
use crate::lease::Lease;
use crate::nodes::Bucket;
use crate::queue;

pub use super::store::residency::of_move;

/// Most purges that one sweep enqueues.
const SWEEP_LIMIT: i64 = 500;

/// What a move left behind in a region: its old replica, or a staging that will never land.
#[derive(Debug, Clone, PartialEq)]
pub struct Remains {
    /// The move.
    pub move_id: MoveId,
    /// The instance's host.
    pub host: Host,
    /// Where it stands.
    pub region: RegionCode,
    /// In which bucket.
    pub bucket: Bucket,
    /// Below which prefix.
    pub prefix: String,
    /// Until when it is kept; `None` while its landing does not serve.
    pub keep_until: Option<Timestamp>,
    /// Since when it may be incomplete.
    pub purge_began_at: Option<Timestamp>,
    /// What the purge deleted so far.
    pub deleted: Deleted,
    /// When nothing of it was left.
    pub purged_at: Option<Timestamp>,
    /// What was deleted, and what could not be.
    pub receipt: Option<Value>,
    /// Since when it is the instance's own again, as that came back to the region; it is not purged.
    pub superseded_at: Option<Timestamp>,
    /// The move that landed there; `None` where the record was pointed there by hand.
    pub superseded_by: Option<MoveId>,
}

/// What a purge deleted, at least: a run that died may have deleted more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Deleted {
    /// Keys.
    pub keys: u64,
    /// Versions of keys, and markers of deletions, the purge's own among them, in a bucket that keeps them.
    pub versions: u64,
}

/// What a purge may do now.
#[derive(Debug, Clone, PartialEq)]
pub enum Purge {
    /// Delete everything below the prefix.
    Go {
        /// What is purged.
        remains: Box<Remains>,
        /// How long ago a fresh listing of it was first empty; `None` before.
        emptied: Option<Duration>,
    },
    /// It is to be kept for now, for this reason: the instance may need it.
    Keep(&'static str),
    /// Its time has not come.
    Wait(Duration),
    /// Another box's region, or nothing to do.
    Over,
}

/// Decides whether what a move left in a region may be purged by this box, and says so before anything is deleted.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn begin(
    conn: &mut PgConnection,
    lease: Lease,
    id: MoveId,
    region: &RegionCode,
    node: NodeId,
) -> Result<Purge, Error> {
    queue::fenced(conn, lease, async |tx| begin_inside(tx, id, region, node).await).await
}

async fn begin_inside(conn: &mut PgConnection, id: MoveId, region: &RegionCode, node: NodeId) -> Result<Purge, Error> {
    let own = store::region_of_node(conn, node).await?;
    store::residency::lock_record(conn, id).await?;
    let Some(found) = store::residency::sights(conn, id, Some(region)).await?.pop() else { return Ok(Purge::Over) };
    let remains = &found.remains;
    let over = remains.purged_at.is_some() || remains.superseded_at.is_some();
    if over || own.as_ref() != Some(&remains.region) {
        return Ok(Purge::Over);
    }
    if found.remains.purge_began_at.is_some() {
        // Whoever may need the prefix waits for its end: half of it may be gone.
        return Ok(Purge::Go { remains: Box::new(found.remains), emptied: found.emptied });
    }
    if found.here {
        return Ok(Purge::Keep("the instance is in this region again"));
    }
    if found.coming {
        return Ok(Purge::Keep("a move back to this region is in flight, or lands"));
    }
    if !found.served {
        return Ok(Purge::Keep("no box serves the instance in its region"));
    }
    match found.left {
        None => return Ok(Purge::Keep("the landing does not serve yet")),
        Some(left) if !left.is_zero() => return Ok(Purge::Wait(left)),
        Some(_) => {}
    }
    store::residency::begin(conn, id, region).await?;
    Ok(Purge::Go { remains: Box::new(found.remains), emptied: found.emptied })
}

/// Notes what a run of a purge deleted, and whether a fresh listing of the prefix was empty afterwards, of which the first
/// such moment counts; returns all that was deleted.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn note_swept(
    conn: &mut PgConnection,
    lease: Lease,
    remains: &Remains,
    deleted: Deleted,
    empty: bool,
) -> Result<Deleted, Error> {
    queue::fenced(conn, lease, async |tx| {
        Ok(store::residency::note_swept(tx, (remains.move_id, &remains.region), deleted, empty).await?)
    })
    .await
}

/// Ends a purge with its receipt: the row, and the audit event.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn end(conn: &mut PgConnection, lease: Lease, remains: &Remains, receipt: &Value) -> Result<(), Error> {
    queue::fenced(conn, lease, async |tx| {
        let ended = store::residency::end(tx, (remains.move_id, &remains.region), receipt).await?;
        if ended {
            let detail = serde_json::json!({"move_id": remains.move_id, "region": remains.region,
                                            "bucket": remains.bucket.name, "prefix": remains.prefix, "receipt": receipt});
            let event = audit::Event {
                actor: Actor::System,
                action: "instance.remains.purged",
                subject_kind: "instance",
                subject: remains.host.to_string(),
                reason: None,
                detail,
            };
            audit::record(tx, &event).await?;
        }
        Ok(())
    })
    .await
}

/// Enqueues a purge for all remains whose time has come, at most 500 at a time; returns the queue of each that is
/// new. Safe from any worker at any time.
///
/// # Errors
/// The database's, or the queue's.
pub async fn requeue_purges(conn: &mut PgConnection) -> Result<Vec<QueueName>, Error> {
    let due = store::residency::due(conn, SWEEP_LIMIT).await?;
    super::enqueue_missing(conn, due.iter().map(|(id, region)| jobs::purge_job(*id, region)).collect()).await
}
