use std::collections::{HashMap, HashSet};
use std::time::Duration;

use domain::ids::{Kind, WorkerId};
use domain::queue::{self, NewJob, WorkerSpec};
use tests::db::Database;

use crate::support::{LEASE, Queue, job, kind, queue_name, worker};

/// 64 callers at once on connections of their own, each leasing until nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_of_ten_thousand_jobs_is_leased_once_by_64_concurrent_callers() {
    const JOBS: usize = 10_000;
    const CALLERS: u32 = 64;
    let db = Database::start().await;
    let jobs: Vec<NewJob> = (0..JOBS).map(|_| job()).collect();
    let mut conn = db.pool().acquire().await.expect("a connection");
    for chunk in jobs.chunks(2_500) {
        queue::enqueue_many(&mut conn, chunk).await.expect("valid jobs");
    }
    let pool = db.pool_of(CALLERS).await;
    let start = std::sync::Arc::new(tokio::sync::Barrier::new(CALLERS as usize));
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (pool, start) = (pool.clone(), start.clone());
            tokio::spawn(async move {
                let mut conn = pool.acquire().await.expect("a connection");
                let me = worker();
                start.wait().await;
                let mut mine = Vec::new();
                loop {
                    let leased = queue::lease_next(&mut conn, &me, 20, &[]).await.expect("the database answers");
                    // Nothing given does not mean nothing left: rows that others hold are skipped.
                    if leased.is_empty() && nothing_available(&mut conn).await {
                        return mine;
                    }
                    mine.extend(leased.into_iter().map(|l| l.lease));
                }
            })
        })
        .collect();
    let mut leases = Vec::new();
    for caller in callers {
        leases.extend(caller.await.expect("a caller"));
    }
    let ids: HashSet<_> = leases.iter().map(|l| l.job).collect();
    let fences: HashSet<_> = leases.iter().map(|l| l.fence).collect();
    assert_eq!(leases.len(), JOBS, "no job was leased twice");
    assert_eq!(ids, jobs.iter().map(|j| j.id).collect(), "every job was leased");
    assert_eq!(fences.len(), JOBS, "no fence was given twice");
}

async fn nothing_available(conn: &mut sqlx::PgConnection) -> bool {
    let left: bool = sqlx::query_scalar("select exists (select from jobs where state = 'available')")
        .fetch_one(conn)
        .await
        .expect("the database answers");
    !left
}

#[tokio::test]
async fn jobs_come_by_priority_then_by_age_across_queues_and_kinds() {
    let q = Queue::start().await;
    let other = Kind::new("test.other").expect("a name");
    let with = |priority, queue: &str, kind: &Kind| {
        let mut job = job().on(queue_name(queue));
        job.priority = priority;
        job.kind = kind.clone();
        job
    };
    let wanted = [
        with(-5, "b", &other),
        with(-5, "a", &kind()),
        with(0, "a", &other),
        with(0, "b", &kind()),
        with(7, "a", &kind()),
    ];
    // Enqueued from the last to the first, so that only the priorities can make the order; equals keep their age.
    for priority in [7, 0, -5] {
        for job in wanted.iter().filter(|j| j.priority == priority) {
            q.enqueue_as(job.clone()).await;
        }
    }
    let me = WorkerSpec {
        worker: WorkerId::generate(),
        queues: vec![queue_name("a"), queue_name("b")],
        kinds: vec![(kind(), LEASE), (other, LEASE)],
    };
    let mut got = Vec::new();
    while got.len() < wanted.len() {
        let leased = queue::lease_next(&mut *q.conn().await, &me, 2, &[]).await.expect("the database answers");
        assert!(!leased.is_empty(), "all are due");
        got.extend(leased.into_iter().map(|l| l.lease.job));
    }
    assert_eq!(got, wanted.iter().map(|j| j.id).collect::<Vec<_>>());
}

/// What a worker does not name, it does not get.
#[tokio::test]
async fn a_worker_gets_only_the_queues_and_kinds_that_it_names() {
    let q = Queue::start().await;
    let mine = q.enqueue().await;
    q.enqueue_as(job().on(queue_name("node.other"))).await;
    let mut foreign = job();
    foreign.kind = Kind::new("test.foreign").expect("a name");
    q.enqueue_as(foreign).await;
    let leased = q.lease_up_to(10).await;
    assert_eq!(leased.iter().map(|l| l.lease.job).collect::<Vec<_>>(), [mine]);
}

/// Until somebody serves its queue and its kind, a job says that nobody does.
#[tokio::test]
async fn a_job_that_nobody_serves_is_visible_as_such() {
    let q = Queue::start().await;
    let id = q.enqueue_as(job().on(queue_name("region.uk"))).await;
    assert!(q.job(id).await.unserved);
    let shown = queue::queues(&mut *q.conn().await).await.expect("the database answers");
    assert_eq!(shown.iter().map(|v| (v.name.as_str(), v.served)).collect::<Vec<_>>(), [("region.uk", false)]);

    let mut here = worker();
    queue::register_worker(&mut *q.conn().await, &here, "host", 1, "0.1.0", None, 4).await.expect("registered");
    assert!(q.job(id).await.unserved, "it serves another queue");

    here = WorkerSpec { worker: WorkerId::generate(), queues: vec![queue_name("region.uk")], ..here };
    queue::register_worker(&mut *q.conn().await, &here, "host", 2, "0.1.0", None, 4).await.expect("registered");
    assert!(!q.job(id).await.unserved);

    q.db.clock().advance(Duration::from_secs(60)).await;
    assert!(q.job(id).await.unserved, "its worker went silent");
}

/// A process is known by a random id, never by its host's name or its number.
#[tokio::test]
async fn a_restart_under_the_same_host_and_pid_is_another_worker() {
    let q = Queue::start().await;
    q.enqueue().await;
    let (before, after) = (worker(), worker());
    assert_ne!(before.worker, after.worker);
    for me in [&before, &after] {
        queue::register_worker(&mut *q.conn().await, me, "same-host", 7, "0.1.0", None, 1).await.expect("registered");
    }
    let held = queue::lease_next(&mut *q.conn().await, &before, 1, &[]).await.expect("leased").remove(0);
    q.expire_and_rescue().await;
    let again = queue::lease_next(&mut *q.conn().await, &after, 1, &[]).await.expect("leased").remove(0);
    assert_eq!(again.lease.job, held.lease.job);
    assert_eq!(q.complete(held.lease).await, queue::Fate::Lost, "the name alone means nothing");
    assert_eq!(q.job(held.lease.job).await.lease.expect("it runs").worker, after.worker);
}

#[tokio::test]
async fn a_lease_lives_as_long_as_its_kind_says() {
    let q = Queue::start().await;
    let short = Kind::new("test.short").expect("a name");
    q.enqueue().await;
    let mut job = job();
    job.kind = short.clone();
    q.enqueue_as(job).await;
    let lives = HashMap::from([(kind(), LEASE), (short.clone(), Duration::from_millis(2_500))]);
    let me = WorkerSpec { kinds: lives.iter().map(|(k, l)| (k.clone(), *l)).collect(), ..worker() };
    let leased = queue::lease_next(&mut *q.conn().await, &me, 10, &[]).await.expect("leased");
    assert_eq!(leased.len(), 2);
    for l in leased {
        // Both ends are read within one statement, some microseconds apart.
        let life = (l.expires_at - l.leased_at).to_std().expect("forward");
        assert!(life >= lives[&l.kind] && life < lives[&l.kind] + Duration::from_secs(1), "{} {life:?}", l.kind);
    }
}

#[tokio::test]
async fn fences_rise_and_are_kept_until_the_next_lease() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    let mut last = 0;
    for _ in 0..5 {
        let leased = q.lease().await;
        assert!(leased.lease.fence.0 > last);
        last = leased.lease.fence.0;
        q.expire_and_rescue().await;
        assert_eq!(q.job(id).await.fence.0, last, "there is no moment without a fence");
    }
}
