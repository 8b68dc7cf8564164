//! Handlers that settle inside a transaction of their own, and what the runner makes of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use domain::queue::{JobState, KindSpec};
use serde_json::json;
use sqlx::{PgPool, Postgres, Transaction};
use tests::db::Database;
use workers::runner::{Done, Engine, JobError, RunnerConfig};

use crate::support::{
    Flag, Running, SHORT_LEASE, act, attempts, complete, config, enqueue_kind, job, kind, measured, meters, refused,
    until_some, until_state,
};

fn local() -> KindSpec {
    KindSpec { local_db: true, ..kind("test.act") }
}

/// A database with a domain's own table.
async fn start() -> Database {
    let db = Database::start().await;
    sqlx::query("create table change (n integer)").execute(db.pool()).await.expect("a domain's table");
    db
}

async fn changed(pool: &PgPool) -> Transaction<'static, Postgres> {
    let mut tx = pool.begin().await.expect("a transaction");
    sqlx::query("insert into change values (1)").execute(&mut *tx).await.expect("a change");
    tx
}

async fn changes(db: &Database) -> i64 {
    sqlx::query_scalar("select count(*) from change").fetch_one(db.pool()).await.expect("a count")
}

/// Waits until nothing of the worker's leases is left.
async fn until_no_batch(db: &Database) {
    until_some("the batches of ended leases are removed", async || {
        let left: i64 =
            sqlx::query_scalar("select count(*) from lease_batches").fetch_one(db.pool()).await.expect("a count");
        (left == 0).then_some(())
    })
    .await;
}

pub async fn a_job_completed_in_its_handlers_transaction_is_settled_once_with_the_change(engine: Engine) {
    meters();
    let db = start().await;
    let pool = db.pool().clone();
    let registry = act(local(), move |_, context| {
        let pool = pool.clone();
        async move {
            let mut tx = changed(&pool).await;
            let state = context.complete_in(&mut tx, json!({"by": "the transaction"})).await?;
            assert_eq!(state, JobState::Completed);
            tx.commit().await.expect("committed");
            // What it says afterwards comes too late.
            Ok(Done::Snooze { after: Duration::from_secs(60) })
        }
    });
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(enqueue_kind(&db, &local()).await);
    }
    // One slot: each of them must give it up.
    let worker = Running::start(&db, registry, RunnerConfig { concurrency: 1, ..config(engine) });
    for id in &ids {
        let done = until_state(&db, *id, JobState::Completed).await;
        assert_eq!((done.result, done.attempt), (Some(json!({"by": "the transaction"})), 1));
        assert!(refused(&db, *id).await.is_empty());
    }
    assert_eq!(changes(&db).await, 5);
    until_no_batch(&db).await;
    let counted = |outcome| measured("leasehold_jobs_finished_total", &[("kind", "test.act"), ("outcome", outcome)]);
    assert_eq!(
        (counted("completed"), counted("snoozed").unwrap_or_default()),
        (Some(5.0), 0.0),
        "what was recorded counts"
    );
    worker.stop().await;
}

pub async fn a_handler_that_stays_after_its_commit_is_dropped_without_a_refusal(engine: Engine) {
    let db = start().await;
    let (pool, gone) = (db.pool().clone(), Arc::new(AtomicBool::new(false)));
    let flag = Arc::clone(&gone);
    let spec = KindSpec { lease: SHORT_LEASE, ..local() };
    let registry = act(spec.clone(), move |_, context| {
        let (pool, flag) = (pool.clone(), Flag(Arc::clone(&flag)));
        async move {
            let _flag = flag;
            let mut tx = changed(&pool).await;
            context.complete_in(&mut tx, json!(null)).await?;
            tx.commit().await.expect("committed");
            std::future::pending().await
        }
    });
    let id = enqueue_kind(&db, &spec).await;
    let worker = Running::start(&db, registry, RunnerConfig { concurrency: 1, ..config(engine) });
    until_some("the handler is dropped", async || gone.load(SeqCst).then_some(())).await;
    until_no_batch(&db).await;
    assert_eq!(job(&db, id).await.state, JobState::Completed);
    assert_eq!(changes(&db).await, 1);
    assert!(refused(&db, id).await.is_empty(), "nobody was late");
    worker.stop().await;
}

pub async fn a_transaction_that_rolls_back_leaves_the_job_to_run_again(engine: Engine) {
    let db = start().await;
    let (pool, runs) = (db.pool().clone(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&runs);
    let registry = act(local(), move |_, context| {
        let (pool, run) = (pool.clone(), count.fetch_add(1, SeqCst));
        async move {
            let mut tx = changed(&pool).await;
            context.complete_in(&mut tx, json!(null)).await?;
            match run {
                0 => {
                    tx.rollback().await.expect("rolled back");
                    Err(anyhow::anyhow!("it changed its mind").into())
                }
                _ => {
                    tx.commit().await.expect("committed");
                    complete()
                }
            }
        }
    });
    let id = enqueue_kind(&db, &local()).await;
    let worker = Running::start(&db, registry, config(engine));
    let done = until_state(&db, id, JobState::Completed).await;
    assert_eq!((done.attempt, runs.load(SeqCst), changes(&db).await), (2, 2, 1));
    assert_eq!(attempts(&db, id).await[0].outcome, "failed");
    worker.stop().await;
}

pub async fn a_transaction_under_a_lost_lease_commits_nothing_and_is_kept_as_evidence(engine: Engine) {
    let db = start().await;
    let pool = db.pool().clone();
    let committed = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&committed);
    let registry = act(local(), move |_, context| {
        let (pool, flag) = (pool.clone(), Arc::clone(&flag));
        async move {
            // Somebody else leased the job meanwhile.
            sqlx::query("update jobs set fence = nextval('lease_fence')").execute(&pool).await.expect("taken over");
            let mut tx = changed(&pool).await;
            let told = context.complete_in(&mut tx, json!(null)).await;
            assert!(matches!(told, Err(JobError::LeaseLost)), "{told:?}");
            // It makes nothing of that. In a task of its own, since the runner drops the handler here.
            tokio::spawn(async move {
                let _ = tx.commit().await;
                flag.store(true, SeqCst);
            });
            complete()
        }
    });
    let id = enqueue_kind(&db, &local()).await;
    let worker = Running::start(&db, registry, config(engine));
    until_some("the commit is over", async || committed.load(SeqCst).then_some(())).await;
    assert_eq!(changes(&db).await, 0);
    let kept = until_some("the refusal is kept", async || refused(&db, id).await.pop()).await;
    assert_eq!((kept.operation.as_str(), kept.worker), ("complete", Some(worker.worker())));
    assert_eq!(job(&db, id).await.state, JobState::Running, "it is the other's");
    worker.stop().await;
}

pub async fn a_repeated_transaction_whose_first_answer_was_lost_changes_nothing_twice(engine: Engine) {
    let db = start().await;
    let pool = db.pool().clone();
    let registry = act(local(), move |_, context| {
        let pool = pool.clone();
        async move {
            let mut tx = changed(&pool).await;
            context.complete_in(&mut tx, json!(1)).await?;
            tx.commit().await.expect("committed");
            // As far as the handler knows, it did not.
            let mut tx = changed(&pool).await;
            context.complete_in(&mut tx, json!(2)).await?;
            tx.commit().await.expect("never reached");
            complete()
        }
    });
    let id = enqueue_kind(&db, &local()).await;
    let worker = Running::start(&db, registry, config(engine));
    let done = until_state(&db, id, JobState::Completed).await;
    until_no_batch(&db).await;
    assert_eq!((done.result, changes(&db).await), (Some(json!(1)), 1));
    assert!(refused(&db, id).await.is_empty(), "it was late for nobody");
    worker.stop().await;
}

pub async fn a_snooze_and_a_failure_inside_a_transaction_end_the_lease(engine: Engine) {
    let db = start().await;
    let (pool, runs) = (db.pool().clone(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&runs);
    let registry = act(local(), move |_, context| {
        let (pool, run) = (pool.clone(), count.fetch_add(1, SeqCst));
        async move {
            let mut tx = changed(&pool).await;
            let soon = Duration::from_millis(20);
            match run {
                0 => context.snooze_in(&mut tx, soon).await?,
                1 => context.fail_in(&mut tx, "the first half is done", soon).await?,
                _ => context.complete_in(&mut tx, json!(null)).await?,
            };
            tx.commit().await.expect("committed");
            complete()
        }
    });
    let id = enqueue_kind(&db, &local()).await;
    let worker = Running::start(&db, registry, config(engine));
    let done = until_state(&db, id, JobState::Completed).await;
    assert_eq!((done.attempt, runs.load(SeqCst), changes(&db).await), (2, 3, 3), "a snooze spends no attempt");
    let kept: Vec<_> = attempts(&db, id).await.into_iter().map(|a| (a.outcome, a.error)).collect();
    assert_eq!(kept[1], ("snoozed".to_owned(), None));
    assert_eq!(kept[0].1, Some(json!({"code": "failed", "message": "the first half is done"})));
    assert!(refused(&db, id).await.is_empty());
    worker.stop().await;
}

pub async fn a_kind_without_the_databases_mark_is_refused(engine: Engine) {
    let db = start().await;
    let pool = db.pool().clone();
    let spec = KindSpec { max_attempts: 1, ..kind("test.act") };
    let registry = act(spec.clone(), move |_, context| {
        let pool = pool.clone();
        async move {
            let mut tx = changed(&pool).await;
            context.complete_in(&mut tx, json!(null)).await?;
            tx.commit().await.expect("never reached");
            complete()
        }
    });
    let id = enqueue_kind(&db, &spec).await;
    let worker = Running::start(&db, registry, config(engine));
    let ended = until_state(&db, id, JobState::Discarded).await;
    let error = ended.last_error.expect("it says why");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("local_db")), "{error}");
    assert_eq!(changes(&db).await, 0);
    worker.stop().await;
}
