//! What a holder learns whose lease was taken over, and what its late writes come to.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use domain::queue::{self, JobState, NewJob, Progress};
use serde_json::json;
use tests::db::Database;
use tokio::sync::Notify;
use workers::runner::{Engine, JobError, Level};

use crate::support::{
    Flag, Running, SHORT_LEASE, act, complete, config, enqueue_kind, job, kind, measured, meters, refused, until_some,
    until_state,
};

/// Takes a running job from its holder, as if that had been silent for an hour.
async fn take_over(db: &Database, id: domain::ids::JobId) {
    let before = job(db, id).await.interruptions;
    until_some("the lease is taken over", async || {
        let mut conn = db.session().await;
        db.clock().advance(Duration::from_secs(3600)).await;
        queue::rescue_expired(&mut conn, 10).await.expect("the database answers");
        (job(db, id).await.interruptions > before).then_some(())
    })
    .await;
}

/// The loser learns of it at its next renewal and is stopped at once; its successor finishes.
pub async fn a_handler_whose_lease_was_taken_over_is_stopped_at_once(engine: Engine) {
    let db = Database::start().await;
    // Renewed at two seconds; the self-stop would come at five.
    let life = Duration::from_secs(6);
    let spec = domain::queue::KindSpec { lease: life, ..kind("test.act") };
    let dropped = Arc::new(AtomicBool::new(false));
    let told = Arc::new(AtomicBool::new(false));
    let begun = Arc::new(AtomicUsize::new(0));
    let (flag, count, heard) = (Arc::clone(&dropped), Arc::clone(&begun), Arc::clone(&told));
    let registry = act(spec.clone(), move |_, context| {
        let run = count.fetch_add(1, SeqCst);
        let (flag, heard) = (Arc::clone(&flag), Arc::clone(&heard));
        async move {
            if run > 0 {
                return complete();
            }
            let cancel = context.cancel.clone();
            tokio::spawn(async move {
                cancel.cancelled().await;
                heard.store(true, SeqCst);
            });
            let _flag = Flag(flag);
            std::future::pending().await
        }
    });
    let id = enqueue_kind(&db, &spec).await;
    let worker = Running::start(&db, registry, config(engine));
    until_some("the handler runs", async || (begun.load(SeqCst) == 1).then_some(())).await;

    take_over(&db, id).await;
    let taken = Instant::now();
    until_some("the loser is dropped", async || dropped.load(SeqCst).then_some(())).await;

    assert!(taken.elapsed() < life * 2 / 3, "at the next renewal, long before its own deadline: {:?}", taken.elapsed());
    until_some("its token fired", async || told.load(SeqCst).then_some(())).await;
    let done = until_state(&db, id, JobState::Completed).await;
    assert_eq!((done.attempt, done.interruptions, begun.load(SeqCst)), (1, 1, 2));
    let evidence = until_some("the evidence is kept", async || refused(&db, id).await.pop()).await;
    assert_eq!((evidence.operation.as_str(), evidence.worker), ("renew", Some(worker.worker())));
    assert!(evidence.fence_held < done.fence);
    worker.stop().await;
}

/// A handler that lives on after its lease is gone changes nothing, is told so by each of its writes, and
/// each of them is kept as evidence.
pub async fn every_late_write_is_refused_and_kept_as_evidence(engine: Engine) {
    let db = Database::start().await;
    let spec = domain::queue::KindSpec { lease: SHORT_LEASE, ..kind("test.act") };
    let go = Arc::new(Notify::new());
    let answers = Arc::new(Mutex::new(Vec::new()));
    let begun = Arc::new(AtomicUsize::new(0));
    let (count, gone, heard, child) = (Arc::clone(&begun), Arc::clone(&go), Arc::clone(&answers), spec.clone());
    let registry = act(spec.clone(), move |_, context| {
        let run = count.fetch_add(1, SeqCst);
        let (gone, heard, child) = (Arc::clone(&gone), Arc::clone(&heard), child.clone());
        async move {
            if run > 0 {
                return complete();
            }
            // What a handler spawns, the runner cannot stop: this is the zombie.
            tokio::spawn(async move {
                gone.notified().await;
                let progress = Progress { done: 1, ..Progress::default() };
                let results = [
                    context.progress(&progress).await,
                    context.step("late", &json!(1), &json!({})).await,
                    context.log(Level::Info, "late").await,
                    context.enqueue_child(&NewJob::new(&child, json!({}))).await.map(|_| ()),
                ];
                heard.lock().expect("no panic").extend(results);
            });
            std::future::pending().await
        }
    });
    let id = enqueue_kind(&db, &spec).await;
    let worker = Running::start(&db, registry, config(engine));
    until_some("the handler runs", async || (begun.load(SeqCst) == 1).then_some(())).await;
    take_over(&db, id).await;
    let done = until_state(&db, id, JobState::Completed).await;

    go.notify_one();
    until_some("every write was answered", async || (answers.lock().expect("no panic").len() == 4).then_some(())).await;

    for answer in answers.lock().expect("no panic").iter() {
        assert!(matches!(answer, Err(JobError::LeaseLost)), "{answer:?}");
    }
    let after = job(&db, id).await;
    assert_eq!((after.progress, after.revision), (None, done.revision));
    let mut conn = db.session().await;
    assert!(queue::steps(&mut conn, id).await.expect("the database answers").is_empty());
    assert!(queue::logs(&mut conn, id).await.expect("the database answers").is_empty());
    let live = queue::list(&mut conn, &queue::Filter::default(), 10).await.expect("the database answers");
    assert_eq!(live.items.len(), 1, "no child was enqueued");
    let late: HashSet<String> = ["progress", "step", "log", "enqueue_child"].map(str::to_owned).into();
    until_some("each is kept as evidence", async || {
        let kept: HashSet<String> = refused(&db, id).await.into_iter().map(|write| write.operation).collect();
        kept.is_superset(&late).then_some(())
    })
    .await;
    worker.stop().await;
}

/// A result that comes too late is refused, kept as evidence, and counted.
pub async fn a_late_result_is_refused_kept_and_counted(engine: Engine) {
    meters();
    let db = Database::start().await;
    let spec = domain::queue::KindSpec { lease: SHORT_LEASE, ..kind("test.act") };
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let registry = act(spec.clone(), move |_, _| {
        let run = count.fetch_add(1, SeqCst);
        let gate = Arc::clone(&gate);
        async move {
            if run == 0 {
                // Blocks its thread, so it cannot be stopped when the lease is lost.
                let _ = gate.lock().expect("no panic").recv_timeout(Duration::from_secs(60));
                return Ok(workers::runner::Done::Complete(json!("the zombie's")));
            }
            Ok(workers::runner::Done::Complete(json!("the successor's")))
        }
    });
    let id = enqueue_kind(&db, &spec).await;
    let worker = Running::start(&db, registry, config(engine));
    until_some("the handler runs", async || (begun.load(SeqCst) == 1).then_some(())).await;
    take_over(&db, id).await;
    let done = until_state(&db, id, JobState::Completed).await;

    open.send(()).expect("the zombie waits");
    until_some("the late result is kept as evidence", async || {
        refused(&db, id).await.into_iter().find(|write| write.operation == "complete")
    })
    .await;

    let labels = [("operation", "complete"), ("kind", "test.act"), ("queue", "default")];
    assert!(measured("leasehold_fenced_writes_total", &labels) >= Some(1.0));
    let after = job(&db, id).await;
    assert_eq!(after.result, Some(json!("the successor's")));
    assert_eq!(after.revision, done.revision);
    worker.stop().await;
}
