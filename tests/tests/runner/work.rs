//! That jobs run.

use domain::queue::JobState;
use serde_json::json;
use tests::db::Database;
use workers::jobs::{Environment, Job as _, registry, system_noop, system_sleep};
use workers::runner::Engine;

use crate::support::{Running, config, enqueue, enqueue_kind, job, until_state};

/// The shipped kinds for trials, from the queue to the end.
pub async fn jobs_run_and_complete(engine: Engine) {
    let db = Database::start().await;
    let noop = enqueue_kind(&db, &system_noop::Noop::spec()).await;
    let sleep = enqueue(&db, &domain::queue::NewJob::new(&system_sleep::Sleep::spec(), json!({"ms": 10}))).await;
    let worker = Running::start(&db, registry(&Environment::new(db.pool().clone())), config(engine));

    let done = until_state(&db, noop, JobState::Completed).await;
    assert_eq!((done.attempt, done.worker), (1, Some(worker.worker())));
    let slept = until_state(&db, sleep, JobState::Completed).await;
    assert_eq!(slept.result, Some(json!({"slept_ms": 10})));

    let summary = worker.stop().await;
    assert_eq!(summary.abandoned, 0);
    assert_eq!(job(&db, noop).await.state, JobState::Completed);
}
