//! The roles: what runs until it is told to end.

pub(crate) mod api;
pub(crate) mod worker;

use std::time::Duration;

use anyhow::bail;
use domain::db;
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::exit::{Ending, Exit};
use crate::settings::{Setting, Settings};

/// The first wait for a database that is away; it doubles up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest wait between two looks.
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// Waits until the database is there with the schema that this program knows; `false` where `shutdown`
/// came first. An absent database is waited for, since it may be starting beside us; a schema of
/// another version is not, since somebody must act.
///
/// # Errors
/// A schema that is older or newer than this program.
pub(crate) async fn wait_for_schema(pool: &PgPool, shutdown: &CancellationToken) -> anyhow::Result<bool> {
    let mut pause = Outage::default();
    loop {
        match db::check_schema(pool).await {
            Ok(()) => return Ok(true),
            Err(error) if is_transient(&error) => {
                let error = crate::database::cause(&pool.connect_options(), error).await;
                if !pause.wait("the database is away; waiting for it", &error, shutdown).await {
                    return Ok(false);
                }
            }
            Err(error) => bail!(error),
        }
    }
}

/// Listens on the address of `setting`; `None` where none is set.
///
/// # Errors
/// An address that cannot be had.
async fn listen(settings: &Settings, setting: &Setting) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = settings.address(setting) else { return Ok(None) };
    let bound = TcpListener::bind(address).await.map_err(|error| Ending {
        exit: Exit::Failed,
        message: format!("listen on {address}: {error}; choose another address with {}", setting.key),
    })?;
    Ok(Some(bound))
}

fn is_transient(error: &db::Error) -> bool {
    match error {
        db::Error::Connect(source) | db::Error::Schema(source) => db::unavailable(source),
        db::Error::Url(_) | db::Error::Migrate(_) | db::Error::SchemaOld { .. } | db::Error::SchemaNew { .. } => false,
    }
}

/// Something that is away: told once, then looked at ever more rarely.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    pause: Option<Duration>,
}

impl Outage {
    /// Waits before the next look; `false` where `shutdown` came first.
    pub(crate) async fn wait(
        &mut self,
        what: &str,
        error: &(dyn std::error::Error + Sync),
        shutdown: &CancellationToken,
    ) -> bool {
        let pause = match self.pause {
            None => {
                tracing::warn!(error = %chain(error), "{what}");
                FIRST_PAUSE
            }
            Some(last) => (last * 2).min(LAST_PAUSE),
        };
        self.pause = Some(pause);
        shutdown.run_until_cancelled(tokio::time::sleep(pause)).await.is_some()
    }
}

/// An error with its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}
