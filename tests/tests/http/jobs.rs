//! Enqueueing and reading: one at a time and in bulk, unique keys, kinds and payloads.

use domain::authority::{IdentityKind, Permission, Role, Scopes};
use serde_json::json;
use tests::api::{Server, Told};
use wire::{Batch, JobFilter, JobState, NewJob};

fn free() -> NewJob {
    NewJob::new("test.free", json!({}))
}

#[tokio::test]
async fn a_job_is_enqueued_and_read_back_as_it_was_asked_for() {
    let server = Server::start().await;
    let client = server.client();
    let asked = NewJob {
        queue: Some("mail".to_owned()),
        priority: Some(-5),
        max_attempts: Some(3),
        deadline_ms: Some(60_000),
        tags: vec!["red".to_owned(), "blue".to_owned()],
        unique_key: Some("ada".to_owned()),
        ..NewJob::new("test.greet", json!({"name": "Ada", "times": 2}))
    };
    let made = client.enqueue(&asked, None).await.expect("enqueued");
    assert!(made.created && !made.replayed);
    let job = made.value;
    assert_eq!((job.kind.as_str(), job.queue.as_str(), job.state), ("test.greet", "mail", JobState::Available));
    assert_eq!((job.priority, job.max_attempts, job.attempt, job.revision), (-5, 3, 0, 1));
    assert_eq!(job.args, asked.args);
    assert_eq!(job.tags, asked.tags);
    assert!(job.unserved, "no worker serves it yet, and the answer says so");
    assert_eq!(client.job(job.id).await.expect("found"), job);
    let deadline: i64 = sqlx::query_scalar("select deadline_ms from jobs where id = $1")
        .bind(job.id)
        .fetch_one(server.db.pool())
        .await
        .expect("the row");
    assert_eq!(deadline, 60_000);
    let told = Told::by(server.request("GET", &format!("/v1/jobs/{}", job.id))).await;
    assert_eq!(told.header("etag"), Some("\"1\""));
    let fields = told.json();
    for field in ["lease", "progress", "concurrency_key", "last_error", "finished_at"] {
        assert!(fields[field].is_null(), "{field} is told also while there is none");
    }
}

#[tokio::test]
async fn the_callers_trace_is_kept_on_the_job_and_a_malformed_one_is_left_out() {
    let server = Server::start().await;
    let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for (sent, kept) in [(good, Some(good)), ("00-zz", None), ("00-0-0-0", None)] {
        let request = server.request("POST", "/v1/jobs").header("traceparent", sent);
        let told = Told::by(request.json(&json!({"kind": "test.free"}))).await;
        assert_eq!(told.status, 201);
        let found: Option<String> = sqlx::query_scalar("select traceparent from jobs where id = $1::uuid")
            .bind(told.json()["id"].as_str())
            .fetch_one(server.db.pool())
            .await
            .expect("the row");
        assert_eq!(found.as_deref(), kept);
    }
}

#[tokio::test]
async fn arguments_that_break_the_kinds_schema_are_refused_by_their_pointers() {
    let server = Server::start().await;
    for (args, pointers) in [
        (json!({}), vec!["/args/name"]),
        (json!({"name": 5}), vec!["/args/name"]),
        (json!({"name": "Ada", "times": 300}), vec!["/args/times"]),
        (json!({"name": "Ada", "a/b": 1}), vec!["/args/a~1b"]),
        (json!({"times": "often", "colour": 1}), vec!["/args/colour", "/args/name", "/args/times"]),
        (json!([]), vec!["/args"]),
        (json!(null), vec!["/args"]),
    ] {
        let body = json!({"kind": "test.greet", "args": args});
        let told = Told::by(server.request("POST", "/v1/jobs").json(&body)).await;
        assert_eq!(told.problem(), (422, "validation_failed".to_owned()), "{args}");
        let mut found = told.pointers();
        found.sort();
        assert_eq!(found, pointers, "{args}: {}", told.text);
        let told = Told::by(server.request("POST", "/v1/jobs/batch").json(&json!({"jobs": [body]}))).await;
        let mut found = told.pointers();
        found.sort();
        let expected: Vec<String> = pointers.iter().map(|pointer| format!("/jobs/0{pointer}")).collect();
        assert_eq!(found, expected, "the same rule in bulk");
    }
}

#[tokio::test]
async fn an_unknown_kind_is_refused_unless_told_otherwise_and_an_inner_kind_always() {
    let server = Server::start().await;
    let client = server.client();
    let error = client.enqueue(&NewJob::new("test.gret", json!({})), None).await.expect_err("a typing mistake");
    let problem = error.problem().expect("a problem");
    assert!(problem.is(wire::Code::UnknownKind) && problem.detail.contains("test.greet"), "{problem}");
    assert!(!problem.detail.contains("test.inner"), "what callers cannot enqueue is not offered");
    let newer = NewJob { allow_unknown_kind: true, ..NewJob::new("test.newer", json!({"x": 1})) };
    let job = client.enqueue(&newer, None).await.expect("told otherwise").value;
    assert_eq!((job.kind.as_str(), job.queue.as_str()), ("test.newer", "default"));
    for allow_unknown_kind in [false, true] {
        let inner = NewJob { allow_unknown_kind, ..NewJob::new("test.inner", json!({})) };
        let error = client.enqueue(&inner, None).await.expect_err("its own verb enqueues it");
        assert!(error.problem().is_some_and(|p| p.is(wire::Code::KindNotPublic)), "{error}");
    }
}

#[tokio::test]
async fn an_unknown_kind_needs_an_operator_and_never_has_a_name_of_ours() {
    let server = Server::start().await;
    let (_, writer) =
        server.key(IdentityKind::Person, &[Role::Operator], Some(&[Permission::JobsWrite]), Scopes::default()).await;
    let newer = |kind: &str| NewJob { allow_unknown_kind: true, ..NewJob::new(kind, json!({})) };
    let writes = server.client_of(&writer);
    assert!(writes.enqueue(&free(), None).await.is_ok(), "a known kind needs no more than jobs.write");
    for result in [
        writes.enqueue(&newer("test.newer"), None).await.err(),
        writes.enqueue_batch(&Batch { jobs: vec![newer("test.newer")] }, None).await.err(),
    ] {
        let error = result.expect("no operator");
        let problem = error.problem().expect("a problem");
        assert!(problem.is(wire::Code::PermissionDenied) && problem.detail.contains("jobs.operate"), "{problem}");
    }
    for ours in ["artifact.push", "instance.move", "node.drain", "platform.sweep"] {
        for result in [
            server.client().enqueue(&newer(ours), None).await.err(),
            server.client().enqueue_batch(&Batch { jobs: vec![newer(ours)] }, None).await.err(),
        ] {
            let error = result.expect("a name of ours");
            assert!(error.problem().is_some_and(|p| p.is(wire::Code::KindNotPublic)), "{ours}: {error}");
        }
    }
    assert!(server.client().enqueue(&newer("test.newer"), None).await.expect("an operator").created);
}

#[tokio::test]
async fn a_payload_is_taken_up_to_its_limit_and_not_a_byte_more() {
    let server = Server::start().await;
    let client = server.client();
    let of_size = |bytes: usize| NewJob::new("test.free", json!({"a": "x".repeat(bytes - r#"{"a":""}"#.len())}));
    assert!(client.enqueue(&of_size(256 * 1024), None).await.is_ok());
    for result in [
        client.enqueue(&of_size(256 * 1024 + 1), None).await.err(),
        client.enqueue_batch(&Batch { jobs: vec![free(), of_size(256 * 1024 + 1)] }, None).await.err(),
    ] {
        let error = result.expect("too large");
        assert!(error.problem().is_some_and(|p| p.is(wire::Code::PayloadTooLarge) && p.status == 413), "{error}");
    }
    let rows: i64 = sqlx::query_scalar("select count(*) from jobs").fetch_one(server.db.pool()).await.expect("a count");
    assert_eq!(rows, 1);
}

#[tokio::test]
async fn a_unique_key_answers_with_the_live_job_and_is_free_again_when_that_ends() {
    let server = Server::start().await;
    let client = server.client();
    let keyed = |priority| NewJob { unique_key: Some("one".to_owned()), priority: Some(priority), ..free() };
    let first = client.enqueue(&keyed(1), None).await.expect("enqueued");
    let second = client.enqueue(&keyed(2), None).await.expect("answered");
    assert!(first.created && !second.created && !second.replayed);
    assert_eq!(second.value, first.value, "the live job is the answer, unchanged");
    let batch = Batch {
        jobs: vec![
            keyed(3),
            free(),
            NewJob { unique_key: Some("two".to_owned()), ..free() },
            NewJob { unique_key: Some("two".to_owned()), ..free() },
        ],
    };
    let items = client.enqueue_batch(&batch, None).await.expect("a conflict never fails a batch").value.items;
    assert_eq!(items.iter().map(|item| item.created).collect::<Vec<_>>(), [false, true, true, false]);
    assert_eq!((items[0].id, items[3].id), (first.value.id, items[2].id));
    client.cancel(first.value.id, &wire::Reason::default(), None).await.expect("cancelled");
    let third = client.enqueue(&keyed(4), None).await.expect("enqueued");
    assert!(third.created, "a finished job holds no key");
    let error = client.retry(first.value.id, &wire::Reason::default(), None).await.expect_err("the key is taken");
    assert!(error.problem().is_some_and(|p| p.is(wire::Code::JobConflict)), "{error}");
}

#[tokio::test]
async fn many_callers_with_one_unique_key_make_one_job() {
    let server = Server::start().await;
    let calls = (0..32).map(|_| {
        let client = server.client();
        async move {
            let keyed = NewJob { unique_key: Some("same".to_owned()), ..NewJob::new("test.free", json!({})) };
            client.enqueue(&keyed, None).await.expect("enqueued")
        }
    });
    let answers = futures::future::join_all(calls).await;
    assert_eq!(answers.iter().filter(|answer| answer.created).count(), 1);
    assert!(answers.iter().all(|answer| answer.value.id == answers[0].value.id));
}

#[tokio::test]
async fn a_batch_is_taken_whole_or_not_at_all_and_up_to_its_limit() {
    let server = Server::start().await;
    let client = server.client();
    let bad = NewJob { priority: Some(1000), ..free() };
    let error = client.enqueue_batch(&Batch { jobs: vec![free(), free(), bad] }, None).await.expect_err("one is bad");
    assert!(error.problem().is_some_and(|p| p.errors[0].pointer.as_deref() == Some("/jobs/2/priority")), "{error}");
    for size in [0, 10_001] {
        let error = client.enqueue_batch(&Batch { jobs: vec![free(); size] }, None).await.expect_err("out of bounds");
        assert!(error.problem().is_some_and(|p| p.errors[0].pointer.as_deref() == Some("/jobs")), "{error}");
    }
    let rows = "select count(*) from jobs";
    let count: i64 = sqlx::query_scalar(rows).fetch_one(server.db.pool()).await.expect("a count");
    assert_eq!(count, 0);
    let made = client.enqueue_batch(&Batch { jobs: vec![free(); 10_000] }, None).await.expect("enqueued").value;
    assert_eq!(made.items.len(), 10_000);
    let count: i64 = sqlx::query_scalar(rows).fetch_one(server.db.pool()).await.expect("a count");
    assert_eq!(count, 10_000);
}

#[tokio::test]
async fn lists_filter_and_page_through_everything_once() {
    let server = Server::start().await;
    let client = server.client();
    for i in 0..5 {
        let tags = vec![if i % 2 == 0 { "even".to_owned() } else { "odd".to_owned() }];
        client.enqueue(&NewJob { tags, queue: Some(format!("q{}", i % 2)), ..free() }, None).await.expect("enqueued");
    }
    let mut seen = Vec::new();
    let mut filter = JobFilter { limit: Some(2), ..JobFilter::default() };
    loop {
        let page = client.jobs(&filter).await.expect("a page");
        seen.extend(page.items.iter().map(|job| job.id));
        filter.cursor = page.next_cursor;
        if filter.cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), 5);
    assert!(seen.windows(2).all(|pair| pair[0] > pair[1]), "newest first, each once");
    let count = async |filter: JobFilter| client.jobs(&filter).await.expect("a page").items.len();
    assert_eq!(count(JobFilter { tag: Some("even".to_owned()), ..JobFilter::default() }).await, 3);
    assert_eq!(count(JobFilter { queue: Some("q1".to_owned()), ..JobFilter::default() }).await, 2);
    assert_eq!(count(JobFilter { state: Some(JobState::Completed), ..JobFilter::default() }).await, 0);
    assert_eq!(count(JobFilter { kind: Some("test.greet".to_owned()), ..JobFilter::default() }).await, 0);
    let queues = client.queues().await.expect("the queues").items;
    assert_eq!(queues.iter().map(|q| (q.name.as_str(), q.available)).collect::<Vec<_>>(), [("q0", 3), ("q1", 2)]);
    assert_eq!(client.queue("q1").await.expect("one queue").available, 2);
}

#[tokio::test]
async fn what_was_enqueued_is_counted_by_the_minute() {
    let server = Server::start().await;
    let client = server.client();
    client.enqueue_batch(&Batch { jobs: vec![free(); 7] }, None).await.expect("enqueued");
    let counted = async || {
        let points = client.throughput(5).await.expect("the counts").items;
        points.iter().filter(|p| p.outcome == "enqueued" && p.kind == "test.free").map(|p| p.total).sum::<i64>() == 7
    };
    tests::api::until("seven jobs are counted", counted).await;
}
