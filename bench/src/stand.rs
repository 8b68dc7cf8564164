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
        self.remove(name).await?;
        self.run(format!("create database {name}")).await?;
        Ok(self.postgres.url_for(name))
    }

    /// Removes a database: what is vacuumed in it would be charged to the next measurement.
    ///
    /// # Errors
    /// The database's.
    pub async fn remove(&self, name: &str) -> anyhow::Result<()> {
        self.run(format!("drop database if exists {name} with (force)")).await
    }

    async fn run(&self, statement: String) -> anyhow::Result<()> {
        let mut conn = PgConnection::connect(&self.postgres.url()).await.context("connect to the stand")?;
        sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&mut conn).await.context("make or remove a database")?;
        Ok(())
    }

    /// Stops it.
    pub async fn stop(self) {
        self.postgres.stop().await;
    }
}
