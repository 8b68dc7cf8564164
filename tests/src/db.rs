//! A database for one test, with a clock that the test moves.

use std::time::Duration;

use sqlx::postgres::types::PgInterval;
use sqlx::{Connection as _, PgConnection, PgPool};

use crate::server;

/// Connections that [`Database::pool`] may hold.
const POOL: u32 = 10;

/// A fresh database with every migration applied. Dropping it drops the database.
#[derive(Debug)]
pub struct Database {
    name: String,
    url: String,
    admin_url: &'static str,
    pool: PgPool,
}

impl Database {
    /// Makes a database for the calling test.
    ///
    /// # Panics
    /// When there is no server or it refuses: the test cannot run then.
    pub async fn start() -> Self {
        let admin_url = server::url().await;
        let name = format!("test_{}", domain::entropy::uuid_v7().simple());
        let mut admin = PgConnection::connect(admin_url).await.expect("the tests' server answers");
        sqlx::query(sqlx::AssertSqlSafe(format!("create database {name} template {}", server::TEMPLATE)))
            .execute(&mut admin)
            .await
            .expect("the template can be copied");
        let url = admin_url.rsplit_once('/').map(|(server, _)| format!("{server}/{name}")).expect("a URL has a path");
        let pool = domain::db::connect_lazy(&url, POOL).expect("a URL of our own making");
        Self { name, url, admin_url, pool }
    }

    /// A pool of at most ten connections, as the product makes them.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// A pool of its own for a test that needs more connections, or needs them apart.
    ///
    /// # Panics
    /// When the database does not answer.
    pub async fn pool_of(&self, connections: u32) -> PgPool {
        domain::db::connect(&self.url, connections).await.expect("the test's database answers")
    }

    /// A connection outside any pool, e.g. to hold a lock.
    ///
    /// # Panics
    /// When the database does not answer.
    pub async fn session(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.expect("the test's database answers")
    }

    /// Where it is, for processes that a test starts.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The database's clock.
    #[must_use]
    pub fn clock(&self) -> ManualClock<'_> {
        ManualClock { pool: &self.pool }
    }

    /// Waits until a session of this database is blocked by a lock: what *the blocked row* tests stand on.
    ///
    /// # Panics
    /// When none is blocked within ten seconds.
    pub async fn until_blocked(&self) {
        let watcher = self.pool_of(1).await;
        crate::wait::until("a session waits for a lock", Duration::from_secs(10), || async {
            let blocked: i64 = sqlx::query_scalar(
                "select count(*) from pg_stat_activity
                  where datname = current_database() and wait_event_type = 'Lock' and state = 'active'",
            )
            .fetch_one(&watcher)
            .await
            .expect("the database answers");
            (blocked > 0).then_some(())
        })
        .await;
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (name, admin_url) = (self.name.clone(), self.admin_url);
        // A thread with a runtime of its own: the test's may be ending. What fails here goes with the server.
        let dropper = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
            runtime.block_on(async {
                let mut admin = PgConnection::connect(admin_url).await.ok()?;
                let sql = sqlx::AssertSqlSafe(format!("drop database if exists {name} with (force)"));
                sqlx::query(sql).execute(&mut admin).await.ok()
            })
        });
        let _ = dropper.join();
    }
}

/// The database's clock, which runs on by itself and can be moved.
#[derive(Debug, Clone, Copy)]
pub struct ManualClock<'a> {
    pool: &'a PgPool,
}

impl ManualClock<'_> {
    /// Moves the database's clock forward, for every session at once.
    ///
    /// # Panics
    /// When the database does not answer.
    pub async fn advance(&self, by: Duration) {
        let by = PgInterval::try_from(by).expect("a test's step has whole microseconds");
        sqlx::query("update lh_test_clock set shift = shift + $1")
            .bind(by)
            .execute(self.pool)
            .await
            .expect("the test's database answers");
    }

    /// The database's present moment.
    ///
    /// # Panics
    /// When the database does not answer.
    pub async fn now(&self) -> domain::clock::Timestamp {
        let mut conn = self.pool.acquire().await.expect("the test's database answers");
        domain::clock::now(&mut conn).await.expect("the test's database answers")
    }
}
