//! Repeated calls: the same `Idempotency-Key` acts once and is answered alike.

use axum::response::{IntoResponse as _, Response};
use domain::idempotency::{self, Answer, Begun, Call};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::Serialize;
use sqlx::PgConnection;
use wire::Code;

use super::auth::Caller;
use super::failure::Failure;

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// A creating call, perhaps under an idempotency key.
#[derive(Debug)]
pub struct Repeatable {
    identity: domain::ids::IdentityId,
    route: String,
    key: Option<String>,
    request_hash: [u8; 32],
}

impl Repeatable {
    /// Reads the call's key. Two bodies are the same when their canonical JSON is.
    ///
    /// # Errors
    /// `malformed_request`.
    pub fn new(
        headers: &HeaderMap,
        caller: &Caller,
        route: impl Into<String>,
        body: &serde_json::Value,
    ) -> Result<Self, Failure> {
        let key = read_key(headers)?;
        let request_hash = if key.is_some() { domain::digest::of_json(body) } else { [0; 32] };
        Ok(Self { identity: caller.identity, route: route.into(), key, request_hash })
    }

    /// Claims the key in the effect's transaction; gives the answer where there was one before.
    ///
    /// # Errors
    /// `idempotency_key_reused`, or the database's.
    pub async fn begin(&self, conn: &mut PgConnection) -> Result<Option<Response>, Failure> {
        let Some(call) = self.call() else { return Ok(None) };
        match idempotency::begin(conn, &call).await? {
            Begun::First => Ok(None),
            Begun::Answered(answer) => {
                let mut response = respond(&answer);
                response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
                Ok(Some(response))
            }
            Begun::OtherRequest => Err(Failure::new(
                Code::IdempotencyKeyReused,
                "This Idempotency-Key was used for another request: take a new key for each new request.",
            )),
        }
    }

    /// Keeps the answer in the effect's transaction, and gives it. `kept` differs from `told` only where the answer
    /// holds a secret.
    ///
    /// # Errors
    /// Only the database's.
    pub async fn finish<T: Serialize>(
        &self,
        conn: &mut PgConnection,
        status: StatusCode,
        told: &T,
        kept: &T,
    ) -> Result<Response, Failure> {
        let text = |value: &T| serde_json::to_string(value).map_err(|error| Failure::internal(&error));
        if let Some(call) = self.call() {
            let answer = Answer { status: status.as_u16(), body: text(kept)? };
            idempotency::finish(conn, &call, &answer).await?;
        }
        Ok(respond(&Answer { status: status.as_u16(), body: text(told)? }))
    }

    fn call(&self) -> Option<Call<'_>> {
        let key = self.key.as_deref()?;
        Some(Call { identity: self.identity, route: &self.route, key, request_hash: self.request_hash })
    }
}

fn respond(answer: &Answer) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, [(CONTENT_TYPE, HeaderValue::from_static("application/json"))], answer.body.clone()).into_response()
}

fn read_key(headers: &HeaderMap) -> Result<Option<String>, Failure> {
    let mut values = headers.get_all(&KEY).iter();
    let (first, second) = (values.next(), values.next());
    let Some(value) = first else { return Ok(None) };
    let text = if second.is_some() { None } else { value.to_str().ok() };
    text.filter(|text| idempotency::is_key(text)).map(|text| Some(text.to_owned())).ok_or_else(|| {
        let most = idempotency::MAX_KEY_CHARS;
        let detail = format!("Idempotency-Key takes one value of 1 to {most} visible ASCII characters.");
        Failure::new(Code::MalformedRequest, detail)
    })
}
