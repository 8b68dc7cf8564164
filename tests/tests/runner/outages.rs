//! Answers of the database that are late, lost, or never come, under handlers that write.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use domain::queue::{self, JobState, KindSpec, NewJob};
use serde_json::json;
use sqlx::Connection as _;
use tests::db::Database;
use workers::runner::{Engine, Level, RunnerConfig};

use crate::faults::Faulty;
use crate::support::{Running, act, attempts, complete, config, enqueue, enqueue_kind, kind, until_some, until_state};

/// A restart of the database while handlers write spends no attempt: each write is made again, and is made once.
pub async fn a_database_that_is_away_for_a_while_spends_no_attempt(engine: Engine) {
    let db = Database::start().await;
    let spec = KindSpec { max_attempts: 1, ..kind("test.act") };
    let child = kind("test.child");
    let store = Faulty::before(&db);
    let faults = Arc::clone(&store.faults);
    let (given, made) = (child.clone(), Arc::clone(&faults));
    let registry = act(spec.clone(), move |_, context| {
        let (child, faults) = (NewJob::new(&given, json!({})), Arc::clone(&made));
        async move {
            for fault in [&faults.writes_fail, &faults.writes_lost] {
                fault.store(2, SeqCst);
                context.step("one", &json!({"at": 1}), &json!({})).await?;
                fault.store(2, SeqCst);
                context.enqueue_child(&child).await?;
                fault.store(2, SeqCst);
                context.log(Level::Info, "on its way").await?;
                fault.store(2, SeqCst);
                let steps = context.steps().await?;
                assert_eq!(steps.len(), 1, "the same step again is that step: {steps:?}");
            }
            // Another step is another row, also after the last try was in doubt.
            context.step("one", &json!({"at": 2}), &json!({})).await?;
            complete()
        }
    });
    let id = enqueue_kind(&db, &spec).await;
    let worker = Running::on(store, registry, config(engine));

    let done = until_state(&db, id, JobState::Completed).await;

    assert_eq!(done.attempt, 1);
    assert!(attempts(&db, id).await.is_empty(), "none has failed");
    let mut conn = db.session().await;
    assert_eq!(queue::steps(&mut conn, id).await.expect("the database answers").len(), 2);
    let children: i64 = sqlx::query_scalar("select count(*) from jobs where kind = 'test.child'")
        .fetch_one(&mut conn)
        .await
        .expect("the database answers");
    assert_eq!(children, 1, "a child whose answer was lost is that child");
    worker.stop().await;
}

/// Handlers whose writes hang, however many, keep the runner neither from leasing nor from settling.
pub async fn handlers_whose_writes_hang_keep_nobody_from_leasing_and_settling(engine: Engine) {
    let db = Database::start().await;
    let spec = kind("test.act");
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let registry = act(spec.clone(), move |args, context| {
        let begun = Arc::clone(&count);
        async move {
            if args["writes"] == json!(true) {
                begun.fetch_add(1, SeqCst);
                context.log(Level::Info, "waits").await?;
            }
            complete()
        }
    });
    let mut holder = db.session().await;
    let mut hold = holder.begin().await.expect("a transaction");
    sqlx::query("lock table job_logs in share mode").execute(&mut *hold).await.expect("the table is locked");
    let mut hung = Vec::new();
    for _ in 0..12 {
        hung.push(enqueue(&db, &NewJob::new(&spec, json!({"writes": true}))).await);
    }
    let worker = Running::start(&db, registry, RunnerConfig { concurrency: 16, ..config(engine) });
    until_some("all of them write", async || (begun.load(SeqCst) == 12).then_some(())).await;

    // More than one round of leasing and settling.
    for _ in 0..3 {
        let quick = enqueue(&db, &NewJob::new(&spec, json!({}))).await;
        until_state(&db, quick, JobState::Completed).await;
    }

    hold.rollback().await.expect("the lock is gone");
    for id in hung {
        assert_eq!(until_state(&db, id, JobState::Completed).await.attempt, 1);
    }
    worker.stop().await;
}
