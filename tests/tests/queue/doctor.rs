//! The doctor's checks of the queue and its tables: each fault is seeded, and found by its check alone.

use std::time::Duration;

use domain::doctor::{self, Finding, Verdict};
use domain::lease::Lease;
use domain::queue::{self, WorkerSpec};
use sqlx::Executor as _;

use crate::support::{LEASE, Queue, completed, worker};

/// What each check found that found something. The tests' server does without fsync, which is a finding of its own.
async fn found(queue: &Queue) -> Vec<(&'static str, Finding)> {
    let report = doctor::examine(queue.db.pool()).await;
    let mut found = Vec::new();
    for check in report.checks {
        let Verdict::Checked(findings) = check.verdict else { panic!("{} could not be made: {check:?}", check.name) };
        found.extend(findings.into_iter().filter(|_| check.name != "durability").map(|it| (check.name, it)));
    }
    found
}

/// The only thing that is wrong, of this check.
async fn only(queue: &Queue, check: &str) -> Finding {
    let mut found = found(queue).await;
    assert_eq!(found.iter().map(|(name, _)| *name).collect::<Vec<_>>(), [check], "{found:#?}");
    let finding = found.remove(0).1;
    assert!(!finding.advice.is_empty() && finding.what.ends_with('.'), "{finding:?}");
    finding
}

async fn sql(queue: &Queue, statement: &'static str) {
    (&mut *queue.conn().await).execute(statement).await.expect("a valid statement");
}

/// A worker that the database knows.
async fn registered(queue: &Queue) -> WorkerSpec {
    let spec = worker();
    let mut conn = queue.conn().await;
    queue::register_worker(&mut conn, &spec, "box", 7, "1", None, 8).await.expect("registered");
    spec
}

async fn seen(queue: &Queue, spec: &WorkerSpec) {
    queue::seen_worker(&mut *queue.conn().await, spec.worker, None).await.expect("seen");
}

async fn lease_as(queue: &Queue, spec: &WorkerSpec) -> Lease {
    queue::lease_next(&mut *queue.conn().await, spec, 1, &[]).await.expect("leased").remove(0).lease
}

#[tokio::test]
async fn a_queue_at_work_has_nothing_that_is_wrong() {
    let queue = Queue::start().await;
    let spec = registered(&queue).await;
    for _ in 0..3 {
        queue.enqueue().await;
    }
    let done = lease_as(&queue, &spec).await;
    queue.complete(done).await;
    lease_as(&queue, &spec).await;
    assert_eq!(found(&queue).await, []);
}

#[tokio::test]
async fn a_lost_job_is_found_when_its_lease_is_long_over_and_no_batch_names_it() {
    let queue = Queue::start().await;
    let id = queue.enqueue().await;
    queue.lease().await;
    sql(&queue, "delete from lease_batches").await;
    queue.db.clock().advance(LEASE + Duration::from_secs(59)).await;
    assert_eq!(found(&queue).await, [], "a sweep may be under way");
    queue.db.clock().advance(Duration::from_secs(2)).await;
    assert!(only(&queue, "stray_jobs").await.what.contains(&id.to_string()));
}

#[tokio::test]
async fn a_job_that_is_live_and_finished_at_once_is_found() {
    let queue = Queue::start().await;
    let id = queue.enqueue().await;
    let lease = queue.lease().await.lease;
    queue.complete(lease).await;
    sql(
        &queue,
        "insert into jobs (id, kind, queue, state, run_at, created_at, args, max_attempts)
         select id, kind, queue, 'retryable', run_at + interval '1 day', created_at, args, max_attempts
           from jobs_finished",
    )
    .await;
    assert!(only(&queue, "twin_jobs").await.what.contains(&id.to_string()));
}

#[tokio::test]
async fn a_lease_that_is_renewed_after_its_worker_stopped_is_found() {
    let queue = Queue::start().await;
    let spec = registered(&queue).await;
    queue.enqueue().await;
    let lease = lease_as(&queue, &spec).await;
    queue::stop_worker(&mut *queue.conn().await, spec.worker).await.expect("stopped");
    queue.db.clock().advance(Duration::from_secs(299)).await;
    queue::renew(&mut *queue.conn().await, &[(lease, LEASE)]).await.expect("renewed");
    assert_eq!(found(&queue).await, [], "it may be its last lease");
    queue.db.clock().advance(Duration::from_secs(2)).await;
    let finding = only(&queue, "leases_of_stopped_workers").await;
    assert!(finding.what.contains(&spec.worker.to_string()), "{finding:?}");
}

/// As after the promotion of a standby that had not got everything: rows are newer than the sequence.
#[tokio::test]
async fn a_sequence_behind_the_fences_of_its_jobs_is_found() {
    let queue = Queue::start().await;
    for _ in 0..3 {
        queue.enqueue().await;
        let lease = queue.lease().await.lease;
        queue.settle(lease, completed()).await;
    }
    sql(&queue, "select setval('lease_fence', 2)").await;
    let finding = only(&queue, "fences").await;
    assert_eq!(finding.facts, serde_json::json!({"highest": 3, "sequence": 2}));
    sql(&queue, "select setval('lease_fence', 3)").await;
    assert_eq!(found(&queue).await, []);
}

#[tokio::test]
async fn silent_workers_are_found_for_an_hour_and_skewed_ones_while_they_live() {
    let queue = Queue::start().await;
    let spec = registered(&queue).await;
    let ahead = queue.db.clock().now().await + Duration::from_secs(60);
    queue::seen_worker(&mut *queue.conn().await, spec.worker, Some(ahead)).await.expect("seen");
    let finding = only(&queue, "clock_skew").await;
    assert!(finding.facts["skew_ms"].as_i64().is_some_and(|ms| (59_000..=60_000).contains(&ms)), "{finding:?}");
    queue.db.clock().advance(Duration::from_secs(31)).await;
    assert!(only(&queue, "silent_workers").await.what.contains("pid 7 on box"));
    queue.db.clock().advance(Duration::from_secs(3600)).await;
    assert_eq!(found(&queue).await, []);
}

#[tokio::test]
async fn due_work_that_no_live_worker_serves_is_found_by_queue_and_kind() {
    let queue = Queue::start().await;
    queue.enqueue().await;
    assert_eq!(found(&queue).await, [], "it is due only now");
    queue.db.clock().advance(Duration::from_secs(31)).await;
    let finding = only(&queue, "unserved_queues").await;
    assert_eq!((&finding.facts["queue"], &finding.facts["kind"]), (&"default".into(), &"test.work".into()));
    let spec = registered(&queue).await;
    assert_eq!(found(&queue).await, []);
    queue.db.clock().advance(Duration::from_secs(20)).await;
    seen(&queue, &spec).await;
    assert_eq!(found(&queue).await, []);
}

/// Nobody made partitions for ten days, and a job ends.
#[tokio::test]
async fn days_without_a_partition_and_the_rows_that_they_left_are_found() {
    let queue = Queue::start().await;
    queue.db.clock().advance(Duration::from_secs(10 * 86_400)).await;
    queue.enqueue().await;
    let lease = queue.lease().await.lease;
    queue.complete(lease).await;
    let found = found(&queue).await;
    assert!(found.iter().all(|(check, _)| *check == "partitions"), "{found:?}");
    let facts: Vec<_> = found.into_iter().map(|(_, it)| it.facts).collect();
    let wanted = [serde_json::json!({"today": false, "tomorrow": false}), serde_json::json!({"rows": 1})];
    assert_eq!(facts, wanted);
}

#[tokio::test]
async fn an_old_transaction_is_found_with_its_session() {
    let queue = Queue::start().await;
    let mut session = queue.db.session().await;
    session.execute("begin; select 1 from jobs").await.expect("a transaction");
    let pid: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut session).await.expect("a pid");
    queue.db.clock().advance(Duration::from_secs(290)).await;
    assert_eq!(found(&queue).await, []);
    queue.db.clock().advance(Duration::from_secs(20)).await;
    let finding = only(&queue, "long_transactions").await;
    assert_eq!((&finding.facts["pid"], &finding.facts["state"]), (&pid.into(), &"idle in transaction".into()));
    session.execute("commit").await.expect("it ends");
    assert_eq!(found(&queue).await, []);
}

#[tokio::test]
async fn an_invalid_index_nearly_used_numbers_and_bloat_are_found() {
    let queue = Queue::start().await;
    sql(&queue, "update pg_index set indisvalid = false where indexrelid = 'sessions_pkey'::regclass").await;
    assert!(only(&queue, "invalid_indexes").await.advice.contains("reindex index concurrently sessions_pkey"));
    sql(&queue, "update pg_index set indisvalid = true where indexrelid = 'sessions_pkey'::regclass").await;

    sql(&queue, "select setval('fenced_writes_id_seq', 9000000000000000000)").await;
    assert_eq!(only(&queue, "ids").await.facts["sequence"], "fenced_writes_id_seq");
    sql(&queue, "select setval('fenced_writes_id_seq', 1)").await;

    sql(&queue, "alter table job_logs set (autovacuum_enabled = false)").await;
    sql(
        &queue,
        "insert into job_logs (job_id, seq, fence, at, level, line)
         select gen_random_uuid(), 1, 1, lh_now(), 'info', '' from generate_series(1, 50000);
         delete from job_logs;
         select pg_stat_force_next_flush()",
    )
    .await;
    let finding = tests::wait::until("the statistics know", Duration::from_secs(10), || async {
        found(&queue).await.into_iter().find(|(check, _)| *check == "bloat")
    })
    .await;
    assert_eq!(finding.1.facts["table"], "job_logs");
}

#[tokio::test]
async fn another_schema_is_found_and_keeps_the_doctor_from_reading_what_is_not_there() {
    let queue = Queue::start().await;
    sql(&queue, "delete from _sqlx_migrations where version = (select max(version) from _sqlx_migrations)").await;
    let report = doctor::examine(queue.db.pool()).await;
    assert!(!report.is_clean());
    let verdict = |name: &str| report.checks.iter().find(|check| check.name == name).map(|check| &check.verdict);
    let Some(Verdict::Checked(findings)) = verdict("schema") else { panic!("{report:?}") };
    assert!(findings[0].advice.contains("leasehold migrate"), "{findings:?}");
    assert!(matches!(verdict("queue"), Some(Verdict::Unchecked(_))), "{report:?}");
    assert!(verdict("stray_jobs").is_none() && verdict("invalid_indexes").is_some());
}
