//! cancelling what runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

use domain::queue::{JobState, KindSpec};
use serde_json::json;
use tests::db::Database;
use workers::runner::{Done, Engine, JobError};

use crate::support::{
    PATIENCE, Running, SHORT_LEASE, act, cancel, complete, config, enqueue_kind, kind, until_some, until_state,
};

fn spec() -> KindSpec {
    KindSpec { lease: SHORT_LEASE, ..kind("test.act") }
}

/// The request comes with the renewal's answer, so within a third of a lease, and without any notification.
pub async fn a_cancellation_reaches_a_running_handler_within_a_third_of_a_lease(engine: Engine) {
    let db = Database::start().await;
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let registry = act(spec(), move |_, context| {
        count.fetch_add(1, SeqCst);
        async move {
            context.cancel.cancelled().await;
            context.check()?;
            complete()
        }
    });
    let id = enqueue_kind(&db, &spec()).await;
    let worker = Running::start(&db, registry, config(engine));
    until_some("the handler runs", async || (begun.load(SeqCst) == 1).then_some(())).await;

    let asked = Instant::now();
    cancel(&db, id, "a mistake").await;
    let job = until_state(&db, id, JobState::Cancelled).await;

    // A third of a lease, and as much again for a busy machine.
    assert!(asked.elapsed() < SHORT_LEASE * 2 / 3, "{:?}", asked.elapsed());
    assert_eq!(job.last_error, Some(json!({"code": "cancelled", "message": "a mistake"})));
    assert_eq!(begun.load(SeqCst), 1);
    worker.stop().await;
}

/// A handler that ignores it is dropped after a grace.
pub async fn a_handler_that_ignores_its_cancellation_is_dropped(engine: Engine) {
    let db = Database::start().await;
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let registry = act(spec(), move |_, _| {
        count.fetch_add(1, SeqCst);
        std::future::pending()
    });
    let id = enqueue_kind(&db, &spec()).await;
    let worker = Running::start(&db, registry, config(engine));
    until_some("the handler runs", async || (begun.load(SeqCst) == 1).then_some(())).await;

    let asked = Instant::now();
    cancel(&db, id, "a mistake").await;
    until_state(&db, id, JobState::Cancelled).await;

    assert!(asked.elapsed() < PATIENCE / 2);
    assert_eq!(begun.load(SeqCst), 1);
    worker.stop().await;
}

/// What was done is done, though somebody asked for its end meanwhile; what failed is not tried again.
pub async fn a_handler_that_completes_all_the_same_has_completed(engine: Engine) {
    let db = Database::start().await;
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let registry = act(spec(), move |args, context| {
        count.fetch_add(1, SeqCst);
        async move {
            context.cancel.cancelled().await;
            if args["fail"] == json!(true) {
                return Err(JobError::from(anyhow::anyhow!("cut short")));
            }
            Ok(Done::Complete(json!("done anyway")))
        }
    });
    let done = enqueue_kind(&db, &spec()).await;
    let failed = crate::support::enqueue(&db, &domain::queue::NewJob::new(&spec(), json!({"fail": true}))).await;
    let worker = Running::start(&db, registry, config(engine));
    until_some("both run", async || (begun.load(SeqCst) == 2).then_some(())).await;

    cancel(&db, done, "a mistake").await;
    cancel(&db, failed, "a mistake").await;

    let job = until_state(&db, done, JobState::Completed).await;
    assert_eq!(job.result, Some(json!("done anyway")));
    let job = until_state(&db, failed, JobState::Cancelled).await;
    assert_eq!(job.attempt, 1);
    worker.stop().await;
}
