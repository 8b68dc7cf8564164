//! Malformed requests: each refused with a code and a sentence, and nothing done.

use serde_json::json;
use tests::api::{Server, Told};

async fn jobs(server: &Server) -> i64 {
    sqlx::query_scalar("select count(*) from jobs").fetch_one(server.db.pool()).await.expect("a count")
}

#[tokio::test]
async fn a_body_of_the_wrong_shape_is_refused_and_nothing_is_enqueued() {
    let server = Server::start().await;
    let json = "application/json";
    let good = r#"{"kind": "test.free", "args": {}}"#;
    let deep = format!(r#"{{"kind": "test.free", "args": {}{}}}"#, r#"{"a":"#.repeat(500), "}".repeat(500));
    let cases: &[(&str, &str, &str)] = &[
        (json, "", "malformed_request"),
        (json, "{", "malformed_request"),
        (json, "null", "malformed_request"),
        (json, "[]", "malformed_request"),
        (json, "\"text\"", "malformed_request"),
        (json, "{}", "malformed_request"),
        (json, r#"{"kind": 5}"#, "malformed_request"),
        (json, r#"{"kind": null}"#, "malformed_request"),
        (json, r#"{"kind": "test.free", "color": "red"}"#, "malformed_request"),
        (json, r#"{"kind": "test.free", "kind": "test.free"}"#, "malformed_request"),
        (json, r#"{"kind": "test.free", "args": {"a": {"b": 1, "b": 2}}}"#, "malformed_request"),
        (json, r#"{"kind": "test.free", "args": {"a": [{"b": 1, "\u0062": 2}]}}"#, "malformed_request"),
        (json, r#"{"kind": "test.free"} {}"#, "malformed_request"),
        (json, r#"{"kind": "test.free", "priority": "high"}"#, "malformed_request"),
        (json, r#"{"kind": "test.free", "priority": 1.5}"#, "malformed_request"),
        (json, r#"{"kind": "test.free", "run_at": "tomorrow"}"#, "malformed_request"),
        (json, r#"{"kind": "test.free", "tags": "one"}"#, "malformed_request"),
        (json, r#"{"kind": "test.free", "args": {"n": 1e999}}"#, "malformed_request"),
        (json, "{\"kind\": \"test.free\", \"args\": {\"a\": \"\u{1}\"}}", "malformed_request"),
        (json, r#"{"kind": "test.free", "args": {"a": "\ud800"}}"#, "malformed_request"),
        (json, &deep, "malformed_request"),
        ("text/plain", good, "wrong_content_type"),
        ("application/jsonp", good, "wrong_content_type"),
        ("application/json; charset=latin1", good, "wrong_content_type"),
        ("application/x-www-form-urlencoded", "kind=test.free", "wrong_content_type"),
    ];
    for (content_type, body, code) in cases {
        let request = server.request("POST", "/v1/jobs").header("content-type", *content_type);
        let told = Told::by(request.body((*body).to_owned())).await;
        assert_eq!(told.problem(), (400, (*code).to_owned()), "{body}");
    }
    let told = Told::by(server.request("POST", "/v1/jobs").body(good)).await;
    assert_eq!(told.problem(), (400, "wrong_content_type".to_owned()), "no content type at all");
    let compressed = server.request("POST", "/v1/jobs").header("content-type", json).header("content-encoding", "gzip");
    let told = Told::by(compressed.body(good)).await;
    assert_eq!(told.problem(), (400, "wrong_content_type".to_owned()), "a body that says that it is compressed");
    let told = Told::by(server.request("POST", "/v1/jobs").header("content-type", json).body("[]")).await;
    assert!(told.text.contains("The body must be a JSON object."), "{}", told.text);
    let told = Told::by(server.request("POST", "/v1/jobs").header("content-type", json).body(vec![b'"', 0xff])).await;
    assert_eq!(told.problem(), (400, "malformed_request".to_owned()), "no UTF-8");
    assert_eq!(jobs(&server).await, 0);
    let told = Told::by(
        server.request("POST", "/v1/jobs").header("content-type", "Application/JSON; charset=UTF-8").body(good),
    )
    .await;
    assert_eq!(told.status, 201, "{told:?}");
}

/// What is derived for a struct would take an array for its fields in their order, at any depth of any body.
#[tokio::test]
async fn an_array_where_an_object_is_wanted_is_refused_by_its_pointer_in_every_body() {
    let server = Server::start().await;
    let job = json!(["test.free", {}, null, null, null, null, null, [], null, null, false]);
    let cases = [
        ("POST", "/v1/jobs/batch", json!({"jobs": [{"kind": "test.free"}, job]}), "/jobs/1"),
        ("PUT", "/v1/queues/mail/limits", json!({"starts_per_key": [3, 60], "reason": "r"}), "/starts_per_key"),
        (
            "POST",
            "/v1/keys",
            json!({"name": "n", "identity": ["somebody", "person", ["viewer"]], "scopes": {}}),
            "/identity",
        ),
        ("POST", "/v1/keys", json!({"name": "n", "identity_id": uuid::Uuid::nil(), "scopes": [null, null]}), "/scopes"),
    ];
    for (method, place, body, pointer) in cases {
        let told = Told::by(server.request(method, place).json(&body)).await;
        assert_eq!(told.problem(), (400, "malformed_request".to_owned()), "{place} {body}: {}", told.text);
        assert_eq!(told.pointers(), [pointer], "{body}");
        assert!(told.text.contains("expected an object"), "{}", told.text);
    }
    assert_eq!(jobs(&server).await, 0);
}

#[tokio::test]
async fn a_value_out_of_bounds_is_named_by_its_pointer() {
    let server = Server::start().await;
    let long = "x".repeat(256);
    let cases = [
        (json!({"kind": "Not A Kind"}), "/kind"),
        (json!({"kind": "test.free", "queue": "no spaces"}), "/queue"),
        (json!({"kind": "test.free", "queue": ""}), "/queue"),
        (json!({"kind": "test.free", "priority": 101}), "/priority"),
        (json!({"kind": "test.free", "priority": -101}), "/priority"),
        (json!({"kind": "test.free", "priority": 99_999_999}), "/priority"),
        (json!({"kind": "test.free", "max_attempts": 0}), "/max_attempts"),
        (json!({"kind": "test.free", "max_attempts": 1001}), "/max_attempts"),
        (json!({"kind": "test.free", "run_at": "-9999-01-01T00:00:00Z"}), "/run_at"),
        (json!({"kind": "test.free", "run_at": "9999-12-31T23:59:60Z"}), "/run_at"),
        (json!({"kind": "test.free", "run_at": "0000-01-01T00:00:00Z"}), "/run_at"),
        (json!({"kind": "test.free", "deadline_ms": 0}), "/deadline_ms"),
        (json!({"kind": "test.free", "deadline_ms": -1}), "/deadline_ms"),
        (json!({"kind": "test.free", "unique_key": ""}), "/unique_key"),
        (json!({"kind": "test.free", "unique_key": long}), "/unique_key"),
        (json!({"kind": "test.free", "tags": [""]}), "/tags"),
        (json!({"kind": "test.free", "tags": vec!["t"; 21]}), "/tags"),
        (json!({"kind": "test.free", "args": {"a": ["x\u{0}y"]}}), "/args/a/0"),
    ];
    for (body, pointer) in cases {
        let told = Told::by(server.request("POST", "/v1/jobs").json(&body)).await;
        assert_eq!(told.problem(), (422, "validation_failed".to_owned()), "{body}");
        assert_eq!(told.pointers(), [pointer], "{body}");
        // The same rule on the bulk path, with the place in the list (Q-021).
        let batch = json!({"jobs": [{"kind": "test.free"}, body]});
        let told = Told::by(server.request("POST", "/v1/jobs/batch").json(&batch)).await;
        assert_eq!(told.problem(), (422, "validation_failed".to_owned()), "{body}");
        assert_eq!(told.pointers(), [format!("/jobs/1{pointer}")], "{body}");
    }
    assert_eq!(jobs(&server).await, 0);
}

#[tokio::test]
async fn queries_are_taken_exactly_as_they_are_described() {
    let server = Server::start().await;
    for (place, status, code) in [
        ("/v1/jobs?colour=red", 400, "invalid_query"),
        ("/v1/jobs?limit=1&limit=2", 400, "invalid_query"),
        ("/v1/jobs?state=running&st%61te=running", 400, "invalid_query"),
        ("/v1/jobs?limit=many", 400, "invalid_query"),
        ("/v1/jobs?tag=%00", 400, "invalid_query"),
        ("/v1/queues/a%00b", 404, "not_found"),
        ("/v1/jobs?cursor=zz", 400, "invalid_query"),
        ("/v1/jobs?limit=0", 422, "validation_failed"),
        ("/v1/jobs?limit=201", 422, "validation_failed"),
        ("/v1/jobs?state=lost", 422, "validation_failed"),
        ("/v1/jobs?queue=a%20b", 422, "validation_failed"),
        ("/v1/throughput?minutes=0", 422, "validation_failed"),
        ("/v1/fenced-writes?job_id=x", 422, "validation_failed"),
        ("/v1/kinds?color=red", 400, "invalid_query"),
        ("/healthz?x=1", 400, "invalid_query"),
    ] {
        let told = Told::by(server.request("GET", place)).await;
        assert_eq!(told.problem(), (status, code.to_owned()), "{place}");
    }
    let told = Told::by(server.request("POST", "/v1/jobs?x=1").json(&json!({"kind": "test.free"}))).await;
    assert_eq!(told.problem(), (400, "invalid_query".to_owned()));
    assert_eq!(jobs(&server).await, 0);
}

#[tokio::test]
async fn announced_bodies_beyond_the_limit_are_refused() {
    let server = Server::start().await;
    let body = format!(r#"{{"kind": "test.free", "args": {{"a": "{}"}}}}"#, "x".repeat(1024 * 1024));
    let request = server.request("POST", "/v1/jobs").header("content-type", "application/json");
    assert_eq!(Told::by(request.body(body.clone())).await.problem(), (413, "body_too_large".to_owned()));
    // The batch takes what one call may not: the same bytes pass its limit and meet the payload's (Q-024).
    let request = server.request("POST", "/v1/jobs/batch").header("content-type", "application/json");
    let told = Told::by(request.body(format!(r#"{{"jobs": [{body}]}}"#))).await;
    assert_eq!(told.problem(), (413, "payload_too_large".to_owned()));
    assert_eq!(jobs(&server).await, 0);
}

#[tokio::test]
async fn preconditions_and_keys_of_the_wrong_form_are_refused() {
    let server = Server::start().await;
    let job = server.client().enqueue(&wire::NewJob::new("test.free", json!({})), None).await.expect("enqueued").value;
    let place = format!("/v1/jobs/{}/cancel", job.id);
    for tag in ["1", "W/\"1\"", "\"1\", \"2\"", "\"x\"", ""] {
        let told = Told::by(server.request("POST", &place).header("if-match", tag)).await;
        assert_eq!(told.problem(), (400, "malformed_request".to_owned()), "{tag:?}");
    }
    for key in ["", &"k".repeat(256), "ключ"] {
        let request = server.request("POST", "/v1/jobs").header("idempotency-key", key);
        let told = Told::by(request.json(&json!({"kind": "test.free"}))).await;
        assert_eq!(told.problem(), (400, "malformed_request".to_owned()), "{key:?}");
    }
    assert_eq!(jobs(&server).await, 1);
}
