//! A real litestream replica, copied in rounds that are cut anywhere: the staging can always be restored (M-046).
#![allow(clippy::disallowed_methods, reason = "where a run is cut is drawn anew each time")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::Connection;
use sandbox::litestream::{self, Litestream, Pace, Replica};
use tempfile::TempDir;
use workers::failpoint;
use workers::mirror::{MemoryJournal, Outcome, Settings};

use crate::rig::{Rig, SOURCE, TARGET, ltx, pass, settings};

/// A database that is written to, its litestream, and the server that both sides are on.
struct App {
    rig: Rig,
    host: &'static str,
    folder: TempDir,
    litestream: Litestream,
    stop: Arc<AtomicBool>,
    writer: Option<std::thread::JoinHandle<()>>,
}

impl App {
    /// Compacts, prunes and takes snapshots within seconds, so that a round meets all of it.
    async fn start(host: &'static str) -> Self {
        let rig = Rig::tuned(workers::objects::Tuning::default()).await;
        let folder = tempfile::tempdir().expect("a folder");
        let db = folder.path().join("app.db");
        let conn = Connection::open(&db).expect("open the database");
        conn.pragma_update(None, "journal_mode", "wal").expect("set WAL");
        conn.execute_batch("create table entries (n integer primary key, filler text not null)").expect("create");
        let pace = Pace {
            sync_interval: Some(Duration::from_millis(100)),
            compaction_interval: Some(Duration::from_secs(2)),
            l0_retention: Some(Duration::from_secs(4)),
            snapshot_interval: Some(Duration::from_secs(5)),
            snapshot_retention: Some(Duration::from_secs(30)),
        };
        let replica = replica(&rig, SOURCE, &format!("instances/{host}"));
        let options = litestream::Options { db, replica, dir: folder.path().join("litestream"), pace };
        let mut litestream = Litestream::new(options).expect("find litestream");
        litestream.replicate().await.expect("start litestream");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let writer = std::thread::spawn(move || {
            conn.busy_timeout(Duration::from_secs(10)).expect("set the busy timeout");
            while !stopped.load(Ordering::SeqCst) {
                conn.execute("insert into entries (filler) values (hex(randomblob(200)))", []).expect("insert");
                // Not a wait for anything: the writer's rate, about 50 transactions a second.
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self { rig, host, folder, litestream, stop, writer: Some(writer) }
    }

    /// Waits until the replica holds what makes a round interesting: two snapshots, compactions, and raw files whose
    /// first ones are pruned already, so that they alone restore nothing.
    async fn wait_until_layered(&self) {
        tests::wait::until("a replica of several levels", Duration::from_secs(60), || async {
            let keys = self.rig.server.objects().keys(SOURCE, &format!("instances/{}/", self.host));
            let of = |level: &str| keys.iter().filter(|key| key.contains(&format!("/{level}/"))).count();
            let pruned = keys.first().is_some_and(|key| *key > format!("instances/{}/{}", self.host, ltx(0, 5, 0)));
            (pruned && of("0009") >= 2 && of("0001") >= 5 && of("0000") >= 3).then_some(())
        })
        .await;
    }

    fn stop_writing(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(writer) = self.writer.take() {
            writer.join().expect("the writer did not panic");
        }
    }

    /// Restores the staging; gives the number of rows, which must be 1 to n without a hole.
    async fn restore(&self) -> Result<u64, litestream::Error> {
        let out = self.folder.path().join(format!("restored-{}.db", fastrand::u64(..)));
        let staging = replica(&self.rig, TARGET, &format!("moves/{}", self.host));
        litestream::restore(&staging, &out, None).await?;
        Ok(rows(&out))
    }
}

impl Drop for App {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

fn replica(rig: &Rig, bucket: &str, prefix: &str) -> Replica {
    Replica {
        endpoint: rig.server.endpoint(),
        bucket: bucket.to_owned(),
        prefix: prefix.to_owned(),
        access_key: rig.server.access_key().to_owned(),
        secret_key: rig.server.secret_key().to_owned(),
    }
}

fn rows(db: &Path) -> u64 {
    let conn = Connection::open(db).expect("open");
    let sql = "select count(*), coalesce(max(n), 0) from entries";
    let (count, last): (u64, u64) = conn.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).expect("count");
    assert_eq!(count, last, "rows are 1 to n without a hole");
    count
}

/// One round over a real replica, killed after every single copy in turn; each next worker goes on from the journal.
#[tokio::test]
async fn a_round_killed_after_every_single_copy_leaves_a_restorable_staging() {
    let host = "every-copy.example";
    let mut app = App::start(host).await;
    app.wait_until_layered().await;
    app.stop_writing();
    app.litestream.sync_wait(Duration::from_secs(20)).await.expect("everything is in S3");
    app.litestream.stop().await;
    let keys = app.rig.content(SOURCE, &format!("instances/{host}/")).len();

    let journal = Arc::new(MemoryJournal::default());
    let (mut best, mut cuts) = (0, 0);
    loop {
        let mut mirror = app.rig.mirror(host);
        mirror.settings = Settings { concurrency: 1, journal_batch: 1, ..settings() };
        // One copy is made and recorded; the next is made, and then the process is gone. (At first: one is made.)
        let recorded = cuts.min(1);
        let gate = failpoint::gate("mirror.after_copy", host, recorded);
        let held = Arc::clone(&journal);
        let running = tokio::spawn(async move { pass(&mirror, held.as_ref()).await });
        tokio::select! {
            () = gate.arrived(recorded + 1) => {}
            () = async { while !running.is_finished() { tokio::task::yield_now().await } } => {}
        }
        if running.is_finished() {
            let report = running.await.expect("no panic").expect("a pass");
            assert!(matches!(report.outcome, Outcome::InSync), "{report:?}");
            break;
        }
        running.abort();
        let _ = running.await;
        drop(gate);
        cuts += 1;
        let staged = app.rig.staged(host).len();
        let restored = app.restore().await.unwrap_or_else(|error| panic!("cut {cuts}, {staged} of {keys}: {error:?}"));
        assert!(restored >= best, "cut {cuts}: {restored} rows after {best}");
        best = restored;
    }
    assert!(cuts >= keys, "{cuts} cuts, {keys} keys");
    let written = rows(&app.folder.path().join("app.db"));
    assert_eq!(app.restore().await.expect("restorable"), written, "in sync holds every row");
}

/// Rounds over a live replica that compacts and prunes, with copies side by side, cut at random points: never
/// unrestorable, never further back than before.
#[tokio::test]
async fn rounds_of_a_live_replica_cut_at_random_leave_a_restorable_staging() {
    let host = "random-cuts.example";
    let mut app = App::start(host).await;
    app.wait_until_layered().await;
    let journal = Arc::new(MemoryJournal::default());
    let mut best = 0;
    for cut in 0..15 {
        let gate = failpoint::gate("mirror.after_copy", host, fastrand::usize(1..25));
        let (mirror, held) = (app.rig.mirror(host), Arc::clone(&journal));
        let running = tokio::spawn(async move { pass(&mirror, held.as_ref()).await });
        // Until a copy is held, or the pass ends by itself.
        tests::wait::until("the cut", Duration::from_secs(60), || async {
            (running.is_finished() || gate.is_holding()).then_some(())
        })
        .await;
        running.abort();
        let _ = running.await;
        drop(gate);
        let restored = app.restore().await.unwrap_or_else(|error| panic!("cut {cut}: {error:?}"));
        assert!(restored >= best && restored > 0, "cut {cut}: {restored} rows after {best}");
        best = restored;
    }
    app.stop_writing();
    app.litestream.sync_wait(Duration::from_secs(20)).await.expect("everything is in S3");
    app.litestream.stop().await;
    let report = pass(&app.rig.mirror(host), journal.as_ref()).await.expect("a pass");
    assert!(matches!(report.outcome, Outcome::InSync), "{report:?}");
    app.rig.assert_mirrored(host);
    let written = rows(&app.folder.path().join("app.db"));
    assert_eq!(app.restore().await.expect("restorable"), written);
}

/// On a real writer: a pass converges to zero differences while the database is written to.
#[tokio::test]
async fn a_pass_over_a_live_replica_becomes_ready() {
    let host = "live.example";
    let app = App::start(host).await;
    app.wait_until_layered().await;
    let (mirror, journal) = (app.rig.mirror(host), MemoryJournal::default());
    let report = tests::wait::until("a pass in sync", Duration::from_secs(60), || async {
        let report = pass(&mirror, &journal).await.expect("a pass");
        matches!(report.outcome, Outcome::InSync).then_some(report)
    })
    .await;
    assert!(report.newest.is_some());
    assert!(app.restore().await.expect("restorable") > 0);
}
