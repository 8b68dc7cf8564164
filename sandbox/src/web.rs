//! A small HTTP/1.1 server for the programs of the sandbox, which ends in order.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A body: ours, or another server's as it comes.
pub(crate) type Body = BoxBody<Bytes, hyper::Error>;

/// How long answers under way may take once the server is to end.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// Pause after a connection that could not be accepted: the process may have no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stop` is set, then lets the answers under way end.
pub(crate) async fn serve<H, F>(listener: TcpListener, mut stop: watch::Receiver<bool>, handler: H)
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = until(&mut stop) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection was lost before it began");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Small answers leave at once; a client that waits for each would else wait 40 ms more.
        let _ = stream.set_nodelay(true);
        let (handler, mut stop) = (handler.clone(), stop.clone());
        connections.spawn(async move {
            let answer = service_fn(move |request| {
                let answer = handler(request);
                async move { Ok::<_, Infallible>(answer.await) }
            });
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
            let mut connection = std::pin::pin!(connection);
            // A connection that its client breaks off is nothing to report.
            tokio::select! {
                _ = connection.as_mut() => {}
                () = until(&mut stop) => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(DRAIN_LIMIT, async { while connections.join_next().await.is_some() {} }).await;
}

/// Until the flag is set, or nobody is left who could set it.
async fn until(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// An answer in JSON that nobody keeps.
pub(crate) fn json(status: StatusCode, value: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(value.to_string())).map_err(|never| match never {}).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response.headers_mut().insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    response
}
