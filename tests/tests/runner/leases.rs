//! Leases: kept while their handlers work, and given up before they end.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use domain::queue::{self, JobState, NewJob};
use serde_json::json;
use tests::db::Database;
use tests::wait::until;
use tokio::sync::watch;
use workers::runner::Engine;
use workers::seam::{LeaseStore as _, PgLeaseStore};

use crate::faults::Faulty;
use crate::support::{
    Flag, Running, SHORT_LEASE, act, attempts, complete, config, enqueue_kind, job, kind, refused, until_some,
    until_state,
};

/// Ten of these are not long, and a third of one is enough for a busy machine to renew it.
const LIFE: Duration = Duration::from_millis(1000);

/// Rescues what expired, from a thread that no handler of the test's runtime can starve.
struct Rival {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<u64>>,
}

impl Rival {
    fn start(db: &Database) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopping, url) = (Arc::clone(&stop), db.url().to_owned());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let store = PgLeaseStore::new(&domain::db::connect_lazy(&url, 1).expect("a valid URL"));
                let mut rescued = 0;
                while !stopping.load(SeqCst) {
                    rescued += store.sweep(100).await.expect("the database answers").rescued;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                rescued
            })
        });
        Self { stop, thread: Some(thread) }
    }

    /// Ends it; returns how many jobs it took from their holders.
    fn rescued(mut self) -> u64 {
        self.stop.store(true, SeqCst);
        self.thread.take().expect("it runs").join().expect("the rival does not panic")
    }
}

/// A handler of ten lease lives, with a rival that rescues whatever expires: it runs once.
pub async fn a_handler_of_ten_lease_lives_runs_once(engine: Engine) {
    let db = Database::start().await;
    let spec = domain::queue::KindSpec { lease: LIFE, ..kind("test.act") };
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let registry = act(spec.clone(), move |_, _| {
        counted.fetch_add(1, SeqCst);
        async {
            tokio::time::sleep(LIFE * 10).await;
            complete()
        }
    });
    let rival = Rival::start(&db);
    let id = enqueue_kind(&db, &spec).await;
    let worker = Running::start(&db, registry, config(engine));

    let done = until_state(&db, id, JobState::Completed).await;

    assert_eq!((runs.load(SeqCst), done.attempt, done.interruptions), (1, 1, 0));
    assert_eq!(rival.rescued(), 0);
    assert!(refused(&db, id).await.is_empty());
    worker.stop().await;
}

/// Handlers that block every thread of the runtime cannot keep their leases from being renewed.
pub async fn handlers_that_block_every_thread_keep_their_leases(engine: Engine) {
    let db = Database::start().await;
    let spec = domain::queue::KindSpec { lease: LIFE, ..kind("test.act") };
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let registry = act(spec.clone(), move |_, _| {
        counted.fetch_add(1, SeqCst);
        async {
            // What no handler should do, and some library always does.
            std::thread::sleep(LIFE * 10);
            complete()
        }
    });
    let rival = Rival::start(&db);
    // The runtime of the test has two threads.
    let ids = [enqueue_kind(&db, &spec).await, enqueue_kind(&db, &spec).await];
    let worker = Running::start(&db, registry, config(engine));

    for id in ids {
        let done = until_state(&db, id, JobState::Completed).await;
        assert_eq!((done.attempt, done.interruptions), (1, 0));
    }
    assert_eq!(runs.load(SeqCst), 2);
    assert_eq!(rival.rescued(), 0);
    worker.stop().await;
}

/// The database cannot be reached: the handler is told, and gone, before the database would let another have
/// the lease. No attempt is spent.
pub async fn a_handler_is_stopped_before_its_lease_ends_when_renewals_hang(engine: Engine) {
    let db = Database::start().await;
    let spec = domain::queue::KindSpec { lease: SHORT_LEASE, ..kind("test.act") };
    let store = Faulty::before(&db);
    store.faults.renewals_hang.store(true, SeqCst);
    let dropped = Arc::new(AtomicBool::new(false));
    let runs = Arc::new(AtomicUsize::new(0));
    let (flag, count) = (Arc::clone(&dropped), Arc::clone(&runs));
    let registry = act(spec.clone(), move |_, _| {
        let run = count.fetch_add(1, SeqCst);
        let flag = Arc::clone(&flag);
        async move {
            if run > 0 {
                return complete();
            }
            let _flag = Flag(flag);
            std::future::pending().await
        }
    });
    let faults = Arc::clone(&store.faults);
    let id = enqueue_kind(&db, &spec).await;
    let worker = Running::on(store, registry, config(engine));
    let lease = until_some("the job is leased", async || job(&db, id).await.lease).await;

    until_some("the handler is gone", async || dropped.load(SeqCst).then_some(())).await;

    let now = db.clock().now().await;
    assert!(now < lease.expires_at, "stopped at {now}, the lease ended at {}", lease.expires_at);
    assert!(faults.renewals.load(SeqCst) > 1, "it tried again meanwhile");
    let done = until_state(&db, id, JobState::Completed).await;
    assert_eq!((done.attempt, done.interruptions, runs.load(SeqCst)), (1, 0, 2));
    assert!(refused(&db, id).await.is_empty());
    worker.stop().await;
}

/// Renewals that fail and then succeed in time stop nobody.
pub async fn renewals_that_fail_for_a_while_stop_nobody(engine: Engine) {
    let db = Database::start().await;
    let spec = domain::queue::KindSpec { lease: SHORT_LEASE * 2, ..kind("test.act") };
    let store = Faulty::before(&db);
    store.faults.renewals_fail.store(2, SeqCst);
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let registry = act(spec.clone(), move |_, _| {
        count.fetch_add(1, SeqCst);
        async {
            tokio::time::sleep(SHORT_LEASE * 3).await;
            complete()
        }
    });
    let faults = Arc::clone(&store.faults);
    let id = enqueue_kind(&db, &spec).await;
    let worker = Running::on(store, registry, config(engine));

    until_state(&db, id, JobState::Completed).await;

    assert_eq!(runs.load(SeqCst), 1);
    assert_eq!(faults.renewals_fail.load(SeqCst), 0, "both faults were met");
    worker.stop().await;
}

/// Two starts on one host, with one process number, are two workers.
pub async fn a_second_start_on_the_same_host_is_another_worker(engine: Engine) {
    let db = Database::start().await;
    let spec = kind("test.act");
    let (release, held) = watch::channel(false);
    let registry = act(spec.clone(), move |_, _| {
        let mut held = held.clone();
        async move {
            held.wait_for(|open| *open).await.expect("the test holds the sender");
            complete()
        }
    });
    let first = Running::start(&db, registry.clone(), config(engine));
    let id = enqueue_kind(&db, &spec).await;
    let lease = until_some("the first leases it", async || job(&db, id).await.lease).await;
    let second = Running::start(&db, registry, config(engine));
    let ids = [first.worker(), second.worker()];
    let views = until_some("both are registered", async || {
        let mut conn = db.session().await;
        let views = queue::list_workers(&mut conn, 10).await.expect("the database answers");
        (views.len() == 2).then_some(views)
    })
    .await;

    assert_ne!(ids[0], ids[1]);
    assert_eq!(lease.worker, ids[0]);
    assert_eq!((&views[0].host, views[0].pid), (&views[1].host, views[1].pid));
    let skew = until_some("the skew of its clock is reported", async || {
        let mut conn = db.session().await;
        queue::worker(&mut conn, ids[0]).await.expect("the database answers").expect("registered").clock_skew_ms
    })
    .await;
    assert!(skew.abs() < 60_000, "one machine has one clock, {skew}");
    release.send_replace(true);
    until_state(&db, id, JobState::Completed).await;
    first.stop().await;
    second.stop().await;
}

/// While handlers act, no session of ours has a transaction open.
pub async fn no_transaction_is_open_while_handlers_act(engine: Engine) {
    let db = Database::start().await;
    let spec = kind("test.act");
    let (release, held) = watch::channel(false);
    let acting = Arc::new(AtomicUsize::new(0));
    let (count, child) = (Arc::clone(&acting), spec.clone());
    let registry = act(spec.clone(), move |args, context| {
        let (mut held, acting, child) = (held.clone(), Arc::clone(&count), child.clone());
        async move {
            if args.get("child").is_some() {
                return complete();
            }
            context.step("begun", &json!(null), &json!({})).await?;
            context.enqueue_child(&NewJob::new(&child, json!({"child": true}))).await?;
            acting.fetch_add(1, SeqCst);
            held.wait_for(|open| *open).await.expect("the test holds the sender");
            complete()
        }
    });
    let ids = [enqueue_kind(&db, &spec).await, enqueue_kind(&db, &spec).await];
    let worker = Running::start(&db, registry, config(engine));
    until_some("both act", async || (acting.load(SeqCst) == 2).then_some(())).await;

    // A statement that runs has a transaction, for a moment, and so has a sweep. One that waits for a handler is still
    // open after any time: the handlers act until they are released below.
    let open = async || -> HashSet<(i32, String)> {
        let open: Vec<(i32, String)> = sqlx::query_as(
            "select pid, xact_start::text from pg_stat_activity
              where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null",
        )
        .fetch_all(&mut db.session().await)
        .await
        .expect("the database answers");
        open.into_iter().collect()
    };
    let before = open().await;
    // In less time than the server lets a session wait inside a transaction.
    until("every transaction ends while the handlers act", domain::db::IDLE_IN_TRANSACTION_TIMEOUT / 3, async || {
        before.is_disjoint(&open().await).then_some(())
    })
    .await;

    release.send_replace(true);
    for id in ids {
        until_state(&db, id, JobState::Completed).await;
    }
    assert!(attempts(&db, ids[0]).await.is_empty());
    worker.stop().await;
}
