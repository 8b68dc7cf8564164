//! What one statement leased: running jobs are found by it, and a lease touches no index.

use std::time::Duration;

use domain::ids::BatchId;
use domain::lease::{Fence, Lease};
use domain::queue::{self, Fate, JobState, NewJob, Rescued};
use serde_json::json;
use sqlx::{Connection as _, Executor as _};

use crate::support::{LEASE, Queue, completed, job, snoozed, worker};

async fn batches(q: &Queue) -> Vec<i64> {
    sqlx::query_scalar("select id from lease_batches order by id").fetch_all(q.db.pool()).await.expect("the batches")
}

/// what a lease changes is part of no index, so each new version of a row stays on its page.
#[tokio::test]
async fn a_lease_writes_no_index() {
    let q = Queue::start().await;
    let jobs: Vec<NewJob> = (0..200).map(|_| job()).collect();
    let mut conn = q.conn().await;
    queue::enqueue_many(&mut conn, &jobs).await.expect("enqueued");
    let mut tx = conn.begin().await.expect("a transaction");
    let leased = queue::lease_next(&mut tx, &worker(), 200, &[]).await.expect("leased");
    assert_eq!(leased.len(), 200);
    let (changed, in_place): (i64, i64) = sqlx::query_as(
        "select pg_stat_get_xact_tuples_updated('jobs'::regclass), pg_stat_get_xact_tuples_hot_updated('jobs'::regclass)",
    )
    .fetch_one(&mut *tx)
    .await
    .expect("counts");
    assert_eq!((changed, in_place), (200, 200));
}

/// Jobs of days must not stand in the way of each lease: what is renewed leaves the walk, and comes back with a rescue.
#[tokio::test]
async fn a_job_that_is_renewed_leaves_the_walk_of_the_next_lease() {
    let q = Queue::start().await;
    for _ in 0..3 {
        q.enqueue().await;
    }
    let held = q.lease_up_to(3).await;
    let mut conn = q.conn().await;
    let walked = async |conn: &mut sqlx::PgConnection| -> i64 {
        sqlx::query_scalar("select count(*) from jobs where ready").fetch_one(conn).await.expect("a count")
    };
    assert_eq!(walked(&mut conn).await, 3);
    queue::renew(&mut conn, &[(held[0].lease, LEASE), (held[1].lease, LEASE)]).await.expect("renewed");
    assert_eq!(walked(&mut conn).await, 1);
    assert_eq!(q.settle(held[0].lease, snoozed(0)).await, Fate::Settled(JobState::Available));
    assert_eq!(walked(&mut conn).await, 2, "the snoozed one, and the one that was not renewed");
    assert_eq!(q.lease_up_to(3).await.len(), 1, "the snoozed one");
    q.expire_and_rescue().await;
    assert_eq!(walked(&mut conn).await, 3);
    assert_eq!(q.lease_up_to(3).await.len(), 3);
}

/// A row that another session holds keeps its batch, and keeps no other batch from its turn.
#[tokio::test]
async fn a_batch_with_a_held_row_is_put_off_and_keeps_no_other_from_its_rescue() {
    let q = Queue::start().await;
    for _ in 0..2 {
        q.enqueue().await;
    }
    let held = q.lease_up_to(2).await;
    q.db.clock().advance(LEASE + Duration::from_secs(1)).await;
    let mut session = q.db.session().await;
    let mut tx = session.begin().await.expect("a transaction");
    sqlx::query("select id from jobs where id = $1 for update")
        .bind(held[0].lease.job.0)
        .execute(&mut *tx)
        .await
        .expect("held");
    assert_eq!(q.rescue().await, Rescued { again: 1, ..Rescued::default() }, "the other one");
    assert_eq!(batches(&q).await.len(), 1, "the held one is still named");
    assert_eq!(q.rescue().await, Rescued::default());
    let put_off: bool = sqlx::query_scalar("select expires_at > lh_now() from lease_batches")
        .fetch_one(q.db.pool())
        .await
        .expect("the batch");
    assert!(put_off, "it is not the first of the next sweep again");
    tx.rollback().await.expect("let go");
    q.db.clock().advance(Duration::from_secs(2)).await;
    assert_eq!(q.rescue().await, Rescued { again: 1, ..Rescued::default() });
}

/// A lease waits for no bookkeeping: a batch that a sweep holds, or a row of the worker's, is passed by.
#[tokio::test]
async fn leasing_passes_by_a_held_batch_and_a_held_worker() {
    let q = Queue::start().await;
    for _ in 0..2 {
        q.enqueue().await;
    }
    let (me, mut conn) = (worker(), q.conn().await);
    queue::register_worker(&mut conn, &me, "h", 1, "0", None, 1).await.expect("registered");
    let first = queue::lease_next(&mut conn, &me, 1, &[]).await.expect("leased").remove(0);
    q.complete(first.lease).await;
    let mut session = q.db.session().await;
    let mut tx = session.begin().await.expect("a transaction");
    for table in ["lease_batches", "workers"] {
        let sql = sqlx::AssertSqlSafe(format!("select id from {table} for update"));
        sqlx::query(sql).execute(&mut *tx).await.expect("held");
    }
    sqlx::query("set lock_timeout = '50ms'").execute(&mut *conn).await.expect("set");
    let ended = [first.batch];
    let now = q.db.clock().now().await;
    let request =
        queue::PollRequest { limit: 1, ended: &ended, look: true, wall_clock: Some(now), turns: None, low_water: None };
    assert_eq!(queue::poll(&mut conn, &me, &request).await.expect("no wait").leased.len(), 1);
    assert_eq!(batches(&q).await.len(), 2, "left to the sweeps");
    tx.rollback().await.expect("let go");
    sqlx::query("reset lock_timeout").execute(&mut *conn).await.expect("reset");
}

/// A running job is found once, whatever became of the batches of its earlier passes.
#[tokio::test]
async fn a_running_job_is_found_once() {
    let q = Queue::start().await;
    q.enqueue().await;
    let (me, mut conn) = (worker(), q.conn().await);
    for _ in 0..3 {
        let held = queue::lease_next(&mut conn, &me, 1, &[]).await.expect("leased").remove(0);
        assert_eq!(q.settle(held.lease, snoozed(0)).await, Fate::Settled(JobState::Available));
    }
    let held = queue::lease_next(&mut conn, &me, 1, &[]).await.expect("leased").remove(0);
    assert_eq!(batches(&q).await.len(), 4, "nobody said yet that the first three ended");
    let running: Vec<(uuid::Uuid, i64)> =
        conn.fetch_all("select id, fence from running_jobs").await.expect("the view").iter().map(read).collect();
    assert_eq!(running, [(held.lease.job.0, held.lease.fence.0)]);
}

fn read(row: &sqlx::postgres::PgRow) -> (uuid::Uuid, i64) {
    use sqlx::Row as _;
    (row.get(0), row.get(1))
}

#[tokio::test]
async fn a_worker_removes_its_own_batches_and_no_others() {
    let q = Queue::start().await;
    for _ in 0..2 {
        q.enqueue().await;
    }
    let (me, mut conn) = (worker(), q.conn().await);
    let mine = queue::lease_next(&mut conn, &me, 1, &[]).await.expect("leased").remove(0);
    let other = q.lease().await;
    q.complete(mine.lease).await;
    let ended = [mine.batch, other.batch, BatchId(i64::MAX)];
    assert!(queue::lease_next(&mut conn, &me, 1, &ended).await.expect("nothing is due").is_empty());
    assert_eq!(batches(&q).await, [other.batch.0]);
}

/// a batch some of whose jobs were renewed is put off, and its silent ones are found each in its time.
#[tokio::test]
async fn a_batch_is_kept_until_none_of_its_jobs_runs_any_more() {
    let q = Queue::start().await;
    for _ in 0..3 {
        q.enqueue().await;
    }
    let leased = q.lease_up_to(3).await;
    assert_eq!(batches(&q).await.len(), 1, "one statement, one batch");
    q.complete(leased[0].lease).await;
    q.db.clock().advance(Duration::from_secs(20)).await;
    queue::renew(&mut *q.conn().await, &[(leased[1].lease, LEASE)]).await.expect("renewed");
    q.db.clock().advance(Duration::from_secs(11)).await;
    assert_eq!(q.rescue().await, Rescued { again: 1, ..Rescued::default() }, "the silent one");
    assert_eq!(batches(&q).await.len(), 1, "one still runs");
    assert_eq!(q.rescue().await, Rescued::default());
    q.db.clock().advance(Duration::from_secs(20)).await;
    assert_eq!(q.rescue().await, Rescued { again: 1, ..Rescued::default() }, "the renewed one, when it is silent too");
    assert!(batches(&q).await.is_empty());
}

/// The short way records what the long way would.
#[tokio::test]
async fn the_short_way_to_complete_ends_as_the_long_one() {
    let q = Queue::start().await;
    for _ in 0..2 {
        q.enqueue().await;
    }
    let leased = q.lease_up_to(2).await;
    let result = json!({"ok": true});
    let short = [(leased[0].lease, &result), (leased[0].lease, &result)];
    let done = Fate::Settled(JobState::Completed);
    assert_eq!(queue::complete_swiftly(&mut *q.conn().await, &short).await.expect("answers"), [done, done]);
    assert_eq!(q.settle(leased[1].lease, completed()).await, done);
    let rows: Vec<serde_json::Value> = sqlx::query_scalar(
        "select to_jsonb(f) - array['id', 'fence', 'settled_fence', 'run_at', 'created_at', 'finished_at', 'leased_at']
           from jobs_finished f order by fence",
    )
    .fetch_all(q.db.pool())
    .await
    .expect("both");
    assert_eq!(rows[0], rows[1]);
}

/// on the short way.
#[tokio::test]
async fn the_short_way_to_complete_refuses_a_stale_fence_and_knows_its_own_work() {
    let q = Queue::start().await;
    for _ in 0..3 {
        q.enqueue().await;
    }
    let lost = q.lease_up_to(3).await;
    q.expire_and_rescue().await;
    let held = q.lease_up_to(2).await;
    let null = serde_json::Value::Null;
    let invented = Lease { job: held[0].lease.job, fence: Fence(held[0].lease.fence.0 + 1000) };
    let asked: Vec<_> =
        lost.iter().chain(&held).map(|l| (l.lease, &null)).chain(std::iter::once((invented, &null))).collect();
    let (done, lost) = (Fate::Settled(JobState::Completed), Fate::Lost);
    let mut conn = q.conn().await;
    // Alone first: what is stale ends no job of its successor, whatever it is told.
    assert_eq!(queue::complete_swiftly(&mut conn, &asked[..3]).await.expect("answers"), [lost, lost, lost]);
    assert_eq!(q.job(held[0].lease.job).await.state, JobState::Running);
    assert_eq!(
        queue::complete_swiftly(&mut conn, &asked).await.expect("answers"),
        [lost, lost, lost, done, done, lost],
        "a stale one stops no other"
    );
    let already = Fate::Already;
    assert_eq!(
        queue::complete_swiftly(&mut conn, &asked).await.expect("answers"),
        [lost, lost, lost, already, already, lost]
    );
    let waiting: i64 = sqlx::query_scalar("select count(*) from jobs where state = 'available'")
        .fetch_one(&mut *conn)
        .await
        .expect("the third");
    assert_eq!(waiting, 1);
}

/// A row that another session holds fails the short way as a whole, within its connection's patience.
#[tokio::test]
async fn the_short_way_to_complete_records_nothing_where_a_row_is_held() {
    let q = Queue::start().await;
    for _ in 0..2 {
        q.enqueue().await;
    }
    let leased = q.lease_up_to(2).await;
    let mut session = q.db.session().await;
    let mut tx = session.begin().await.expect("a transaction");
    sqlx::query("select id from jobs where id = $1 for update")
        .bind(leased[1].lease.job.0)
        .execute(&mut *tx)
        .await
        .expect("held");
    let mut conn = q.db.session().await;
    conn.execute("set lock_timeout = '50ms'").await.expect("set");
    let null = serde_json::Value::Null;
    let asked: Vec<_> = leased.iter().map(|l| (l.lease, &null)).collect();
    let blocked = queue::complete_swiftly(&mut conn, &asked).await.expect_err("it does not wait for ever");
    assert!(domain::db::lock_timed_out(&blocked), "{blocked}");
    assert_eq!(q.job(leased[0].lease.job).await.state, JobState::Running, "nothing was recorded");
    tx.rollback().await.expect("let go");
    let done = Fate::Settled(JobState::Completed);
    assert_eq!(queue::complete_swiftly(&mut conn, &asked).await.expect("answers"), [done, done]);
}

/// The net under the batches: what an older program leased, or what a fault of ours lost, is found on the next round.
#[tokio::test]
async fn a_stray_is_adopted_and_rescued_and_nothing_else_is() {
    let q = Queue::start().await;
    for _ in 0..5 {
        q.enqueue().await;
    }
    let stray = q.lease().await;
    sqlx::query("delete from lease_batches").execute(q.db.pool()).await.expect("lost");
    let living = q.lease().await;
    let mut conn = q.conn().await;
    // Goes around all five live jobs, two at a time.
    let around = async |conn: &mut sqlx::PgConnection| {
        let mut adopted = 0;
        for _ in 0..3 {
            adopted += queue::adopt_strays(conn, 2).await.expect("answers");
        }
        adopted
    };
    q.db.clock().advance(LEASE + Duration::from_secs(50)).await;
    assert_eq!(around(&mut conn).await, 0, "it may still be named");
    q.db.clock().advance(Duration::from_secs(11)).await;
    assert_eq!(around(&mut conn).await, 1);
    assert_eq!(around(&mut conn).await, 0, "once");
    assert_eq!(q.rescue().await.again, 2, "the stray, and the one that its batch names");
    assert_eq!(q.job(stray.lease.job).await.interruptions, 1);
    assert_eq!(q.job(living.lease.job).await.interruptions, 1);
}
