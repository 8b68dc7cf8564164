//! What every handler can reach.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use domain::queue::KindSpec;
use metrics_exporter_prometheus::PrometheusHandle;
use sqlx::PgPool;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::door::admission::Catalogue;
use crate::door::query::Queries;
use crate::door::rate::Rates;
use crate::events::Hub;
use crate::hints::Hints;
use crate::metrics::Enqueued;
use crate::serve::Pulse;

/// Batches of jobs whose bodies are held in memory at once, 32 MiB each.
const MAX_BATCHES: usize = 4;
/// Notes for the audit trail that are written at once while nobody waits for them.
const MAX_NOTES: usize = 64;

/// Limits and choices of one API process.
#[derive(Debug, Clone)]
pub struct Config {
    /// Longest time of a request.
    pub request_timeout: Duration,
    /// Requests a second that one key may send in the long run.
    pub rate_per_second: u32,
    /// Requests that one key may send at once.
    pub rate_burst: u32,
    /// Longest time for a request's head to arrive, and for a connection's first request.
    pub head_timeout: Duration,
    /// Most open connections; more wait to be accepted.
    pub max_connections: usize,
    /// Most listeners to `GET /v1/events` at once.
    pub max_listeners: usize,
    /// Most listeners with one key: nobody takes every place.
    pub max_listeners_per_key: usize,
    /// How often an idle stream sends a comment, and asks whether its key still works.
    pub keep_alive: Duration,
    /// Whether `GET /metrics` is open without a key: only where the port is private.
    pub metrics_public: bool,
    /// Whether browsers reach the dashboard over TLS: its cookies are then for TLS only.
    pub secure_cookies: bool,
    /// Longest wait for open requests when the process ends.
    pub drain: Duration,
    /// Whether idle workers are told of jobs that become due.
    pub hints: bool,
    /// Where machines reach this API, as an enrolling one is told.
    pub public_url: Option<String>,
    /// SHA-256 of the certificate that they are shown there, in hexadecimal digits.
    pub certificate_sha256: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            request_timeout: Duration::from_secs(30),
            rate_per_second: 200,
            rate_burst: 400,
            head_timeout: crate::serve::HEAD_TIMEOUT,
            max_connections: 1024,
            max_listeners: 256,
            max_listeners_per_key: 16,
            keep_alive: Duration::from_secs(15),
            metrics_public: false,
            secure_cookies: false,
            drain: Duration::from_secs(10),
            hints: true,
            public_url: None,
            certificate_sha256: None,
        }
    }
}

/// One API process: cheap to clone.
#[derive(Debug, Clone)]
pub struct App {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pool: PgPool,
    catalogue: Catalogue,
    config: Config,
    queries: Queries,
    rates: Rates,
    batches: Semaphore,
    note_places: Arc<Semaphore>,
    notes: TaskTracker,
    metrics: PrometheusHandle,
    hub: Hub,
    enqueued: Enqueued,
    hints: Hints,
    shutdown: CancellationToken,
    loops: Mutex<Vec<Pulse>>,
    checked: tokio::sync::Mutex<Option<Checked>>,
}

/// What the last look at the database found, and when.
pub(crate) type Checked = (Instant, Vec<wire::Check>);

impl App {
    /// An API over this database that knows these kinds.
    #[must_use]
    pub fn new(pool: PgPool, kinds: Vec<KindSpec>, config: Config) -> Self {
        let queries = crate::door::query::described(crate::openapi::described());
        let rates = Rates::new(config.rate_per_second, config.rate_burst);
        let hub = Hub::new(config.max_listeners, config.max_listeners_per_key);
        let hints = Hints::new(config.hints);
        let inner = Inner {
            pool,
            catalogue: Catalogue::new(kinds),
            config,
            queries,
            rates,
            batches: Semaphore::new(MAX_BATCHES),
            note_places: Arc::new(Semaphore::new(MAX_NOTES)),
            notes: TaskTracker::new(),
            metrics: crate::metrics::handle(),
            hub,
            enqueued: Enqueued::default(),
            hints,
            shutdown: CancellationToken::new(),
            loops: Mutex::new(Vec::new()),
            checked: tokio::sync::Mutex::new(None),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The database.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.inner.pool
    }

    /// The kinds that it knows.
    #[must_use]
    pub fn catalogue(&self) -> &Catalogue {
        &self.inner.catalogue
    }

    /// Its limits and choices.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// Hints at what changed, for live pages.
    #[must_use]
    pub fn hub(&self) -> &Hub {
        &self.inner.hub
    }

    /// Ends when the process does; streams end with it.
    #[must_use]
    pub fn shutdown(&self) -> &CancellationToken {
        &self.inner.shutdown
    }

    pub(crate) fn watch(&self, pulse: Pulse) {
        self.inner.loops.lock().unwrap_or_else(PoisonError::into_inner).push(pulse);
    }

    pub(crate) fn loops(&self) -> Vec<Pulse> {
        self.inner.loops.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn checked(&self) -> &tokio::sync::Mutex<Option<Checked>> {
        &self.inner.checked
    }

    pub(crate) fn queries(&self) -> &Queries {
        &self.inner.queries
    }

    pub(crate) fn rates(&self) -> &Rates {
        &self.inner.rates
    }

    pub(crate) fn batches(&self) -> &Semaphore {
        &self.inner.batches
    }

    /// A place for one more note; `None` where all are taken.
    pub(crate) fn note(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.inner.note_places).try_acquire_owned().ok()
    }

    /// Notes that nobody waits for, but the end of the process.
    pub(crate) fn notes(&self) -> &TaskTracker {
        &self.inner.notes
    }

    pub(crate) fn metrics(&self) -> &PrometheusHandle {
        &self.inner.metrics
    }

    pub(crate) fn hints(&self) -> &Hints {
        &self.inner.hints
    }

    pub(crate) fn enqueued(&self) -> &Enqueued {
        &self.inner.enqueued
    }
}
