//! Sealed values: a landing opens them before it touches anything, or leaves it to a box that can (M-115, M-120).

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::TcpStream;
use std::time::Duration;

use domain::audit::Actor;
use domain::ids::MoveId;
use domain::instances::moves::Obstacle;
use domain::instances::{self, NewInstance, Refusal, config_key};
use domain::nodes::{self, Capabilities, NodeSpec};
use tests::keys::{BoxKey, files_with, seal};
use workers::node::{NodeConfig, NodeContext};

use crate::acting::{acting, activator, rows_of};
use crate::support::{Fleet, HOST, INTERVAL, app, armed, bucket, host, put_node, put_region, region};

/// What the tenant seals.
const PLAIN: &str = "a5ecret-0f-the-tenant";

/// A box that runs the test's tenant and holds this key.
fn holding(config: NodeConfig, key: Option<&BoxKey>) -> NodeConfig {
    let mut config = acting(config);
    config.activator.as_mut().expect("it runs instances").config_key = key.map(|key| key.keys.clone());
    config
}

/// A fleet whose instance runs in eu, with a value that is sealed to eu's key and to `right`; uk-1 holds `uk`.
async fn sealed(uk: Option<&BoxKey>, right: &BoxKey) -> Fleet {
    let eu = BoxKey::generate();
    let fleet = Fleet::start_with(|config| {
        let key = if config.region.as_str() == "eu" { Some(&eu) } else { uk };
        holding(config, key)
    })
    .await;
    fleet.place_with(&[("TENANT_WRITES", "1"), ("TENANT_KEY", &seal(PLAIN, &[&eu, right]))]).await;
    fleet.until_rows(&fleet.eu, 30).await;
    fleet
}

/// Moves it, up to the landing.
async fn flip(fleet: &Fleet) -> MoveId {
    let id = fleet.make_ready().await;
    fleet.cut().await;
    assert_eq!(fleet.run(&fleet.eu).await.result()["outcome"], "moved");
    fleet.s3.faults().reset_record();
    id
}

/// What the child of a box reads as its key.
fn told(node: &NodeContext) -> String {
    let address = activator(node).running(&host(HOST)).expect("its child runs");
    let mut text = String::new();
    TcpStream::connect(address).expect("connect").read_to_string(&mut text).expect("read");
    let value = text.lines().find_map(|line| line.strip_prefix("TENANT_KEY="));
    value.unwrap_or_default().to_owned()
}

/// What holds the landing up, whose it is and since when.
async fn held(fleet: &Fleet) -> (Option<serde_json::Value>, domain::ids::NodeId, Option<domain::clock::Timestamp>) {
    sqlx::query_as("select held, node_id, held_since from routes where host = $1")
        .bind(HOST)
        .fetch_one(fleet.db.pool())
        .await
        .map(|(held, node, since): (_, sqlx::types::Uuid, _)| (held, domain::ids::NodeId(node), since))
        .expect("a route")
}

/// Nothing was begun on this box: no object was written or deleted, no file and no child is there, the staging stands.
async fn untouched(fleet: &Fleet, node: &NodeContext, id: MoveId) {
    let changed: Vec<_> = fleet.s3.faults().record().into_iter().filter(|call| !call.op.starts_with("List")).collect();
    assert!(changed.is_empty(), "{changed:?}");
    assert!(!fleet.database(node).exists() && activator(node).running(&host(HOST)).is_none());
    assert!(!fleet.content("uk-data", &format!("moves/{HOST}/")).is_empty(), "the staging is kept");
    assert!(fleet.content("uk-data", &format!("instances/{HOST}/")).is_empty());
    assert_eq!(fleet.steps_from(id, "mirror_in").await, [], "no step of a landing was begun");
    assert!(fleet.read_move(id).await.landed_at.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_landing_whose_configuration_does_not_open_begins_nothing_and_goes_on_when_the_key_is_there() {
    let (right, wrong) = (BoxKey::generate(), BoxKey::generate());
    let mut fleet = sealed(Some(&wrong), &right).await;
    assert_eq!(told(&fleet.eu), PLAIN, "only the child reads it in plain");
    let id = flip(&fleet).await;
    let before = fleet.read_move(id).await.tail.expect("a proven tail");
    let mut since = None;
    for _ in 0..2 {
        assert_eq!(fleet.run(&fleet.uk).await.snoozed(), Duration::from_secs(60), "nobody else could");
        let (held, node, at) = held(&fleet).await;
        let held = held.expect("it says why");
        assert_eq!((&held["code"], &held["permanent"]), (&"config_key".into(), &true.into()));
        assert!(held["message"].as_str().expect("a sentence").contains("TENANT_KEY"), "{held}");
        assert_eq!(node, fleet.uk.id());
        assert!(since.is_none_or(|since| Some(since) == at), "it is the same obstacle all the while");
        since = at;
        untouched(&fleet, &fleet.uk, id).await;
        fleet.pass_time(INTERVAL * 4).await;
    }
    let why = instances::why_of(&mut *fleet.conn().await, &app(), &host(HOST)).await.expect("an answer").expect("it");
    let reason = why.reasons.iter().find(|reason| reason.code == "config_key").expect("why tells it");
    assert!(
        reason.permanent && reason.todo.as_ref().is_some_and(|todo| todo.contains("node.config_key")),
        "{reason:?}"
    );

    fleet.uk = fleet.register(holding(fleet.config("uk-1", "uk"), Some(&right))).await.expect("the box starts again");
    fleet.pass_time(INTERVAL * 4).await;
    assert_eq!(fleet.run(&fleet.uk).await.result()["landed"], true, "by itself");
    let landed = fleet.read_move(id).await;
    assert_eq!(landed.tail.expect("a tail").sha256, before.sha256);
    assert!(rows_of(&fleet.database(&fleet.uk)).expect("a database") >= 30);
    assert_eq!((told(&fleet.uk), held(&fleet).await.0), (PLAIN.to_owned(), None));
    assert_eq!(files_with(fleet.folder.path(), &[PLAIN]), Vec::<String>::new(), "nothing wrote it down");
    let dump = serde_json::to_string(&fleet.dump().await).expect("JSON");
    assert!(dump.contains("age:") && !dump.contains(PLAIN), "the control plane has the sealed text alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_landing_whose_values_are_sealed_to_a_lost_key_lands_once_they_are_sealed_anew() {
    // Whoever had the right key may have lost it: then the record is what must change.
    let (uk, lost) = (BoxKey::generate(), BoxKey::generate());
    let fleet = sealed(Some(&uk), &lost).await;
    flip(&fleet).await;
    assert_eq!(fleet.run(&fleet.uk).await.snoozed(), Duration::from_secs(60), "it does not open");
    let env = [("TENANT_WRITES", "1"), ("TENANT_KEY", &*seal(PLAIN, &[&uk]))];
    let env: BTreeMap<String, String> = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let mut conn = fleet.conn().await;
    let set = instances::set_environment(&mut conn, (&app(), &host(HOST)), &env, None, Actor::System).await;
    assert_eq!(set.expect("set"), Some(domain::ids::QueueName::of_node(fleet.uk.id())), "whose landing it is, is told");
    drop(conn);
    assert_eq!(fleet.run(&fleet.uk).await.result()["landed"], true, "at once, and not a minute later");
    assert_eq!((told(&fleet.uk), held(&fleet).await.0), (PLAIN.to_owned(), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_landing_goes_to_a_box_of_the_region_that_opens_its_configuration() {
    // One that holds no key never takes it; one that holds another's hands it on.
    let wrong = BoxKey::generate();
    for first in [None, Some(&wrong)] {
        let right = BoxKey::generate();
        let fleet = sealed(first, &right).await;
        let second = fleet.register(holding(fleet.config("uk-2", "uk"), Some(&right))).await.expect("another box");
        let id = flip(&fleet).await;
        nodes::seen(&mut *fleet.conn().await, second.id()).await.expect("an answer");
        assert_eq!(fleet.run(&fleet.uk).await.snoozed(), Duration::ZERO);
        let (why, node, _) = held(&fleet).await;
        assert_eq!((why.is_some(), node), (first.is_some(), second.id()), "what does not open is told by who tried");
        untouched(&fleet, &fleet.uk, id).await;
        assert!(fleet.lease(&fleet.uk).await.is_none(), "it is not the first one's any more");
        assert_eq!(fleet.run(&second).await.result()["landed"], true);
        assert_eq!((told(&second), held(&fleet).await), (PLAIN.to_owned(), (None, second.id(), None)));
        assert!(!fleet.database(&fleet.uk).exists() && activator(&fleet.uk).running(&host(HOST)).is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_landing_that_one_box_holds_in_vain_goes_to_another_that_gets_the_key_later() {
    let (right, wrong) = (BoxKey::generate(), BoxKey::generate());
    let fleet = sealed(Some(&wrong), &right).await;
    let id = flip(&fleet).await;
    assert_eq!(fleet.run(&fleet.uk).await.snoozed(), Duration::from_secs(60), "it is the only one");
    let second = fleet.register(holding(fleet.config("uk-2", "uk"), Some(&right))).await.expect("another box");
    fleet.pass_time(Duration::from_secs(60)).await;
    nodes::seen(&mut *fleet.conn().await, second.id()).await.expect("an answer");
    assert!(fleet.lease(&second).await.is_none(), "it is the first one's still");
    fleet.run(&fleet.uk).await.snoozed();
    untouched(&fleet, &fleet.uk, id).await;
    fleet.pass_time(Duration::from_secs(5)).await;
    assert_eq!(fleet.run(&second).await.result()["landed"], true);
    assert_eq!(told(&second), PLAIN);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_landing_that_no_box_opens_comes_back_to_each_and_lands_where_the_key_comes() {
    let (right, keys) = (BoxKey::generate(), [BoxKey::generate(), BoxKey::generate()]);
    let mut fleet = sealed(Some(&keys[0]), &right).await;
    let second = fleet.register(holding(fleet.config("uk-2", "uk"), Some(&keys[1]))).await.expect("another box");
    let id = flip(&fleet).await;
    nodes::seen(&mut *fleet.conn().await, second.id()).await.expect("an answer");
    assert_eq!(fleet.run(&fleet.uk).await.snoozed(), Duration::ZERO);
    for node in [&second, &fleet.uk, &second] {
        assert!(!fleet.run(node).await.snoozed().is_zero(), "from here on with a pause");
        untouched(&fleet, node, id).await;
        fleet.pass_time(Duration::from_secs(5)).await;
    }
    fleet.uk = fleet.register(holding(fleet.config("uk-1", "uk"), Some(&right))).await.expect("the box starts again");
    assert_eq!(fleet.run(&fleet.uk).await.result()["landed"], true);
    assert_eq!(told(&fleet.uk), PLAIN);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_landing_asks_each_box_of_the_region_once_before_it_pauses() {
    // Each pause of the first round would be a part of the freeze.
    let (right, keys) = (BoxKey::generate(), [(); 3].map(|()| BoxKey::generate()));
    let fleet = sealed(Some(&keys[0]), &right).await;
    let mut others = Vec::new();
    for (name, key) in ["uk-2", "uk-3"].into_iter().zip(&keys[1..]) {
        others.push(fleet.register(holding(fleet.config(name, "uk"), Some(key))).await.expect("another box"));
    }
    let id = flip(&fleet).await;
    for other in &others {
        nodes::seen(&mut *fleet.conn().await, other.id()).await.expect("an answer");
    }
    for node in [&fleet.uk, &others[0]] {
        assert_eq!(fleet.run(node).await.snoozed(), Duration::ZERO, "another has not tried yet");
    }
    for node in [&others[1], &fleet.uk, &others[0]] {
        assert!(!fleet.run(node).await.snoozed().is_zero(), "each has tried");
        untouched(&fleet, node, id).await;
        fleet.pass_time(Duration::from_secs(5)).await;
    }
    let opens = fleet.register(holding(fleet.config("uk-3", "uk"), Some(&right))).await.expect("it starts again");
    assert_eq!(fleet.run(&opens).await.result()["landed"], true);
    assert_eq!((told(&opens), held(&fleet).await.0), (PLAIN.to_owned(), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_landing_that_is_no_longer_the_boxs_is_handed_to_nobody() {
    let (right, keys) = (BoxKey::generate(), [BoxKey::generate(), BoxKey::generate()]);
    let fleet = sealed(Some(&keys[0]), &right).await;
    let second = fleet.register(holding(fleet.config("uk-2", "uk"), Some(&keys[1]))).await.expect("another box");
    let id = flip(&fleet).await;
    nodes::seen(&mut *fleet.conn().await, second.id()).await.expect("an answer");
    assert_eq!(fleet.run(&fleet.uk).await.snoozed(), Duration::ZERO);
    let lease = fleet.lease(&second).await.expect("it is the second one's").lease;
    fleet.sql("update routes set status = 'serving', held = null, held_since = null").await;
    let (record, obstacle) = (fleet.read_move(id).await.instance, Obstacle::lasting(config_key::CODE, "it is closed"));
    let mut conn = fleet.conn().await;
    let next = config_key::hand_on(&mut conn, lease, (record, &host(HOST)), second.id(), &obstacle).await;
    assert_eq!(next.expect("an answer"), None);
    let (why, node, _) = held(&fleet).await;
    assert_eq!((why, node), (None, second.id()), "nothing is written of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_record_whose_configuration_does_not_open_gets_no_empty_database() {
    let (right, wrong) = (BoxKey::generate(), BoxKey::generate());
    let mut fleet = Fleet::start_with(|config| holding(config, Some(&wrong))).await;
    let env = BTreeMap::from([("TENANT_KEY".to_owned(), seal(PLAIN, &[&right]))]);
    let new = NewInstance { env, ..NewInstance::new(app(), host(HOST), region("eu")) };
    instances::create(&mut *fleet.conn().await, &new, Actor::System).await.expect("the record is created");
    fleet.run(&fleet.eu).await.snoozed();
    assert_eq!(held(&fleet).await.0.expect("it says why")["code"], "config_key");
    assert!(!fleet.database(&fleet.eu).exists() && activator(&fleet.eu).running(&host(HOST)).is_none());
    fleet.eu = fleet.register(holding(fleet.config("eu-1", "eu"), Some(&right))).await.expect("the box starts again");
    fleet.pass_time(INTERVAL * 4).await;
    assert_eq!(fleet.run(&fleet.eu).await.result()["landed"], true);
    assert_eq!(told(&fleet.eu), PLAIN);
}

#[tokio::test]
async fn a_region_where_no_live_box_opens_sealed_values_is_refused_to_those_who_have_some() {
    // M-115: the door names the capability that is missing.
    let fleet = Fleet::start().await;
    let key = BoxKey::generate();
    let env = |value: String| BTreeMap::from([("TENANT_KEY".to_owned(), value)]);
    let new = |code: &str, env| NewInstance { env, ..NewInstance::new(app(), host(HOST), region(code)) };
    let create = async |new: &NewInstance| instances::create(&mut *fleet.conn().await, new, Actor::System).await;
    let sealed = new("eu", env(seal(PLAIN, &[&key])));
    let before = fleet.dump().await;
    let refused = create(&sealed).await;
    let Err(instances::Error::Refused(refusal)) = refused else { panic!("refused, not {refused:?}") };
    assert_eq!((&refusal, refusal.code()), (&Refusal::RegionHoldsNoKey(region("eu")), "region_cannot_host"));
    assert!(refusal.to_string().contains("capability config_key"), "{refusal}");
    let whole = seal(PLAIN, &[&key]);
    for bad in ["age:", "age:AAAA", &whole[..whole.len() / 2], &format!("{whole} ")] {
        let refused = create(&new("eu", env(bad.to_owned()))).await;
        assert!(matches!(refused, Err(instances::Error::Invalid { field: "env", .. })), "{bad}: {refused:?}");
    }
    assert_eq!(fleet.dump().await, before);

    let spec = |identity: &str, code: &str, exec: bool| NodeSpec {
        identity: identity.to_owned(),
        region: region(code),
        capabilities: Capabilities { exec, config_key: vec![key.recipient.clone()], ..Capabilities::default() },
        data: Some(bucket(code)),
    };
    put_node(&fleet.db, &spec("eu-edge", "eu", false)).await;
    assert!(create(&sealed).await.is_err(), "a key where nothing can run opens nothing");
    put_node(&fleet.db, &spec("eu-2", "eu", true)).await;
    create(&sealed).await.expect("a box that lives, hosts and holds a key");
    let document = instances::edges(&mut *fleet.conn().await, &region("eu")).await.expect("an answer").expect("eu");
    let told = document.boxes.iter().map(|it| (it.identity.as_str(), it.capabilities.config_key.len()));
    assert_eq!(told.collect::<Vec<_>>(), [("eu-1", 0), ("eu-2", 1), ("eu-edge", 1)]);

    // The move asks the target, and so does whoever points the record by hand.
    fleet
        .sql(
            "insert into routes (host, instance_id, node_id, status, created_at)
               select i.host, i.id, n.id, 'serving', lh_now() from instances i, nodes n where n.identity = 'eu-2'",
        )
        .await;
    put_region(&fleet.db, &armed("us")).await;
    let us = put_node(
        &fleet.db,
        &NodeSpec { capabilities: Capabilities { exec: true, ..Capabilities::default() }, ..spec("us-1", "us", true) },
    )
    .await;
    for code in ["uk", "us"] {
        let refusal = Fleet::refusal(fleet.start_move_to(HOST, code).await);
        assert_eq!(refusal, Refusal::RegionHoldsNoKey(region(code)));
    }
    let pointed = instances::rescue::set_region(
        &mut *fleet.conn().await,
        (&app(), &host(HOST)),
        "us",
        Actor::System,
        "a test",
        None,
    )
    .await;
    assert!(matches!(pointed, Err(instances::Error::Refused(Refusal::RegionHoldsNoKey(_)))), "{pointed:?}");
    put_node(&fleet.db, &spec("us-1", "us", true)).await;
    fleet.start_move_to(HOST, "us").await.expect("its box starts again with a key");
    fleet.sql("update moves set finished_at = lh_now(), outcome = 'aborted'").await;
    fleet.db.clock().advance(nodes::SILENT_AFTER).await;
    put_node(
        &fleet.db,
        &NodeSpec { capabilities: Capabilities { exec: true, ..Capabilities::default() }, ..spec("us-2", "us", true) },
    )
    .await;
    let refusal = Fleet::refusal(fleet.start_move_to(HOST, "us").await);
    assert_eq!(refusal, Refusal::RegionHoldsNoKey(region("us")), "the one with the key, {}, went silent", us.identity);
}
