//! Accepting connections, within limits, until told to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::door::threshold::Peer;
use crate::{App, events, hints, metrics, router, routes};

/// Longest time for a request's head to arrive, and for a connection's first request, where nothing else is configured.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How often an HTTP/2 connection is asked whether its peer is still there, and the longest wait for its answer.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest head of a request.
const MAX_HEADER_BYTES: usize = 64 * 1024;
/// The wait after an accept that failed, e.g. for want of file descriptors: no hot loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections to the figures of a worker that are open at once; more wait to be accepted.
const MAX_SCRAPERS: usize = 16;
/// How long an answer with figures may take to end at a shutdown.
const SCRAPE_DRAIN: Duration = Duration::from_secs(1);

/// What is logged once the port is the API's own, before anything is answered. Whoever starts the role waits for it.
pub const LISTENS: &str = "the API listens";

/// Why the API ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listener cannot be used.
    #[error("use the listening socket")]
    Listener(#[source] std::io::Error),
}

/// Serves until `shutdown`, then lets open requests end, at most as long as the configuration says.
///
/// # Errors
/// [`ServeError::Listener`].
pub async fn serve(app: App, listener: TcpListener, shutdown: CancellationToken) -> Result<(), ServeError> {
    let address = listener.local_addr().map_err(ServeError::Listener)?;
    let loops = [
        supervise("events", &app, events::run(app.clone(), shutdown.child_token())),
        supervise("counters", &app, metrics::flush_enqueued(app.clone(), shutdown.child_token())),
        supervise("hints", &app, hints::run(app.clone(), shutdown.child_token())),
        supervise("histograms", &app, metrics::keep_up(app.metrics().clone(), shutdown.child_token())),
    ];
    tracing::info!(%address, "{LISTENS}");
    let graceful = GracefulShutdown::new();
    let limits = Limits { connections: app.config().max_connections, head: app.config().head_timeout };
    accept(router(app.clone()), limits, &listener, &shutdown, &graceful).await;
    drop(listener);
    app.shutdown().cancel();
    if tokio::time::timeout(app.config().drain, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests did not end within the drain time and were cut off");
    }
    app.notes().close();
    if tokio::time::timeout(app.config().drain, app.notes().wait()).await.is_err() {
        tracing::warn!("some notes for the audit trail were not written within the drain time");
    }
    for task in loops {
        // Their last flush takes one short statement, or the time limit of a connection.
        let _ = tokio::time::timeout(app.config().drain, task).await;
    }
    tracing::info!("the API stopped");
    Ok(())
}

/// Serves the figures of a process that is no API, on `/metrics`, and whether it lives, on `/healthz`, to whoever can
/// reach the listener, until `shutdown`. Asks nothing of the database.
///
/// # Errors
/// [`ServeError::Listener`].
pub async fn serve_metrics(listener: TcpListener, shutdown: CancellationToken) -> Result<(), ServeError> {
    let address = listener.local_addr().map_err(ServeError::Listener)?;
    let handle = metrics::handle();
    let upkeep = tokio::spawn(metrics::keep_up(handle.clone(), shutdown.child_token()));
    tracing::info!(%address, "metrics are served");
    let graceful = GracefulShutdown::new();
    let limits = Limits { connections: MAX_SCRAPERS, head: HEAD_TIMEOUT };
    accept(routes::figures(handle), limits, &listener, &shutdown, &graceful).await;
    drop(listener);
    let _ = tokio::time::timeout(SCRAPE_DRAIN, graceful.shutdown()).await;
    let _ = upkeep.await;
    Ok(())
}

/// What a listener allows.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Open connections; more wait to be accepted.
    connections: usize,
    /// Time for a request's head, and for a connection's first request.
    head: Duration,
}

async fn accept(
    service: axum::Router,
    limits: Limits,
    listener: &TcpListener,
    shutdown: &CancellationToken,
    graceful: &GracefulShutdown,
) {
    let head = limits.head;
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(head).max_buf_size(MAX_HEADER_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(MAX_HEADER_BYTES as u32)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    let places = Arc::new(Semaphore::new(limits.connections));
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let Some((place, accepted)) = shutdown.run_until_cancelled(next).await else { return };
        let (stream, peer) = match accepted {
            Ok((stream, address)) => (stream, Peer(address.ip())),
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Small answers must not wait for more to come.
        let _ = stream.set_nodelay(true);
        let spoken = CancellationToken::new();
        let service = Spoken { inner: service.clone(), peer, first: spoken.clone() };
        let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
        let connection = graceful.watch(connection.into_owned());
        tokio::spawn(async move {
            let _place = place;
            tokio::select! {
                ended = connection => {
                    if let Err(error) = ended {
                        tracing::debug!(error, "a connection broke off");
                    }
                }
                () = silence(head, &spoken) => tracing::debug!("a connection brought no request in time and was closed"),
            }
        });
    }
}

/// Ends when no request came within the time for its head; never, once one came. The server's own timer begins only
/// when it knows the protocol, which a client that says nothing never tells.
async fn silence(limit: Duration, spoken: &CancellationToken) {
    if tokio::time::timeout(limit, spoken.cancelled()).await.is_ok() {
        std::future::pending::<()>().await;
    }
}

/// Notes a connection's first request, and in each whose connection it came by.
#[derive(Debug, Clone)]
struct Spoken<S> {
    inner: S,
    peer: Peer,
    first: CancellationToken,
}

impl<S: tower::Service<http::Request<B>>, B> tower::Service<http::Request<B>> for Spoken<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<B>) -> Self::Future {
        self.first.cancel();
        request.extensions_mut().insert(self.peer);
        self.inner.call(request)
    }
}

/// Whether a loop of this process still runs.
#[derive(Debug, Clone)]
pub(crate) struct Pulse {
    /// The loop's name.
    pub(crate) name: &'static str,
    alive: Arc<AtomicBool>,
}

impl Pulse {
    pub(crate) fn alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }
}

/// Marks its loop as ended however it ends, also by a panic.
struct Ended(Arc<AtomicBool>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

fn supervise(name: &'static str, app: &App, run: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    let alive = Arc::new(AtomicBool::new(true));
    app.watch(Pulse { name, alive: Arc::clone(&alive) });
    tokio::spawn(async move {
        let _ended = Ended(alive);
        run.await;
    })
}
