//! Marks: a worker's walk begins behind what it found empty, and no job is lost by that.

use domain::queue::{self, Limits, NewJob};
use sqlx::PgConnection;

use crate::poller::Poller;
use crate::support::{Queue, completed, job, queue_name};

async fn enqueue(q: &Queue, n: usize, priority: i16, seconds_ago: i64) -> Vec<domain::ids::JobId> {
    let at = q.db.clock().now().await - chrono::TimeDelta::seconds(seconds_ago);
    let jobs: Vec<NewJob> = (0..n)
        .map(|_| {
            let mut job = job();
            (job.priority, job.run_at) = (priority, Some(at));
            job
        })
        .collect();
    for part in jobs.chunks(1000) {
        queue::enqueue_many(&mut *q.conn().await, part).await.expect("valid jobs");
    }
    jobs.into_iter().map(|job| job.id).collect()
}

fn ids(leased: &[queue::Leased]) -> Vec<domain::ids::JobId> {
    leased.iter().map(|job| job.lease.job).collect()
}

/// A worker with marks leases what one without would, in the same order, over several priorities.
#[tokio::test]
async fn a_marked_walk_leases_the_same_jobs_in_the_same_order() {
    let q = Queue::start().await;
    let mut wanted = Vec::new();
    for (priority, ago) in [(-3, 60), (-3, 50), (0, 90), (0, 60), (7, 100)] {
        wanted.extend(enqueue(&q, 7, priority, ago).await);
    }
    let mut poller = Poller::new();
    let mut found = Vec::new();
    for _ in 0..12 {
        found.extend(ids(&poller.lease_marked(&q, 3).await));
    }
    assert_eq!(found, wanted);
}

/// What a mark hides is found by a walk from the beginning; a better priority and a later time are found at once.
#[tokio::test]
async fn a_mark_hides_only_older_jobs_of_its_own_priority_and_not_for_ever() {
    let q = Queue::start().await;
    enqueue(&q, 2, 0, 60).await;
    let mut poller = Poller::new();
    assert_eq!(poller.lease_marked(&q, 1).await.len(), 1);
    let older = enqueue(&q, 1, 0, 600).await;
    let urgent = enqueue(&q, 1, -1, 600).await;
    let later = enqueue(&q, 1, 5, 600).await;
    let found = ids(&poller.lease_marked(&q, 9).await);
    assert_eq!((found.len(), found.first(), found.last()), (3, urgent.first(), later.first()), "{found:?}");
    assert!(poller.lease_marked(&q, 9).await.is_empty(), "the older one stands before the mark");
    assert_eq!(ids(&poller.lease(&q, 9).await), older);
}

/// A job that is a moment older than one that was leased may still be committed after it.
#[tokio::test]
async fn a_mark_leaves_room_for_what_was_enqueued_just_before() {
    let q = Queue::start().await;
    let mut first = q.db.session().await;
    sqlx::query("begin").execute(&mut first).await.expect("a transaction");
    let slow = queue::enqueue(&mut first, &job()).await.expect("a valid job").job();
    q.enqueue().await;
    let mut poller = Poller::new();
    assert_eq!(poller.lease_marked(&q, 5).await.len(), 1);
    sqlx::query("commit").execute(&mut first).await.expect("committed");
    assert_eq!(ids(&poller.lease_marked(&q, 5).await), [slow]);
}

/// A worker of `queues`, and jobs in them: of each queue so many, and within so many seconds, from the same moment on.
async fn in_queues(q: &Queue, queues: usize, each: impl Fn(usize) -> (usize, i64)) -> Poller {
    let mut poller = Poller::new();
    poller.worker.queues = (0..queues).map(|n| queue_name(&format!("q{n:02}"))).collect();
    let now = q.db.clock().now().await;
    let mut jobs: Vec<NewJob> = Vec::new();
    for (n, queue) in poller.worker.queues.iter().enumerate() {
        let (count, within) = each(n);
        jobs.extend((0..count).map(|i| {
            let place = i64::try_from(i * 7 + n * 3).expect("small") % within;
            let mut job = job().on(queue.clone());
            (job.priority, job.run_at) = ([0, 0, 5][i % 3], Some(now - chrono::TimeDelta::seconds(2000 - place)));
            job
        }));
    }
    for part in jobs.chunks(1000) {
        queue::enqueue_many(&mut *q.conn().await, part).await.expect("valid jobs");
    }
    poller
}

/// One order holds over all queues, however unevenly they are filled, though of each only its share is read.
#[tokio::test]
async fn jobs_of_many_queues_are_leased_in_one_order() {
    let q = Queue::start().await;
    // One has the oldest hundreds.
    let mut poller = in_queues(&q, 12, |n| if n == 5 { (400, 90) } else { (40 + n * 20, 900) }).await;
    let mut places = Vec::new();
    loop {
        let leased = poller.lease_marked(&q, 100).await;
        if leased.is_empty() {
            break;
        }
        places.extend(leased.iter().map(|job| (job.priority, job.run_at, job.lease.job)));
    }
    assert_eq!(places.len(), 400 + 11 * 40 + (66 - 5) * 20);
    assert!(places.is_sorted());
}

/// A worker of many queues reads about twice what it wants, and not as much of each queue.
#[tokio::test]
async fn what_a_poll_reads_hardly_grows_with_the_queues_of_its_worker() {
    let q = Queue::start().await;
    let mut poller = in_queues(&q, 64, |_| (100, 700)).await;
    let mut conn = q.conn().await;
    for _ in 0..3 {
        let before = index_reads(&mut conn).await;
        assert_eq!(poller.lease_on(&mut conn, 100, true).await.len(), 100);
        let read = index_reads(&mut conn).await - before;
        assert!(read < 1500, "{read} entries of 6,400");
    }
}

/// What a poll reads does not grow with the jobs that finished before, though a reader keeps their entries.
#[tokio::test]
async fn a_poll_reads_as_little_behind_thousands_of_finished_jobs_that_a_reader_keeps() {
    reads_little(&Queue::start().await).await;
}

/// So it is where the queue has a limit.
#[tokio::test]
async fn a_poll_under_a_limit_reads_as_little_behind_finished_jobs() {
    let q = Queue::start().await;
    let limits = Limits { running: Some(1000), ..Limits::default() };
    queue::set_limits(&mut *q.conn().await, &queue_name("default"), &limits, None, "", None).await.expect("limits");
    reads_little(&q).await;
}

async fn reads_little(q: &Queue) {
    let mut reader = q.db.session().await;
    sqlx::query("begin isolation level repeatable read").execute(&mut reader).await.expect("a transaction");
    sqlx::query("select count(*) from jobs").execute(&mut reader).await.expect("a snapshot");
    enqueue(q, 4000, 0, 600).await;
    let mut poller = Poller::new();
    let mut conn = q.conn().await;
    for _ in 0..13 {
        let leased = poller.lease_on(&mut conn, 300, true).await;
        let asked: Vec<_> =
            leased.iter().map(|job| queue::Settlement { lease: job.lease, outcome: completed() }).collect();
        queue::settle(&mut conn, &asked).await.expect("the database answers");
    }
    let mut read = async |marked| {
        let before = index_reads(&mut conn).await;
        assert_eq!(poller.lease_on(&mut conn, 1, marked).await.len(), 1);
        index_reads(&mut conn).await - before
    };
    let (marked, unmarked) = (read(true).await, read(false).await);
    assert!(marked < 500, "{marked} entries");
    assert!(unmarked > 3000, "the reader keeps them, or this test shows nothing: {unmarked} entries");
}

/// Entries that this session's scans of the index of due jobs returned so far.
async fn index_reads(session: &mut PgConnection) -> i64 {
    sqlx::query("select pg_stat_force_next_flush()").execute(&mut *session).await.expect("flushed");
    sqlx::query_scalar("select idx_tup_read from pg_stat_user_indexes where indexrelname = 'jobs_ready'")
        .fetch_one(session)
        .await
        .expect("the statistics")
}
