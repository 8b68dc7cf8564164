//! What a box reads and writes of the routes that are its own.

use std::collections::BTreeMap;

use sqlx::{Connection as _, PgConnection};

use super::moves::Obstacle;
use super::{Error, Refusal, RouteStatus, config_key, store};
use crate::audit::{self, Actor};
use crate::ids::{AppName, Host, InstanceId, NodeId, RegionCode};
use crate::{db, nodes};

pub use super::store::boxes::{box_routes, may_start};

/// A route of a box, and what its child needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoxRoute {
    /// The record.
    pub instance: InstanceId,
    /// Its host.
    pub host: Host,
    /// Whether it is served: neither landing nor moving.
    pub serving: bool,
    /// Whether it is not to run until somebody starts it.
    pub parked: bool,
    /// Whether the record is in the box's region. Where it is not, the route is one to retire.
    pub in_scope: bool,
    /// Where the child is said to answer.
    pub address: Option<String>,
    /// The tenant's own environment of the child.
    pub env: BTreeMap<String, String>,
    /// How often a new start was asked for: a child of fewer is to be replaced.
    pub restarts: i64,
}

/// Tells edges where the child of a route answers; `None`: nowhere. Returns whether that is new.
///
/// Only a route that serves has an address: one that was closed meanwhile gets none. The start of one that answers is held up
/// by nothing: the same write clears what [`note_start`] noted.
///
/// # Errors
/// Only the database's.
pub async fn publish_address(
    conn: &mut PgConnection,
    node: NodeId,
    host: &Host,
    address: Option<&str>,
) -> Result<bool, sqlx::Error> {
    let mut tx = conn.begin().await?;
    let done = async {
        let Some(region) = store::region_of_node(&mut tx, node).await? else { return Ok(false) };
        let changed = store::boxes::publish(&mut tx, node, host, address).await?;
        if changed {
            nodes::bump_serial(&mut tx, &region).await?;
        }
        Ok::<_, sqlx::Error>(changed)
    }
    .await;
    db::finish(tx, done).await
}

/// Notes on a route that serves why its child does not start, for the record's page; `None` where nothing is known. Returns
/// whether that is new.
///
/// One that is parked is held up by nothing, however late a start that failed is told.
///
/// # Errors
/// Only the database's.
pub async fn note_start(
    conn: &mut PgConnection,
    node: NodeId,
    host: &Host,
    obstacle: Option<&Obstacle>,
) -> Result<bool, sqlx::Error> {
    // What a start waits for is told before that nothing is replicated; that it waits for nothing says nothing of it.
    let instead_of = obstacle.is_none().then_some(config_key::CODE);
    store::hold(conn, (host, node), (RouteStatus::Serving, instead_of), obstacle).await
}

/// The stable code of an instance that is served, and whose writes no replica gets.
pub const NOT_REPLICATED: &str = "not_replicated";

/// Notes on a route that serves that its writes are not uploaded; `None`: they are. What holds the start up stays told. Returns
/// whether that is new.
///
/// # Errors
/// Only the database's.
pub async fn note_replication(
    conn: &mut PgConnection,
    node: NodeId,
    host: &Host,
    obstacle: Option<&Obstacle>,
) -> Result<bool, sqlx::Error> {
    store::hold(conn, (host, node), (RouteStatus::Serving, Some(NOT_REPLICATED)), obstacle).await
}

/// Has an instance's child end and another start, with the environment that the record has by then. One that does not run now
/// starts no sooner for it: where it is parked, moving or landing, its next start is a new one anyway.
///
/// One transaction: the record, its revision, the region's serial, the audit event.
///
/// # Errors
/// [`Refusal::NotFound`], [`Refusal::Stale`] where the record is not at `if_revision`, or the database's.
pub async fn restart(
    conn: &mut PgConnection,
    (app, host): (&AppName, &Host),
    if_revision: Option<i64>,
    actor: Actor,
) -> Result<(), Error> {
    let mut tx = conn.begin().await?;
    let done = async {
        let found = store::rescue::lock(&mut tx, app, host).await?.ok_or(Refusal::NotFound)?;
        if let Some(expected) = if_revision.filter(|expected| *expected != found.revision) {
            return Err(Refusal::Stale { expected, found: found.revision }.into());
        }
        store::boxes::restart(&mut tx, found.id).await?;
        nodes::bump_serial(&mut tx, &found.region).await?;
        let (subject, detail) = (host.to_string(), serde_json::json!({}));
        let event =
            audit::Event { actor, action: "instance.restart", subject_kind: "instance", subject, reason: None, detail };
        audit::record(&mut tx, &event).await?;
        Ok::<_, Error>(())
    }
    .await;
    db::finish(tx, done).await
}

/// Parks an instance, or lets it run again: with a new start, also where its box saw nothing of the park. Returns its region; a
/// record that is so already is left alone.
///
/// One transaction: the record, its revision, the region's serial, the audit event.
///
/// # Errors
/// [`Refusal::NotFound`], or the database's.
pub async fn set_parked(
    conn: &mut PgConnection,
    app: &AppName,
    host: &Host,
    parked: bool,
    actor: Actor,
) -> Result<RegionCode, Error> {
    let mut tx = conn.begin().await?;
    let done = async {
        let (region, was) = store::boxes::lock_parked(&mut tx, app, host).await?.ok_or(Refusal::NotFound)?;
        if was != parked {
            store::boxes::set_parked(&mut tx, host, parked).await?;
            // What kept it from starting keeps it from nothing while it is not to run.
            store::boxes::forget_start(&mut tx, host).await?;
            nodes::bump_serial(&mut tx, &region).await?;
            let action = if parked { "instance.park" } else { "instance.wake" };
            let (subject, detail) = (host.to_string(), serde_json::json!({}));
            let event = audit::Event { actor, action, subject_kind: "instance", subject, reason: None, detail };
            audit::record(&mut tx, &event).await?;
        }
        Ok::<_, Error>(region)
    }
    .await;
    db::finish(tx, done).await
}
