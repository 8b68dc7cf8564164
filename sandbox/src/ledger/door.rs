//! The ledger's routes.

use std::sync::Arc;

use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Error, Settings, State, Store};
use crate::web::{self, Body};

/// Largest body of a request.
const MAX_BODY: usize = 64 * 1024;
/// Rows of one page, where the request names none, and at most.
const PAGE: u16 = 100;
const MAX_PAGE: u16 = 1_000;
/// When a client may try again after a freeze; it is told in no other way.
const RETRY_AFTER_SECONDS: &str = "2";

pub(super) struct Door {
    settings: Settings,
    store: Arc<Store>,
    /// Another word at each start.
    booted: String,
}

#[derive(Debug, Deserialize)]
struct NewRow {
    note: String,
}

/// What is answered instead.
type Refusal = (StatusCode, Value);

fn refusal(status: StatusCode, error: &str) -> Refusal {
    (status, json!({ "error": error }))
}

impl Door {
    pub(super) fn new(settings: Settings, store: Store) -> Self {
        let booted = format!("{:016x}", fastrand::u128(..) >> 64);
        Self { settings, store: Arc::new(store), booted }
    }

    pub(super) async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let (status, value) = self.told(request).await.map_or_else(|refused| refused, |value| (StatusCode::OK, value));
        let mut response = web::json(status, &value);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            let value = header::HeaderValue::from_static(RETRY_AFTER_SECONDS);
            response.headers_mut().insert(header::RETRY_AFTER, value);
        }
        response
    }

    async fn told(&self, request: Request<Incoming>) -> Result<Value, Refusal> {
        let (head, body) = request.into_parts();
        match (&head.method, head.uri.path()) {
            (&Method::GET, "/" | "/state") => Ok(self.shown(self.with_store(Store::state).await?)),
            (&Method::POST, "/freeze") => Ok(self.shown(self.with_store(|store| store.freeze(true)).await?)),
            (&Method::POST, "/thaw") => Ok(self.shown(self.with_store(|store| store.freeze(false)).await?)),
            (&Method::POST, "/rows") => {
                let note = read(body).await?.note;
                let region = self.settings.region.clone();
                let n = self.with_store(move |store| store.write(&note, &region)).await?;
                Ok(json!({ "n": n, "region": self.settings.region }))
            }
            (&Method::GET, "/rows") => {
                let (after, limit) = page(head.uri.query().unwrap_or_default())?;
                let (rows, state) =
                    self.with_store(move |store| Ok((store.rows(after, limit)?, store.state()?))).await?;
                Ok(json!({ "rows": rows, "last": state.last }))
            }
            (_, "/" | "/state" | "/rows" | "/freeze" | "/thaw") => {
                Err(refusal(StatusCode::METHOD_NOT_ALLOWED, "another method"))
            }
            _ => Err(refusal(StatusCode::NOT_FOUND, "no such page")),
        }
    }

    fn shown(&self, state: State) -> Value {
        json!({ "host": self.settings.host, "region": self.settings.region, "rows": state.rows, "last": state.last,
                "frozen": state.frozen, "booted": self.booted })
    }

    /// On a thread of its own: SQLite blocks, at each commit until the disk has it.
    async fn with_store<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Store) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Refusal> {
        let store = Arc::clone(&self.store);
        match tokio::task::spawn_blocking(move || act(&store)).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(Error::Frozen)) => Err((StatusCode::SERVICE_UNAVAILABLE, json!({ "frozen": true }))),
            Ok(Err(Error::Database(error))) => Err(refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string())),
            Err(error) => Err(refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string())),
        }
    }
}

async fn read(body: Incoming) -> Result<NewRow, Refusal> {
    let bytes = Limited::new(body, MAX_BODY).collect().await.map_err(|error| {
        let status =
            if error.is::<LengthLimitError>() { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::BAD_REQUEST };
        refusal(status, &error.to_string())
    })?;
    serde_json::from_slice(&bytes.to_bytes()).map_err(|error| refusal(StatusCode::BAD_REQUEST, &error.to_string()))
}

fn page(query: &str) -> Result<(u64, u16), Refusal> {
    let bad = |field: &str| refusal(StatusCode::BAD_REQUEST, field);
    let (mut after, mut limit) = (0, PAGE);
    for (name, value) in
        query.split('&').filter(|part| !part.is_empty()).map(|part| part.split_once('=').unwrap_or((part, "")))
    {
        match name {
            "after" => after = value.parse().map_err(|_| bad("after is a number"))?,
            "limit" => {
                limit = value
                    .parse()
                    .ok()
                    .filter(|n| (1..=MAX_PAGE).contains(n))
                    .ok_or_else(|| bad("limit is 1 to 1000"))?
            }
            _ => return Err(bad("only after and limit")),
        }
    }
    Ok((after, limit))
}
