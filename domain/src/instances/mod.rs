//! Instances: records, routes, edges and moves between regions.
//!
//! # Consistency
//! A record says in which one region its instance may be written; a route says which box serves it; a move changes the
//! region by one compare-and-set at its very end (I5). Every change raises the serial of the region whose boxes must
//! notice it, and enqueues the job that it calls for, in the same transaction (I2).
//!
//! # Table order
//! Nodes, instances, moves and their rows, routes, regions' serials, jobs, audit. A box's write under a lease checks
//! the lease last, just before the commit: a verb that holds the record may wait for a job's row, never the reverse.
//!
//! # Deliberately absent
//! What acts on S3, disks and children: see the workers' `jobs`, `mirror` and `node`.

use sqlx::{Connection as _, PgConnection};

use crate::audit::{self, Actor};
use crate::ids::{InstanceId, QueueName};
use crate::lease::LeaseLost;
use crate::{db, nodes, queue};

mod boxes;
pub mod config_key;
mod edges;
mod entry;
mod environment;
pub mod freeze;
pub mod jobs;
pub mod landing;
pub mod moves;
mod new;
pub mod plan;
pub mod receipt;
pub mod record;
mod refusal;
pub mod rescue;
pub mod residency;
mod route;
pub mod sealed;
pub mod source;
mod store;
pub mod why;

pub use boxes::{
    BoxRoute, NOT_REPLICATED, box_routes, may_start, note_replication, note_start, publish_address, restart, set_parked,
};
pub use edges::{EdgeBox, EdgeRoute, EdgesDocument};
pub use entry::Entry;
pub use environment::set_environment;
pub use landing::{Landfall, Landing, land, requeue_landings};
pub use new::{NewInstance, check_variable};
pub use receipt::Receipt;
pub use record::RecordHeld;
pub use record::{InstanceKind, Record, RecordMove, Role};
pub use refusal::{Refusal, RefusalClass};
pub use route::RouteStatus;
pub use store::freeze::{freeze, predict};
pub use store::index::index;
pub use store::receipt::receipt as receipt_of;
pub use store::why::{held_landings, why as why_of};
pub use store::{coordinates, edges, get, list};

/// Why an instance's verb or a box's write failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Refused, with a stable code.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A field is out of its bounds.
    #[error("{field}: {rule}")]
    Invalid {
        /// The field's name.
        field: &'static str,
        /// The rule in words.
        rule: &'static str,
    },
    /// The box's lease is no longer the job's: nothing was written.
    #[error(transparent)]
    LeaseLost(#[from] LeaseLost),
    /// The queue refused the job that the change calls for.
    #[error("enqueue what the change calls for")]
    Queue(#[source] queue::Error),
    /// The database's.
    #[error("use the tables of instances and moves")]
    Store(#[from] sqlx::Error),
}

impl From<queue::Error> for Error {
    fn from(error: queue::Error) -> Self {
        match error {
            queue::Error::LeaseLost(lost) => Self::LeaseLost(lost),
            queue::Error::Store(error) => Self::Store(error),
            other @ (queue::Error::PayloadTooLarge { .. }
            | queue::Error::Invalid { .. }
            | queue::Error::NotFound(_)
            | queue::Error::Conflict { .. }
            | queue::Error::KeyTaken { .. }
            | queue::Error::SettledBefore(_)
            | queue::Error::Stale { .. }
            | queue::Error::StaleLimits { .. }) => Self::Queue(other),
        }
    }
}

/// Creates a record, and enqueues its landing: some capable box of the region takes it.
///
/// One transaction: the record, the region's serial, one `instance.land` job, the audit event. Called inside a
/// transaction, it is part of it.
///
/// # Errors
/// [`Error::Invalid`], a [`Refusal`] of the region (M-016; a dormant one is allowed) or [`Refusal::HostTaken`]; the
/// database's.
pub async fn create(conn: &mut PgConnection, new: &NewInstance, actor: Actor) -> Result<Record, Error> {
    new.check()?;
    let mut tx = conn.begin().await?;
    let done = async {
        let region = nodes::region(&mut tx, &new.region).await?;
        moves::policy::gate_region(new.region.as_str(), region.as_ref(), sealed::any(&new.env))?;
        for code in &new.replica_regions {
            if nodes::region(&mut tx, code).await?.is_none() {
                return Err(Refusal::RegionUnknown(code.to_string()).into());
            }
        }
        let id = InstanceId::generate();
        if !store::insert(&mut tx, id, new).await? {
            return Err(Refusal::HostTaken.into());
        }
        nodes::bump_serial(&mut tx, &new.region).await?;
        queue::enqueue(&mut tx, &jobs::land_job(id, &new.region)).await?;
        let detail = serde_json::json!({"app": new.app, "kind": new.kind, "region": new.region});
        let subject = new.host.to_string();
        let event =
            audit::Event { actor, action: "instance.create", subject_kind: "instance", subject, reason: None, detail };
        audit::record(&mut tx, &event).await?;
        let record = store::get(&mut tx, &new.app, &new.host).await?.ok_or(sqlx::Error::RowNotFound)?;
        Ok::<_, Error>(record)
    }
    .await;
    db::finish(tx, done).await
}

/// The queues of those jobs that were not there.
async fn enqueue_missing(conn: &mut PgConnection, jobs: Vec<queue::NewJob>) -> Result<Vec<QueueName>, Error> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let made = queue::enqueue_many(conn, &jobs).await?;
    Ok(jobs.into_iter().zip(made).filter(|(_, made)| made.is_new()).map(|(job, _)| job.queue).collect())
}
