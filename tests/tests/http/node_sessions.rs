//! How a node proves itself: a signed nonce, and a bearer that is asked about at every request.

use std::time::Duration;

use api::door::access::TABLE;
use domain::authority::Permission;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;
use tests::api::{Server, Told};
use tests::enrolment::{Machine, enrolled, put_node, server};
use tests::fleet::put_box;
use uuid::Uuid;

/// What a node itself reads of its region.
async fn edges(server: &Server, bearer: &SecretString) -> Told {
    Told::by(server.bare("GET", "/v1/edges/eu").bearer_auth(bearer.expose_secret())).await
}

/// A node in eu whose worker is a box there, and a machine that enrolled as it.
async fn node(server: &Server) -> (Uuid, Machine) {
    let id = put_node(server, "box-eu").await.id;
    put_box(server, "eu").await;
    (id, enrolled(server, id).await)
}

async fn sql(server: &Server, sql: &'static str) {
    sqlx::raw_sql(sql).execute(server.db.pool()).await.expect("the test's statement");
}

#[tokio::test]
async fn a_node_proves_itself_by_a_signed_nonce_and_acts_as_itself() {
    let server = server().await;
    let (id, machine) = node(&server).await;
    let session = machine.open(&server, id).await.expect("proven");
    assert_eq!((session.node_id, session.incarnation), (id, 1));
    let told = edges(&server, &session.token).await;
    assert_eq!((told.status, &told.json()["boxes"][0]["identity"]), (200, &json!("box-eu")));
    let kept: String = sqlx::query_scalar("select to_jsonb(s)::text from node_sessions s")
        .fetch_one(server.db.pool())
        .await
        .expect("one");
    let digits = session.token.expose_secret().strip_prefix("lhn_").expect("its prefix");
    assert!(!kept.contains(digits), "the bearer is with the machine alone");
}

#[tokio::test]
async fn a_nodes_bearer_opens_no_operators_door() {
    // D15: it is known, and may not.
    let server = server().await;
    let (id, machine) = node(&server).await;
    let session = machine.open(&server, id).await.expect("proven");
    let own = [Permission::EdgesRead, Permission::NodesReport, Permission::NodesRebuild];
    let mut doors = 0;
    for (method, route, access) in TABLE {
        let Some((permission, _)) = access.needed().filter(|(it, _)| !own.contains(it)) else { continue };
        let place = route.replace("{id}", &id.to_string()).replace(['{', '}'], "");
        let told = Told::by(server.bare(method, &place).bearer_auth(session.token.expose_secret())).await;
        if *route != "/v1/events" {
            assert_eq!(told.problem(), (403, "permission_denied".to_owned()), "{method} {route}: {permission}");
            doors += 1;
        }
    }
    assert!(doors > 40, "the table was walked");
}

#[tokio::test]
async fn a_bearer_ends_with_its_time_its_credential_its_incarnation_and_its_node() {
    // Each alone, and asked anew at every request of one connection that stays open.
    let server = server().await;
    let (id, machine) = node(&server).await;
    let session = machine.open(&server, id).await.expect("proven");
    assert_eq!(edges(&server, &session.token).await.status, 200);
    for (ends, again) in [
        ("update node_credentials set revoked_at = lh_now()", "update node_credentials set revoked_at = null"),
        ("update nodes set incarnation = incarnation + 1", "update nodes set incarnation = incarnation - 1"),
        ("update nodes set lifecycle = 'decommissioned'", "update nodes set lifecycle = 'active'"),
        ("delete from node_sessions", ""),
    ] {
        sql(&server, ends).await;
        assert_eq!(edges(&server, &session.token).await.problem(), (401, "unauthenticated".to_owned()), "{ends}");
        sql(&server, again).await;
        let expected = if again.is_empty() { 401 } else { 200 };
        assert_eq!(edges(&server, &session.token).await.status, expected, "{again}");
    }
    let session = machine.open(&server, id).await.expect("proven again");
    server.db.clock().advance(Duration::from_secs(15 * 60 - 10)).await;
    assert_eq!(edges(&server, &session.token).await.status, 200);
    server.db.clock().advance(Duration::from_secs(10)).await;
    assert_eq!(edges(&server, &session.token).await.status, 401);
}

#[tokio::test]
async fn a_machine_that_was_replaced_is_out_at_its_next_request_on_an_open_connection() {
    // A21.
    let server = server().await;
    let (id, machine) = node(&server).await;
    let session = machine.open(&server, id).await.expect("proven");
    assert_eq!(edges(&server, &session.token).await.status, 200);
    enrolled(&server, id).await;
    assert_eq!(edges(&server, &session.token).await.status, 401);
}

#[tokio::test]
async fn a_proof_is_refused_alike_for_every_reason_and_spends_its_nonce() {
    let server = server().await;
    let (id, machine) = node(&server).await;
    let other = put_node(&server, "box-2").await.id;
    let other_machine = enrolled(&server, other).await;
    let never = put_node(&server, "box-3").await.id;
    let nonce = async |id: Uuid| {
        let told = Told::by(server.bare("POST", &format!("/v1/nodes/{id}/nonces"))).await;
        assert_eq!(told.status, 200, "{told:?}");
        let told = told.json();
        let text = |name: &str| told[name].as_str().expect("a text").to_owned();
        (text("nonce"), text("message"))
    };
    let open = async |id: Uuid, nonce: &str, signature: &str| {
        let body = json!({"nonce": nonce, "signature": signature});
        let place = format!("/v1/nodes/{id}/sessions");
        Told::by(server.bare("POST", &place).header("x-request-id", "same").json(&body)).await
    };
    let mut refused = Vec::new();
    // Another's key; another text; another's nonce; a node that is not there; one whose machine never enrolled.
    let (n, message) = nonce(id).await;
    refused.push(open(id, &n, &other_machine.sign(&message)).await);
    refused.push(open(id, &n, &machine.sign(&message)).await);
    let (n, message) = nonce(id).await;
    refused.push(open(id, &n, &machine.sign(&message[1..])).await);
    let (n, message) = nonce(id).await;
    let as_other = message.replace(&id.to_string(), &other.to_string());
    refused.push(open(other, &n, &other_machine.sign(&as_other)).await);
    let (n, message) = nonce(Uuid::nil()).await;
    refused.push(open(Uuid::nil(), &n, &machine.sign(&message)).await);
    let (n, message) = nonce(never).await;
    refused.push(open(never, &n, &machine.sign(&message)).await);
    // A nonce that was used, one that was never told, and one of a minute ago.
    let (n, message) = nonce(id).await;
    assert_eq!(open(id, &n, &machine.sign(&message)).await.status, 200);
    refused.push(open(id, &n, &machine.sign(&message)).await);
    let unknown = "0".repeat(64);
    refused.push(open(id, &unknown, &machine.sign(&message.replace(&n, &unknown))).await);
    let (n, message) = nonce(id).await;
    server.db.clock().advance(Duration::from_secs(60)).await;
    refused.push(open(id, &n, &machine.sign(&message)).await);
    for told in &refused {
        assert_eq!((told.status, &told.text), (401, &refused[0].text));
        let names = |told: &Told| told.headers.keys().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(told), names(&refused[0]));
    }
    assert!(refused[0].text.contains("session_refused"), "{:?}", refused[0]);
    let (n, message) = nonce(id).await;
    assert_eq!(open(id, &n, &machine.sign(&message)).await.status, 200, "the node itself is as it was");
}

#[tokio::test]
async fn expired_nonces_and_sessions_are_swept_and_a_node_keeps_twenty() {
    let server = server().await;
    let (id, machine) = node(&server).await;
    let count = async |query: &'static str| {
        sqlx::query_scalar::<_, i64>(query).fetch_one(server.db.pool()).await.expect("a count")
    };
    for _ in 0..22 {
        machine.open(&server, id).await.expect("proven");
    }
    assert_eq!(count("select count(*) from node_sessions").await, 20);
    for _ in 0..3 {
        let _ = Told::by(server.bare("POST", &format!("/v1/nodes/{id}/nonces"))).await;
    }
    assert_eq!(count("select count(*) from node_nonces").await, 3);
    server.db.clock().advance(Duration::from_secs(15 * 60)).await;
    machine.open(&server, id).await.expect("proven");
    assert_eq!(
        (count("select count(*) from node_sessions").await, count("select count(*) from node_nonces").await),
        (1, 0)
    );
}
