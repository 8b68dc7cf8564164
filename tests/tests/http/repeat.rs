//! Q-022: a call under an idempotency key acts once and is answered alike.

use std::time::Duration;

use domain::authority::{IdentityKind, Role, Scopes};
use serde_json::json;
use tests::api::{Server, Told};

async fn jobs(server: &Server) -> i64 {
    sqlx::query_scalar("select count(*) from jobs").fetch_one(server.db.pool()).await.expect("a count")
}

#[tokio::test]
async fn a_repeated_call_is_answered_byte_by_byte_and_acts_once() {
    let server = Server::start().await;
    let body = json!({"kind": "test.free", "args": {"b": 1, "a": 2}});
    let call = async || Told::by(server.request("POST", "/v1/jobs").header("idempotency-key", "k1").json(&body)).await;
    let (first, second) = (call().await, call().await);
    assert_eq!((first.status, second.status), (201, 201));
    assert_eq!(first.text, second.text);
    assert_eq!((first.header("idempotent-replayed"), second.header("idempotent-replayed")), (None, Some("true")));
    for mark in ["etag", "location"] {
        assert!(first.header(mark).is_some() && first.header(mark) == second.header(mark), "{mark}: {second:?}");
    }
    assert_eq!(jobs(&server).await, 1);
    // White space and the order of fields make no other request.
    let request = server.request("POST", "/v1/jobs").header("idempotency-key", "k1");
    let same = r#"{ "args": {"a": 2, "b": 1},  "kind": "test.free" }"#;
    let third = Told::by(request.header("content-type", "application/json").body(same)).await;
    assert_eq!((third.status, third.header("idempotent-replayed")), (201, Some("true")));
    // The stored answer stands even when the job has gone on since.
    let id: uuid::Uuid = first.json()["id"].as_str().and_then(|id| id.parse().ok()).expect("an id");
    server.client().cancel(id, &wire::Reason::default(), None).await.expect("cancelled");
    assert_eq!(call().await.text, first.text);
}

#[tokio::test]
async fn another_body_under_the_same_key_is_refused() {
    let server = Server::start().await;
    let call = async |body: serde_json::Value| {
        Told::by(server.request("POST", "/v1/jobs").header("idempotency-key", "k1").json(&body)).await
    };
    assert_eq!(call(json!({"kind": "test.free"})).await.status, 201);
    let told = call(json!({"kind": "test.free", "priority": 1})).await;
    assert_eq!(told.problem(), (422, "idempotency_key_reused".to_owned()));
    assert_eq!(jobs(&server).await, 1);
}

#[tokio::test]
async fn a_key_belongs_to_its_caller_and_its_route() {
    let server = Server::start().await;
    let (_, other) = server.key(IdentityKind::Person, &[Role::Operator], None, Scopes::default()).await;
    let job = wire::NewJob::new("test.free", json!({}));
    let one = server.client().enqueue(&job, Some("k1")).await.expect("enqueued");
    let two = server.client_of(&other).enqueue(&job, Some("k1")).await.expect("enqueued");
    assert!(one.value.id != two.value.id && two.created && !two.replayed);
    let batch = wire::Batch { jobs: vec![job; 2] };
    let first = server.client().enqueue_batch(&batch, Some("k1")).await.expect("another route");
    let second = server.client().enqueue_batch(&batch, Some("k1")).await.expect("answered again");
    assert!(!first.replayed && second.replayed);
    assert_eq!(first.value, second.value);
    assert_eq!(jobs(&server).await, 4);
}

#[tokio::test]
async fn a_key_is_1_to_128_visible_ascii_characters_at_the_door_and_in_the_table() {
    let server = Server::start().await;
    let identity: uuid::Uuid =
        sqlx::query_scalar("select id from identities").fetch_one(server.db.pool()).await.expect("the administrator");
    let insert = async |key: &str| {
        sqlx::query(
            "insert into idempotency_keys (identity_id, route, key, request_hash, status, body, created_at)
             values ($1, 'by hand', $2, '', 201, '', lh_now())",
        )
        .bind(identity)
        .bind(key)
        .execute(server.db.pool())
        .await
        .is_ok()
    };
    let call = async |key: &[u8]| {
        let value = http::HeaderValue::from_bytes(key).expect("a header's value");
        let request = server.request("POST", "/v1/jobs").header("idempotency-key", value);
        Told::by(request.json(&json!({"kind": "test.free"}))).await
    };
    for good in ["!", "~", "a-Z_09", &"k".repeat(128)] {
        assert_eq!(call(good.as_bytes()).await.status, 201, "{good:?}");
        assert!(insert(good).await, "{good:?}");
    }
    for bad in ["", "two words", "a\tb", "é", &"k".repeat(129)] {
        let told = call(bad.as_bytes()).await;
        assert_eq!(told.problem(), (400, "malformed_request".to_owned()), "{bad:?}");
        assert!(!insert(bad).await, "{bad:?}");
    }
    assert!(!insert("a\n").await && !insert("\u{7f}").await, "no header can even carry these");
}

#[tokio::test]
async fn a_refused_call_leaves_its_key_free() {
    let server = Server::start().await;
    let client = server.client();
    let bad = wire::NewJob { priority: Some(1000), ..wire::NewJob::new("test.free", json!({})) };
    assert!(client.enqueue(&bad, Some("k1")).await.is_err());
    let good = wire::NewJob { priority: Some(1), ..bad };
    assert!(client.enqueue(&good, Some("k1")).await.expect("the key was not used up").created);
}

#[tokio::test]
async fn concurrent_calls_under_one_key_act_once() {
    let server = Server::start().await;
    let calls = (0..16).map(|_| {
        let client = server.client();
        async move { client.enqueue(&wire::NewJob::new("test.free", json!({})), Some("same")).await.expect("answered") }
    });
    let answers = futures::future::join_all(calls).await;
    assert_eq!(answers.iter().filter(|answer| !answer.replayed).count(), 1);
    assert!(answers.iter().all(|answer| answer.value == answers[0].value));
    assert_eq!(jobs(&server).await, 1);
}

#[tokio::test]
async fn the_answer_is_written_in_the_transaction_of_the_effect() {
    // A second session holds the key's row uncommitted: the call waits for it. When that session gives up, the call is
    // the first one; had the key been looked up outside the transaction, it would have acted beside the other.
    let server = Server::start().await;
    let mut holder = server.db.session().await;
    let begin = "begin";
    sqlx::query(begin).execute(&mut holder).await.expect("a transaction");
    sqlx::query(
        "insert into idempotency_keys (identity_id, route, key, request_hash, status, body, created_at)
         select id, 'POST /v1/jobs', 'k1', '\\x00', 201, '{}', lh_now() from identities limit 1",
    )
    .execute(&mut holder)
    .await
    .expect("the key is held");
    let client = server.client();
    let call =
        tokio::spawn(async move { client.enqueue(&wire::NewJob::new("test.free", json!({})), Some("k1")).await });
    server.db.until_blocked().await;
    assert_eq!(jobs(&server).await, 0);
    sqlx::query("rollback").execute(&mut holder).await.expect("given up");
    let answer = call.await.expect("the call ends").expect("enqueued");
    assert!(answer.created && !answer.replayed);
    // A job that cannot be written takes its key with it.
    sqlx::query("alter table jobs add constraint none check (kind <> 'test.greet') not valid")
        .execute(server.db.pool())
        .await
        .expect("a rule that the door does not know");
    let told = Told::by(
        server
            .request("POST", "/v1/jobs")
            .header("idempotency-key", "k2")
            .json(&json!({"kind": "test.greet", "args": {"name": "Ada"}})),
    )
    .await;
    assert_eq!(told.problem(), (500, "internal".to_owned()));
    let kept: i64 = sqlx::query_scalar("select count(*) from idempotency_keys where key = 'k2'")
        .fetch_one(server.db.pool())
        .await
        .expect("a count");
    assert_eq!(kept, 0);
    assert!(!told.text.contains("constraint"), "the caller learns no cause of ours: {}", told.text);
}

#[tokio::test]
async fn an_answer_is_kept_for_seven_days() {
    let server = Server::start().await;
    let client = server.client();
    let job = wire::NewJob::new("test.free", json!({}));
    let first = client.enqueue(&job, Some("k1")).await.expect("enqueued");
    server.db.clock().advance(Duration::from_secs(7 * 24 * 3600 - 60)).await;
    assert!(client.enqueue(&job, Some("k1")).await.expect("answered").replayed);
    server.db.clock().advance(Duration::from_secs(120)).await;
    let later = client.enqueue(&job, Some("k1")).await.expect("enqueued anew");
    assert!(later.created && !later.replayed && later.value.id != first.value.id);
}
