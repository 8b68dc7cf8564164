//! Limits and pauses: exact on all workers together, and after any of them died.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use domain::queue::{self, Leased, Limits, NewJob, Paused, Rate};
use workers::seam::{LeaseStore as _, PgLeaseStore};

use crate::support::{LEASE, Queue, completed, job, kind, queue_name, worker};

async fn limit(q: &Queue, limits: Limits) {
    queue::set_limits(&mut *q.conn().await, &queue_name("default"), &limits, None, "a test", None)
        .await
        .expect("limits within bounds");
}

pub const fn running(n: u16) -> Limits {
    Limits { running: Some(n), running_per_key: None, starts_per_key: None }
}

pub const fn per_key(n: u16) -> Limits {
    Limits { running: None, running_per_key: Some(n), starts_per_key: None }
}

pub fn rate(starts: u16, seconds: u64) -> Limits {
    Limits { starts_per_key: Some(Rate { starts, span: Duration::from_secs(seconds) }), ..Limits::default() }
}

async fn enqueue_keyed(q: &Queue, key: &str, n: usize) {
    let jobs: Vec<NewJob> = (0..n).map(|_| job().keyed(key)).collect();
    queue::enqueue_many(&mut *q.conn().await, &jobs).await.expect("valid jobs");
}

async fn enqueue(q: &Queue, n: usize) {
    let jobs: Vec<NewJob> = (0..n).map(|_| job()).collect();
    queue::enqueue_many(&mut *q.conn().await, &jobs).await.expect("valid jobs");
}

fn by_key(leased: &[Leased]) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for job in leased {
        *counts.entry(job.concurrency_key.clone().unwrap_or_default()).or_default() += 1;
    }
    counts
}

/// Whoever asks, no more run than the limit says; one that ends makes room for one.
#[tokio::test]
async fn no_more_jobs_of_a_queue_run_than_its_limit_says() {
    let q = Queue::start().await;
    enqueue(&q, 10).await;
    limit(&q, running(3)).await;
    let first = q.lease_up_to(2).await;
    assert_eq!(first.len(), 2);
    assert_eq!(q.lease_up_to(10).await.len(), 1, "one place is left");
    assert!(q.lease_up_to(10).await.is_empty(), "none is left");
    q.complete(first[0].lease).await;
    assert_eq!(q.lease_up_to(10).await.len(), 1, "the place of the one that ended");
    assert!(q.lease_up_to(10).await.is_empty());
}

/// Jobs with and without a key share their queue's limit, and each key has its own beside it.
#[tokio::test]
async fn keys_have_limits_of_their_own_within_that_of_the_queue() {
    let q = Queue::start().await;
    limit(&q, Limits { running: Some(5), ..per_key(2) }).await;
    enqueue_keyed(&q, "a", 10).await;
    enqueue_keyed(&q, "b", 10).await;
    enqueue(&q, 10).await;
    let leased = q.lease_up_to(20).await;
    assert_eq!(leased.len(), 5, "the queue's limit");
    let counts = by_key(&leased);
    assert!(counts.get("a").is_some_and(|n| *n <= 2) && counts.get("b").is_some_and(|n| *n <= 2), "{counts:?}");
    limit(&q, per_key(2)).await;
    enqueue_keyed(&q, "c", 1).await;
    let mut all = leased;
    // Those without a key come by the short statement, the others by the long one.
    for _ in 0..2 {
        all.extend(q.lease_up_to(50).await);
    }
    let counts = by_key(&all);
    assert_eq!((counts["a"], counts["b"], counts["c"]), (2, 2, 1), "{counts:?}");
    assert_eq!(counts[""], 10, "jobs without a key know no limit for each key");
}

/// A place belongs to a live lease: a holder that dies has it until it is taken over, and no longer.
#[tokio::test]
async fn a_place_under_a_limit_is_free_again_when_its_lease_was_taken_over() {
    let q = Queue::start().await;
    limit(&q, Limits { running: Some(1), ..per_key(1) }).await;
    enqueue_keyed(&q, "a", 3).await;
    let dead = q.lease().await;
    q.db.clock().advance(LEASE + Duration::from_secs(1)).await;
    assert!(q.lease_up_to(5).await.is_empty(), "expired, and nobody took it over yet: it may still run");
    assert_eq!(q.rescue().await.again, 1);
    let successor = q.lease().await;
    assert!(q.lease_up_to(5).await.is_empty());
    // The late one ends: that frees nothing of its successor's.
    assert_eq!(q.complete(dead.lease).await, queue::Fate::Lost);
    assert!(q.lease_up_to(5).await.is_empty(), "the successor has the place");
    q.complete(successor.lease).await;
    assert_eq!(q.lease_up_to(5).await.len(), 1);
}

/// However a lease ends, its place is free: no end has to think of it.
#[tokio::test]
async fn every_end_of_a_lease_frees_its_place() {
    let q = Queue::start().await;
    limit(&q, Limits { running: Some(1), ..per_key(1) }).await;
    let ends = [
        completed(),
        crate::support::failed(),
        crate::support::snoozed(60),
        crate::support::discarded(),
        crate::support::cancelled(),
        queue::Outcome::Released,
    ];
    for end in ends {
        let mut first = job().keyed("a");
        first.priority = -1;
        q.enqueue_as(first).await;
        let leased = q.lease().await;
        assert!(q.lease_up_to(5).await.is_empty(), "{end:?}");
        q.settle(leased.lease, end.clone()).await;
        q.enqueue_as(job().keyed("a")).await;
        let next = q.lease_up_to(5).await;
        assert_eq!(next.len(), 1, "{end:?}");
        q.complete(next[0].lease).await;
        q.db.clock().advance(Duration::from_secs(100)).await;
        q.stage().await;
        for left in [q.lease_up_to(1).await, q.lease_up_to(1).await] {
            for job in left {
                q.complete(job.lease).await;
            }
        }
    }
}

/// Many callers at once, on connections of their own, that lease, hold and settle: at no moment more than the
/// limits. What counts is each caller's own knowledge: it counts a job from the answer to the lease until before the
/// settlement is asked for, which is within the time that the job runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn limits_hold_exactly_among_many_callers_at_once() {
    const CALLERS: u32 = 12;
    const JOBS: usize = 240;
    let q = Queue::start().await;
    limit(&q, Limits { running: Some(7), ..per_key(2) }).await;
    let keys = ["a", "b", "c", "d", "e", "f"];
    for key in keys {
        enqueue_keyed(&q, key, JOBS / keys.len()).await;
    }
    let pool = q.db.pool_of(CALLERS).await;
    let all = Arc::new(AtomicI64::new(0));
    let each: Arc<HashMap<&str, AtomicI64>> = Arc::new(keys.iter().map(|key| (*key, AtomicI64::new(0))).collect());
    let done = Arc::new(AtomicI64::new(0));
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (pool, all, each, done) = (pool.clone(), all.clone(), each.clone(), done.clone());
            tokio::spawn(async move {
                let mut conn = pool.acquire().await.expect("a connection");
                let me = worker();
                while done.load(Ordering::SeqCst) < JOBS as i64 {
                    let leased = queue::lease_next(&mut conn, &me, 3, &[]).await.expect("the database answers");
                    for job in &leased {
                        let key = job.concurrency_key.as_deref().expect("all are keyed");
                        assert!(all.fetch_add(1, Ordering::SeqCst) < 7, "the queue's limit");
                        assert!(each[key].fetch_add(1, Ordering::SeqCst) < 2, "the limit of {key}");
                    }
                    tokio::task::yield_now().await;
                    for job in leased {
                        each[job.concurrency_key.as_deref().expect("keyed")].fetch_sub(1, Ordering::SeqCst);
                        all.fetch_sub(1, Ordering::SeqCst);
                        let asked = [queue::Settlement { lease: job.lease, outcome: completed() }];
                        queue::settle(&mut conn, &asked).await.expect("the database answers");
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("no limit was exceeded");
    }
}

/// A limit that is set while jobs run counts them: of the queue, and of each key.
#[tokio::test]
async fn a_limit_counts_what_ran_before_it_was_set() {
    let q = Queue::start().await;
    enqueue(&q, 10).await;
    let leased = q.lease_up_to(4).await;
    limit(&q, running(3)).await;
    assert!(q.lease_up_to(5).await.is_empty(), "four run");
    limit(&q, running(5)).await;
    assert_eq!(q.lease_up_to(5).await.len(), 1, "four run, five may");
    for done in leased {
        q.complete(done.lease).await;
    }
    assert_eq!(q.lease_up_to(9).await.len(), 4);
    limit(&q, Limits::default()).await;
    assert_eq!(q.lease_up_to(9).await.len(), 1, "no limit any more");
    enqueue_keyed(&q, "a", 5).await;
    let keyed = q.lease_up_to(2).await;
    limit(&q, per_key(2)).await;
    assert!(q.lease_up_to(5).await.is_empty(), "two of the key run");
    q.complete(keyed[0].lease).await;
    assert_eq!(q.lease_up_to(5).await.len(), 1);
}

/// A lease that was under way when a limit was set is counted by the next upkeep.
#[tokio::test]
async fn an_upkeep_counts_what_was_leased_while_a_limit_was_being_set() {
    let q = Queue::start().await;
    enqueue(&q, 10).await;
    limit(&q, running(3)).await;
    let mut late = q.db.session().await;
    sqlx::raw_sql("begin; delete from queue_limits").execute(&mut late).await.expect("as before it was set");
    assert_eq!(queue::lease_next(&mut late, &worker(), 4, &[]).await.expect("leases").len(), 4, "it knows no limit");
    let set = "insert into queue_limits (queue, running, reason, set_at) values ('default', 3, '', lh_now()); commit";
    sqlx::raw_sql(set).execute(&mut late).await.expect("and as it was set meanwhile");
    PgLeaseStore::new(q.db.pool()).upkeep().await.expect("an upkeep");
    assert_eq!(queue::count_running(&mut *q.conn().await, None).await.expect("counted"), 0, "once");
    assert!(q.lease_up_to(5).await.is_empty(), "four run where three may");
}

/// A start is counted where a job starts, and not where its lease lost another place to somebody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn as_many_start_as_the_rate_allows_however_many_callers_want_their_places() {
    const CALLERS: u32 = 12;
    const KEYS: usize = 20;
    const STARTS: usize = 3;
    let q = Queue::start().await;
    limit(&q, Limits { running: Some(1), ..rate(3, 86_400) }).await;
    for key in 0..KEYS {
        enqueue_keyed(&q, &format!("k{key:02}"), STARTS + 2).await;
    }
    let pool = q.db.pool_of(CALLERS).await;
    let started = Arc::new(AtomicI64::new(0));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (pool, started) = (pool.clone(), started.clone());
            tokio::spawn(async move {
                let mut conn = pool.acquire().await.expect("a connection");
                let me = worker();
                let mut turns = queue::Turns::default();
                let mut idle = 0;
                // Each goes around by itself, so that several want the queue's one place for different keys.
                while idle < 40 + caller {
                    let request = queue::PollRequest {
                        limit: 1,
                        ended: &[],
                        look: false,
                        wall_clock: None,
                        turns: Some(&turns),
                        low_water: None,
                    };
                    let polled = queue::poll(&mut conn, &me, &request).await.expect("the database answers");
                    idle = if polled.leased.is_empty() { idle + 1 } else { 0 };
                    turns = polled.turns;
                    for job in polled.leased {
                        started.fetch_add(1, Ordering::SeqCst);
                        let asked = [queue::Settlement { lease: job.lease, outcome: completed() }];
                        queue::settle(&mut conn, &asked).await.expect("the database answers");
                    }
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("a caller");
    }
    assert_eq!(started.load(Ordering::SeqCst), (KEYS * STARTS) as i64, "no start was spent for nothing");
}

/// A lower limit lets those that run go on, and lets none begin until they are fewer.
#[tokio::test]
async fn a_lowered_limit_counts_what_runs_beyond_it() {
    let q = Queue::start().await;
    limit(&q, running(5)).await;
    enqueue(&q, 20).await;
    let leased = q.lease_up_to(5).await;
    limit(&q, running(2)).await;
    for done in &leased[..3] {
        assert!(q.lease_up_to(5).await.is_empty());
        q.complete(done.lease).await;
    }
    assert!(q.lease_up_to(5).await.is_empty(), "two run");
    q.complete(leased[3].lease).await;
    assert_eq!(q.lease_up_to(5).await.len(), 1);
    limit(&q, Limits::default()).await;
    assert_eq!(q.lease_up_to(5).await.len(), 5, "no limit any more");
}

/// A rate is a sliding window: wherever it begins, no span has more starts.
#[tokio::test]
async fn no_span_of_time_has_more_starts_of_a_key_than_its_rate_says() {
    let q = Queue::start().await;
    limit(&q, rate(3, 60)).await;
    enqueue_keyed(&q, "a", 20).await;
    enqueue_keyed(&q, "b", 1).await;
    assert_eq!(by_key(&q.lease_up_to(2).await)["a"], 1, "two keys take turns");
    let minute = chrono::TimeDelta::seconds(60);
    let mut starts = Vec::new();
    let begin = q.db.clock().now().await;
    for wait in [10, 20, 25, 10, 1, 30, 3, 61, 0, 59, 1] {
        q.db.clock().advance(Duration::from_secs(wait)).await;
        for started in q.lease_up_to(10).await {
            assert_eq!(q.complete(started.lease).await, queue::Fate::Settled(queue::JobState::Completed));
            starts.push(started.leased_at);
        }
        let now = q.db.clock().now().await;
        for start in &starts {
            let within = starts.iter().filter(|at| *at <= start && **at > *start - minute).count();
            assert!(within <= 3, "{starts:?}");
        }
        // The first of all, of key a, is among them until its minute is over.
        let since = starts.iter().filter(|at| **at > now - minute).count() + usize::from(begin > now - minute);
        assert!(since >= 3, "as many as the rate allows: {starts:?} at {now}");
    }
}

/// A pause holds for every lease after it, and ends with its end; jobs that run go on.
#[tokio::test]
async fn a_paused_queue_and_a_paused_kind_give_no_jobs_until_they_are_resumed() {
    let q = Queue::start().await;
    enqueue(&q, 3).await;
    enqueue_keyed(&q, "a", 3).await;
    let before = q.lease().await;
    for what in [Paused::Queue(queue_name("default")), Paused::Kind(kind())] {
        let mut conn = q.conn().await;
        let (pause, new) = queue::pause(&mut conn, &what, None, "a release").await.expect("a pause");
        let again = queue::pause(&mut conn, &what, None, "another reason").await.expect("a pause");
        assert!(new);
        assert_eq!(again, (pause.clone(), false), "paused already: the first reason stays");
        assert!(q.lease_up_to(10).await.is_empty(), "{what:?}");
        limit(&q, running(5)).await;
        assert!(q.lease_up_to(10).await.is_empty(), "{what:?}, with a limit");
        limit(&q, Limits::default()).await;
        let listed = queue::pauses_after(&mut conn, None, 10).await.expect("pauses");
        assert_eq!(listed, std::slice::from_ref(&pause));
        assert_eq!(queue::resume(&mut conn, &what).await.expect("the database answers"), Some(pause));
        assert_eq!(queue::resume(&mut conn, &what).await.expect("the database answers"), None, "nothing to resume");
        assert_eq!(q.lease_up_to(1).await.len(), 1, "{what:?} is resumed");
    }
    assert_eq!(q.complete(before.lease).await, queue::Fate::Settled(queue::JobState::Completed));
}

/// Places that nobody needs are forgotten, those of live leases and of a span that is not over are not.
#[tokio::test]
async fn free_places_are_forgotten_and_taken_ones_are_not() {
    let q = Queue::start().await;
    limit(&q, Limits { running_per_key: Some(1), ..rate(1, 60) }).await;
    for key in ["a", "b", "c"] {
        enqueue_keyed(&q, key, 2).await;
    }
    let leased = q.lease_up_to(3).await;
    q.complete(leased[0].lease).await;
    let sweep = async || {
        let mut all = 0;
        for _ in 0..10 {
            all += queue::forget_slots(&mut *q.conn().await, 2).await.expect("the database answers");
        }
        all
    };
    assert_eq!(sweep().await, 1, "the one place of a job that ended");
    assert!(q.lease_up_to(5).await.is_empty(), "the rate still holds");
    q.db.clock().advance(Duration::from_secs(86_401)).await;
    assert_eq!(sweep().await, 3, "the starts");
    assert_eq!(q.lease_up_to(5).await.len(), 1, "the key whose job ended");
}

/// A place below those that are taken is given again, and one beyond what was ever taken is given too.
#[tokio::test]
async fn a_forgotten_place_below_a_taken_one_is_given_again() {
    let q = Queue::start().await;
    limit(&q, Limits { running: Some(3), running_per_key: Some(3), ..Limits::default() }).await;
    enqueue_keyed(&q, "a", 6).await;
    let leased = q.lease_up_to(2).await;
    q.complete(leased[0].lease).await;
    let mut forgotten = 0;
    for _ in 0..10 {
        forgotten += queue::forget_slots(&mut *q.conn().await, 2).await.expect("the database answers");
    }
    assert_eq!(forgotten, 2, "the job's place in the queue and under its key");
    assert_eq!((q.lease_up_to(5).await.len(), q.lease_up_to(5).await.len()), (2, 0));
}
