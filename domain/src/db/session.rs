//! Connections as our statements take them: straight to PostgreSQL, or through a transaction pooler.
//!
//! # Consistency
//! A transaction pooler (PgBouncer) lends a session of the server for one transaction. The driver speaks to the server
//! twice for one statement, to prepare it and to execute it, and without a transaction around both the second may reach
//! another session, in which the statement is missing or is somebody else's. So behind a pooler every statement stands in
//! an explicit transaction; it begins by forgetting the statements that others prepared in that session, since the driver
//! names its own from 1 on, and none is kept for later. What would be a session's setting is the role's, or lasts for the
//! transaction. Nothing of ours holds a lock of a session, a temporary table or a cursor.
//!
//! Code that takes its connections here need not know which of the two it has.

use std::ops::{Deref, DerefMut};

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnectOptions;
use sqlx::{PgConnection, PgPool, Postgres, Transaction};

use super::store;

/// What stands between this program and PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pooler {
    /// Nothing that matters: a session of ours is a session of the server's.
    #[default]
    None,
    /// A pooler that lends sessions for a transaction each.
    Transaction,
}

/// How a session is to behave. Straight to PostgreSQL, the options of its pool say so; behind a pooler, each transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// As the role is set.
    Plain,
    /// With the plans of [`super::hot`].
    Hot,
    /// Those, and without patience: [`super::impatient`].
    Impatient,
}

/// What a pool behind a pooler calls itself in `pg_stat_activity`; what tells such pools from the others.
pub(super) const BEHIND_POOLER: &str = "leasehold behind a pooler";

/// Whether a pool with these options speaks through a transaction pooler.
#[must_use]
pub fn is_behind_pooler(options: &PgConnectOptions) -> bool {
    options.get_application_name() == Some(BEHIND_POOLER)
}

/// A connection for a few statements: each commits by itself straight to PostgreSQL; behind a pooler all of them commit
/// with [`Session::done`], and are rolled back where it is not called. Whoever only reads may drop it.
#[derive(Debug)]
pub enum Session {
    /// Straight to PostgreSQL.
    Own(PoolConnection<Postgres>),
    /// Behind a pooler.
    Lent(Transaction<'static, Postgres>),
}

impl Session {
    /// What was written stands when this returns; gives `value`, so that it is told to nobody before.
    ///
    /// # Errors
    /// The database's: nothing is known then of what was written, as with an answer that is lost.
    pub async fn done<T>(self, value: T) -> Result<T, sqlx::Error> {
        match self {
            Self::Own(_) => {}
            Self::Lent(transaction) => transaction.commit().await?,
        }
        Ok(value)
    }
}

impl Deref for Session {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        match self {
            Self::Own(conn) => conn,
            Self::Lent(transaction) => transaction,
        }
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut PgConnection {
        match self {
            Self::Own(conn) => conn,
            Self::Lent(transaction) => transaction,
        }
    }
}

/// A connection of the pool for a few statements.
///
/// # Errors
/// Only the database's.
pub async fn session(pool: &PgPool) -> Result<Session, sqlx::Error> {
    session_in(pool, Manner::Plain).await
}

/// As [`session`], with a manner: the one that the pool's options were made for.
///
/// # Errors
/// Only the database's.
pub async fn session_in(pool: &PgPool, manner: Manner) -> Result<Session, sqlx::Error> {
    if is_behind_pooler(&pool.connect_options()) {
        store::begin_lent(pool, manner).await.map(Session::Lent)
    } else {
        pool.acquire().await.map(Session::Own)
    }
}

/// A transaction on a connection of the pool.
///
/// # Errors
/// Only the database's.
pub async fn begin(pool: &PgPool) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
    if is_behind_pooler(&pool.connect_options()) {
        store::begin_lent(pool, Manner::Plain).await
    } else {
        pool.begin().await
    }
}
