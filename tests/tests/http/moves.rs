//! The door of the move: who may, what is refused, and in which order (M-014…M-025, M-033, M-035).

use std::collections::BTreeSet;

use domain::authority::{IdentityKind, Role, Scopes};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tests::api::{Told, of_app};
use tests::fleet::{APP, DOOR, Fleet, HOST, new_instance, put_box, refusal, region, to};
use wire::{Code, MoveFilter, NewInstance, RegionRequest};

#[tokio::test]
async fn the_door_is_open_to_the_applications_bearer_and_to_operators_and_to_nobody_else() {
    // M-014.
    let fleet = Fleet::with_instance().await;
    let server = &fleet.server;
    let before = fleet.dump_of_world().await;
    let everything = of_app(APP);
    let (_, instance) = server.key(IdentityKind::Instance, &[], None, everything.clone()).await;
    let (_, node) = server
        .key(
            IdentityKind::Node,
            &[],
            None,
            Scopes { node: Some(BTreeSet::from(["box-eu".to_owned()])), app: everything.app.clone() },
        )
        .await;
    let (_, viewer) = server.key(IdentityKind::Person, &[Role::Viewer], None, Scopes::default()).await;
    for key in [&instance, &node, &viewer] {
        let error = server.client_of(key).move_instance(APP, HOST, &to("uk")).await.expect_err("not its door");
        assert_eq!(refusal(&error), (403, Some(Code::PermissionDenied)), "{error}");
    }
    let told = Told::by(server.bare("POST", DOOR).json(&to("uk"))).await;
    assert_eq!(told.problem(), (401, "unauthenticated".to_owned()));
    let told = Told::by(server.bare("POST", DOOR).bearer_auth("lh_wrong").json(&to("uk"))).await;
    assert_eq!(told.problem(), (401, "unauthenticated".to_owned()));
    // Another application's bearer learns nothing, not even that the host exists.
    let (_, other) = server.key(IdentityKind::App, &[], None, of_app("other")).await;
    let error = server.client_of(&other).move_instance(APP, HOST, &to("uk")).await.expect_err("not its application");
    assert_eq!(refusal(&error), (404, Some(Code::NotFound)), "{error}");
    assert_eq!(fleet.dump_of_world().await, before);
    fleet.client().move_instance(APP, HOST, &to("uk")).await.expect("its own bearer");
    fleet.create(&new_instance("two.acme.example", "eu")).await;
    let (_, operator) = server.key(IdentityKind::Person, &[Role::Operator], None, Scopes::default()).await;
    server.client_of(&operator).move_instance(APP, "two.acme.example", &to("uk")).await.expect("an operator");
}

#[tokio::test]
async fn a_body_without_a_region_is_refused_with_400() {
    // M-015.
    let fleet = Fleet::with_instance().await;
    let before = fleet.dump().await;
    for body in [
        "",
        "{",
        "{}",
        "[]",
        r#"{"region": ""}"#,
        r#"{"region": 5}"#,
        r#"{"region": null}"#,
        r#"{"region": ["uk"]}"#,
        r#"{"region": "uk", "region": "uk"}"#,
        r#"{"region": "uk", "cut": "soon"}"#,
        r#"{"region": "uk", "cut": true}"#,
        r#"{"region": "uk", "freeze": true}"#,
    ] {
        let request = fleet.server.request("POST", DOOR).header("content-type", "application/json");
        let told = Told::by(request.body(body)).await;
        assert_eq!(told.problem(), (400, "malformed_request".to_owned()), "{body}");
    }
    let told = Told::by(fleet.server.request("POST", DOOR).body(r#"{"region": "uk"}"#)).await;
    assert_eq!(told.problem(), (400, "wrong_content_type".to_owned()));
    assert_eq!(fleet.dump().await, before, "and nothing was changed, no serial either (M-035)");
}

#[tokio::test]
async fn a_region_that_cannot_take_the_instance_is_refused_with_400() {
    // M-016, M-017.
    let fleet = Fleet::with_instance().await;
    let client = fleet.server.client();
    for (code, dormant) in [("off", false), ("far", true)] {
        client.put_region(code, &RegionRequest { armed: false, dormant, ..region(code) }).await.expect("declared");
        put_box(&fleet.server, code).await;
    }
    client.put_region("bare", &region("bare")).await.expect("declared");
    let before = fleet.dump().await;
    for (code, expected) in [
        ("mars", Code::RegionUnknown),
        ("No Code", Code::RegionUnknown),
        ("off", Code::RegionUnarmed),
        ("far", Code::RegionUnarmed),
        ("bare", Code::RegionCannotHost),
        ("eu", Code::SameRegion),
    ] {
        let error = fleet.client().move_instance(APP, HOST, &to(code)).await.expect_err(code);
        assert_eq!(refusal(&error), (400, Some(expected)), "{error}");
    }
    assert_eq!(fleet.dump().await, before);
}

#[tokio::test]
async fn what_cannot_follow_is_refused_by_a_code_of_its_own() {
    // M-020…M-024, M-117.
    let fleet = Fleet::start().await;
    let cases: Vec<(&str, Value, Code, &str)> = vec![
        ("unit", json!({"kind": "unit"}), Code::KindNotMovable, "unit"),
        ("addr", json!({"kind": "addr"}), Code::KindNotMovable, "addr"),
        ("static", json!({"kind": "static"}), Code::KindNotMovable, "static"),
        ("everywhere", json!({"kind": "everywhere"}), Code::KindNotMovable, "everywhere"),
        ("backing", json!({"backing": "container"}), Code::BackingNotMovable, "container"),
        ("replica", json!({"role": "replica"}), Code::Replica, "replica"),
        ("fleet", json!({"placement": "fleet"}), Code::FleetNotMovable, "fleet"),
        ("pool", json!({"pool": "gold"}), Code::PoolNotMovable, "gold"),
        ("awake", json!({"hibernate": false}), Code::HibernateRequired, "hibernate"),
    ];
    for (name, change, expected, word) in cases {
        let mut fields = json!({"host": format!("{name}.acme.example"), "region": "eu"});
        fields.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
        let new: NewInstance = serde_json::from_value(fields).expect("a record");
        fleet.create(&new).await;
        let before = fleet.dump().await;
        let error = fleet.client().move_instance(APP, &new.host, &to("uk")).await.expect_err(name);
        assert_eq!(refusal(&error), (400, Some(expected)), "{error}");
        assert!(error.to_string().contains(word), "it names what holds it: {error}");
        // The body comes before the kind, the kind before the region.
        let error = fleet.client().move_instance(APP, &new.host, &to("")).await.expect_err("an empty region");
        assert_eq!(refusal(&error), (400, Some(Code::MalformedRequest)), "{error}");
        let error = fleet.client().move_instance(APP, &new.host, &to("mars")).await.expect_err("two faults");
        assert_eq!(refusal(&error), (400, Some(expected)), "{error}");
        assert_eq!(fleet.dump().await, before);
    }
}

#[tokio::test]
async fn an_unknown_host_is_answered_as_every_other_door_does() {
    // M-025: before the body is looked at, and alike for what does not exist and what may not be seen.
    let fleet = Fleet::with_instance().await;
    let mut answers = BTreeSet::new();
    for (method, place) in [
        ("POST", "/v1/apps/acme/instances/nobody.acme.example/move"),
        ("POST", "/v1/apps/acme/instances/No%20Host/move"),
        ("POST", "/v1/apps/acme/instances/%2e%2e/move"),
        ("POST", "/v1/apps/other/instances/ledger.acme.example/move"),
        ("GET", "/v1/apps/acme/instances/nobody.acme.example"),
        ("GET", "/v1/apps/acme/instances/nobody.acme.example/moves"),
        ("GET", "/v1/apps/other/instances"),
        ("GET", "/v1/apps/other/regions"),
    ] {
        let request = fleet.server.bare(method, place).bearer_auth(fleet.app.expose_secret());
        let request = request.header("x-request-id", "same");
        let told = Told::by(if method == "POST" { request.body("{") } else { request }).await;
        assert_eq!(told.problem(), (404, "not_found".to_owned()), "{place}");
        answers.insert(told.text);
    }
    assert_eq!(answers.len(), 1, "{answers:?}");
}

#[tokio::test]
async fn of_many_concurrent_moves_one_begins_and_the_others_are_told_so() {
    // M-018, M-033.
    let fleet = Fleet::with_instance().await;
    let serial = async || fleet.server.client().regions().await.expect("the regions").items[0].serial;
    let before = serial().await;
    let calls = (0..8).map(|_| {
        let client = fleet.client();
        async move { client.move_instance(APP, HOST, &to("uk")).await }
    });
    let (won, lost): (Vec<_>, Vec<_>) = futures::future::join_all(calls).await.into_iter().partition(Result::is_ok);
    assert_eq!((won.len(), lost.len()), (1, 7));
    for error in lost.into_iter().filter_map(Result::err) {
        assert_eq!(refusal(&error), (409, Some(Code::MoveInFlight)), "{error}");
        let current = error.problem().and_then(|problem| problem.current.clone()).expect("the record");
        assert_eq!(current["move"]["state"], "preparing");
    }
    assert_eq!(serial().await, before.map(|serial| serial + 1), "one write, one serial (M-035)");
    for state in ["ready", "cutting", "aborting"] {
        sqlx::query("update moves set state = $1, ready_at = lh_now()")
            .bind(state)
            .execute(fleet.server.db.pool())
            .await
            .expect("the move goes on");
        let error = fleet.client().move_instance(APP, HOST, &to("uk")).await.expect_err(state);
        assert_eq!(refusal(&error), (409, Some(Code::MoveInFlight)), "{error}");
        assert!(error.to_string().contains(state), "{error}");
    }
    let open =
        fleet.client().moves(&MoveFilter { open: Some(true), ..MoveFilter::default() }).await.expect("the moves");
    assert_eq!(open.items.len(), 1);
    let (_, other) = fleet.server.key(IdentityKind::App, &[], None, of_app("other")).await;
    let hidden = fleet.server.client_of(&other);
    assert!(hidden.moves(&MoveFilter::default()).await.expect("a list").items.is_empty());
    let error = hidden.get_move(open.items[0].id).await.expect_err("not its application");
    assert_eq!(refusal(&error), (404, Some(Code::NotFound)));
}

#[tokio::test]
async fn the_operators_doors_want_the_host_typed_again_and_a_reason() {
    let fleet = Fleet::with_instance().await;
    let server = &fleet.server;
    let region = format!("/v1/apps/{APP}/instances/{HOST}/region");
    let unstick = format!("{DOOR}/unstick");
    let before = fleet.dump().await;
    for (host, reason, field) in [("other.example", "x", "/host"), (HOST, "", "/reason"), (HOST, "  ", "/reason")] {
        for (method, place, body) in [
            ("PUT", &region, json!({"region": "uk", "host": host, "reason": reason})),
            ("POST", &unstick, json!({"host": host, "reason": reason})),
        ] {
            let told = Told::by(server.request(method, place).json(&body)).await;
            assert_eq!(told.problem(), (422, "validation_failed".to_owned()), "{body}");
            assert_eq!(told.json()["errors"][0]["pointer"], field, "{told:?}");
        }
    }
    let body = json!({"region": "uk", "host": HOST, "reason": "x"});
    let told = Told::by(fleet.server.request("PUT", &region).json(&body)).await;
    assert_eq!(told.problem(), (409, "instance_served".to_owned()), "a box that lives serves it");
    let told = Told::by(server.request("POST", &unstick).json(&json!({"host": HOST, "reason": "x"}))).await;
    assert_eq!(told.problem(), (409, "no_move".to_owned()));
    assert_eq!(fleet.dump().await, before);
    // The application's own bearer moves its instances, and does not do this.
    let point = wire::PointRequest { region: "uk".to_owned(), host: HOST.to_owned(), reason: "x".to_owned() };
    let error = fleet.client().point_instance(APP, HOST, &point).await.expect_err("not its door");
    assert_eq!(refusal(&error), (403, Some(Code::PermissionDenied)), "{error}");
}
