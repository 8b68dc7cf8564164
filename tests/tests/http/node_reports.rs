//! What nodes report that they own: kept as a backup, decided from by nobody.

use std::time::Duration;

use serde_json::{Value, json};
use tests::api::{Server, Told};
use tests::enrolment::{enrolled, put_node, server};
use tests::fleet::{Fleet, HOST, put_box, refusal};
use tests::reports::{Reporter, items};
use wire::{Code, NewNodeReport, NodeReport, ReportOutcome};

async fn sql(server: &Server, sql: &'static str) {
    sqlx::raw_sql(sql).execute(server.db.pool()).await.expect("the test's statement");
}

/// Every row of every table, but the records, and but when a node was heard.
async fn decided_from(server: &Server) -> Vec<String> {
    let tables: Vec<String> = sqlx::query_scalar(
        "select table_name::text from information_schema.tables
          where table_schema = 'public' and table_type = 'BASE TABLE' and table_name <> 'node_reports' order by 1",
    )
    .fetch_all(server.db.pool())
    .await
    .expect("the tables");
    let mut rows = Vec::new();
    for table in tables {
        let query = format!("select (to_jsonb(t) - 'heard_at')::text from {table} t order by 1");
        let found: Vec<String> =
            sqlx::query_scalar(sqlx::AssertSqlSafe(query)).fetch_all(server.db.pool()).await.expect("its rows");
        rows.extend(found.into_iter().map(|row| format!("{table} {row}")));
    }
    rows
}

#[tokio::test]
async fn of_a_thousand_reports_the_last_one_is_kept_whole_and_alone() {
    // O01, O03: each names other things than the one before, and none of those before is left.
    let server = server().await;
    let node = Reporter::start(&server, "box-1").await;
    let client = node.client(&server);
    for seq in 1..=1000 {
        let report = node.report(seq, &[&format!("host-{seq}"), "always"]);
        let taken = client.put_node_report(node.id, &report).await.expect("taken");
        assert!(taken.replaced);
    }
    let (count,): (i64,) =
        sqlx::query_as("select count(*) from node_reports").fetch_one(server.db.pool()).await.expect("a count");
    assert_eq!(count, 1);
    let Ok(NodeReport::Reported { seq, items: kept, incarnation, current_incarnation, .. }) =
        server.client().node_report(node.id).await
    else {
        panic!("it reported")
    };
    assert_eq!((seq, incarnation, current_incarnation, kept), (1000, 1, 1, items(&["host-1000", "always"])));
}

#[tokio::test]
async fn a_report_changes_its_record_and_when_its_node_was_heard_and_nothing_else() {
    // O02: whatever it says, also of what others own. Decisions read the rest, as a test of the sources shows.
    let fleet = Fleet::with_instance().await;
    let server = &fleet.server;
    let node = Reporter::of(server, fleet.eu.id.0).await;
    let before = decided_from(server).await;
    assert!(before.iter().any(|row| row.contains(HOST)), "the search finds what is there");
    let mut seq = 0;
    for outcome in [ReportOutcome::Applied, ReportOutcome::Refused, ReportOutcome::Partial] {
        for hosts in [&[][..], &[HOST], &["nobody.example", HOST], &["nobody.example"]] {
            seq += 1;
            let report = NewNodeReport { outcome, ..node.report(seq, hosts) };
            let taken = node.put(server, &report).await.expect("taken");
            assert_eq!(taken.replaced, outcome == ReportOutcome::Applied);
            assert_eq!(decided_from(server).await, before, "{outcome:?} {hosts:?}");
        }
    }
    assert_eq!(server.client().node(node.id).await.expect("the record").generation, 2, "A05: no report moves it");
}

#[tokio::test]
async fn a_machine_that_only_reports_is_heard_and_is_no_box() {
    // O02: what a worker's beat says of a box, a report does not.
    let server = server().await;
    let node = Reporter::start(&server, "box-1").await;
    let unheard = server.client().node(node.id).await.expect("the record");
    assert!(unheard.seen_at.is_none() && !unheard.live);
    node.put(&server, &node.report(1, &[HOST])).await.expect("taken");
    let heard = server.client().node(node.id).await.expect("the record");
    assert!(heard.seen_at.is_some() && heard.live, "{heard:?}");
    let mut conn = server.db.session().await;
    assert!(domain::nodes::list(&mut conn, None).await.expect("the boxes").is_empty());
    let regions = server.client().regions().await.expect("the regions").items;
    assert!(regions.iter().all(|region| !region.can_host), "{regions:?}");

    // A box whose worker fell silent hosts nothing, however often its machine reports.
    let other = put_box(&server, "eu").await;
    let other = Reporter::of(&server, other.id.0).await;
    server.db.clock().advance(domain::nodes::SILENT_AFTER).await;
    other.put(&server, &other.report(1, &[])).await.expect("taken");
    let boxes = domain::nodes::list(&mut conn, None).await.expect("the boxes");
    assert!(boxes.iter().all(|it| !it.live) && boxes.len() == 1, "{boxes:?}");
    assert!(server.client().node(other.id).await.expect("the record").live);
}

#[tokio::test]
async fn a_node_that_was_enrolled_heard_and_refused_has_never_reported() {
    // O05, O06: there is no empty list for a node that never spoke.
    let server = server().await;
    let silent = put_node(&server, "box-0").await;
    let told = Told::by(server.request("GET", &format!("/v1/nodes/{}/report", silent.id))).await;
    let golden = json!({"status": "never_reported", "last_seen_age_ms": null, "last_sent_age_ms": null});
    assert_eq!((told.status, told.json()), (200, golden));

    let registered = put_box(&server, "eu").await;
    let node = Reporter::of(&server, registered.id.0).await;
    let mut conn = server.db.session().await;
    assert!(domain::nodes::seen(&mut conn, registered.id).await.expect("its worker's beat"));
    let never = async |sent: bool| {
        let shown = node.shown(&server).await;
        assert_eq!((&shown["status"], shown.get("items")), (&json!("never_reported"), None), "{shown}");
        assert!(shown["last_seen_age_ms"].is_u64() && shown["last_sent_age_ms"].is_u64() == sent, "{shown}");
        assert!(shown.get("age_ms").is_none(), "{shown}");
        let rebuild = server.client().node_rebuild(node.id).await.expect("an answer");
        assert!(matches!(rebuild.record, NodeReport::NeverReported { .. }), "{rebuild:?}");
    };
    never(false).await;
    for outcome in [ReportOutcome::Refused, ReportOutcome::Partial] {
        let report = NewNodeReport { outcome, ..node.report(1, &[HOST]) };
        assert!(!node.put(&server, &report).await.expect("taken").replaced);
        never(true).await;
    }
    assert_eq!(node.send(&server, "{").await.status, 400);
    never(true).await;
}

#[tokio::test]
async fn a_report_of_nothing_is_a_report() {
    // O05, O07.
    let server = server().await;
    let node = Reporter::start(&server, "box-1").await;
    node.put(&server, &node.report(1, &[])).await.expect("taken");
    let shown = node.shown(&server).await;
    assert_eq!((&shown["status"], &shown["items"], &shown["seq"]), (&json!("reported"), &json!([]), &json!(1)));
    assert!(shown["age_ms"].is_u64() && shown["received_at"].is_string(), "{shown}");
    assert_eq!(shown["reported_at"], "2026-01-01T00:00:00Z", "the claim of the node's own clock");
}

#[tokio::test]
async fn the_age_of_a_record_is_counted_by_the_databases_clock_and_is_never_negative() {
    // O08.
    let server = server().await;
    let node = Reporter::start(&server, "box-1").await;
    node.put(&server, &node.report(1, &[])).await.expect("taken");
    let age = async || {
        let (shown, rebuild) = (node.shown(&server).await, server.client().node_rebuild(node.id).await.expect("it"));
        let NodeReport::Reported { age_ms, last_seen_age_ms, .. } = rebuild.record else { panic!("it reported") };
        assert_eq!(last_seen_age_ms, Some(age_ms), "one reading of the clock for both");
        let first = shown["age_ms"].as_i64().expect("whole milliseconds");
        assert!(age_ms >= first, "it grows: {first}, then {age_ms}");
        first
    };
    let young = age().await;
    assert!((0..5_400_000).contains(&young), "{young}");
    server.db.clock().advance(Duration::from_secs(90 * 60)).await;
    assert!(age().await >= 5_400_000);
    sql(&server, "update lh_test_clock set shift = shift - interval '1 day'").await;
    assert_eq!(node.shown(&server).await["age_ms"], 0);
}

#[tokio::test]
async fn a_refusal_and_a_partial_failure_move_when_the_node_was_heard_and_nothing_else() {
    // O09, O10.
    let server = server().await;
    let node = Reporter::start(&server, "box-1").await;
    node.put(&server, &node.report(1, &["a", "b", "c"])).await.expect("taken");
    let (record, mut heard) = node.rows(&server).await;
    assert_eq!(record["items"].as_array().map(Vec::len), Some(3));
    for outcome in [ReportOutcome::Refused, ReportOutcome::Partial] {
        server.db.clock().advance(Duration::from_secs(1)).await;
        let report = NewNodeReport { outcome, ..node.report(2, &["a"]) };
        let taken = node.put(&server, &report).await.expect("taken");
        let (same, moved) = node.rows(&server).await;
        assert_eq!((same, json!(taken.received_at) != heard, taken.replaced), (record.clone(), true, false));
        assert!(moved.as_str() > heard.as_str(), "{moved} after {heard}");
        heard = moved;
    }
    let shown = node.shown(&server).await;
    assert!(shown["last_sent_age_ms"].as_i64() < shown["age_ms"].as_i64(), "a later one replaced nothing: {shown}");
    // None of them took the number: the next success may have it.
    assert!(node.put(&server, &node.report(2, &["a"])).await.expect("taken").replaced);
    assert_eq!(node.rows(&server).await.0["items"], json!([{"kind": "instance", "id": "a"}]));
}

#[tokio::test]
async fn a_report_that_is_refused_for_what_it_says_moves_when_its_node_was_heard_and_nothing_else() {
    // O11.
    let server = server().await;
    let node = Reporter::start(&server, "box-1").await;
    node.put(&server, &node.report(1, &["a"])).await.expect("taken");
    let (record, mut heard) = node.rows(&server).await;
    let good = json!(node.report(2, &["a", "b"]));
    let with = |field: &str, value: Value| {
        let mut body = good.clone();
        body[field] = value;
        body.to_string()
    };
    let mut missing = good.clone();
    missing.as_object_mut().expect("an object").remove("items");
    let twice = json!([{"kind": "instance", "id": "a"}, {"kind": "instance", "id": "a"}]);
    for (body, refused, pointer) in [
        (" ".repeat(1024 * 1024 + 1), (413, "body_too_large"), None),
        ("{".to_owned(), (400, "malformed_request"), None),
        (missing.to_string(), (400, "malformed_request"), None),
        (with("items", Value::Null), (400, "malformed_request"), Some("/items")),
        (with("items", json!({})), (400, "malformed_request"), Some("/items")),
        (with("items", twice), (422, "validation_failed"), Some("/items/1")),
        (with("items", json!([{"kind": "Instance", "id": "a"}])), (422, "validation_failed"), Some("/items/0/kind")),
        (with("outcome", json!("done")), (400, "malformed_request"), Some("/outcome")),
        (with("operator", json!("x")), (400, "malformed_request"), None),
        (with("seq", json!(0)), (422, "validation_failed"), Some("/seq")),
        (with("incarnation", json!(2)), (422, "validation_failed"), Some("/incarnation")),
    ] {
        server.db.clock().advance(Duration::from_secs(1)).await;
        let shown: String = body.chars().take(80).collect();
        let told = node.send(&server, body).await;
        assert_eq!(told.problem(), (refused.0, refused.1.to_owned()), "{shown}: {told:?}");
        if let Some(pointer) = pointer {
            assert_eq!(told.pointers(), [pointer], "{shown}");
        }
        let (same, moved) = node.rows(&server).await;
        assert_eq!(same, record, "{shown}");
        assert!(moved.as_str() > heard.as_str(), "{shown}: {moved} after {heard}");
        heard = moved;
    }
    assert_eq!(node.send(&server, good.to_string()).await.status, 200);
}

#[tokio::test]
async fn a_report_has_at_most_ten_thousand_items_and_a_mebibyte() {
    // O15, at each bound and one beyond.
    let server = server().await;
    let node = Reporter::start(&server, "box-1").await;
    let hosts: Vec<String> = (0..10_001).map(|n| format!("h{n}")).collect();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    assert!(node.put(&server, &node.report(1, &hosts[1..])).await.expect("10,000 items").replaced);
    let told = node.send(&server, json!(node.report(2, &hosts)).to_string()).await;
    assert_eq!((told.problem().0, told.pointers()), (422, vec!["/items".to_owned()]));
    let padded = |report: &NewNodeReport, length: usize| {
        let body = json!(report).to_string();
        let rest = length - body.len();
        body + &" ".repeat(rest)
    };
    assert_eq!(node.send(&server, padded(&node.report(2, &["a"]), 1024 * 1024)).await.status, 200);
    let told = node.send(&server, padded(&node.report(3, &["b"]), 1024 * 1024 + 1)).await;
    assert_eq!(told.problem(), (413, "body_too_large".to_owned()));
    assert_eq!(node.shown(&server).await["items"], json!([{"kind": "instance", "id": "a"}]));
}

#[tokio::test]
async fn a_node_reports_for_itself_only_and_nobody_else_for_it() {
    // O14. Whoever is refused here moves nothing.
    use domain::authority::{IdentityKind, Role, Scopes};
    use secrecy::ExposeSecret as _;
    let server = server().await;
    let (node, other) = (Reporter::start(&server, "box-1").await, Reporter::start(&server, "box-2").await);
    node.put(&server, &node.report(1, &["a"])).await.expect("taken");
    let rows = async || (node.rows(&server).await, other.rows(&server).await);
    let before = rows().await;
    let of = Scopes { node: Some(["box-1".to_owned()].into()), app: None };
    let (_, machine_key) = server.key(IdentityKind::Node, &[], None, of.clone()).await;
    let (_, admin_key) = server.key(IdentityKind::Person, &[Role::Admin], None, of).await;
    let body = json!(node.report(2, &["b"]));
    let place = format!("/v1/nodes/{}/report", node.id);
    for (key, refused) in [
        (None, (401, "unauthenticated")),
        (Some(&other.session.token), (404, "not_found")),
        (Some(&server.admin), (403, "permission_denied")),
        (Some(&admin_key), (403, "permission_denied")),
        (Some(&machine_key), (403, "permission_denied")),
    ] {
        let request = server.bare("PUT", &place).json(&body);
        let told = Told::by(match key {
            Some(key) => request.bearer_auth(key.expose_secret()),
            None => request,
        })
        .await;
        assert_eq!(told.problem(), (refused.0, refused.1.to_owned()), "{told:?}");
        assert_eq!(rows().await, before, "{told:?}");
    }
    let error = node.client(&server).node_report(node.id).await.expect_err("its record is read by rebuild");
    assert_eq!(refusal(&error), (403, Some(Code::PermissionDenied)));
    for (id, key) in [(node.id, &other.session.token), (uuid::Uuid::nil(), &server.admin)] {
        let error = server.client_of(key).node_rebuild(id).await.expect_err("not its own, or not there");
        assert_eq!(refusal(&error), (404, Some(Code::NotFound)));
    }
}

#[tokio::test]
async fn a_tombstone_and_a_machine_that_was_replaced_report_nothing_and_are_not_heard() {
    // O14, A21: at the door.
    let server = server().await;
    let node = Reporter::start(&server, "box-1").await;
    node.put(&server, &node.report(1, &["a"])).await.expect("taken");
    let before = node.rows(&server).await;
    let refused = async || {
        for body in [json!(node.report(2, &["b"])).to_string(), "{".to_owned()] {
            assert_eq!(node.send(&server, body).await.problem(), (401, "unauthenticated".to_owned()));
        }
        assert_eq!(node.rows(&server).await, before);
    };
    sql(&server, "update nodes set lifecycle = 'decommissioned'").await;
    refused().await;
    sql(&server, "update nodes set lifecycle = 'active'").await;
    enrolled(&server, node.id).await;
    refused().await;
}
