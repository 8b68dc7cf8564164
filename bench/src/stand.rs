//! A private, durable PostgreSQL for measurements.

use anyhow::Context as _;
use sandbox::postgres::{Options, Postgres};
use sqlx::{Connection as _, PgConnection};

/// PostgreSQL in a folder of its own, with fsync on.
pub struct Stand {
    postgres: Postgres,
    /// Removed when dropped.
    _folder: tempfile::TempDir,
}

impl Stand {
    /// Starts it.
    ///
    /// # Errors
    /// What stops PostgreSQL from starting.
    pub async fn start() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("make a folder")?;
        let options = Options { dir: folder.path().join("postgres"), durable: true, keep: false };
        let postgres = Postgres::start(options).await.context("start PostgreSQL")?;
        Ok(Self { postgres, _folder: folder })
    }

    /// The postmaster's process number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.postgres.pid()
    }

    /// A new, empty database; its URL.
    ///
    /// # Errors
    /// The database's.
    pub async fn fresh(&self, name: &str) -> anyhow::Result<String> {
        let mut conn = PgConnection::connect(&self.postgres.url()).await.context("connect to the stand")?;
        for statement in [format!("drop database if exists {name} with (force)"), format!("create database {name}")] {
            sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&mut conn).await.context("make a database")?;
        }
        Ok(self.postgres.url_for(name))
    }

    /// Stops it.
    pub async fn stop(self) {
        self.postgres.stop().await;
    }
}
