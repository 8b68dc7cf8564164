//! The door of a move, as it is at this moment. A move and its dry run stand before the same one.

use sqlx::PgConnection;

use super::policy::{self, Gate, Movable};
use super::store::write::LockedRecord;
use super::{Error, RouteStatus, open_of_host};
use crate::ids::{Host, NodeId, RegionCode};
use crate::instances::store::{landing, residency};
use crate::nodes::{self, Region};

/// What stands between an instance and another region.
#[derive(Debug)]
pub(super) struct Door {
    /// The region that was asked for; `None` where none has that code.
    pub(super) target: Option<Region>,
    /// The box that serves the instance.
    pub(super) node: Option<NodeId>,
    /// Every gate, in the order in which they are asked.
    pub(super) gates: Vec<Gate>,
}

/// Reads all that the gates look at. Whoever goes through holds the record's lock; who only asks need not.
pub(super) async fn at(conn: &mut PgConnection, record: &LockedRecord, host: &Host, to: &str) -> Result<Door, Error> {
    let target = match RegionCode::new(to).ok() {
        Some(code) => nodes::region(conn, &code).await?,
        None => None,
    };
    let open = open_of_host(conn, host).await?;
    // A box that still lands the record has a route, and perhaps an older replica: nothing moves before it serves.
    let route = landing::route(conn, host).await?;
    let node = record.node.filter(|_| route.is_some_and(|route| route.status == RouteStatus::Serving));
    // A purge that has begun ends; one that has not begins no more while this move is in flight.
    let purging = match &target {
        Some(target) => residency::is_purging(conn, host, &target.code).await?,
        None => false,
    };
    let in_flight = open.as_ref().map(|open| (&open.to, &open.state));
    let movable = Movable { purging, ..record.movable(in_flight, node.is_some()) };
    let gates = policy::gates_of_move(&movable, to, target.as_ref());
    Ok(Door { target, node, gates })
}
