//! One request, to the box that serves its host, and the answer back.

use std::sync::Arc;
use std::time::Duration;

use http::header::{
    CONNECTION, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, RETRY_AFTER, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpStream;

use super::table::Table;
use super::{Answer, Options, host};
use crate::web::{self, Body};

/// When a client may try again. A cut takes seconds.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("2");
/// Headers that speak of one connection and not of the message (RFC 9110, 7.6.1).
const OF_ONE_CONNECTION: [HeaderName; 7] =
    [CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE];

/// How much of a request's body, and for how long, is read only to be thrown away.
const WASTE_BYTES: usize = 1024 * 1024;
const WASTE_LIMIT: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(super) struct Proxy {
    table: Arc<Table>,
    connect_limit: Duration,
    answer_limit: Duration,
}

impl Proxy {
    pub(super) fn new(options: &Options, table: Arc<Table>) -> Self {
        Self { table, connect_limit: options.connect_limit, answer_limit: options.answer_limit }
    }

    pub(super) async fn answer(self, request: Request<Incoming>) -> Response<Body> {
        let (mut head, body) = request.into_parts();
        let Some(host) = host::of(&head) else {
            waste(body).await;
            return web::json(StatusCode::BAD_REQUEST, &json!({ "error": "no_host" }));
        };
        let address = match self.table.answer(&host) {
            Answer::Serves { address, .. } => address,
            Answer::Unserved | Answer::Unclear => {
                waste(body).await;
                return unserved(&host);
            }
            Answer::Unknown => {
                waste(body).await;
                return web::json(StatusCode::NOT_FOUND, &json!({ "error": "unknown_host", "host": host }));
            }
        };
        // A connection for each request: none is kept to an application that may be gone, or another, by the next one.
        let connected = tokio::time::timeout(self.connect_limit, TcpStream::connect(&address)).await;
        let Ok(Ok(stream)) = connected else {
            tracing::debug!(host, address, "the route does not answer");
            waste(body).await;
            return unserved(&host);
        };
        let _ = stream.set_nodelay(true);
        let Ok((mut sender, connection)) = http1::handshake(TokioIo::new(stream)).await else {
            return unserved(&host);
        };
        // It ends with the answer's body, or when nobody waits for it any more.
        tokio::spawn(connection);
        strip(&mut head.headers);
        // The application sees the host as it was asked for.
        if let Some(path) = head.uri.path_and_query().cloned() {
            head.uri = Uri::from(path);
        }
        head.version = http::Version::HTTP_11;
        let sent = tokio::time::timeout(self.answer_limit, sender.send_request(Request::from_parts(head, body))).await;
        let Ok(Ok(answer)) = sent else {
            // What it did with the request, nobody knows: it is not sent again.
            tracing::debug!(host, address, "the route took the request and gave no answer");
            return unserved(&host);
        };
        let (mut head, body) = answer.into_parts();
        strip(&mut head.headers);
        head.version = http::Version::HTTP_11;
        Response::from_parts(head, body.boxed())
    }
}

fn unserved(host: &str) -> Response<Body> {
    let mut response = web::json(StatusCode::SERVICE_UNAVAILABLE, &json!({ "error": "unserved", "host": host }));
    response.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
    response
}

/// Takes away what speaks of the connection that the message came on.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in OF_ONE_CONNECTION.iter().chain(&named) {
        headers.remove(name);
    }
    for name in ["keep-alive", "proxy-connection"] {
        headers.remove(name);
    }
}

/// Reads what is left of a request's body, within bounds. Whoever answers without it closes the connection under a
/// client that still sends, which then sees a reset instead of the answer.
async fn waste(body: Incoming) {
    let _ = tokio::time::timeout(WASTE_LIMIT, Limited::new(body, WASTE_BYTES).collect()).await;
}
