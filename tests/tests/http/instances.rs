//! The doors of records, regions and edges (M-001…M-007, M-034, M-049, M-050, M-113).

use std::collections::BTreeSet;

use domain::authority::{IdentityKind, Permission, Role, Scopes};
use secrecy::ExposeSecret as _;
use serde_json::json;
use tests::api::{Told, of_app};
use tests::fleet::{APP, DOOR, Fleet, HOST, new_instance, put_box, refusal, region, to};
use wire::{Code, Environment, Instance, NewInstance, RegionRequest};

#[tokio::test]
async fn a_record_is_answered_in_its_one_form_and_carries_a_move_only_while_one_is_in_flight() {
    // M-001, M-003, M-005…M-007, M-019, M-034.
    let fleet = Fleet::with_instance().await;
    let place = format!("/v1/apps/{APP}/instances/{HOST}");
    let before = Told::by(fleet.server.request("GET", &place)).await;
    let fields = "host app kind backing role placement pool hibernate region observed_region replica_regions env revision created_at";
    let at: Vec<Option<usize>> = fields.split(' ').map(|field| before.text.find(&format!("\"{field}\":"))).collect();
    assert!(at.iter().all(Option::is_some) && at.is_sorted(), "every field, in order: {}", before.text);
    assert!(!before.text.contains("\"move\""));
    let record: Instance = serde_json::from_str(&before.text).expect("the wire's form");
    assert_eq!(
        serde_json::to_string(&record).expect("JSON"),
        before.text,
        "the client's form is the same, byte by byte"
    );
    assert_eq!(before.header("etag"), Some(format!("\"{}\"", record.revision).as_str()));
    assert_eq!((record.region.as_str(), record.observed_region.as_deref()), ("eu", Some("eu")));
    let told = Told::by(fleet.server.request("POST", DOOR).json(&to("uk"))).await;
    assert_eq!(told.status, 202, "{told:?}");
    let moving = told.json();
    assert_eq!(
        moving.as_object().map(|fields| fields.keys().cloned().collect()),
        Some(BTreeSet::from(["requested_at", "state", "to"].map(str::to_owned)))
    );
    assert_eq!((moving["to"].as_str(), moving["state"].as_str()), (Some("uk"), Some("preparing")));
    let after = Told::by(fleet.server.request("GET", &place)).await;
    assert_eq!(after.json()["move"], moving, "verbatim");
    assert_eq!(
        (after.json()["region"].as_str(), after.json()["revision"].as_i64()),
        (Some("eu"), Some(record.revision + 1))
    );
    let found = fleet.client().moves_of(APP, HOST).await.expect("the history").items;
    assert_eq!(told.header("location"), Some(format!("/v1/moves/{}", found[0].id).as_str()));
    assert_eq!(fleet.client().get_move(found[0].id).await.expect("found"), found[0]);
}

#[tokio::test]
async fn the_listed_regions_are_those_that_the_door_takes() {
    // M-113, M-016.
    let fleet = Fleet::with_instance().await;
    let client = fleet.server.client();
    client.put_region("off", &RegionRequest { armed: false, ..region("off") }).await.expect("declared");
    client.put_region("bare", &region("bare")).await.expect("declared");
    client.put_region("dim", &RegionRequest { dormant: true, ..region("dim") }).await.expect("declared");
    put_box(&fleet.server, "off").await;
    put_box(&fleet.server, "dim").await;
    let listed = fleet.client().app_regions(APP).await.expect("the regions").items;
    assert_eq!(listed.iter().map(|r| r.code.as_str()).collect::<Vec<_>>(), ["bare", "eu", "off", "uk"]);
    assert!(
        listed.iter().all(|r| r.serial.is_none() && r.data_bucket.is_none()),
        "buckets are the operators' business"
    );
    for (i, region) in listed.iter().filter(|region| region.code != "eu").enumerate() {
        let host = format!("r{i}.acme.example");
        fleet.create(&new_instance(&host, "eu")).await;
        let taken = fleet.client().move_instance(APP, &host, &to(&region.code)).await.is_ok();
        assert_eq!(taken, region.armed && region.can_host, "{region:?}");
    }
    fleet.client().move_instance(APP, HOST, &to("dim")).await.expect("a dormant region is taken by name");
}

#[tokio::test]
async fn a_record_is_created_once_and_refused_with_its_reason() {
    let fleet = Fleet::start().await;
    let client = fleet.client();
    let first = client.create_instance(APP, &new_instance(HOST, "eu"), Some("k1")).await.expect("created");
    let again = client.create_instance(APP, &new_instance(HOST, "eu"), Some("k1")).await.expect("answered");
    assert!(first.created && again.replayed && first.value == again.value);
    for (fields, expected) in [
        (json!({"host": HOST, "region": "uk"}), (409, Code::HostTaken)),
        (json!({"host": "x.example", "region": "mars"}), (400, Code::RegionUnknown)),
        (json!({"host": "x.example", "region": "No Code"}), (400, Code::RegionUnknown)),
        (json!({"host": "x.example", "region": "eu", "replica_regions": ["mars"]}), (400, Code::RegionUnknown)),
        (json!({"host": "../x", "region": "eu"}), (422, Code::ValidationFailed)),
        (json!({"host": "x.example", "region": "eu", "kind": "ship"}), (422, Code::ValidationFailed)),
        (json!({"host": "x.example", "region": "eu", "role": "king"}), (422, Code::ValidationFailed)),
        (json!({"host": "x.example", "region": "eu", "env": {"1BAD": "x"}}), (422, Code::ValidationFailed)),
    ] {
        let new: NewInstance = serde_json::from_value(fields.clone()).expect("the right shape");
        let error = client.create_instance(APP, &new, None).await.expect_err("refused");
        assert_eq!(refusal(&error), (expected.0, Some(expected.1)), "{fields}: {error}");
    }
    let told = Told::by(
        fleet
            .server
            .request("POST", "/v1/apps/acme/instances")
            .json(&json!({"host": "x.example", "region": "eu", "colour": 1})),
    )
    .await;
    assert_eq!(told.problem(), (400, "malformed_request".to_owned()));
    let error = client.move_instance(APP, HOST, &to("uk")).await.expect_err("no box has it yet");
    assert_eq!(refusal(&error), (409, Some(Code::NotPlaced)));
    let page = client.instances(APP, Some(1), None).await.expect("a page");
    assert_eq!((page.items.len(), page.next_cursor), (1, None));
    let acts = fleet.server.client().audit(Some("instance"), Some(HOST), None, None).await.expect("the trail").items;
    assert_eq!(acts.iter().map(|act| act.action.as_str()).collect::<Vec<_>>(), ["instance.create"]);
}

#[tokio::test]
async fn the_edges_document_says_what_is_served_and_where_replicas_stand() {
    // M-049, M-050.
    let fleet = Fleet::with_instance().await;
    fleet.client().create_instance(APP, &new_instance("new.acme.example", "eu"), None).await.expect("created");
    let edges = fleet.server.client().edges("eu").await.expect("the document");
    assert_eq!((edges.region.as_str(), edges.data_bucket.as_deref()), ("eu", Some("data-eu")));
    assert_eq!(edges.routes.iter().map(|r| (r.host.as_str(), r.node)).collect::<Vec<_>>(), [(HOST, fleet.eu.id.0)]);
    assert_eq!(edges.unserved, ["new.acme.example"]);
    assert_eq!(edges.boxes.iter().map(|b| b.identity.as_str()).collect::<Vec<_>>(), ["box-eu"]);
    let error = fleet.server.client().edges("mars").await.expect_err("no such region");
    assert_eq!(refusal(&error), (404, Some(Code::NotFound)));
    let (_, node) = fleet
        .server
        .key(IdentityKind::Node, &[], None, Scopes { node: Some(BTreeSet::from(["box-eu".to_owned()])), app: None })
        .await;
    assert!(fleet.server.client_of(&node).edges("eu").await.is_ok(), "a box reads it with its own key");
    let error = fleet.server.client_of(&node).edges("uk").await.expect_err("none of its boxes stands there");
    assert_eq!(refusal(&error), (404, Some(Code::NotFound)));
}

#[tokio::test]
async fn a_region_in_use_keeps_its_bucket_and_is_the_only_default() {
    let fleet = Fleet::start().await;
    let client = fleet.server.client();
    let other = RegionRequest { data_bucket: "elsewhere".to_owned(), ..region("eu") };
    let error = client.put_region("eu", &other).await.expect_err("replicas would be split");
    assert_eq!(refusal(&error), (409, Some(Code::RegionInUse)), "{error}");
    client.put_region("eu", &RegionRequest { default: true, ..region("eu") }).await.expect("the default");
    let error = client.put_region("uk", &RegionRequest { default: true, ..region("uk") }).await.expect_err("a second");
    assert_eq!(refusal(&error), (422, Some(Code::ValidationFailed)), "{error}");
    for (code, fields) in [("No Code", region("x")), ("x", RegionRequest { name: String::new(), ..region("x") })] {
        let error = client.put_region(code, &fields).await.expect_err("out of bounds");
        assert_eq!(refusal(&error), (422, Some(Code::ValidationFailed)), "{error}");
    }
    let acts = client.audit(Some("region"), Some("eu"), None, None).await.expect("the trail").items;
    assert_eq!(acts.len(), 2, "each change that was made, and no refused one");
}

#[tokio::test]
async fn who_may_not_write_an_instance_sees_the_names_of_its_environment_alone() {
    let fleet = Fleet::start().await;
    let env = [("TOKEN".to_owned(), "hunter2".to_owned())].into();
    fleet.create(&NewInstance { env, ..new_instance(HOST, "eu") }).await;
    let viewer = fleet.server.key(IdentityKind::Person, &[Role::Viewer], None, Scopes::default()).await.1;
    let viewer = fleet.server.client_of(&viewer);
    for (client, value) in [(fleet.client(), "hunter2"), (viewer, "redacted")] {
        let shown = client.instance(APP, HOST).await.expect("shown");
        let listed = client.instances(APP, None, None).await.expect("listed").items.remove(0);
        for record in [shown, listed] {
            assert_eq!(record.env["TOKEN"], value);
        }
    }
}

#[tokio::test]
async fn a_refusal_shows_the_record_without_the_values_that_its_caller_may_not_see() {
    let fleet = Fleet::start().await;
    let env = [("TOKEN".to_owned(), "hunter2".to_owned())].into();
    fleet.create(&NewInstance { env, ..new_instance(HOST, "eu") }).await;
    fleet.client().move_instance(APP, HOST, &to("uk")).await.expect("begun");
    let narrow = fleet.server.key(IdentityKind::App, &[], Some(&[Permission::MovesWrite]), of_app(APP)).await.1;
    let whole = fleet.server.key(IdentityKind::App, &[], None, of_app(APP)).await.1;
    let cut = format!("{DOOR}/cut");
    for (key, value) in [(&narrow, "redacted"), (&whole, "hunter2")] {
        let ask = |path: &str| fleet.server.bare("POST", path).bearer_auth(key.expose_secret());
        let stale = |path: &str| ask(path).header("if-match", "\"999\"");
        for (asked, problem) in [
            (ask(DOOR).json(&json!({"region": "uk"})), (409, "move_in_flight")),
            (ask(&cut), (409, "move_not_ready")),
            (stale(DOOR).json(&json!({"region": "uk"})), (412, "stale_revision")),
            (stale(&cut), (412, "stale_revision")),
            (stale(DOOR).json(&json!({"region": "uk", "dry_run": true})), (412, "stale_revision")),
        ] {
            let told = Told::by(asked).await;
            assert_eq!(told.problem(), (problem.0, problem.1.to_owned()));
            let current = &told.json()["current"];
            assert_eq!((&current["env"]["TOKEN"], &current["host"]), (&json!(value), &json!(HOST)), "{told:?}");
        }
    }
}

#[tokio::test]
async fn an_environment_is_replaced_whole_by_whoever_may_write_the_instance_and_its_values_stand_in_no_trail() {
    let fleet = Fleet::with_instance().await;
    let (client, server) = (fleet.client(), &fleet.server);
    let env = |pairs: &[(&str, &str)]| Environment {
        env: pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
    };
    let first = client.set_environment(APP, HOST, &env(&[("A", "one"), ("B", "5ecret")]), None).await.expect("set");
    assert_eq!(first.env, env(&[("A", "one"), ("B", "5ecret")]).env);
    let before = fleet.dump_of_world().await;
    let same = client.set_environment(APP, HOST, &env(&[("A", "one"), ("B", "5ecret")]), Some(first.revision)).await;
    assert_eq!(same.expect("nothing to change").revision, first.revision);
    assert_eq!(fleet.dump_of_world().await, before, "what it has already changes nothing");

    let sealed = tests::keys::seal("5ecret", &[&tests::keys::BoxKey::generate()]);
    let (_, mover) = server.key(IdentityKind::App, &[], Some(&[Permission::MovesWrite]), of_app(APP)).await;
    let (_, other) = server.key(IdentityKind::App, &[], None, of_app("other")).await;
    for (asked, status, code) in [
        (server.client_of(&mover).set_environment(APP, HOST, &env(&[]), None).await, 403, Code::PermissionDenied),
        (server.client_of(&other).set_environment(APP, HOST, &env(&[]), None).await, 404, Code::NotFound),
        (client.set_environment(APP, "nobody.example", &env(&[]), None).await, 404, Code::NotFound),
        (client.set_environment(APP, HOST, &env(&[]), Some(first.revision - 1)).await, 412, Code::StaleRevision),
        (client.set_environment(APP, HOST, &env(&[("CARLOS_REGION", "x")]), None).await, 422, Code::ValidationFailed),
        (client.set_environment(APP, HOST, &env(&[("KEY", "age:nonsense")]), None).await, 422, Code::ValidationFailed),
        (client.set_environment(APP, HOST, &env(&[("KEY", &sealed)]), None).await, 400, Code::RegionCannotHost),
    ] {
        assert_eq!(refusal(&asked.expect_err("refused")), (status, Some(code)));
    }
    assert_eq!(fleet.dump_of_world().await, before, "a refusal changes nothing");

    // While a move is in flight too: it touches its own fields alone (M-010).
    client.move_instance(APP, HOST, &to("uk")).await.expect("begun");
    let moving = client.instance(APP, HOST).await.expect("found");
    let changed = client.set_environment(APP, HOST, &env(&[("A", "two"), ("C", "")]), Some(moving.revision)).await;
    let changed = changed.expect("set");
    assert_eq!((&changed.env, &changed.moving), (&env(&[("A", "two"), ("C", "")]).env, &moving.moving));
    let (action, detail): (String, serde_json::Value) =
        sqlx::query_as("select action, detail from audit_events order by id desc limit 1")
            .fetch_one(server.db.pool())
            .await
            .expect("an event");
    assert_eq!((action.as_str(), detail), ("instance.env", json!({"set": ["A", "C"], "removed": ["B"]})));
    let trail: Vec<String> =
        sqlx::query_scalar("select detail::text from audit_events").fetch_all(server.db.pool()).await.expect("all");
    assert!(trail.iter().all(|detail| !detail.contains("5ecret")), "{trail:?}");
}
