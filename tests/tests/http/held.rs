//! Why a job does not run that an operator's pause or limit holds back, against a real database.

use std::time::Duration;

use serde_json::json;
use tests::api::Server;
use wire::{KindPause, LimitsRequest, NewJob, Rate, Reason};

use crate::why::{codes, enqueue, first, free, lease, settle, worker};

fn because(text: &str) -> Reason {
    Reason { reason: Some(text.to_owned()) }
}

fn keyed(key: &str) -> NewJob {
    NewJob { concurrency_key: Some(key.to_owned()), ..free() }
}

async fn limit(server: &Server, limits: LimitsRequest) {
    let limits = LimitsRequest { reason: Some("a test".to_owned()), ..limits };
    server.client().set_limits("default", &limits, None).await.expect("set");
}

#[tokio::test]
async fn a_pause_of_the_queue_and_one_of_the_kind_are_told_with_who_since_and_why() {
    let server = Server::start().await;
    let client = server.client();
    let spec = worker(&server, &["default"], "test.free", 2).await;
    let running = enqueue(&server, &free()).await;
    lease(&server, &spec).await;
    let id = enqueue(&server, &free()).await;
    let later = server.db.clock().now().await + Duration::from_secs(3600);
    let future = enqueue(&server, &NewJob { run_at: Some(later), ..free() }).await;
    let pause = client.pause_queue("default", &because("relay maintenance"), None).await.expect("paused").value;
    let told = first(&server, id).await;
    assert_eq!((told.code.as_str(), told.since), ("paused_queue", Some(pause.paused_at)));
    assert_eq!((told.by.as_deref(), told.reason.as_deref()), (Some("administrator"), Some("relay maintenance")));
    assert!(told.message.contains("leasehold queue resume default --reason"), "{}", told.message);
    let of_kind = KindPause { reason: Some("a bad release".to_owned()), allow_unknown_kind: false };
    client.pause_kind("test.free", &of_kind, None).await.expect("paused");
    assert_eq!(codes(&server, id).await, ["paused_queue", "paused_kind"]);
    assert_eq!(codes(&server, future).await, ["scheduled", "paused_queue", "paused_kind"]);
    assert_eq!(codes(&server, running).await, ["running"], "what runs is held by nothing");
    client.resume_queue("default", &because("x"), None).await.expect("resumed");
    let told = first(&server, id).await;
    assert_eq!((told.code.as_str(), told.reason.as_deref()), ("paused_kind", Some("a bad release")));
    client.resume_kind("test.free", &because("x"), None).await.expect("resumed");
    assert_eq!(codes(&server, id).await, ["next"]);
}

#[tokio::test]
async fn a_full_limit_of_the_queue_names_who_holds_it_until_a_place_is_free() {
    let server = Server::start().await;
    let spec = worker(&server, &["default"], "test.free", 10).await;
    limit(&server, LimitsRequest { running: Some(2), ..LimitsRequest::default() }).await;
    for _ in 0..3 {
        enqueue(&server, &free()).await;
    }
    let one = lease(&server, &spec).await;
    let id = enqueue(&server, &free()).await;
    assert_eq!(codes(&server, id).await, ["behind_others"], "a place is free");
    let two = lease(&server, &spec).await;
    let told = first(&server, id).await;
    assert_eq!((told.code.as_str(), told.limit, told.running), ("queue_limit", Some(2), Some(2)));
    let holders: Vec<_> = told.holders.iter().map(|held| (held.job_id, held.worker_id)).collect();
    assert_eq!(holders, [(one.lease.job.0, spec.worker.0), (two.lease.job.0, spec.worker.0)]);
    assert!(told.message.starts_with("2 of 2 jobs"), "{}", told.message);
    // Lowered, more run than may.
    limit(&server, LimitsRequest { running: Some(1), ..LimitsRequest::default() }).await;
    let told = first(&server, id).await;
    assert_eq!((told.limit, told.running), (Some(1), Some(2)));
    settle(&server, &one, domain::queue::Outcome::Completed { result: json!({}) }).await;
    assert_eq!(first(&server, id).await.running, Some(1));
    settle(&server, &two, domain::queue::Outcome::Completed { result: json!({}) }).await;
    assert_eq!(codes(&server, id).await, ["behind_others"], "free again, though nobody freed it");
}

#[tokio::test]
async fn a_full_limit_of_a_key_holds_the_jobs_of_that_key_alone() {
    let server = Server::start().await;
    let spec = worker(&server, &["default"], "test.free", 10).await;
    limit(&server, LimitsRequest { running_per_key: Some(1), ..LimitsRequest::default() }).await;
    enqueue(&server, &keyed("acme")).await;
    let holder = lease(&server, &spec).await;
    let (held, other, plain) = (
        enqueue(&server, &keyed("acme")).await,
        enqueue(&server, &keyed("globex")).await,
        enqueue(&server, &free()).await,
    );
    let told = first(&server, held).await;
    assert_eq!((told.code.as_str(), told.key.as_deref(), told.limit), ("key_limit", Some("acme"), Some(1)));
    assert_eq!(told.holders.iter().map(|held| held.job_id).collect::<Vec<_>>(), [holder.lease.job.0]);
    for id in [other, plain] {
        assert!(!codes(&server, id).await.contains(&"key_limit".to_owned()));
    }
}

#[tokio::test]
async fn a_spent_rate_says_exactly_when_the_next_start_is_free() {
    let server = Server::start().await;
    let spec = worker(&server, &["default"], "test.free", 10).await;
    let rate = Rate { starts: 2, span_seconds: 60 };
    limit(&server, LimitsRequest { starts_per_key: Some(rate), ..LimitsRequest::default() }).await;
    for _ in 0..3 {
        enqueue(&server, &keyed("acme")).await;
    }
    let one = lease(&server, &spec).await;
    server.db.clock().advance(Duration::from_secs(20)).await;
    let two = lease(&server, &spec).await;
    for leased in [&one, &two] {
        settle(&server, leased, domain::queue::Outcome::Completed { result: json!({}) }).await;
    }
    let id = client_newest(&server).await;
    let told = first(&server, id).await;
    assert_eq!((told.code.as_str(), told.limit, told.jobs), ("rate_limit", Some(2), Some(2)));
    let until = told.until.expect("a time");
    let started: chrono::DateTime<chrono::Utc> =
        sqlx::query_scalar("select min(taken_at) from slots where what = 'start'")
            .fetch_one(server.db.pool())
            .await
            .expect("the first start");
    assert_eq!(until, started + Duration::from_secs(60), "when the first start is a span ago");
    // Lowered to one, both must be over.
    let less = Rate { starts: 1, span_seconds: 60 };
    limit(&server, LimitsRequest { starts_per_key: Some(less), ..LimitsRequest::default() }).await;
    let told = first(&server, id).await;
    assert!(told.until.is_some_and(|later| later >= until + Duration::from_secs(20)), "{told:?}");
    limit(&server, LimitsRequest { starts_per_key: Some(rate), ..LimitsRequest::default() }).await;
    // Shortly before that moment it is not free, and at it it is; a lease says the same.
    let (now, shortly) = (server.db.clock().now().await, Duration::from_secs(15));
    server.db.clock().advance((until - now).to_std().expect("ahead") - shortly).await;
    let spec = worker(&server, &["default"], "test.free", 10).await;
    assert_eq!(first(&server, id).await.until, Some(until));
    let mut conn = server.db.pool().acquire().await.expect("a connection");
    assert!(domain::queue::lease_next(&mut conn, &spec, 1, &[]).await.expect("answers").is_empty());
    server.db.clock().advance(shortly).await;
    assert_eq!(codes(&server, id).await, ["next"]);
    assert_eq!(lease(&server, &spec).await.lease.job.0, id);
}

async fn client_newest(server: &Server) -> uuid::Uuid {
    let due = wire::JobFilter { state: Some(wire::JobState::Available), ..wire::JobFilter::default() };
    server.client().jobs(&due).await.expect("the jobs").items[0].id
}
