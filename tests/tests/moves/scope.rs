//! Who acts on what: boxes, regions, routes, and what a region publishes.

use std::time::Duration;

use domain::ids::NodeId;
use domain::instances::{self, EdgesDocument, Landing};
use domain::nodes::{self, Bucket, Capabilities};
use domain::queue;
use serde_json::json;
use workers::node::NodeError;

use crate::support::{Fleet, HOST, app, armed, bucket, host, put_region, region};

#[tokio::test]
async fn a_box_lands_only_records_of_its_own_region() {
    // M-037.
    let fleet = Fleet::start().await;
    fleet.create(HOST).await;
    assert!(fleet.lease(&fleet.uk).await.is_none(), "the landing waits in its region's queue");
    let leased = fleet.lease(&fleet.eu).await.expect("a landing is due");
    let id = serde_json::from_value(leased.args["instance_id"].clone()).expect("an id");
    let before = fleet.dump().await;
    let mut conn = fleet.conn().await;
    let landing = instances::land(&mut conn, leased.lease, id, fleet.uk.id()).await.expect("an answer");
    assert_eq!(landing, Landing::OutOfScope { region: region("eu") });
    assert_eq!(fleet.dump().await, before);
    let serial = fleet.serial("eu").await;
    let landing = instances::land(&mut conn, leased.lease, id, fleet.eu.id()).await.expect("an answer");
    let Landing::Begun(fall) = &landing else { panic!("the box takes it: {landing:?}") };
    assert_eq!((&fall.host, fall.served_before, &fall.pending), (&host(HOST), false, &None));
    assert_eq!(fleet.serial("eu").await, serial + 1, "the edges look again");
    let again = instances::land(&mut conn, leased.lease, id, fleet.eu.id()).await.expect("an answer");
    assert_eq!(again, landing, "a landing that runs twice ends in the same state");
    let job = queue::get(&mut conn, leased.lease.job).await.expect("an answer").expect("the job");
    assert_eq!(job.queue, fleet.eu.queues()[0], "it goes on as work of the box");
    let (lease, node) = (leased.lease, fleet.eu.id());
    let served = instances::landing::serve(&mut conn, lease, id, node, None, Duration::ZERO).await.expect("an answer");
    assert!(served);
    let again = instances::land(&mut conn, leased.lease, id, fleet.eu.id()).await.expect("an answer");
    assert_eq!(again, Landing::Serving { host: host(HOST), staged: Vec::new() });
    let second = fleet.register(fleet.config("eu-2", "eu")).await.expect("another box");
    let other = instances::land(&mut conn, leased.lease, id, second.id()).await.expect("an answer");
    assert_eq!(other, Landing::Elsewhere { node: fleet.eu.id() });
}

#[tokio::test]
async fn a_landing_leaves_a_record_alone_whose_move_is_in_flight() {
    // Before the flip no box mints.
    let fleet = Fleet::with_instance().await;
    fleet.start_move(HOST).await.expect("the move begins");
    fleet.sql("delete from routes").await;
    let lease = fleet.lease(&fleet.eu).await.expect("the move's job").lease;
    let id =
        sqlx::query_scalar("select id from instances").fetch_one(fleet.db.pool()).await.map(domain::ids::InstanceId);
    let landing = instances::land(&mut *fleet.conn().await, lease, id.expect("the record"), fleet.eu.id()).await;
    assert_eq!(landing.expect("an answer"), Landing::Moving);
    assert_eq!(instances::requeue_landings(&mut *fleet.conn().await).await.expect("an answer"), []);
}

#[tokio::test]
async fn a_move_whose_route_is_anothers_is_left_alone_and_goes_back_to_its_owner() {
    // M-037, M-038: the job reached a second box of the region, and a box of another region.
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    let second = fleet.register(fleet.config("eu-2", "eu")).await.expect("another box");
    for wrong in [&second, &fleet.uk] {
        let leased = fleet.lease(&fleet.eu).await.expect("a job is due");
        let lease = leased.lease;
        fleet.s3.faults().reset_record();
        let before = fleet.dump().await;
        let done = fleet.handle(wrong, leased).await;
        assert_eq!(fleet.dump().await, before, "no write");
        assert_eq!(fleet.s3.faults().record(), [], "no request to any store");
        fleet.settle(lease, &done).await;
        assert!(fleet.lease(wrong).await.is_none());
        let enqueued = instances::moves::requeue_orphans(&mut *fleet.conn().await).await.expect("an answer");
        assert_eq!(enqueued.len(), 1, "the sweep gives it to the box that serves the host");
    }
    fleet.run(&fleet.eu).await;
    assert!(fleet.is_mirrored(HOST));
    assert!(fleet.read_move(id).await.ready_at.is_some());
}

#[tokio::test]
async fn a_box_does_not_act_on_a_record_of_another_region_although_the_route_is_its_own() {
    // M-037: somebody pointed the region elsewhere while a move was open.
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    put_region(&fleet.db, &armed("us")).await;
    fleet.sql("update instances set region = 'us'").await;
    fleet.s3.faults().reset_record();
    let waited = fleet.run(&fleet.eu).await.snoozed();
    assert_eq!(waited, 4 * crate::support::INTERVAL, "no hot loop");
    assert_eq!(fleet.s3.faults().record(), []);
    assert_eq!(fleet.obstacle(id).await, Some(("out_of_scope".to_owned(), true)));
}

#[tokio::test]
async fn only_a_box_that_can_host_serves_its_regions_landings() {
    // M-115: a box without the capability never mints.
    let fleet = Fleet::start().await;
    let mut config = fleet.config("eu-edge", "eu");
    config.capabilities = Capabilities { exec: false, ..Capabilities::default() };
    let edge = fleet.register(config).await.expect("a box");
    assert_eq!(edge.queues(), [domain::ids::QueueName::of_node(edge.id())]);
    fleet.create(HOST).await;
    assert!(fleet.lease(&edge).await.is_none());
    assert_eq!(fleet.run(&fleet.eu).await.result()["landed"], true);
}

#[tokio::test]
async fn every_box_publishes_its_regions_bucket_and_one_with_another_is_refused() {
    // M-050.
    let fleet = Fleet::start().await;
    let document = edges(&fleet, "eu").await;
    assert_eq!(document.coordinates(), Some(bucket("eu")));
    assert_eq!(document.boxes.len(), 1);
    assert_eq!(document.boxes[0].data_bucket.as_deref(), Some("eu-data"));
    assert_eq!(document.boxes[0].data_bucket_region.as_deref(), Some("us-east-1"));
    let before = fleet.dump().await;
    let mut wrong = fleet.config("eu-2", "eu");
    wrong.data_bucket = "elsewhere".to_owned();
    let error = fleet.register(wrong).await.expect_err("another bucket than its region's");
    assert!(
        matches!(&error, NodeError::Register(nodes::Error::BucketDiffers { expected, .. }) if *expected == bucket("eu"))
    );
    assert!(!error.is_transient(), "waiting does not help");
    let error = fleet.register(fleet.config("eu-3", "nowhere")).await.expect_err("no such region");
    assert!(matches!(error, NodeError::Register(nodes::Error::RegionUnknown(_))), "{error}");
    let error = fleet.register(fleet.config("eu-1", "uk")).await.expect_err("known in another region");
    assert!(matches!(error, NodeError::Register(nodes::Error::RegionDiffers { .. })), "{error}");
    let error = fleet.register(fleet.config("", "eu")).await.expect_err("nobody");
    assert!(matches!(error, NodeError::Register(nodes::Error::Invalid { .. })), "{error}");
    assert_eq!(fleet.dump().await, before, "a refused box leaves nothing");
    let other = nodes::RegionSpec { data: Some(Bucket { name: "elsewhere".into(), ..bucket("eu") }), ..armed("eu") };
    let error = nodes::put_region(&mut *fleet.conn().await, &other).await.expect_err("replicas would be split");
    assert!(matches!(error, nodes::Error::InUse(_)), "{error}");
}

#[tokio::test]
async fn a_box_is_the_same_box_after_every_restart() {
    let fleet = Fleet::start().await;
    let mut config = fleet.config("eu-1", "eu");
    config.capabilities.other.insert("litestream".to_owned(), json!("0.5.17"));
    let again = fleet.register(config).await.expect("the box starts again");
    assert_eq!(again.id(), fleet.eu.id());
    let node = nodes::get(&mut *fleet.conn().await, again.id()).await.expect("an answer").expect("the box");
    assert_eq!(node.capabilities.other["litestream"], "0.5.17", "what it can do now");
}

#[tokio::test]
async fn the_edges_document_tells_who_is_served_by_whom_and_who_is_not() {
    // M-049, and the first half of 503 against 404.
    let fleet = Fleet::with_instance().await;
    fleet.create("waits.acme.example").await;
    let document = edges(&fleet, "eu").await;
    assert_eq!(document.serial, fleet.serial("eu").await);
    assert_eq!(document.routes.len(), 1);
    assert_eq!((document.routes[0].host.as_str(), document.routes[0].node), (HOST, fleet.eu.id()));
    assert_eq!(document.unserved, [host("waits.acme.example")]);
    fleet.sql("update routes set status = 'moving'").await;
    let document = edges(&fleet, "eu").await;
    assert!(document.routes.is_empty());
    assert_eq!(document.unserved, [host(HOST), host("waits.acme.example")]);
    let uk = edges(&fleet, "uk").await;
    assert_eq!((uk.routes.len(), uk.unserved.len()), (0, 0));
    assert_eq!(instances::edges(&mut *fleet.conn().await, &region("nowhere")).await.expect("an answer"), None);
    let text = serde_json::to_string(&document).expect("JSON");
    assert_eq!(serde_json::from_str::<EdgesDocument>(&text).expect("it reads back"), document);
}

#[test]
fn edges_documents_of_older_versions_parse() {
    // M-049: fields are only ever added.
    let oldest: EdgesDocument = serde_json::from_str(r#"{"region":"eu","serial":7}"#).expect("the oldest form");
    assert_eq!((oldest.coordinates(), oldest.boxes.len(), oldest.unserved.len()), (None, 0, 0));
    assert_eq!(serde_json::to_value(&oldest).expect("JSON").get("data_bucket"), None);
    let id = NodeId::generate();
    let text = format!(
        r#"{{"region":"eu","serial":7,"boxes":[{{"id":"{id}","identity":"eu-1"}}],"routes":[{{"host":"a.b","node":"{id}"}}],"of_tomorrow":{{}}}}"#
    );
    let older: EdgesDocument = serde_json::from_str(&text).expect("an older form, and a field of a newer one");
    assert_eq!((older.coordinates(), older.boxes[0].data_bucket.clone()), (None, None));
    assert!(!older.boxes[0].capabilities.exec);
}

#[tokio::test]
async fn moves_are_listed_by_state_region_and_age() {
    let fleet = Fleet::with_instance().await;
    put_region(&fleet.db, &armed("us")).await;
    let mut us = fleet.config("us-1", "us");
    us.data_bucket = "us-data".to_owned();
    fleet.register(us).await.expect("a box");
    fleet.place("second.acme.example").await;
    let first = fleet.start_move(HOST).await.expect("begins").id;
    let second = fleet.start_move_to("second.acme.example", "us").await.expect("begins").id;
    let list = async |filter: instances::moves::Filter| {
        let found = instances::moves::list(&mut *fleet.conn().await, &filter, 10).await.expect("an answer");
        found.items.into_iter().map(|found| found.id).collect::<Vec<_>>()
    };
    let all = instances::moves::Filter::default();
    assert_eq!(list(all.clone()).await, [second, first], "newest first");
    assert_eq!(list(instances::moves::Filter { before: Some(second), ..all.clone() }).await, [first]);
    assert_eq!(list(instances::moves::Filter { region: Some(region("us")), ..all.clone() }).await, [second]);
    assert_eq!(list(instances::moves::Filter { region: Some(region("eu")), ..all.clone() }).await, [second, first]);
    fleet.sql("update moves set finished_at = lh_now(), outcome = 'aborted' where to_region = 'us'").await;
    assert_eq!(list(instances::moves::Filter { open: Some(true), ..all.clone() }).await, [first]);
    assert_eq!(list(instances::moves::Filter { open: Some(false), ..all.clone() }).await, [second]);
    let ready = Some(instances::moves::MoveState::Ready);
    assert_eq!(list(instances::moves::Filter { state: ready, ..all.clone() }).await, []);
    let of_one = instances::moves::of_instance(&mut *fleet.conn().await, &app(), &host(HOST), None, 10).await;
    assert_eq!(of_one.expect("an answer").len(), 1);
}

async fn edges(fleet: &Fleet, code: &str) -> EdgesDocument {
    instances::edges(&mut *fleet.conn().await, &region(code)).await.expect("an answer").expect("the region")
}
