//! Enrolment: a token is issued for a record, and whoever presents its secret becomes that node, once.

use std::time::Duration;

use domain::digest::sha256;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;
use tests::api::{Server, Told, until};
use tests::enrolment::{Machine, enrolled, put_node, secret, server};
use tests::fleet::refusal;
use wire::{Code, EnrolmentTokenRequest};

/// Every text that the database holds.
async fn dump(server: &Server) -> String {
    let tables: Vec<String> = sqlx::query_scalar(
        "select table_name::text from information_schema.tables where table_schema = 'public' and table_type = 'BASE TABLE'",
    )
    .fetch_all(server.db.pool())
    .await
    .expect("the tables");
    assert!(tables.len() > 20, "{tables:?}");
    let mut text = String::new();
    for table in tables {
        let query = sqlx::AssertSqlSafe(format!("select to_jsonb(t)::text from {table} t"));
        let rows: Vec<String> = sqlx::query_scalar(query).fetch_all(server.db.pool()).await.expect("its rows");
        text.extend(rows);
    }
    text
}

async fn sql(server: &Server, sql: &'static str) {
    sqlx::raw_sql(sql).execute(server.db.pool()).await.expect("the test's statement");
}

/// The class of each refusal, oldest first, once there are `count` of them.
async fn classes(server: &Server, count: usize) -> Vec<(String, String)> {
    let mut found = Vec::new();
    until("the refusals are noted", || {
        let look = server.client();
        async move {
            let acts = look.audit(Some("node"), None, Some(200), None).await.expect("the acts").items;
            acts.iter().filter(|act| act.action == "node.enrol_refused").count() >= count
        }
    })
    .await;
    let acts = server.client().audit(Some("node"), None, Some(200), None).await.expect("the acts").items;
    for act in acts.into_iter().rev().filter(|act| act.action == "node.enrol_refused") {
        let word = |name: &str| act.detail[name].as_str().unwrap_or_default().to_owned();
        found.push((word("class"), word("source")));
    }
    found
}

#[tokio::test]
async fn a_machine_becomes_the_node_of_its_token_and_the_answer_is_the_documented_one() {
    // E01, E15, A15.
    let config = api::Config {
        public_url: Some("https://fleet.example".to_owned()),
        certificate_sha256: Some("ab".repeat(32)),
        ..Server::config()
    };
    let server = Server::start_with(config).await;
    server.client().put_region("eu", &tests::fleet::region("eu")).await.expect("declared");
    let node = put_node(&server, "box-1").await;
    let machine = Machine::new();
    let told = machine.present(&server, &secret(&server, node.id).await).await;
    let contract = json!({"node_id": node.id, "incarnation": 1, "api_url": "https://fleet.example",
                          "certificate_sha256": "ab".repeat(32), "signing_key_id": null});
    assert_eq!((told.status, told.json()), (200, contract));
    let shown = server.client().node(node.id).await.expect("the record");
    assert_eq!((shown.incarnation, shown.generation), (1, 2), "a redemption moves both (A05, A21)");
    assert!(shown.enrolled_at.is_some() && shown.token_expires_at.is_none());
    let acts = server.client().audit(Some("node"), Some(&node.id.to_string()), None, None).await.expect("the acts");
    let names: Vec<&str> = acts.items.iter().map(|act| act.action.as_str()).collect();
    assert_eq!(names, ["node.enrol", "node.enrolment_token.issue", "node.create"]);
    assert_eq!(acts.items[0].detail["source"], "127.0.0.1");
}

#[tokio::test]
async fn the_presenter_names_no_node_and_nothing_unknown() {
    // E01.
    let server = server().await;
    let node = put_node(&server, "box-1").await;
    let (machine, secret) = (Machine::new(), secret(&server, node.id).await);
    for extra in ["node_id", "identity", "hostname", "incarnation"] {
        let mut body = machine.body(&secret);
        body[extra] = json!(node.id);
        let told = Told::by(server.bare("POST", "/v1/enrolments").json(&body)).await;
        assert_eq!(told.problem(), (400, "malformed_request".to_owned()), "{extra}");
    }
    for bad in ["", "ab", &machine.public_key().to_uppercase()] {
        let body = json!({"secret": secret.expose_secret(), "public_key": bad});
        let told = Told::by(server.bare("POST", "/v1/enrolments").json(&body)).await;
        assert_eq!((told.problem().0, told.pointers()), (422, vec!["/public_key".to_owned()]), "{bad:?}");
    }
    assert_eq!(machine.present(&server, &secret).await.status, 200, "none of that spent the token");
}

#[tokio::test]
async fn a_token_is_issued_for_a_node_that_is_there_and_within_its_bounds() {
    // E01.
    let server = server().await;
    let node = put_node(&server, "box-1").await;
    let client = server.client();
    let request = |seconds| EnrolmentTokenRequest { expires_in_seconds: Some(seconds) };
    let unknown = client.issue_enrolment_token(uuid::Uuid::nil(), &request(60), None).await;
    assert_eq!(refusal(&unknown.expect_err("no such node")), (404, Some(Code::NotFound)));
    for bad in [0, 59, 604_801] {
        let error = client.issue_enrolment_token(node.id, &request(bad), None).await.expect_err("out of bounds");
        assert_eq!(refusal(&error), (422, Some(Code::ValidationFailed)), "{bad}");
    }
    for good in [60, 604_800] {
        let issued = client.issue_enrolment_token(node.id, &request(good), None).await.expect("within them").value;
        assert_eq!(issued.expires_at - issued.issued_at, chrono::Duration::seconds(good.into()));
    }
    let told = Told::by(
        server.request("POST", &format!("/v1/nodes/{}/enrolment-tokens", node.id)).json(&json!({"node": "x"})),
    )
    .await;
    assert_eq!(told.problem(), (400, "malformed_request".to_owned()));
    sql(&server, "update nodes set lifecycle = 'decommissioned'").await;
    let error = client.issue_enrolment_token(node.id, &request(60), None).await.expect_err("a tombstone");
    assert_eq!(refusal(&error), (409, Some(Code::NodeDecommissioned)));
}

#[tokio::test]
async fn a_machine_that_returns_sends_the_same_request_and_shuts_out_the_one_before() {
    // E02, A21.
    let server = server().await;
    let node = put_node(&server, "box-1").await;
    let first = enrolled(&server, node.id).await;
    assert!(first.open(&server, node.id).await.is_ok());
    let second = enrolled(&server, node.id).await;
    let shown = server.client().node(node.id).await.expect("the record");
    assert_eq!((shown.incarnation, shown.generation), (2, 3));
    let error = first.open(&server, node.id).await.expect_err("its credential is of an older incarnation");
    assert_eq!(refusal(&error), (401, Some(Code::SessionRefused)));
    assert_eq!(second.open(&server, node.id).await.expect("the node").incarnation, 2);
    let live: Vec<(i64, bool)> =
        sqlx::query_as("select incarnation, revoked_at is null from node_credentials order by incarnation")
            .fetch_all(server.db.pool())
            .await
            .expect("the credentials");
    assert_eq!(live, [(1, false), (2, true)]);
}

#[tokio::test]
async fn a_secret_is_told_in_one_answer_and_kept_as_its_sha256_alone() {
    // E04, E05.
    let server = server().await;
    let node = put_node(&server, "box-1").await;
    let place = format!("/v1/nodes/{}/enrolment-tokens", node.id);
    let issue = async || Told::by(server.request("POST", &place).header("idempotency-key", "k")).await;
    let (first, again) = (issue().await, issue().await);
    assert_eq!((first.status, again.status, again.header("idempotent-replayed")), (201, 201, Some("true")));
    let secret = first.json()["secret"].as_str().expect("the secret").to_owned();
    let digits = secret.strip_prefix("lhe_").expect("its prefix");
    assert_eq!(hex::decode(digits).expect("digits").len(), 32, "256 bits (E03)");
    assert!(again.json()["secret"].is_null() && again.json()["id"] == first.json()["id"], "{again:?}");
    let kept: Vec<u8> = sqlx::query_scalar("select token_sha256 from node_enrolment_tokens")
        .fetch_one(server.db.pool())
        .await
        .expect("one");
    assert_eq!(kept, sha256(secret.as_bytes()));
    assert_eq!(Machine::new().present(&server, &SecretString::from(secret.clone())).await.status, 200);
    assert_eq!(Machine::new().present(&server, &SecretString::from(secret.clone())).await.status, 401);
    classes(&server, 1).await;
    let mut said = dump(&server).await;
    for place in ["/v1/nodes".to_owned(), format!("/v1/nodes/{}", node.id), "/v1/audit".to_owned()] {
        said += &Told::by(server.request("GET", &place)).await.text;
    }
    assert!(!said.contains(digits), "the secret stands somewhere");
    assert!(said.contains(&hex::encode(sha256(secret.as_bytes()))), "the search finds what is there");
}

#[tokio::test]
async fn a_token_works_once() {
    // E06.
    let server = server().await;
    let node = put_node(&server, "box-1").await;
    let (secret, machine) = (secret(&server, node.id).await, Machine::new());
    assert_eq!(machine.present(&server, &secret).await.status, 200);
    assert_eq!(machine.present(&server, &secret).await.status, 401, "also with the key that it brought in");
    assert_eq!(Machine::new().present(&server, &secret).await.status, 401);
    sql(&server, "update nodes set lifecycle = 'decommissioned'").await;
    assert_eq!(Machine::new().present(&server, &secret).await.status, 401);
    let shown = server.client().node(node.id).await.expect("the record");
    assert_eq!((shown.incarnation, shown.generation), (1, 2), "a refusal changes nothing");
}

#[tokio::test]
async fn a_token_stops_at_its_expiry_by_the_databases_clock() {
    // E07: a clock that stands, a millisecond before the end and at it.
    let server = server().await;
    let node = put_node(&server, "box-1").await;
    let stand_at = async |before: i64| {
        let end: chrono::DateTime<chrono::Utc> = sqlx::query_scalar(
            "select expires_at from node_enrolment_tokens where num_nonnulls(spent_at, superseded_at, revoked_at) = 0",
        )
        .fetch_one(server.db.pool())
        .await
        .expect("a live token");
        let moment = (end - chrono::Duration::milliseconds(before)).to_rfc3339();
        let clock = format!(
            "create or replace function lh_now() returns timestamptz language sql volatile as $$ select timestamptz '{moment}' $$"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(clock)).execute(server.db.pool()).await.expect("the clock stands");
    };
    let secret_in_time = secret(&server, node.id).await;
    stand_at(1).await;
    assert_eq!(Machine::new().present(&server, &secret_in_time).await.status, 200);
    let late = secret(&server, node.id).await;
    stand_at(0).await;
    assert!(server.client().node(node.id).await.expect("the record").token_expires_at.is_none());
    assert_eq!(Machine::new().present(&server, &late).await.status, 401);
    assert_eq!(classes(&server, 1).await, [("expired".to_owned(), "127.0.0.1".to_owned())]);
}

#[tokio::test]
async fn issuing_again_or_revoking_ends_the_outstanding_token() {
    // E08, A12.
    let server = server().await;
    let node = put_node(&server, "box-1").await;
    let old = secret(&server, node.id).await;
    let new = secret(&server, node.id).await;
    assert_eq!(Machine::new().present(&server, &old).await.status, 401);
    let revoked = server.client().revoke_enrolment_token(node.id, &wire::Reason::default()).await.expect("revoked");
    assert!(revoked.revoked.is_some());
    assert_eq!(Machine::new().present(&server, &new).await.status, 401);
    let again = server.client().revoke_enrolment_token(node.id, &wire::Reason::default()).await.expect("nothing to do");
    assert!(again.revoked.is_none());
    let found: Vec<String> = classes(&server, 2).await.into_iter().map(|(class, _)| class).collect();
    assert_eq!(
        found.iter().map(String::as_str).collect::<std::collections::BTreeSet<_>>(),
        ["revoked", "superseded"].into()
    );
    assert_eq!(server.client().node(node.id).await.expect("the record").generation, 1, "no token moves it (A05)");
    // The schema itself keeps a second live token out.
    let doubled = sqlx::query(
        "insert into node_enrolment_tokens (id, node_id, token_sha256, issued_at, issued_by, expires_at)
         select gen_random_uuid(), $1, sha256(n::text::bytea), lh_now(), i.id, lh_now() + interval '1 hour'
           from generate_series(1, 2) n cross join (select id from identities limit 1) i",
    )
    .bind(node.id)
    .execute(server.db.pool())
    .await
    .expect_err("two live tokens");
    assert!(doubled.to_string().contains("node_enrolment_tokens_one_live"), "{doubled}");
}

#[tokio::test]
async fn whatever_fails_in_a_redemption_leaves_the_token_live_and_nothing_changed() {
    // E17: each write in turn is made to fail.
    let server = server().await;
    let node = put_node(&server, "box-1").await;
    enrolled(&server, node.id).await;
    let secret = secret(&server, node.id).await;
    sql(
        &server,
        "create function refuse() returns trigger language plpgsql as $$ begin raise exception 'of the test'; end $$",
    )
    .await;
    let before = dump(&server).await;
    for (table, act) in [
        ("node_enrolment_tokens", "update"),
        ("nodes", "update"),
        ("node_credentials", "update"),
        ("node_credentials", "insert"),
        ("audit_events", "insert"),
    ] {
        let set = format!("create trigger refuse before {act} on {table} execute function refuse()");
        sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(server.db.pool()).await.expect("the write fails");
        let told = Machine::new().present(&server, &secret).await;
        assert_eq!(told.status, 500, "{act} of {table}: {told:?}");
        let unset = format!("drop trigger refuse on {table}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(unset)).execute(server.db.pool()).await.expect("it works again");
        assert_eq!(dump(&server).await, before, "{act} of {table}");
    }
    assert_eq!(Machine::new().present(&server, &secret).await.status, 200);
}

#[tokio::test]
async fn a_key_that_was_used_before_enrols_nobody_and_spends_nothing() {
    let server = server().await;
    let (one, two) = (put_node(&server, "box-1").await, put_node(&server, "box-2").await);
    let machine = enrolled(&server, one.id).await;
    let secret = secret(&server, two.id).await;
    assert_eq!(machine.present(&server, &secret).await.status, 401);
    assert_eq!(classes(&server, 1).await, [("key_reused".to_owned(), "127.0.0.1".to_owned())]);
    assert!(machine.open(&server, one.id).await.is_ok(), "its own node is as it was");
    assert_eq!(Machine::new().present(&server, &secret).await.status, 200, "and so is the token");
}

#[tokio::test]
async fn a_secret_in_an_address_is_refused_and_not_logged_by_the_route() {
    // E18.
    let server = server().await;
    let node = put_node(&server, "box-1").await;
    let (machine, secret) = (Machine::new(), secret(&server, node.id).await);
    let place = format!("/v1/enrolments?secret={}", secret.expose_secret());
    let told = Told::by(server.bare("POST", &place).json(&machine.body(&secret))).await;
    assert_eq!(told.problem(), (400, "invalid_query".to_owned()));
    assert!(!told.text.contains(secret.expose_secret()), "{told:?}");
    assert_eq!(machine.present(&server, &secret).await.status, 200);
}

#[tokio::test]
async fn a_token_of_an_hour_ends_with_the_hour() {
    let server = server().await;
    let node = put_node(&server, "box-1").await;
    let secret = secret(&server, node.id).await;
    server.db.clock().advance(Duration::from_secs(3599)).await;
    assert!(server.client().node(node.id).await.expect("the record").token_expires_at.is_some());
    server.db.clock().advance(Duration::from_secs(1)).await;
    assert_eq!(Machine::new().present(&server, &secret).await.status, 401);
}
