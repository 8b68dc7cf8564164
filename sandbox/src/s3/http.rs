//! The HTTP side: a listener on loopback and a runtime of its own.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use http::StatusCode;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use s3s::service::S3Service;
use s3s::{Body, HttpError, HttpResponse};
use tokio::sync::watch;

use super::gate::{MARK, MARK_DISCONNECT, MARK_OK};

/// How long connections may take to be dropped; they only wait, so it takes microseconds.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);

/// A server that runs until it is dropped.
#[derive(Debug)]
pub(super) struct Listening {
    pub(super) address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Listening {
    /// Serves on a loopback port: the given one, or any free one.
    ///
    /// On threads of its own, so that it answers whatever its client's runtime does, and also from
    /// a test whose runtime has a single thread.
    pub(super) fn start(service: S3Service, port: Option<u16>) -> io::Result<Self> {
        let port = match port {
            Some(port) => port,
            None => crate::ports::free_port()?,
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = watch::channel(false);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("sandbox-s3")
            .enable_all()
            .build()?;
        let thread = std::thread::Builder::new().name("sandbox-s3".to_owned()).spawn(move || {
            runtime.block_on(serve(listener, service, stopped));
            // Waits until every connection's task is dropped, also one that hangs by order: each holds
            // the objects, and with them the folder's lock, which the next server needs.
            runtime.shutdown_timeout(SHUTDOWN_LIMIT);
        })?;
        Ok(Self { address, stop, thread: Some(thread) })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(listener: TcpListener, service: S3Service, mut stopped: watch::Receiver<bool>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "the sandbox's S3 cannot listen");
            return;
        }
    };
    let service = Arc::new(service);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|stopped| *stopped) => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the sandbox's S3 lost a connection before it began");
                continue;
            }
        };
        // Small answers leave at once; a client that waits for each would else wait 40 ms more.
        let _ = stream.set_nodelay(true);
        let service = Arc::clone(&service);
        tokio::spawn(async move {
            let answer = service_fn(move |request| answer(Arc::clone(&service), request));
            // A connection that its client or a fault breaks off is nothing to report.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

/// Answers a request, and turns the marks of faults into what a client sees.
async fn answer(service: Arc<S3Service>, request: http::Request<Incoming>) -> Result<HttpResponse, HttpError> {
    let mut response = service.call(request.map(Body::from)).await?;
    match response.headers_mut().remove(MARK) {
        Some(mark) if mark == MARK_OK => *response.status_mut() = StatusCode::OK,
        Some(mark) if mark == MARK_DISCONNECT => {
            // hyper closes the connection on an error, without a byte.
            return Err(HttpError::new("closed by order".into()));
        }
        Some(_) | None => {}
    }
    Ok(response)
}
