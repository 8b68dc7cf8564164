//! How handlers end, and what their jobs are then.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use anyhow::Context as _;
use domain::queue::{JobState, KindSpec, NewJob};
use serde_json::json;
use tests::db::Database;
use workers::jobs::{Environment, Job as _, registry, system_sleep};
use workers::runner::{Done, Engine, JobError};

use crate::faults::Faulty;
use crate::support::{
    Running, act, attempts, complete, config, enqueue, enqueue_kind, job, kind, until_some, until_state,
};

/// A failure is tried again until the attempts are spent; each is kept with its whole chain of causes.
pub async fn a_failing_job_is_tried_until_its_attempts_are_spent(engine: Engine) {
    let db = Database::start().await;
    let spec = KindSpec { max_attempts: 3, ..kind("test.act") };
    let registry = act(spec.clone(), |_, _| async {
        Err(std::fs::read("/no/such/file").context("read the state").expect_err("there is none").into())
    });
    let id = enqueue_kind(&db, &spec).await;
    let worker = Running::start(&db, registry, config(engine));

    let done = until_state(&db, id, JobState::Discarded).await;

    assert_eq!(done.attempt, 3);
    let error = done.last_error.expect("it says why");
    assert_eq!(error["code"], "failed");
    assert!(error["message"].as_str().expect("a text").starts_with("read the state: No such file"), "{error}");
    let kept: Vec<_> = attempts(&db, id).await.into_iter().map(|a| (a.attempt, a.outcome)).collect();
    assert_eq!(kept, [(2, "failed".to_owned()), (1, "failed".to_owned())]);
    worker.stop().await;
}

/// A handler that knows better says how long to wait.
pub async fn a_handler_chooses_its_wait(engine: Engine) {
    let db = Database::start().await;
    let spec = kind("test.act");
    let registry = act(spec.clone(), |_, _| async {
        Err(JobError::Retry { after: Some(Duration::from_secs(3600)), source: anyhow::anyhow!("later") })
    });
    let id = enqueue_kind(&db, &spec).await;
    let worker = Running::start(&db, registry, config(engine));

    let waiting = until_state(&db, id, JobState::Retryable).await;

    let wait = waiting.run_at - db.clock().now().await;
    assert!((3500..=3600).contains(&wait.num_seconds()), "{wait}");
    worker.stop().await;
}

/// A snooze spends no attempt, and many snoozes are one line of history.
pub async fn a_snooze_spends_no_attempt(engine: Engine) {
    let db = Database::start().await;
    let spec = KindSpec { max_attempts: 1, ..kind("test.act") };
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let registry = act(spec.clone(), move |_, _| {
        let run = count.fetch_add(1, SeqCst);
        async move { if run < 3 { Ok(Done::Snooze { after: Duration::from_millis(20) }) } else { complete() } }
    });
    let id = enqueue_kind(&db, &spec).await;
    let worker = Running::start(&db, registry, config(engine));

    let done = until_state(&db, id, JobState::Completed).await;

    assert_eq!((done.attempt, runs.load(SeqCst)), (1, 4));
    let kept: Vec<_> = attempts(&db, id).await.into_iter().map(|a| (a.outcome, a.passes)).collect();
    assert_eq!(kept, [("snoozed".to_owned(), 3)]);
    worker.stop().await;
}

/// Giving up and cancelling end a job at once.
pub async fn a_handler_ends_its_job_for_good(engine: Engine) {
    let db = Database::start().await;
    let spec = kind("test.act");
    let registry = act(spec.clone(), |args, _| async move {
        if args["end"] == "discard" {
            Err(JobError::Discard("nothing to do here".into()))
        } else {
            Err(JobError::Cancel("not wanted any more".into()))
        }
    });
    let discarded = enqueue(&db, &NewJob::new(&spec, json!({"end": "discard"}))).await;
    let cancelled = enqueue(&db, &NewJob::new(&spec, json!({"end": "cancel"}))).await;
    let worker = Running::start(&db, registry, config(engine));

    let job = until_state(&db, discarded, JobState::Discarded).await;
    assert_eq!(job.last_error, Some(json!({"code": "discarded", "message": "nothing to do here"})));
    let job = until_state(&db, cancelled, JobState::Cancelled).await;
    assert_eq!(job.last_error, Some(json!({"code": "cancelled", "message": "not wanted any more"})));
    worker.stop().await;
}

/// A panic is a failure with its message; the worker lives on.
pub async fn a_panic_is_a_failure_and_the_worker_lives_on(engine: Engine) {
    let db = Database::start().await;
    let spec = KindSpec { max_attempts: 1, ..kind("test.act") };
    let registry = act(spec.clone(), |args, _| async move {
        assert_ne!(args["panic"], json!(true), "this one breaks");
        complete()
    });
    let worker = Running::start(&db, registry, config(engine));
    let broken = enqueue(&db, &NewJob::new(&spec, json!({"panic": true}))).await;

    let job = until_state(&db, broken, JobState::Discarded).await;

    let error = job.last_error.expect("it says why");
    assert_eq!(error["code"], "panic");
    assert!(error["message"].as_str().expect("a text").contains("this one breaks"), "{error}");
    let next = enqueue(&db, &NewJob::new(&spec, json!({}))).await;
    let job = until_state(&db, next, JobState::Completed).await;
    assert_eq!(job.worker, Some(worker.worker()));
    worker.stop().await;
}

/// Arguments that nobody can decode end their job, and no other.
pub async fn undecodable_arguments_end_their_job_alone(engine: Engine) {
    let db = Database::start().await;
    let spec = system_sleep::Sleep::spec();
    let bad = enqueue(&db, &NewJob::new(&spec, json!({"ms": "long"}))).await;
    let good = enqueue(&db, &NewJob::new(&spec, json!({"ms": 1}))).await;
    let worker = Running::start(&db, registry(&Environment::new(db.pool().clone())), config(engine));

    let job = until_state(&db, bad, JobState::Discarded).await;

    let error = job.last_error.expect("it says why");
    assert_eq!(error["code"], "bad_args");
    assert!(error["message"].as_str().expect("a text").contains("invalid type"), "{error}");
    until_state(&db, good, JobState::Completed).await;
    worker.stop().await;
}

/// A protected kind is never discarded, whatever its arguments are or its handler says.
pub async fn a_protected_job_is_never_discarded(engine: Engine) {
    let db = Database::start().await;
    let protect = |spec: KindSpec| KindSpec { protected: true, deadline: None, max_attempts: 1, ..spec };
    let undecodable = protect(system_sleep::Sleep::spec());
    let giving_up = protect(kind("test.act"));
    let mut kinds = act(giving_up.clone(), |_, _| async { Err(JobError::Discard("cannot".into())) });
    kinds.add_as(undecodable.clone(), system_sleep::Sleep);
    let bad = enqueue(&db, &NewJob::new(&undecodable, json!({}))).await;
    let hopeless = enqueue_kind(&db, &giving_up).await;
    let worker = Running::start(&db, kinds, config(engine));

    for (id, code) in [(bad, "bad_args"), (hopeless, "discarded")] {
        until_some("the job failed", async || (!attempts(&db, id).await.is_empty()).then_some(())).await;
        let job = job(&db, id).await;
        assert!(!job.state.is_final(), "{:?}", job.state);
        assert_eq!(job.last_error.expect("it says why")["code"], code);
    }
    worker.stop().await;
}

/// A handler that runs longer than its deadline is dropped, and its attempt has failed.
pub async fn a_deadline_ends_an_attempt(engine: Engine) {
    let db = Database::start().await;
    let spec = KindSpec { deadline: Some(Duration::from_millis(100)), max_attempts: 1, ..kind("test.act") };
    let registry = act(spec.clone(), |_, _| std::future::pending());
    let id = enqueue_kind(&db, &spec).await;
    let worker = Running::start(&db, registry, config(engine));

    let job = until_state(&db, id, JobState::Discarded).await;

    assert_eq!(job.last_error.expect("it says why")["code"], "deadline_exceeded");
    worker.stop().await;
}

/// What an attempt recorded, the next one reads.
pub async fn a_later_attempt_reads_the_steps_of_earlier_ones(engine: Engine) {
    let db = Database::start().await;
    let spec = kind("test.act");
    let registry = act(spec.clone(), |_, context| async move {
        let steps = context.steps().await?;
        let Some(last) = steps.last() else {
            context.step("copied", &json!({"at": 7}), &json!({"objects": 3})).await?;
            return Err(anyhow::anyhow!("cut after the first step").into());
        };
        assert!(last.fence < context.lease().fence);
        Ok(Done::Complete(json!({"resumed_at": last.cursor["at"], "from": last.name})))
    });
    let id = enqueue_kind(&db, &spec).await;
    let worker = Running::start(&db, registry, config(engine));

    let done = until_state(&db, id, JobState::Completed).await;

    assert_eq!(done.result, Some(json!({"resumed_at": 7, "from": "copied"})));
    assert_eq!(done.attempt, 2);
    worker.stop().await;
}

/// What the database cannot store of a result is left out: the job that is done is done, is not run again, and
/// those that are settled with it are settled, also when the database goes away in between.
pub async fn a_result_that_cannot_be_stored_runs_no_job_again(engine: Engine) {
    let db = Database::start().await;
    let spec = kind("test.act");
    let store = Faulty::before(&db);
    let faults = Arc::clone(&store.faults);
    // The first to be settled waits at the gate while the others end; then it fails alone, and fails alone again when
    // the database has refused them all together.
    faults.settling.shut();
    faults.single_settlements_fail.store(2, SeqCst);
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let registry = act(spec.clone(), move |args, _| {
        count.fetch_add(1, SeqCst);
        async move {
            // PostgreSQL keeps no NUL in a text.
            let text = if args["nul"] == json!(true) { "\0" } else { "fine" };
            Ok(Done::Complete(json!(text)))
        }
    });
    let mut good = Vec::new();
    for _ in 0..10 {
        good.push(enqueue(&db, &NewJob::new(&spec, json!({}))).await);
    }
    let bad = enqueue(&db, &NewJob::new(&spec, json!({"nul": true}))).await;
    let mut config = config(engine);
    config.concurrency = 16;
    let worker = Running::on(store, registry, config);
    until_some("all have run", async || (runs.load(SeqCst) == 11).then_some(())).await;
    faults.settling.open();

    let job = until_state(&db, bad, JobState::Completed).await;

    assert_eq!(job.result.expect("it says why")["code"], "result_unstorable");
    for id in good {
        assert_eq!(until_state(&db, id, JobState::Completed).await.attempt, 1);
    }
    assert_eq!((runs.load(SeqCst), faults.single_settlements_fail.load(SeqCst)), (11, 0));
    worker.stop().await;
}
