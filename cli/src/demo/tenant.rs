//! The tenant: an application with a SQLite database that never stops writing.
//!
//! A row is *acknowledged* once the replica in S3 holds it: the tenant commits, litestream says that
//! everything up to there is uploaded (`sync -wait`), and only then does the tenant tell its client.
//! That is what an application does that wants no acknowledged write lost with its machine, and it
//! is what the proof at the end counts from.
//!
//! Each acknowledgement carries a moment on the database's clock, read *after* the upload was
//! confirmed. The journal of the move has its moments from the same clock, so "acknowledged before
//! that pass began" is an exact comparison and never a guess between two clocks.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use domain::clock::Timestamp;
use sandbox::litestream::{Litestream, Options, Pace, Replica};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use super::store;

/// Rows that are there before the replication begins, so that there is something to move.
const SEED_ROWS: u64 = 10_000;
/// Rows of one transaction of the seed.
const SEED_BATCH: u64 = 1_000;
/// Bytes of a row's note; they are drawn at random, so that a replica cannot compress them away.
const NOTE_BYTES: usize = 384;
/// Time between two rows: about fifty a second.
const ROW_PACE: Duration = Duration::from_millis(20);
/// Time between two acknowledgements.
const ACKNOWLEDGE_PACE: Duration = Duration::from_millis(400);
/// How long an upload may take until the tenant gives up.
const SYNC_LIMIT: Duration = Duration::from_secs(20);
/// How long the first acknowledgement may take.
const FIRST_LIMIT: Duration = Duration::from_secs(30);
/// Pause between two looks for it.
const POLL: Duration = Duration::from_millis(50);

/// Rows 1…`rows` were acknowledged at `at` or before.
#[derive(Debug, Clone, Copy)]
struct Acknowledged {
    rows: u64,
    at: Timestamp,
}

/// A running tenant. When it is dropped it stops writing, and its litestream is killed.
pub(super) struct Tenant {
    db: PathBuf,
    log: PathBuf,
    committed: Arc<AtomicU64>,
    acknowledged: Arc<Mutex<Vec<Acknowledged>>>,
    /// Dropped to stop the writer.
    hold: Option<mpsc::Sender<()>>,
    writer: Option<JoinHandle<anyhow::Result<()>>>,
    quit: CancellationToken,
    acknowledger: Option<tokio::task::JoinHandle<anyhow::Result<()>>>,
}

impl Tenant {
    /// Creates the database in `folder`, replicates it to `replica`, and writes until it is told to
    /// stop. `pool` is asked for the time.
    ///
    /// # Errors
    /// What SQLite or litestream says.
    pub(super) async fn start(folder: &Path, replica: Replica, pool: PgPool) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        let db = folder.join("app.db");
        let mut conn = store::create(&db).context("create the tenant's database")?;
        let mut written = 0;
        while written < SEED_ROWS {
            store::write(&mut conn, written + 1, written + SEED_BATCH, note).context("write the first rows")?;
            written += SEED_BATCH;
        }
        let options = Options { db: db.clone(), replica, dir: folder.join("litestream"), pace: Pace::default() };
        let mut litestream = Litestream::new(options)?;
        litestream.replicate().await?;
        let log = litestream.logs().to_owned();

        let committed = Arc::new(AtomicU64::new(written));
        let (hold, held) = mpsc::channel::<()>();
        let writer = {
            let committed = Arc::clone(&committed);
            // A thread of its own: SQLite blocks, and a tenant does not wait for our runtime.
            std::thread::Builder::new().name("tenant".to_owned()).spawn(move || {
                loop {
                    match held.recv_timeout(ROW_PACE) {
                        Err(RecvTimeoutError::Timeout) => {}
                        Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
                    }
                    written += 1;
                    store::write(&mut conn, written, written, note).with_context(|| format!("write row {written}"))?;
                    committed.store(written, Ordering::Release);
                }
            })?
        };
        let acknowledged = Arc::new(Mutex::new(Vec::new()));
        let quit = CancellationToken::new();
        let acknowledger = tokio::spawn(acknowledge(
            litestream,
            Arc::clone(&committed),
            Arc::clone(&acknowledged),
            pool,
            quit.clone(),
        ));
        let (writer, acknowledger) = (Some(writer), Some(acknowledger));
        let tenant = Self { db, log, committed, acknowledged, hold: Some(hold), writer, quit, acknowledger };
        tenant.wait_for_first().await?;
        Ok(tenant)
    }

    async fn wait_for_first(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + FIRST_LIMIT;
        while self.acknowledgements().is_empty() {
            if Instant::now() >= deadline || !self.is_running() {
                bail!(
                    "no row of the tenant reached S3 within {FIRST_LIMIT:?}; litestream's log is {}",
                    self.log.display()
                );
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Rows that are committed in the tenant's own file.
    pub(super) fn committed(&self) -> u64 {
        self.committed.load(Ordering::Acquire)
    }

    /// The last row that was acknowledged.
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledgements().last().map_or(0, |newest| newest.rows)
    }

    /// The last row that was acknowledged before `moment`; `None` where none was.
    pub(super) fn acknowledged_before(&self, moment: Timestamp) -> Option<u64> {
        self.acknowledgements().iter().rev().find(|acknowledged| acknowledged.at < moment).map(|it| it.rows)
    }

    /// Whether it still writes and acknowledges.
    pub(super) fn is_running(&self) -> bool {
        self.writer.as_ref().is_some_and(|writer| !writer.is_finished())
            && self.acknowledger.as_ref().is_some_and(|task| !task.is_finished())
    }

    /// litestream's log.
    pub(super) fn log(&self) -> &Path {
        &self.log
    }

    /// Stops writing and replicating, and counts what the tenant's own file holds.
    ///
    /// # Errors
    /// What had stopped it before, if anything had.
    pub(super) async fn stop(mut self) -> anyhow::Result<store::Rows> {
        self.hold = None;
        self.quit.cancel();
        if let Some(writer) = self.writer.take() {
            writer.join().map_err(|_| anyhow!("the tenant's writer panicked"))??;
        }
        if let Some(task) = self.acknowledger.take() {
            task.await.context("end the tenant's replication")??;
        }
        let conn = store::open(&self.db).context("open the tenant's database")?;
        Ok(store::rows(&conn)?)
    }

    fn acknowledgements(&self) -> std::sync::MutexGuard<'_, Vec<Acknowledged>> {
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        self.quit.cancel();
        if let Some(task) = &self.acknowledger {
            task.abort();
        }
    }
}

fn note() -> Vec<u8> {
    domain::entropy::bytes::<NOTE_BYTES>().to_vec()
}

/// Acknowledges what is committed whenever S3 has it, until `quit`; then ends litestream in order.
async fn acknowledge(
    mut litestream: Litestream,
    committed: Arc<AtomicU64>,
    acknowledged: Arc<Mutex<Vec<Acknowledged>>>,
    pool: PgPool,
    quit: CancellationToken,
) -> anyhow::Result<()> {
    while !quit.is_cancelled() {
        // In this order: counted, then uploaded, then dated. So the upload holds at least these rows,
        // and the moment is not before their acknowledgement.
        let rows = committed.load(Ordering::Acquire);
        litestream.sync_wait(SYNC_LIMIT).await.context("upload the tenant's rows")?;
        let at = domain::clock::now(&mut *domain::db::session(&pool).await?)
            .await
            .context("ask the database for the time")?;
        acknowledged.lock().unwrap_or_else(PoisonError::into_inner).push(Acknowledged { rows, at });
        tokio::select! {
            () = quit.cancelled() => {}
            () = tokio::time::sleep(ACKNOWLEDGE_PACE) => {}
        }
    }
    litestream.stop().await;
    Ok(())
}
