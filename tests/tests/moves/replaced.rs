//! Boxes that die in a landing: what they leave behind holds up no other of their region, now or later.

use std::time::Duration;

use domain::audit::Actor;
use domain::ids::{InstanceId, MoveId, NodeId, QueueName};
use domain::instances::{landing, rescue};
use domain::lease::{Fence, Lease};
use domain::nodes;
use domain::queue::{self, Leased};
use workers::jobs::Done;
use workers::node::NodeContext;

use crate::acting::{acting, activator};
use crate::support::{Fleet, HOST, app, host, region};

/// A move into uk that is over for its source, and whose landing a box has begun, which dies there; another box of uk, and
/// eu, live.
async fn died_in_a_landing() -> (Fleet, MoveId, NodeContext, Leased) {
    let fleet = Fleet::writing().await;
    let id = fleet.make_ready().await;
    fleet.cut().await;
    assert_eq!(fleet.run(&fleet.eu).await.result()["outcome"], "moved");
    let second = fleet.register(acting(fleet.config("uk-2", "uk"))).await.expect("another box");
    let leased = fleet.lease(&fleet.uk).await.expect("a landing is due");
    let taken = landing::land(&mut *fleet.conn().await, leased.lease, instance(&leased), fleet.uk.id()).await;
    assert!(matches!(taken, Ok(landing::Landing::Begun(_))));
    fleet.settle(leased.lease, &Ok(Done::Snooze { after: Duration::ZERO })).await;
    assert!(fleet.lease(&second).await.is_none(), "it is the first one's");
    fleet.db.clock().advance(Duration::from_secs(120)).await;
    hear(&fleet, [fleet.eu.id(), second.id()]).await;
    (fleet, id, second, leased)
}

fn instance(leased: &Leased) -> InstanceId {
    serde_json::from_value(leased.args["instance_id"].clone()).expect("an id")
}

async fn hear(fleet: &Fleet, boxes: [NodeId; 2]) {
    for id in boxes {
        nodes::seen(&mut *fleet.conn().await, id).await.expect("an answer");
    }
}

async fn freed(fleet: &Fleet) -> Vec<QueueName> {
    domain::instances::requeue_landings(&mut *fleet.conn().await).await.expect("an answer")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_box_that_dies_in_a_landing_is_replaced_by_another_of_its_region_and_writes_nothing_later() {
    let (fleet, id, second, dead) = died_in_a_landing().await;
    assert_eq!(freed(&fleet).await, [QueueName::of_region(&region("uk"))]);
    let late = fleet.lease(&second).await.expect("the region's again");
    let done = fleet.handle(&second, late.clone()).await;
    fleet.settle(late.lease, &done).await;
    assert!(fleet.read_move(id).await.landed_at.is_some());
    assert!(activator(&second).running(&host(HOST)).is_some());
    let (conn, window) = (&mut *fleet.conn().await, Duration::ZERO);
    let served = landing::serve(conn, dead.lease, instance(&dead), fleet.uk.id(), Some(id), window).await;
    assert!(matches!(served, Err(domain::instances::Error::LeaseLost(_))), "{served:?}");
    let may = domain::instances::may_start(&mut *fleet.conn().await, fleet.uk.id(), &host(HOST)).await;
    assert!(!may.expect("an answer"), "nor does it start anything");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_landing_that_waits_for_a_dead_box_is_freed_although_that_box_has_no_route_any_more() {
    let (fleet, id, second, dead) = died_in_a_landing().await;
    fleet.sql("delete from routes where status = 'landing'").await;
    let stale = Lease { fence: Fence(dead.lease.fence.0 - 1), ..dead.lease };
    let other = QueueName::of_region(&region("uk"));
    let given = queue::give(&mut *fleet.conn().await, &[(stale, other)]).await.expect("an answer");
    assert_eq!(given, [], "whoever leased it since it was read keeps it");
    assert_eq!(freed(&fleet).await, [QueueName::of_region(&region("uk"))]);
    assert_eq!(freed(&fleet).await, [], "once");
    assert_eq!(fleet.run(&second).await.result()["landed"], true);
    assert!(fleet.read_move(id).await.landed_at.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_box_began_holds_up_no_later_move_into_its_region() {
    let (fleet, first, second, _) = died_in_a_landing().await;
    let mut conn = fleet.conn().await;
    let pointed = rescue::set_region(&mut conn, (&app(), &host(HOST)), "eu", Actor::System, "uk is down", None).await;
    assert_eq!(pointed.expect("nobody serves it").given_up.map(|(id, _)| id), Some(first));
    drop(conn);
    assert_eq!(fleet.run(&fleet.eu).await.result()["landed"], true);
    assert_eq!(freed(&fleet).await, [], "the record is elsewhere");
    hear(&fleet, [fleet.eu.id(), second.id()]).await;
    let again = fleet.make_ready().await;
    fleet.cut().await;
    assert_eq!(fleet.run(&fleet.eu).await.result()["outcome"], "moved");
    assert_eq!(fleet.run(&second).await.result()["landed"], true, "at once, by a box that lives");
    assert!(fleet.read_move(again).await.landed_at.is_some());
    assert!(activator(&second).running(&host(HOST)).is_some());
}
