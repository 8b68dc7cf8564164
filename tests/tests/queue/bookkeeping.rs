//! What workers and pages read beside the jobs: counters, partitions, worker rows.

use std::time::Duration;

use domain::idempotency::{self, Begun, Call};
use domain::ids::{IdentityId, JobId};
use domain::queue::{self, JobState, policy};
use serde_json::{Value, json};
use sqlx::Connection as _;

use crate::support::{LEASE, Queue, failed, job, worker};

#[tokio::test]
async fn counters_add_up_by_minute_and_from_many_processes_at_once() {
    let q = Queue::start().await;
    let names = ["c", "a", "b"];
    let writers: Vec<_> = (0..8)
        .map(|turn| {
            let pool = q.db.pool().clone();
            tokio::spawn(async move {
                let mut conn = pool.acquire().await.expect("a connection");
                for _ in 0..10 {
                    // Each in another order: a deadlock would need just that.
                    let counts: Vec<_> = (0..3)
                        .map(|i| (names[(i + turn) % 3].to_owned(), "test.work".to_owned(), "completed".to_owned(), 2))
                        .collect();
                    queue::add_throughput(&mut conn, &counts).await.expect("added");
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.expect("done");
    }
    let points = queue::throughput(&mut *q.conn().await, 60).await.expect("points");
    for name in names {
        let total: i64 = points.iter().filter(|p| p.queue == name).map(|p| p.total).sum();
        assert_eq!(total, 160, "{name}");
    }
}

#[tokio::test]
async fn a_job_finishes_also_beyond_the_partitions_that_were_made() {
    let q = Queue::start().await;
    q.db.clock().advance(Duration::from_secs(100 * 86_400)).await;
    let id = q.enqueue().await;
    let lease = q.lease().await.lease;
    q.complete(lease).await;
    assert!(q.job(id).await.state.is_final());
    let mut conn = q.conn().await;
    queue::ensure_partitions(&mut conn, 3).await.expect("made");
    queue::ensure_partitions(&mut conn, 3).await.expect("made twice is made once");
    q.db.clock().advance(Duration::from_secs(86_400)).await;
    q.enqueue().await;
    let lease = q.lease().await.lease;
    q.complete(lease).await;
    let strays: i64 =
        sqlx::query_scalar("select count(*) from jobs_finished_default").fetch_one(q.db.pool()).await.expect("a count");
    assert_eq!(strays, 1, "tomorrow's rows have their own partition");
}

#[tokio::test]
async fn a_worker_is_live_draining_silent_or_stopped() {
    let q = Queue::start().await;
    let me = worker();
    let mut conn = q.conn().await;
    queue::register_worker(&mut conn, &me, "host", 42, "0.1.0", Some("node-1"), 8).await.expect("registered");
    let state = async || {
        let shown = queue::list_workers(&mut *q.conn().await, 10).await.expect("answers");
        assert_eq!(shown.len(), 1);
        shown[0].state.clone()
    };
    assert_eq!(state().await, "live");
    queue::drain_worker(&mut conn, me.worker).await.expect("drained");
    assert_eq!(state().await, "draining");
    q.db.clock().advance(Duration::from_secs(40)).await;
    assert_eq!(state().await, "silent");
    queue::seen_worker(&mut conn, me.worker, None).await.expect("seen");
    assert_eq!(state().await, "draining");
    queue::stop_worker(&mut conn, me.worker).await.expect("stopped");
    assert_eq!(state().await, "stopped");
}

/// the marks walk the leases by their own index, however many jobs wait.
#[tokio::test]
async fn the_marks_of_what_changed_read_the_leases_and_not_the_backlog() {
    let q = Queue::start().await;
    let jobs: Vec<_> = (0..3000).map(|_| job()).collect();
    let mut conn = q.conn().await;
    queue::enqueue_many(&mut conn, &jobs).await.expect("enqueued");
    let leased = q.lease_up_to(3).await;
    for held in &leased {
        let progress = queue::Progress { done: 1, ..queue::Progress::default() };
        queue::set_progress(&mut conn, held.lease, &progress).await.expect("set");
    }
    sqlx::query("analyze jobs").execute(&mut *conn).await.expect("analyzed");
    let mut tx = conn.begin().await.expect("a transaction");
    queue::change_marks(&mut tx).await.expect("marks");
    let rows: i64 = sqlx::query_scalar(
        "select pg_stat_get_xact_tuples_returned('jobs'::regclass)
                + pg_stat_get_xact_tuples_fetched('jobs'::regclass)",
    )
    .fetch_one(&mut *tx)
    .await
    .expect("counts");
    assert!(rows < 20, "{rows} rows were read");
}

/// a key whose time is over and that is being claimed again is not swept away under its new holder.
#[tokio::test]
async fn a_sweep_passes_by_a_key_that_is_claimed_again() {
    let q = Queue::start().await;
    let identity = IdentityId::generate();
    sqlx::query("set session_replication_role = replica").execute(q.db.pool()).await.expect("no foreign keys here");
    let call = |key| Call { identity, route: "POST /v1/jobs", key, request_hash: [7; 32] };
    let mut conn = q.db.session().await;
    sqlx::query("set session_replication_role = replica").execute(&mut conn).await.expect("no foreign keys here");
    for key in ["again", "old"] {
        assert_eq!(idempotency::begin(&mut conn, &call(key)).await.expect("answers"), Begun::First);
    }
    q.db.clock().advance(idempotency::KEPT + Duration::from_secs(1)).await;
    let mut tx = conn.begin().await.expect("a transaction");
    assert_eq!(idempotency::begin(&mut tx, &call("again")).await.expect("answers"), Begun::First);
    assert_eq!(idempotency::sweep(&mut *q.conn().await, 100).await.expect("no wait"), 1, "the other one");
    tx.commit().await.expect("committed");
    assert_eq!(idempotency::sweep(&mut *q.conn().await, 100).await.expect("answers"), 0);
    assert_eq!(
        idempotency::begin(&mut conn, &call("again")).await.expect("answers"),
        Begun::Answered(idempotency::Answer { status: 0, body: String::new() })
    );
}

async fn row(q: &Queue, table: &str, id: JobId) -> serde_json::Map<String, Value> {
    let sql = format!("select to_jsonb(t) from {table} t where id = $1");
    let row: Value =
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).bind(id.0).fetch_one(q.db.pool()).await.expect("the row");
    row.as_object().expect("an object").clone()
}

/// whichever way a job ends, its finished row carries every column that both tables have.
#[tokio::test]
async fn every_way_to_the_finished_jobs_carries_every_column() {
    for way in ["settled", "rescued", "cancel ignored", "cancelled"] {
        let q = Queue::start().await;
        let mut wanted = job();
        wanted.priority = 7;
        wanted.max_attempts = 11;
        wanted.max_interruptions = 13;
        wanted.protected = way != "cancelled";
        wanted.deadline = Some(Duration::from_millis(1234));
        wanted.tags = vec!["a tag".to_owned()];
        wanted.unique_key = Some("a key".to_owned());
        wanted.traceparent = Some("00-aa-bb-01".to_owned());
        let id = q.enqueue_as(wanted).await;
        let held = q.lease().await.lease;
        q.settle(held, failed()).await;
        q.db.clock().advance(Duration::from_secs(11)).await;
        q.stage().await;
        let held = q.lease().await.lease;
        if way == "cancelled" {
            q.settle(held, failed()).await;
        }
        sqlx::query(
            "update jobs set interruptions = 3, concurrency_key = 'limited', parent_id = gen_random_uuid(),
                             progress = '{\"done\": 5}', revision = 70,
                             cancel_requested_at = case when $1 in ('rescued', 'cancel ignored') then lh_now() end",
        )
        .bind(way)
        .execute(q.db.pool())
        .await
        .expect("filled");
        let before = row(&q, "jobs", id).await;
        match way {
            "settled" => drop(q.complete(held).await),
            "rescued" => q.expire_and_rescue().await,
            "cancel ignored" => {
                q.db.clock().advance(policy::CANCEL_GRACE.max(LEASE) + Duration::from_secs(1)).await;
                queue::cancel_ignored(&mut *q.conn().await, 10).await.map(drop).expect("answers");
            }
            _ => queue::cancel(&mut *q.conn().await, id, "asked", None).await.map(drop).expect("cancelled"),
        }
        let after = row(&q, "jobs_finished", id).await;
        let done = if way == "settled" { JobState::Completed } else { JobState::Cancelled };
        assert_eq!(q.job(id).await.state, done, "{way}");
        for (column, was) in &before {
            let Some(is) = after.get(column) else { continue };
            let expected = match (column.as_str(), way) {
                // Whose outcome ended the job; what others settled before stands in the attempts.
                ("settled_fence", "settled") => json!(held.fence),
                ("settled_fence", _) => Value::Null,
                ("state", _) => json!(done),
                ("revision", _) => json!(71),
                ("interruptions", "rescued") => json!(4),
                ("last_error", "settled") => was.clone(),
                ("last_error", _) => is.clone(),
                // A job that waits has no holder.
                ("worker_id", "cancelled") => Value::Null,
                _ => {
                    assert!(!was.is_null(), "{way}: {column} is not filled, so nothing is seen of it");
                    was.clone()
                }
            };
            assert_eq!(*is, expected, "{way}: {column}");
        }
    }
}
