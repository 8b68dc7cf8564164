//! The pool, the migrations, and which of the database's errors deserve another try.

use std::str::FromStr;
use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgPool, Postgres, Transaction};

mod role;
mod session;
mod store;

pub use role::{RoleGap, role_gaps};
pub use session::{Manner, Pooler, Session, begin, is_behind_pooler, session, session_in};

/// The schema, embedded: a binary needs no files beside it.
pub static MIGRATOR: Migrator = sqlx::migrate!("../migrations");

/// Longest time that one statement of ours may take.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait of a statement for a lock: shorter than its time, so that the error says what it waited for.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait of the runner's own statements for a lock.
const IMPATIENCE: Duration = Duration::from_millis(200);
/// Longest pause inside a transaction: a process that stops there must not hold rows that others need.
pub const IDLE_IN_TRANSACTION_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest wait for a free connection of the pool.
pub const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// SQLSTATE of a statement that was ended before its end.
const QUERY_CANCELED: &str = "57014";
/// SQLSTATE of a statement that waited too long for a lock.
const LOCK_NOT_AVAILABLE: &str = "55P03";
/// Tries of a transaction that lost a deadlock or a serialization race.
const MAX_TRIES: usize = 8;

/// Why the database could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL is not one of PostgreSQL's.
    #[error("read the database URL: expected postgres://user:password@host:port/database")]
    Url(#[source] sqlx::Error),
    /// No connection: the server is away, or refuses us.
    #[error("connect to the database")]
    Connect(#[source] sqlx::Error),
    /// A migration failed.
    #[error("migrate the database")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// The schema is older than this program.
    #[error("the database's schema is at version {found}, this program needs {needed}: run `leasehold migrate`")]
    SchemaOld {
        /// The newest migration that was applied; 0 for none.
        found: i64,
        /// The newest migration that this program carries.
        needed: i64,
    },
    /// The schema is newer than this program.
    #[error("the database's schema is at version {found}, this program knows only {known}: upgrade this program")]
    SchemaNew {
        /// The newest migration that was applied.
        found: i64,
        /// The newest migration that this program carries.
        known: i64,
    },
    /// The schema's version could not be read.
    #[error("read the schema's version")]
    Schema(#[source] sqlx::Error),
}

/// Connects a pool of at most `max_connections`.
///
/// Hot statements run under generic plans: a custom plan of an `unnest` join was measured at 250 times the cost.
///
/// # Errors
/// [`Error::Url`] for a malformed URL, [`Error::Connect`] when no connection could be made within the time limit.
pub async fn connect(url: &str, max_connections: u32) -> Result<PgPool, Error> {
    connect_through(url, max_connections, Pooler::None).await
}

/// As [`connect`], through a pooler perhaps.
///
/// # Errors
/// As [`connect`].
pub async fn connect_through(url: &str, max_connections: u32, pooler: Pooler) -> Result<PgPool, Error> {
    let options = options(url, pooler)?;
    PgPoolOptions::new()
        .max_connections(max_connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .connect_with(options)
        .await
        .map_err(Error::Connect)
}

/// A pool for leasing, renewing and settling alone: their plans may not depend on what the statistics say just now.
///
/// The table of live jobs grows from nothing to a million rows and back within minutes; a plan that was right for the
/// empty table reads all of the full one. Every hot statement is a walk along an index, so the other ways are off.
///
/// For programs with a URL alone, such as the measurements of the bench. A worker has a pool already, and makes its hot
/// ones from that pool's options by [`hot`].
///
/// # Errors
/// [`Error::Url`] for a malformed URL.
pub fn connect_hot(url: &str, max_connections: u32) -> Result<PgPool, Error> {
    let options = hot(options(url, Pooler::None)?);
    Ok(PgPoolOptions::new()
        .max_connections(max_connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .connect_lazy_with(options))
}

/// A pool that connects at its first use, for processes that must start while the database is away.
///
/// # Errors
/// [`Error::Url`] for a malformed URL.
pub fn connect_lazy(url: &str, max_connections: u32) -> Result<PgPool, Error> {
    connect_lazy_through(url, max_connections, Pooler::None)
}

/// As [`connect_lazy`], through a pooler perhaps.
///
/// # Errors
/// As [`connect_lazy`].
pub fn connect_lazy_through(url: &str, max_connections: u32, pooler: Pooler) -> Result<PgPool, Error> {
    let options = options(url, pooler)?;
    Ok(PgPoolOptions::new()
        .max_connections(max_connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .connect_lazy_with(options))
}

/// Options of a pool, as [`connect_hot`] has them. Behind a pooler they are as before: see [`Manner::Hot`].
#[must_use]
pub fn hot(options: PgConnectOptions) -> PgConnectOptions {
    if is_behind_pooler(&options) {
        return options;
    }
    options.options([
        ("enable_seqscan", "off"),
        ("enable_bitmapscan", "off"),
        ("enable_hashjoin", "off"),
        ("enable_mergejoin", "off"),
    ])
}

/// Options of a pool whose statements pass by rows that others hold, or come back later: none of them waits for long.
/// Behind a pooler they are as before: see [`Manner::Impatient`].
#[must_use]
pub fn impatient(options: PgConnectOptions) -> PgConnectOptions {
    if is_behind_pooler(&options) {
        return options;
    }
    options.options([("lock_timeout", IMPATIENCE.as_millis().to_string())])
}

/// A small pool beside another one, with its options: for a loop that must not wait for the connections of others.
///
/// Its connections are not asked whether they live before each use: one that died shows itself by its error, and whoever
/// uses such a pool tries again.
#[must_use]
pub fn aside(options: PgConnectOptions, max_connections: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(max_connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .test_before_acquire(false)
        .connect_lazy_with(options)
}

/// A read-only transaction on one snapshot, each of whose statements may take at most `limit`: for pages and reports
/// whose figures must agree with each other.
///
/// # Errors
/// Only the database's.
pub async fn begin_read(pool: &PgPool, limit: Duration) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
    store::begin_read(pool, limit).await
}

/// Options of a connection, as pools have them.
///
/// # Errors
/// [`Error::Url`] for a malformed URL.
pub fn options(url: &str, pooler: Pooler) -> Result<PgConnectOptions, Error> {
    let millis = |limit: Duration| limit.as_millis().to_string();
    let options = PgConnectOptions::from_str(url).map_err(Error::Url)?;
    if pooler == Pooler::Transaction {
        // A pooler refuses what it does not know of at the start of a session, and keeps no session for a statement that
        // was prepared.
        return Ok(options
            .application_name(session::BEHIND_POOLER)
            .extra_float_digits(None)
            .statement_cache_capacity(0));
    }
    // Compiling a plan that runs for a millisecond takes a second. A plan is kept that was made while a table was empty, and
    // the tables grow from nothing to a million rows within minutes: none may read a whole table where an index leads.
    let plans = [("plan_cache_mode", "force_generic_plan"), ("enable_seqscan", "off"), ("jit", "off")];
    Ok(options.application_name("leasehold").options(plans).options([
        ("statement_timeout", millis(STATEMENT_TIMEOUT)),
        ("lock_timeout", millis(LOCK_TIMEOUT)),
        ("idle_in_transaction_session_timeout", millis(IDLE_IN_TRANSACTION_TIMEOUT)),
    ]))
}

/// Commits what was done and rolls back what was refused, before the caller goes on.
///
/// A transaction that is only dropped is rolled back when its connection is used next; until then it holds its locks,
/// and a lease passes by the rows of a refused call.
///
/// # Errors
/// The refusal, or the database's.
pub async fn finish<T, E: From<sqlx::Error>>(tx: Transaction<'_, Postgres>, done: Result<T, E>) -> Result<T, E> {
    match done {
        Ok(value) => {
            tx.commit().await?;
            Ok(value)
        }
        Err(refused) => {
            tx.rollback().await?;
            Err(refused)
        }
    }
}

/// Applies every migration that is missing, under the migrator's advisory lock.
///
/// # Errors
/// [`Error::Migrate`].
pub async fn migrate(pool: &PgPool) -> Result<(), Error> {
    if is_behind_pooler(&pool.connect_options()) {
        return migrate_in_one(pool).await;
    }
    // A migration may rightly take longer than a statement of ours: it gets a connection without the limits.
    let mut conn = pool.acquire().await.map_err(Error::Connect)?;
    store::lift_timeouts(&mut conn).await.map_err(Error::Connect)?;
    let done = MIGRATOR.run(&mut *conn).await;
    // Not handed back to the pool: its limits are lifted.
    drop(conn.detach());
    done?;
    Ok(())
}

/// Behind a pooler no session is kept for the migrator's lock: all that is missing is applied in one transaction, under a
/// lock of that transaction, or nothing is.
async fn migrate_in_one(pool: &PgPool) -> Result<(), Error> {
    let mut tx = begin(pool).await.map_err(Error::Connect)?;
    store::begin_migration(&mut tx).await.map_err(Error::Connect)?;
    let mut migrator = Migrator::with_migrations(MIGRATOR.iter().cloned().collect());
    migrator.set_locking(false);
    migrator.run(&mut *tx).await?;
    tx.commit().await.map_err(Error::Connect)?;
    Ok(())
}

/// The newest migration that this program carries.
#[must_use]
pub fn known_version() -> i64 {
    MIGRATOR.iter().map(|m| m.version).max().unwrap_or(0)
}

/// Refuses a schema that this program does not know, older or newer.
///
/// # Errors
/// [`Error::SchemaOld`], [`Error::SchemaNew`], or [`Error::Schema`] when the version could not be read.
pub async fn check_schema(pool: &PgPool) -> Result<(), Error> {
    let mut conn = session(pool).await.map_err(Error::Connect)?;
    let found = store::schema_version(&mut conn).await.map_err(Error::Schema)?;
    let known = known_version();
    match found.cmp(&known) {
        std::cmp::Ordering::Less => Err(Error::SchemaOld { found, needed: known }),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(Error::SchemaNew { found, known }),
    }
}

/// Whether the same transaction may succeed when it is tried again: a deadlock or a serialization race was lost.
#[must_use]
pub fn lost_a_race(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|e| e.code()).is_some_and(|code| code == "40P01" || code == "40001")
}

/// Whether a statement gave up waiting for a lock: nothing happened, and the same call may be made again.
#[must_use]
pub fn lock_timed_out(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|e| e.code()).is_some_and(|code| code == LOCK_NOT_AVAILABLE)
}

/// Whether the database did not answer at all, so that nothing is known about the call's effect.
#[must_use]
pub fn unavailable(error: &sqlx::Error) -> bool {
    let no_answer = matches!(
        error,
        sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::Protocol(_)
            | sqlx::Error::WorkerCrashed
    );
    // 57P0x: shutting down, starting up, crash; 08: connection; 53: out of resources; 25P03: idle in a transaction.
    no_answer
        || error.as_database_error().and_then(|e| e.code()).is_some_and(|code| {
            code.starts_with("57P")
                || code.starts_with("08")
                || code.starts_with("53")
                || code == "25006"
                || code == "25P03"
        })
        || timed_out(error)
        || lock_timed_out(error)
}

/// Whether the database ended a statement because it took longer than it may.
#[must_use]
pub fn timed_out(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|e| e.code()).is_some_and(|code| code == QUERY_CANCELED)
}

/// Runs a whole transaction again, at most eight times, while it loses deadlocks or serialization races.
///
/// # Errors
/// The last try's error.
pub async fn retry_races<T, E, F, Fut>(mut transaction: F, is_race: impl Fn(&E) -> bool) -> Result<T, E>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    use backon::{ExponentialBuilder, Retryable as _};
    let pauses = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(2))
        .with_max_delay(Duration::from_millis(200))
        .with_max_times(MAX_TRIES)
        .with_jitter();
    (|| transaction()).retry(pauses).when(is_race).await
}
