//! The blocked row: another session holds the row of one job, and no other job of the worker pays for it.

use std::time::Duration;

use domain::ids::{JobId, MoveId};
use domain::instances::moves;
use domain::nodes::Bucket;
use domain::queue::{self, Fate, JobState, Renewed, Settlement};
use sqlx::{Connection as _, PgConnection};
use tokio::time::timeout;

use crate::support::{LEASE, Queue, completed};

/// Far more than what these calls may wait, far less than a lock's own limit.
const SOON: Duration = Duration::from_secs(5);

async fn hold(session: &mut PgConnection, job: JobId) -> sqlx::Transaction<'_, sqlx::Postgres> {
    let mut tx = session.begin().await.expect("a transaction");
    sqlx::query("select id from jobs where id = $1 for update").bind(job.0).execute(&mut *tx).await.expect("held");
    tx
}

/// a row that another session holds stops the renewal of no other lease, and is not called lost.
#[tokio::test]
async fn a_held_row_stops_the_renewal_of_no_other_lease() {
    let q = Queue::start().await;
    for _ in 0..5 {
        q.enqueue().await;
    }
    let leased = q.lease_up_to(5).await;
    let mut session = q.db.session().await;
    let tx = hold(&mut session, leased[2].lease.job).await;
    q.db.clock().advance(Duration::from_secs(20)).await;
    let asked: Vec<_> = leased.iter().map(|l| (l.lease, LEASE)).collect();
    let mut conn = q.conn().await;
    let told = timeout(SOON, queue::renew(&mut conn, &asked)).await.expect("no wait for the row").expect("answers");
    let alive = Renewed::Alive;
    assert_eq!(told, [alive.clone(), alive.clone(), Renewed::Busy, alive.clone(), alive.clone()]);
    // Without the renewal all five would have ended by now.
    q.db.clock().advance(Duration::from_secs(15)).await;
    assert_eq!(q.rescue().await.again, 0, "four were renewed; the fifth is held");
    tx.rollback().await.expect("let go");
    assert_eq!(queue::renew(&mut conn, &asked[2..3]).await.expect("answers"), [alive]);
}

/// a held row stops none of a group; it is answered by itself, and recorded as soon as it is free.
#[tokio::test]
async fn a_held_row_stops_none_of_a_group_of_outcomes() {
    let q = Queue::start().await;
    for _ in 0..5 {
        q.enqueue().await;
    }
    let leased = q.lease_up_to(5).await;
    let mut session = q.db.session().await;
    let tx = hold(&mut session, leased[0].lease.job).await;
    let asked: Vec<_> = leased.iter().map(|l| Settlement { lease: l.lease, outcome: completed() }).collect();
    let mut conn = q.conn().await;
    let fates = timeout(SOON, queue::settle(&mut conn, &asked)).await.expect("a bounded wait").expect("answers");
    let done = Fate::Settled(JobState::Completed);
    assert_eq!(fates, [Fate::Busy, done, done, done, done]);
    tx.rollback().await.expect("let go");
    let already = Fate::Already;
    assert_eq!(queue::settle(&mut conn, &asked).await.expect("answers"), [done, already, already, already, already]);
}

/// The wait for a held row ends a nested transaction, not the caller's.
#[tokio::test]
async fn a_wait_for_a_held_row_leaves_the_callers_transaction_usable() {
    let q = Queue::start().await;
    q.enqueue().await;
    let lease = q.lease().await.lease;
    let mut session = q.db.session().await;
    let held = hold(&mut session, lease.job).await;
    let mut conn = q.conn().await;
    let mut tx = conn.begin().await.expect("a transaction");
    let limit = async |tx: &mut PgConnection| -> String {
        sqlx::query_scalar("select current_setting('lock_timeout')").fetch_one(tx).await.expect("answers")
    };
    let before = limit(&mut tx).await;
    let asked = [Settlement { lease, outcome: completed() }];
    assert_eq!(queue::settle(&mut tx, &asked).await.expect("answers"), [Fate::Busy]);
    held.rollback().await.expect("let go");
    assert_eq!(queue::settle(&mut tx, &asked).await.expect("answers"), [Fate::Settled(JobState::Completed)]);
    assert_eq!(limit(&mut tx).await, before, "its own limit for locks is as it was");
    tx.commit().await.expect("committed");
}

/// Every session of ours gives up a lock's wait, and is ended where it stops inside a transaction.
#[tokio::test]
async fn every_session_bounds_its_waits_and_its_pauses() {
    let q = Queue::start().await;
    let limits: (String, String, String) = sqlx::query_as(
        "select current_setting('statement_timeout'), current_setting('lock_timeout'),
                current_setting('idle_in_transaction_session_timeout')",
    )
    .fetch_one(q.db.pool())
    .await
    .expect("answers");
    assert_eq!(limits, ("30s".to_owned(), "10s".to_owned(), "15s".to_owned()));
}

/// the partitions of the days to come are made while outcomes are being recorded, and keep none of them waiting.
#[tokio::test]
async fn partitions_are_made_beside_an_open_settle() {
    let q = Queue::start().await;
    q.enqueue().await;
    let lease = q.lease().await.lease;
    let mut session = q.db.session().await;
    let mut tx = session.begin().await.expect("a transaction");
    let asked = [Settlement { lease, outcome: completed() }];
    queue::settle(&mut tx, &asked).await.expect("settled, not yet committed");
    q.db.clock().advance(Duration::from_secs(3 * 86_400)).await;
    let mut conn = q.conn().await;
    let partitions = async || -> i64 {
        sqlx::query_scalar("select count(*) from pg_inherits where inhparent = 'jobs_finished'::regclass")
            .fetch_one(q.db.pool())
            .await
            .expect("answers")
    };
    let before = partitions().await;
    assert!(timeout(SOON, queue::ensure_partitions(&mut conn, 7)).await.expect("no wait").expect("answers"));
    assert_eq!(partitions().await, before + 3);
    tx.commit().await.expect("committed");
}

/// a long read of the default partition makes the partitions late, not the readers and writers behind them.
#[tokio::test]
async fn partitions_that_would_have_to_wait_are_made_later() {
    let q = Queue::start().await;
    let mut session = q.db.session().await;
    let mut tx = session.begin().await.expect("a transaction");
    sqlx::query("select from jobs_finished_default").execute(&mut *tx).await.expect("read");
    q.db.clock().advance(Duration::from_secs(3 * 86_400)).await;
    let mut conn = q.conn().await;
    let made = timeout(SOON, queue::ensure_partitions(&mut conn, 7)).await.expect("a bounded wait").expect("answers");
    assert!(!made, "the default partition is being read");
    tx.rollback().await.expect("over");
    assert!(queue::ensure_partitions(&mut conn, 7).await.expect("answers"));
}

/// A refused call lets go of what it locked before it answers, not when its connection is used next.
#[tokio::test]
async fn a_refused_call_leaves_no_transaction_open() {
    let q = Queue::start().await;
    q.enqueue().await;
    let lease = q.lease().await.lease;
    let mut session = q.db.session().await;
    let pid: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut session).await.expect("answers");
    let state = async || -> String {
        sqlx::query_scalar("select state from pg_stat_activity where pid = $1")
            .bind(pid)
            .fetch_one(q.db.pool())
            .await
            .expect("answers")
    };
    let bucket = Bucket { name: "bucket".to_owned(), region: "eu".to_owned() };
    moves::pin_target(&mut session, lease, MoveId::generate(), &bucket).await.expect_err("there is no such move");
    assert_eq!(state().await, "idle");
    queue::retry(&mut session, JobId::generate(), None).await.expect_err("there is no such job");
    assert_eq!(state().await, "idle");
}
