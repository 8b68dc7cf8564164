//! Which box of a region opens a record's sealed values: a landing goes to one that holds a key (M-115, M-120).
//!
//! Whether a key is the right one nobody can say but the box that has it. So a landing whose values a box cannot open is
//! handed on, box by box, until one opens them; each writes why it could not, and none has restored anything.

use sqlx::PgConnection;

use super::moves::Obstacle;
use super::{Error, RouteStatus, sealed, store};
use crate::ids::{Host, InstanceId, NodeId, QueueName, RegionCode};
use crate::lease::Lease;
use crate::queue;

/// The stable code of a landing, and of a start, that waits for a key.
pub const CODE: &str = "config_key";

/// The box that is to have the route of a record which no box has: the one that asks, unless sealed values need a key, that
/// one holds none, and another does.
pub(super) async fn taker(
    conn: &mut PgConnection,
    id: InstanceId,
    region: &RegionCode,
    node: NodeId,
) -> Result<NodeId, sqlx::Error> {
    let Some(env) = store::config_key::env(conn, id).await? else { return Ok(node) };
    if !sealed::any(&env) || store::config_key::holds(conn, node).await? {
        return Ok(node);
    }
    Ok(store::config_key::next_holder(conn, region, node).await?.unwrap_or(node))
}

/// The box that a landing was handed on to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Next {
    /// Which.
    pub node: NodeId,
    /// Whether it tried before: the first round is over.
    pub tried: bool,
}

/// Notes that a box could not open the values of a record that it lands, and hands the landing on to the next box of the
/// region that is heard and holds a key; `None` where there is no other, or where the landing is not this box's any more.
/// Going on from box to box, the turn comes back.
///
/// One transaction: what holds the landing up and who tried, the route, the job's queue.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn hand_on(
    conn: &mut PgConnection,
    lease: Lease,
    (id, host): (InstanceId, &Host),
    node: NodeId,
    obstacle: &Obstacle,
) -> Result<Option<Next>, Error> {
    queue::fenced(conn, lease, async |tx| {
        let region = store::region_of_node(tx, node).await?;
        let place = store::landing::lock_place(tx, id).await?;
        let mut tried = store::config_key::tried(tx, host).await?;
        if !tried.contains(&node) {
            tried.push(node);
        }
        store::hold(tx, (host, node), (RouteStatus::Landing, None), Some(obstacle)).await?;
        let mut next = None;
        // A record that went elsewhere meanwhile is nobody's here: the next look says so.
        if let Some(region) = region.filter(|own| place.is_some_and(|place| place.region == *own)) {
            // No serial: edges are told of what serves alone, and the next box hears of it by the job.
            if let Some(other) = store::config_key::next_holder(tx, &region, node).await?
                && store::config_key::hand_route(tx, host, (node, other), &tried).await?
            {
                queue::hand_to(tx, lease, &QueueName::of_node(other)).await?;
                next = Some(Next { node: other, tried: tried.contains(&other) });
            }
        }
        Ok(next)
    })
    .await
}
