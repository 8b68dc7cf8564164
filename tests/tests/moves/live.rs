//! The whole way through real workers: a box notices a move by itself, and a live database becomes ready.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use domain::instances::moves::MoveState;
use sandbox::litestream::{Litestream, Options, Pace, Replica, restore};
use tests::wait::until;
use tokio_util::sync::CancellationToken;
use workers::jobs::{Environment, registry};
use workers::node::{NodeContext, keep};
use workers::runner::{RunnerConfig, Worker};
use workers::seam::PgLeaseStore;

use crate::support::{Fleet, HOST};

/// Bound of every wait: far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A box whose worker runs in this process.
struct RunningBox {
    stop: CancellationToken,
    worker: tokio::task::JoinHandle<()>,
    keeper: tokio::task::JoinHandle<()>,
}

impl RunningBox {
    fn start(fleet: &Fleet, node: NodeContext) -> Self {
        let environment = Environment::new(fleet.db.pool().clone()).with_node(node.clone());
        let config =
            RunnerConfig { queues: node.queues(), node: Some(node.id().to_string()), ..RunnerConfig::default() };
        let store = Arc::new(PgLeaseStore::new(fleet.db.pool()));
        let worker = Worker::builder(Arc::clone(&store) as _, registry(&environment), config)
            .build()
            .expect("it serves something");
        let stop = CancellationToken::new();
        let running = worker.run(stop.clone());
        Self {
            worker: tokio::spawn(async move {
                running.await.expect("the worker ends in order");
            }),
            keeper: tokio::spawn(keep(fleet.db.pool().clone(), node, store, stop.clone())),
            stop,
        }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.worker.await.expect("the worker does not panic");
        self.keeper.await.expect("the beat does not panic");
    }
}

/// Waits until a box of eu serves the instance: one that still lands it begins no move.
async fn until_served(fleet: &Fleet) {
    until("a box of the region serves the record", PATIENCE, async || {
        let edges = domain::instances::edges(&mut *fleet.conn().await, &crate::support::region("eu")).await;
        let edges = edges.expect("the database answers").expect("the region exists");
        edges.routes.iter().any(|route| route.host.as_str() == HOST).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_box_notices_a_new_record_and_a_new_move_within_seconds() {
    // M-036: no box is asked and no hourly pass is waited for.
    let fleet = Fleet::start().await;
    let boxes = [RunningBox::start(&fleet, fleet.eu.clone()), RunningBox::start(&fleet, fleet.uk.clone())];
    fleet.create(HOST).await;
    let noticed = Instant::now();
    until_served(&fleet).await;
    assert!(noticed.elapsed() < Duration::from_secs(5), "{:?}", noticed.elapsed());
    fleet.put(HOST, &crate::support::ltx(9, 1, 10), b"snapshot");
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    let noticed = Instant::now();
    until("the move is ready", PATIENCE, async || fleet.read_move(id).await.ready_at.map(drop)).await;
    assert!(noticed.elapsed() < Duration::from_secs(5), "{:?}", noticed.elapsed());
    for running in boxes {
        running.stop().await;
    }
}

/// A writer that counts: row n follows row n - 1, and what it acknowledged is committed.
struct Writer {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicI64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Writer {
    fn start(db: &Path, pause: Duration) -> Self {
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI64::new(0)));
        let connection = rusqlite::Connection::open(db).expect("open the database");
        connection.busy_timeout(Duration::from_secs(10)).expect("a busy timeout");
        connection.pragma_update(None, "journal_mode", "wal").expect("WAL");
        connection.execute_batch("create table entries (n integer primary key, body text not null)").expect("a table");
        let (stopping, counter) = (Arc::clone(&stop), Arc::clone(&acknowledged));
        let thread = std::thread::spawn(move || {
            let mut n = 0;
            while !stopping.load(Ordering::SeqCst) {
                n += 1;
                connection.execute("insert into entries values (?1, hex(randomblob(64)))", [n]).expect("a row");
                counter.store(n, Ordering::SeqCst);
                std::thread::sleep(pause);
            }
        });
        Self { stop, acknowledged, thread: Some(thread) }
    }

    fn acknowledged(&self) -> i64 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    fn stop(mut self) -> i64 {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.take().expect("it runs").join().expect("the writer does not panic");
        self.acknowledged()
    }
}

fn replica(fleet: &Fleet, bucket: &str, prefix: String) -> Replica {
    Replica {
        endpoint: fleet.s3.endpoint(),
        bucket: bucket.to_owned(),
        prefix,
        access_key: fleet.s3.access_key().to_owned(),
        secret_key: fleet.s3.secret_key().to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_written_all_the_time_becomes_ready_and_its_staging_restores() {
    // M-039, M-042 (from outside), M-057: a live writer, a real litestream, a real worker.
    let fleet = Fleet::start().await;
    fleet.place(HOST).await;
    let folder = tempfile::tempdir().expect("a folder");
    let db: PathBuf = folder.path().join("app.db");
    let writer = Writer::start(&db, Duration::from_millis(20));
    let mut litestream = Litestream::new(Options {
        db,
        replica: replica(&fleet, "eu-data", format!("instances/{HOST}")),
        dir: folder.path().join("litestream"),
        pace: Pace { sync_interval: Some(Duration::from_secs(1)), ..Pace::default() },
    })
    .expect("litestream");
    litestream.replicate().await.expect("it replicates");
    litestream.sync_wait(Duration::from_secs(20)).await.expect("it reaches the store");
    let pid = litestream.pid();
    let before = writer.acknowledged();
    litestream.sync_wait(Duration::from_secs(20)).await.expect("it reaches the store");
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    let mut config = fleet.config("eu-1", "eu");
    config.round_interval = Duration::from_secs(1);
    let running = RunningBox::start(&fleet, fleet.register(config).await.expect("the box"));
    until("the move is ready", PATIENCE, async || fleet.read_move(id).await.ready_at.map(drop)).await;
    assert_eq!(fleet.read_move(id).await.state.known(), Some(MoveState::Ready));
    running.stop().await;
    assert_eq!(litestream.pid(), pid, "its litestream was left alone");
    let restored = folder.path().join("restored.db");
    restore(&replica(&fleet, "uk-data", format!("moves/{HOST}")), &restored, None).await.expect("the staging restores");
    let written = writer.stop();
    let connection = rusqlite::Connection::open(&restored).expect("open the copy");
    let (count, last): (i64, i64) = connection
        .query_row("select count(*), max(n) from entries", [], |row| Ok((row.get(0)?, row.get(1)?)))
        .expect("the rows");
    assert_eq!(count, last, "rows 1 to n without a hole");
    assert!((before..=written).contains(&last), "{before} <= {last} <= {written}");
}
