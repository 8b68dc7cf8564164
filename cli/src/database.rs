//! The database, for the few commands that may touch it.

use std::str::FromStr as _;

use anyhow::Context as _;
use domain::db::{self, Pooler};
use secrecy::ExposeSecret as _;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, PgPool};

use crate::settings::{Settings, table};

/// Connects now, or says where nobody answered.
///
/// # Errors
/// A missing or malformed URL, a database that is away or refuses us.
pub(crate) async fn connect(settings: &Settings) -> anyhow::Result<PgPool> {
    let url = settings.require_secret(&table::DATABASE_URL)?;
    let (url_text, pooler) = (url.expose_secret(), pooler(settings));
    let pool = db::connect_through(url_text, settings.number(&table::DATABASE_MAX_CONNECTIONS), pooler).await;
    let pool = match (pool, db::options(url_text, pooler)) {
        (Err(error), Ok(options)) => Err(cause(&options, error).await),
        (pool, _) => pool,
    };
    pool.with_context(|| away(url.expose_secret()))
}

/// A pool that connects at its first use: the roles start while the database is away, say so in
/// `/readyz` and in the log, and go on when it comes.
///
/// # Errors
/// A missing or malformed URL.
pub(crate) fn connect_lazy(settings: &Settings) -> anyhow::Result<PgPool> {
    let url = settings.require_secret(&table::DATABASE_URL)?;
    let connections = settings.number(&table::DATABASE_MAX_CONNECTIONS);
    Ok(db::connect_lazy_through(url.expose_secret(), connections, pooler(settings))?)
}

/// What the settings say of a pooler.
fn pooler(settings: &Settings) -> Pooler {
    match settings.text(&table::DATABASE_POOLER) {
        Some("transaction") => Pooler::Transaction,
        Some(_) | None => Pooler::None,
    }
}

/// Behind a pooler, timeouts and plans are the role's: says which are lacking, and how to set them. A database that does
/// not answer is no reason to wait: it shows itself soon enough.
pub(crate) async fn warn_of_role_gaps(pool: &PgPool) {
    if !db::is_behind_pooler(&pool.connect_options()) {
        return;
    }
    match db::role_gaps(pool).await {
        Ok(gaps) => {
            for gap in gaps {
                tracing::warn!(
                    setting = gap.setting,
                    found = gap.found,
                    "the database role lacks a setting that no session can bring through a pooler: {}",
                    gap.statement
                );
            }
        }
        Err(error) => tracing::debug!(%error, "the role's settings could not be read"),
    }
}

/// Why no connection could be had. A pool tells only that none came in time; one try of our own tells the reason.
pub(crate) async fn cause(options: &PgConnectOptions, error: domain::db::Error) -> domain::db::Error {
    if !matches!(error, domain::db::Error::Connect(sqlx::Error::PoolTimedOut)) {
        return error;
    }
    match tokio::time::timeout(domain::db::ACQUIRE_TIMEOUT, options.connect()).await {
        Ok(Err(reason)) => domain::db::Error::Connect(reason),
        Ok(Ok(_)) | Err(_) => error,
    }
}

/// What to do about a database that does not answer. Neither user nor password is shown.
fn away(url: &str) -> String {
    match PgConnectOptions::from_str(url) {
        Ok(options) => format!(
            "no session with the database {:?} at {}:{}; is it running, and does LEASEHOLD_DATABASE_URL (or database.url) \
             name the right place and password?",
            options.get_database().unwrap_or_default(),
            options.get_host(),
            options.get_port()
        ),
        Err(_) => "database.url cannot be used".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_message_names_the_place_but_not_the_password() {
        let message = super::away("postgres://ada:hunter2@db.example:6000/fleet");
        assert!(message.contains("\"fleet\" at db.example:6000"), "{message}");
        assert!(!message.contains("hunter2") && !message.contains("ada"), "{message}");
    }
}
