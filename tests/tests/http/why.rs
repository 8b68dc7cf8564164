//! "Why is this job not running?" over HTTP, case by case.

use std::time::Duration;

use domain::ids::WorkerId;
use domain::queue::{self, Leased, Outcome, Settlement, WorkerSpec};
use serde_json::json;
use tests::api::Server;
use wire::{NewJob, Reason, Why, WhyReason};

/// A registered worker for `test.free` that runs `concurrency` jobs at once.
pub(crate) async fn worker(server: &Server, queues: &[&str], kind: &str, concurrency: u16) -> WorkerSpec {
    let spec = WorkerSpec {
        worker: WorkerId::generate(),
        queues: queues.iter().map(|name| name.parse().expect("a name")).collect(),
        kinds: vec![(kind.parse().expect("a name"), Duration::from_secs(30))],
    };
    let mut conn = server.db.pool().acquire().await.expect("a connection");
    queue::register_worker(&mut conn, &spec, "box", 1, "0", None, concurrency).await.expect("registered");
    spec
}

pub(crate) async fn lease(server: &Server, spec: &WorkerSpec) -> Leased {
    let mut conn = server.db.pool().acquire().await.expect("a connection");
    queue::lease_next(&mut conn, spec, 1, &[]).await.expect("answers").pop().expect("one is due")
}

pub(crate) async fn settle(server: &Server, leased: &Leased, outcome: Outcome) {
    let mut conn = server.db.pool().acquire().await.expect("a connection");
    queue::settle(&mut conn, &[Settlement { lease: leased.lease, outcome }]).await.expect("settled");
}

pub(crate) async fn enqueue(server: &Server, job: &NewJob) -> uuid::Uuid {
    server.client().enqueue(job, None).await.expect("enqueued").value.id
}

pub(crate) fn free() -> NewJob {
    NewJob::new("test.free", json!({}))
}

pub(crate) async fn why(server: &Server, id: uuid::Uuid) -> Why {
    let why = server.client().why(id).await.expect("an answer");
    assert_eq!(why.job_id, id);
    why
}

pub(crate) async fn codes(server: &Server, id: uuid::Uuid) -> Vec<String> {
    why(server, id).await.reasons.into_iter().map(|reason| reason.code).collect()
}

pub(crate) async fn first(server: &Server, id: uuid::Uuid) -> WhyReason {
    why(server, id).await.reasons.remove(0)
}

#[tokio::test]
async fn who_is_missing_is_told_queue_kind_silence_and_drain_apart() {
    let server = Server::start().await;
    let id = enqueue(&server, &free()).await;
    assert_eq!(codes(&server, id).await, ["unserved_queue"]);
    worker(&server, &["elsewhere"], "test.free", 10).await;
    assert_eq!(codes(&server, id).await, ["unserved_queue"]);
    worker(&server, &["default"], "test.greet", 10).await;
    assert_eq!(codes(&server, id).await, ["unserved_kind"]);
    let spec = worker(&server, &["default"], "test.free", 10).await;
    assert_eq!(codes(&server, id).await, ["next"]);
    let mut conn = server.db.pool().acquire().await.expect("a connection");
    queue::drain_worker(&mut conn, spec.worker).await.expect("noted");
    assert_eq!(codes(&server, id).await, ["workers_draining"]);
    server.db.clock().advance(Duration::from_secs(40)).await;
    let silent = first(&server, id).await;
    assert_eq!((silent.code.as_str(), silent.worker_id), ("workers_silent", Some(spec.worker.0)));
    let now = server.db.clock().now().await;
    assert!(silent.since.is_some_and(|since| since < now - Duration::from_secs(30)), "{silent:?}");
    queue::stop_worker(&mut conn, spec.worker).await.expect("noted");
    assert_eq!(codes(&server, id).await, ["unserved_queue"], "who stopped in order serves nothing");
}

#[tokio::test]
async fn full_workers_and_the_jobs_ahead_are_told_with_their_numbers() {
    let server = Server::start().await;
    let spec = worker(&server, &["default", "other"], "test.free", 2).await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(enqueue(&server, &free()).await);
    }
    // Of another queue of the same worker, and before all the others.
    let urgent = NewJob { queue: Some("other".to_owned()), priority: Some(-1), ..free() };
    enqueue(&server, &urgent).await;
    let behind = first(&server, ids[4]).await;
    assert_eq!((behind.code.as_str(), behind.jobs, behind.jobs_at_least), ("behind_others", Some(5), false));
    // A worker of this queue alone takes it sooner.
    worker(&server, &["default"], "test.free", 0).await;
    assert_eq!(first(&server, ids[4]).await.jobs, Some(4));
    for _ in 0..2 {
        lease(&server, &spec).await;
    }
    let told = why(&server, ids[4]).await.reasons;
    assert_eq!(told.iter().map(|r| r.code.as_str()).collect::<Vec<_>>(), ["workers_full", "behind_others"]);
    assert_eq!((told[0].workers, told[0].running, told[0].concurrency), (Some(2), Some(2), Some(2)));
    assert_eq!(told[1].jobs, Some(3), "those that run are ahead of nobody");
    assert_eq!(codes(&server, ids[1]).await, ["workers_full"]);
}

#[test]
fn the_description_names_every_code_of_a_reason() {
    let described = serde_json::to_value(api::openapi()).expect("JSON");
    let text = described["components"]["schemas"]["WhyReason"]["properties"]["code"]["description"].as_str();
    let text = text.expect("a description");
    let missing: Vec<_> = queue::why::CODES.iter().filter(|code| !text.contains(&format!("`{code}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert_eq!(text.matches('`').count(), 2 * queue::why::CODES.len());
}

#[tokio::test]
async fn jobs_ahead_are_counted_up_to_a_thousand() {
    let server = Server::start().await;
    worker(&server, &["default"], "test.free", 2).await;
    let id = enqueue(&server, &NewJob { priority: Some(1), ..free() }).await;
    let batch = wire::Batch { jobs: vec![free(); 1100] };
    server.client().enqueue_batch(&batch, None).await.expect("enqueued");
    let behind = first(&server, id).await;
    assert_eq!((behind.code.as_str(), behind.jobs, behind.jobs_at_least), ("behind_others", Some(1000), true));
    assert!(behind.message.starts_with("At least 1000"), "{}", behind.message);
}

#[tokio::test]
async fn a_wait_is_told_with_its_end_and_the_error_before_it() {
    let server = Server::start().await;
    let spec = worker(&server, &["default"], "test.free", 2).await;
    let later = server.db.clock().now().await + Duration::from_secs(3600);
    let id = enqueue(&server, &NewJob { run_at: Some(later), ..free() }).await;
    let reason = first(&server, id).await;
    assert_eq!(reason.code, "scheduled");
    assert!(reason.until.is_some_and(|until| (until - later).num_milliseconds().abs() < 1), "{reason:?}");
    let failing = enqueue(&server, &free()).await;
    let leased = lease(&server, &spec).await;
    let error = json!({"code": "boom", "message": "it broke"});
    settle(&server, &leased, Outcome::Failed { error: error.clone(), after: Duration::from_secs(60) }).await;
    let reason = first(&server, failing).await;
    assert_eq!((reason.code.as_str(), reason.error), ("waits_for_retry", Some(error)));
    assert!(reason.message.contains("it broke") && reason.until.is_some(), "{}", reason.message);
    server.db.clock().advance(Duration::from_secs(20)).await;
    let snoozing = enqueue(&server, &free()).await;
    let leased = lease(&server, &spec).await;
    settle(&server, &leased, Outcome::Snoozed { after: Duration::from_secs(60) }).await;
    assert_eq!(codes(&server, snoozing).await, ["snoozed"]);
    server.db.clock().advance(Duration::from_secs(60)).await;
    // Nobody swept since, and the only worker was not heard meanwhile.
    assert_eq!(codes(&server, snoozing).await, ["due_soon", "workers_silent"]);
}

#[tokio::test]
async fn a_running_job_names_its_worker_its_lease_and_who_asked_it_to_end() {
    let server = Server::start().await;
    let spec = worker(&server, &["default"], "test.free", 2).await;
    let id = enqueue(&server, &free()).await;
    let leased = lease(&server, &spec).await;
    let reason = first(&server, id).await;
    assert_eq!((reason.code.as_str(), reason.worker_id), ("running", Some(spec.worker.0)));
    assert_eq!((reason.since, reason.until), (Some(leased.leased_at), Some(leased.expires_at)));
    let asked = Reason { reason: Some("not needed".to_owned()) };
    server.client().cancel(id, &asked, None).await.expect("asked");
    let told = why(&server, id).await.reasons;
    assert_eq!(told[1].code, "cancel_requested");
    assert!(told[1].message.contains("not needed") && told[1].since.is_some() && told[1].until.is_some());
    server.db.clock().advance(Duration::from_secs(31)).await;
    assert_eq!(codes(&server, id).await, ["lease_expired", "cancel_requested"]);
    settle(&server, &leased, Outcome::Discarded { error: json!({"code": "x", "message": "no use"}) }).await;
    let over = why(&server, id).await;
    assert_eq!((over.state, over.reasons.len()), (wire::JobState::Discarded, 1));
    let reason = &over.reasons[0];
    assert_eq!((reason.code.as_str(), reason.since.is_some()), ("discarded", true));
    assert!(reason.message.contains("no use"), "{}", reason.message);
}
