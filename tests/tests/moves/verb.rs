//! The verb `move`, and the creation of a record: what is accepted, what is refused, and in which order.

use std::collections::BTreeMap;

use domain::audit::{self, Actor};
use domain::instances::moves::{self, MoveState};
use domain::instances::{self, InstanceKind, NewInstance, Refusal, RefusalClass, Role};
use domain::nodes::{Capabilities, NodeSpec, RegionSpec};
use domain::queue::{self, JobState};
use serde_json::json;

use crate::support::{Fleet, HOST, app, armed, bucket, host, put_node, put_region, region};

/// A record in eu that differs from the usual in one thing, on a route of its own.
async fn placed(fleet: &Fleet, name: &str, change: impl FnOnce(&mut NewInstance)) {
    let mut new = NewInstance::new(app(), host(name), region("eu"));
    change(&mut new);
    instances::create(&mut *fleet.conn().await, &new, Actor::System).await.expect("the record is created");
    assert_eq!(fleet.run(&fleet.eu).await.result()["landed"], true);
}

async fn refused(fleet: &Fleet, name: &str, to: &str) -> Refusal {
    let before = fleet.dump().await;
    let refusal = Fleet::refusal(fleet.start_move_to(name, to).await);
    assert_eq!(fleet.dump().await, before, "a refused call changes nothing");
    refusal
}

#[tokio::test]
async fn a_started_move_stands_with_its_job_its_serial_and_its_audit() {
    // M-019, M-035.
    let fleet = Fleet::with_instance().await;
    let (revision, serial) = (fleet.record(HOST).await.revision.expect("a revision"), fleet.serial("eu").await);
    let target_serial = fleet.serial("uk").await;
    let before = fleet.db.clock().now().await;
    let started = fleet.start_move(HOST).await.expect("the move begins");
    let found = fleet.read_move(started.id).await;
    assert_eq!((found.from.as_str(), found.to.as_str()), ("eu", "uk"));
    assert_eq!((found.state.known(), found.ready_at, found.target), (Some(MoveState::Preparing), None, None));
    assert!(found.requested_at >= before, "on the database's clock");
    assert_eq!(found.job, Some(started.job));
    let job = queue::get(&mut *fleet.conn().await, started.job).await.expect("an answer").expect("the job");
    assert_eq!((job.kind.as_str(), job.state), ("instance.move", JobState::Available));
    assert_eq!(job.queue, fleet.eu.queues()[0], "on the queue of the box that serves the host");
    assert_eq!(job.unique_key, Some(started.id.to_string()));
    assert_eq!(job.args, json!({"move_id": started.id}));
    assert_eq!(fleet.record(HOST).await.revision, Some(revision + 1));
    assert_eq!(fleet.serial("eu").await, serial + 1);
    assert_eq!(fleet.serial("uk").await, target_serial, "the target has nothing to notice yet");
    let filter = audit::Filter { subject: Some(HOST.to_owned()), ..audit::Filter::default() };
    let events = audit::list(&mut *fleet.conn().await, &filter, 10).await.expect("an answer");
    assert_eq!(events[0].action, "instance.move");
    assert_eq!(events[0].detail, json!({"move_id": started.id, "from": "eu", "to": "uk"}));
    let cancelled = queue::cancel(&mut *fleet.conn().await, started.job, "no", None).await;
    assert!(matches!(cancelled, Err(queue::Error::Conflict { .. })), "only the move's own verbs end it");
}

#[tokio::test]
async fn a_start_that_is_rolled_back_leaves_nothing() {
    // I2: the record's change and the job that it calls for stand or fall together, also inside a caller's transaction.
    let fleet = Fleet::with_instance().await;
    let before = fleet.dump().await;
    let mut tx = fleet.db.pool().begin().await.expect("a transaction");
    moves::start(&mut tx, &app(), &host(HOST), "uk", Actor::System).await.expect("the move begins");
    tx.rollback().await.expect("rolled back");
    assert_eq!(fleet.dump().await, before);
}

#[tokio::test]
async fn an_unknown_host_and_one_of_another_application_are_alike_not_found() {
    // M-025.
    let fleet = Fleet::with_instance().await;
    let other = "other".parse().expect("an app");
    let before = fleet.dump().await;
    for (app, name) in [(&app(), "nobody.acme.example"), (&other, HOST)] {
        let found = instances::get(&mut *fleet.conn().await, app, &host(name)).await.expect("an answer");
        assert_eq!(found, None);
        let result = moves::start(&mut *fleet.conn().await, app, &host(name), "uk", Actor::System).await;
        let refusal = Fleet::refusal(result);
        assert_eq!((refusal.clone(), refusal.class()), (Refusal::NotFound, RefusalClass::Absent));
    }
    assert_eq!(fleet.dump().await, before);
}

#[tokio::test]
async fn kinds_that_have_no_data_are_refused_by_their_name() {
    // M-020, M-024.
    let fleet = Fleet::start().await;
    let name_of = |kind: InstanceKind| format!("{kind}.acme.example");
    for kind in InstanceKind::ALL {
        placed(&fleet, &name_of(kind), |new| new.kind = kind).await;
    }
    for kind in InstanceKind::ALL {
        let name = name_of(kind);
        let moved = fleet.start_move(&name).await;
        if kind == InstanceKind::Instance {
            moved.expect("only this kind moves");
        } else {
            let refusal = Fleet::refusal(moved);
            assert_eq!((refusal.code(), refusal.class()), ("kind_not_movable", RefusalClass::Invalid));
            assert!(refusal.to_string().contains(kind.as_str()), "{refusal}");
        }
    }
}

#[tokio::test]
async fn backing_fleet_pool_hibernation_and_replicas_are_refused_each_by_its_code() {
    // M-021, M-022, M-023, M-024, M-117.
    let fleet = Fleet::start().await;
    placed(&fleet, "backing.a", |new| new.backing = "wasm".to_owned()).await;
    placed(&fleet, "fleet.a", |new| new.placement = Some("fleet".to_owned())).await;
    placed(&fleet, "pool.a", |new| new.pool = "gpu".to_owned()).await;
    placed(&fleet, "awake.a", |new| new.hibernate = false).await;
    placed(&fleet, "replica.a", |new| new.role = Role::Replica).await;
    for (name, code) in [
        ("backing.a", "backing_not_movable"),
        ("fleet.a", "fleet_not_movable"),
        ("pool.a", "pool_not_movable"),
        ("awake.a", "hibernate_required"),
        ("replica.a", "replica"),
    ] {
        // A wrong region beside it changes nothing: the record comes first.
        for to in ["uk", "eu", "nowhere"] {
            let refusal = refused(&fleet, name, to).await;
            assert_eq!((refusal.code(), refusal.class()), (code, RefusalClass::Invalid), "{name} to {to}");
        }
    }
}

#[tokio::test]
async fn a_region_that_is_none_or_the_present_one_is_refused() {
    // M-015, M-017: what is no name of a region is no region.
    let fleet = Fleet::with_instance().await;
    for (to, code) in [
        ("eu", "same_region"),
        ("", "region_unknown"),
        ("nowhere", "region_unknown"),
        ("UK", "region_unknown"),
        ("../uk", "region_unknown"),
        ("uk\0", "region_unknown"),
    ] {
        let refusal = refused(&fleet, HOST, to).await;
        assert_eq!((refusal.code(), refusal.class()), (code, RefusalClass::Invalid), "{to:?}");
    }
}

#[tokio::test]
async fn an_unarmed_region_is_refused_whether_dormant_or_not_and_a_dormant_armed_one_is_not() {
    // M-016, for the verb and for the creation of a record.
    let fleet = Fleet::with_instance().await;
    let create = async |name: &str| {
        let new = NewInstance::new(app(), host(name), region("us"));
        instances::create(&mut *fleet.conn().await, &new, Actor::System).await
    };
    let spec = RegionSpec { armed: false, ..armed("us") };
    put_region(&fleet.db, &spec).await;
    put_node(&fleet.db, &node("us-1", "us", true)).await;
    for dormant in [false, true] {
        put_region(&fleet.db, &RegionSpec { dormant, ..spec.clone() }).await;
        assert_eq!(refused(&fleet, HOST, "us").await.code(), "region_unarmed");
        let refusal = create("new.a").await;
        assert!(matches!(refusal, Err(instances::Error::Refused(Refusal::RegionUnarmed(_)))), "{refusal:?}");
    }
    put_region(&fleet.db, &RegionSpec { dormant: true, ..armed("us") }).await;
    create("new.a").await.expect("a dormant region is allowed by name");
    fleet.start_move_to(HOST, "us").await.expect("a dormant region takes moves");
}

#[tokio::test]
async fn a_region_without_a_live_box_that_can_host_is_refused() {
    // M-016, M-115: armed means that some box there can host the instance.
    let fleet = Fleet::with_instance().await;
    put_region(&fleet.db, &armed("us")).await;
    assert_eq!(refused(&fleet, HOST, "us").await.code(), "region_cannot_host", "no box at all");
    put_node(&fleet.db, &node("edge-only", "us", false)).await;
    assert_eq!(refused(&fleet, HOST, "us").await.code(), "region_cannot_host", "a box that cannot host");
    let host = put_node(&fleet.db, &node("us-1", "us", true)).await;
    fleet.db.clock().advance(domain::nodes::SILENT_AFTER).await;
    assert_eq!(refused(&fleet, HOST, "us").await.code(), "region_cannot_host", "a box that went silent");
    domain::nodes::seen(&mut *fleet.conn().await, host.id).await.expect("an answer");
    fleet.start_move_to(HOST, "us").await.expect("a box that lives and can host");
}

#[tokio::test]
async fn a_second_move_is_refused_in_every_state_of_the_first() {
    // M-018.
    let fleet = Fleet::with_instance().await;
    fleet.start_move(HOST).await.expect("the move begins");
    for state in MoveState::ALL {
        sqlx::query("update moves set ready_at = lh_now(), state = $1")
            .bind(state.as_str())
            .execute(fleet.db.pool())
            .await
            .expect("set");
        let refusal = refused(&fleet, HOST, "uk").await;
        assert_eq!((refusal.code(), refusal.class()), ("move_in_flight", RefusalClass::Conflict));
        assert!(refusal.to_string().contains(state.as_str()), "{refusal}");
        // A wrong region beside it comes first.
        assert_eq!(refused(&fleet, HOST, "eu").await.code(), "same_region");
    }
    fleet.sql("update moves set finished_at = lh_now(), outcome = 'aborted'").await;
    fleet.start_move(HOST).await.expect("a new one may begin when the first is over");
}

#[tokio::test]
async fn an_instance_that_no_box_has_taken_yet_cannot_move() {
    let fleet = Fleet::start().await;
    fleet.create(HOST).await;
    assert_eq!(fleet.record(HOST).await.observed_region, Some(None));
    let refusal = refused(&fleet, HOST, "uk").await;
    assert_eq!((refusal.code(), refusal.class()), ("not_placed", RefusalClass::Conflict));
    fleet.run(&fleet.eu).await;
    assert_eq!(fleet.record(HOST).await.observed_region, Some(Some(region("eu"))));
    fleet.start_move(HOST).await.expect("it is placed now");
}

#[tokio::test]
async fn a_created_record_stands_with_its_landing_its_serial_and_its_audit() {
    let fleet = Fleet::start().await;
    let serial = fleet.serial("eu").await;
    let new = NewInstance {
        env: BTreeMap::from([("LANG".to_owned(), "de_CH.UTF-8".to_owned())]),
        replica_regions: vec![region("uk")],
        ..NewInstance::new(app(), host(HOST), region("eu"))
    };
    let made = instances::create(&mut *fleet.conn().await, &new, Actor::System).await.expect("created");
    assert_eq!(made, fleet.record(HOST).await);
    let shown = json!(made);
    assert_eq!(shown["env"], json!({"LANG": "de_CH.UTF-8"}));
    assert_eq!(shown["replica_regions"], json!(["uk"]));
    assert_eq!(shown["observed_region"], json!(null));
    assert_eq!(fleet.serial("eu").await, serial + 1);
    let filter = queue::Filter { kind: Some("instance.land".parse().expect("a kind")), ..queue::Filter::default() };
    let landings = queue::list(&mut *fleet.conn().await, &filter, 10).await.expect("an answer").items;
    assert_eq!(landings.len(), 1);
    assert_eq!(landings[0].queue.as_str(), "region.eu");
    let events = audit::list(&mut *fleet.conn().await, &audit::Filter::default(), 10).await.expect("an answer");
    assert_eq!((events[0].action.as_str(), events[0].subject.as_str()), ("instance.create", HOST));
    let before = fleet.dump().await;
    let again = instances::create(&mut *fleet.conn().await, &new, Actor::System).await;
    assert!(matches!(again, Err(instances::Error::Refused(Refusal::HostTaken))), "{again:?}");
    assert_eq!(fleet.dump().await, before);
}

#[tokio::test]
async fn a_record_out_of_its_bounds_is_refused_with_the_field() {
    let fleet = Fleet::start().await;
    let new = || NewInstance::new(app(), host(HOST), region("eu"));
    let env = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    let before = fleet.dump().await;
    for (field, bad) in [
        ("backing", NewInstance { backing: String::new(), ..new() }),
        ("placement", NewInstance { placement: Some("anywhere".to_owned()), ..new() }),
        ("pool", NewInstance { pool: "a b".to_owned(), ..new() }),
        ("env", NewInstance { env: env("1A", ""), ..new() }),
        ("env", NewInstance { env: env("A=B", ""), ..new() }),
        ("env", NewInstance { env: env("A", "\0"), ..new() }),
        ("env", NewInstance { env: env("CARLOS_REGION", "uk"), ..new() }),
        ("env", NewInstance { env: env("LD_PRELOAD", "/x.so"), ..new() }),
        ("env", NewInstance { env: env("LEASEHOLD_KEY", "x"), ..new() }),
        ("env", NewInstance { env: env("A", &"x".repeat(64 * 1024)), ..new() }),
        ("env", NewInstance { env: (0..201).map(|i| (format!("A{i}"), String::new())).collect(), ..new() }),
        ("replica_regions", NewInstance { replica_regions: vec![region("uk"); 17], ..new() }),
    ] {
        match instances::create(&mut *fleet.conn().await, &bad, Actor::System).await {
            Err(instances::Error::Invalid { field: told, .. }) => assert_eq!(told, field),
            other => panic!("{field}: {other:?}"),
        }
    }
    let unknown = NewInstance { replica_regions: vec![region("nowhere")], ..new() };
    let refused = instances::create(&mut *fleet.conn().await, &unknown, Actor::System).await;
    assert!(matches!(refused, Err(instances::Error::Refused(Refusal::RegionUnknown(_)))), "{refused:?}");
    assert_eq!(fleet.dump().await, before);
}

#[tokio::test]
async fn records_of_an_application_are_listed_by_host_page_by_page() {
    let fleet = Fleet::start().await;
    for name in ["b.a", "a.a", "c.a"] {
        fleet.create(name).await;
    }
    let mut other = NewInstance::new("other".parse().expect("an app"), host("aa.a"), region("eu"));
    other.hibernate = false;
    instances::create(&mut *fleet.conn().await, &other, Actor::System).await.expect("created");
    let page = async |after: Option<&str>| {
        let after = after.map(host);
        let records = instances::list(&mut *fleet.conn().await, &app(), after.as_ref(), 2).await.expect("an answer");
        records.into_iter().map(|record| record.host.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(page(None).await, ["a.a", "b.a"]);
    assert_eq!(page(Some("b.a")).await, ["c.a"]);
    assert_eq!(page(Some("c.a")).await, Vec::<String>::new());
}

fn node(identity: &str, code: &str, exec: bool) -> NodeSpec {
    NodeSpec {
        identity: identity.to_owned(),
        region: region(code),
        capabilities: Capabilities { exec, ..Capabilities::default() },
        data: Some(bucket(code)),
    }
}
