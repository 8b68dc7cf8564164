//! `leasehold api`, the role: the HTTP API and the dashboard.
//!
//! The first SIGTERM or Ctrl-C lets open requests end; the second ends at once.

use anyhow::Context as _;
use domain::db;

use crate::exit::{Ending, Exit};
use crate::settings::{Settings, table};
use crate::{database, interrupt};

/// Runs the role.
///
/// # Errors
/// An address that cannot be had, a schema of another version.
pub(crate) async fn run(settings: &Settings) -> anyhow::Result<Exit> {
    let shutdown = interrupt::first()?;
    let pool = database::connect_lazy(settings)?;
    // Before the database is asked: a start that will fail fails at once.
    let listener = super::listen(settings, &table::API_LISTEN).await?.context("api.listen has a default")?;
    match db::check_schema(&pool).await {
        Ok(()) => database::warn_of_role_gaps(&pool).await,
        Err(error) if super::is_transient(&error) => {
            let error = database::cause(&pool.connect_options(), error).await;
            // Served all the same: /readyz says what is missing, and every call is answered with a typed 503.
            tracing::warn!(error = %super::chain(&error), "the database is away; the API answers 503 until it is there");
        }
        Err(error) => return Err(error.into()),
    }
    let count = |setting| settings.number(setting);
    let config = api::Config {
        request_timeout: settings.seconds(&table::API_REQUEST_TIMEOUT_SECONDS),
        rate_per_second: count(&table::API_RATE_PER_SECOND),
        rate_burst: count(&table::API_RATE_BURST),
        max_connections: count(&table::API_MAX_CONNECTIONS) as usize,
        max_listeners: count(&table::API_MAX_LISTENERS) as usize,
        metrics_public: settings.switch(&table::API_METRICS_PUBLIC),
        secure_cookies: settings.switch(&table::API_SECURE_COOKIES),
        drain: settings.seconds(&table::API_DRAIN_SECONDS),
        public_url: settings.text(&table::API_PUBLIC_URL).map(str::to_owned),
        certificate_sha256: certificate(settings)?,
        hints: settings.switch(&table::DATABASE_HINTS),
        ..api::Config::default()
    };
    let app = api::App::new(pool, workers::jobs::catalogue(), config);
    api::serve(app, listener, shutdown).await.context("serve the API")?;
    Ok(Exit::Ok)
}

/// The certificate's fingerprint, in the one spelling in which machines are told it.
fn certificate(settings: &Settings) -> anyhow::Result<Option<String>> {
    let Some(text) = settings.text(&table::API_CERTIFICATE_SHA256) else { return Ok(None) };
    let fingerprint = wire::Fingerprint::parse(text).ok_or_else(|| Ending {
        exit: Exit::Usage,
        message: "api.certificate_sha256 must have 64 hexadecimal digits, perhaps with colons between pairs".to_owned(),
    })?;
    Ok(Some(fingerprint.to_string()))
}
