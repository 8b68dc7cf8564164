//! A typed client for every route.

use std::net::IpAddr;
use std::time::Duration;

use reqwest::{Method, StatusCode, Url};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::{
    AuditEvent, FencedWrite, Key, Kind, MAX_LIMIT, MadeKey, NewKey, Page, Problem, Queue, Readiness, Reason,
    ThroughputPoint, Worker,
};

mod instances;
mod jobs;
mod limits;
mod nodes;
mod pin;

pub use instances::MoveFilter;
pub use jobs::JobFilter;
pub use pin::Fingerprint;

/// Longest time that a call may take, unless it is a stream.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a call gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API refused, and says why.
    #[error("{0}")]
    Problem(Box<Problem>),
    /// No answer: nothing is known about the call's effect.
    #[error("reach the API at {url}: is it running, and is the address right?")]
    Unreachable {
        /// The base address.
        url: String,
        /// The cause.
        #[source]
        source: reqwest::Error,
    },
    /// An answer that is none of the API's.
    #[error("{url} answered {status} with something else than this API's messages: is the address right?")]
    Unexpected {
        /// What was asked.
        url: String,
        /// HTTP's status.
        status: u16,
    },
    /// The base address is no URL.
    #[error("{0:?} is no http:// or https:// address")]
    Address(String),
    /// A certificate was named for an address that shows none.
    #[error("{0} shows no certificate: name an https:// address, or no fingerprint")]
    NoCertificate(String),
    /// The client could not be made.
    #[error("prepare the HTTP client")]
    Prepare(#[source] reqwest::Error),
    /// TLS could not be set up.
    #[error("set up TLS")]
    Tls(#[source] rustls::Error),
}

impl Error {
    /// The problem that the API answered with.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Problem(problem) => Some(problem),
            Self::Unreachable { .. }
            | Self::Unexpected { .. }
            | Self::Address(_)
            | Self::NoCertificate(_)
            | Self::Prepare(_)
            | Self::Tls(_) => None,
        }
    }
}

/// The answer to a creating call.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer<T> {
    /// What was created, or existed already.
    pub value: T,
    /// Whether this call created it: 201 rather than 200.
    pub created: bool,
    /// Whether the answer was given before, under the same idempotency key.
    pub replayed: bool,
}

/// Speaks to one API with one key. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    key: Option<SecretString>,
}

fn is_loopback(base: &Url) -> bool {
    let host = base.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl Client {
    /// A client of the API at `base`; without a key it can ask only what is open.
    ///
    /// # Errors
    /// [`Error::Address`], [`Error::Prepare`].
    pub fn new(base: &str, key: Option<SecretString>) -> Result<Self, Error> {
        Self::with_timeout(base, key, DEFAULT_TIMEOUT)
    }

    /// As [`Client::new`], with the longest time of one call.
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn with_timeout(base: &str, key: Option<SecretString>, timeout: Duration) -> Result<Self, Error> {
        Self::build(base, key, timeout, None)
    }

    /// A client without a key that speaks with nobody but the server of this certificate.
    ///
    /// # Errors
    /// As [`Client::new`], and [`Error::NoCertificate`], [`Error::Tls`].
    pub fn pinned(base: &str, timeout: Duration, fingerprint: Fingerprint) -> Result<Self, Error> {
        Self::build(base, None, timeout, Some(fingerprint))
    }

    fn build(
        base: &str,
        key: Option<SecretString>,
        timeout: Duration,
        pin: Option<Fingerprint>,
    ) -> Result<Self, Error> {
        let refused = || Error::Address(base.to_owned());
        let base = Url::parse(base).map_err(|_| refused())?;
        if !matches!(base.scheme(), "http" | "https") || base.cannot_be_a_base() {
            return Err(refused());
        }
        // Whoever comes first installs it; all of ours are the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut http = reqwest::Client::builder();
        if is_loopback(&base) {
            // No proxy reaches this machine's own loopback, whatever the environment says.
            http = http.no_proxy();
        }
        if let Some(pin) = pin {
            if base.scheme() != "https" {
                return Err(Error::NoCertificate(base.to_string()));
            }
            http = http.tls_backend_preconfigured(pin::config(pin).map_err(Error::Tls)?);
        }
        let http = http
            .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")))
            .timeout(timeout)
            .connect_timeout(CONNECT_TIMEOUT)
            // A redirect would carry the key to whoever it points at.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(Error::Prepare)?;
        Ok(Self { http, base, key })
    }

    /// Whether nobody on the way reads what is sent: it goes through TLS, or stays on this machine.
    #[must_use]
    pub fn is_private(&self) -> bool {
        self.base.scheme() == "https" || is_loopback(&self.base)
    }

    /// All kinds that the API knows.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn kinds(&self) -> Result<Page<Kind>, Error> {
        self.every(&["v1", "kinds"], &[]).await
    }

    /// All queues, by name.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn queues(&self) -> Result<Page<Queue>, Error> {
        self.every(&["v1", "queues"], &[]).await
    }

    /// One queue.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn queue(&self, name: &str) -> Result<Queue, Error> {
        self.get(&["v1", "queues", name], &()).await
    }

    /// All workers of the last day, newest first.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn workers(&self) -> Result<Page<Worker>, Error> {
        self.every(&["v1", "workers"], &[]).await
    }

    /// One worker.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn worker(&self, id: Uuid) -> Result<Worker, Error> {
        self.get(&["v1", "workers", &id.to_string()], &()).await
    }

    /// Writes that the fence refused, newest first, of one job or of all.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn fenced_writes(
        &self,
        job: Option<Uuid>,
        limit: Option<u16>,
        cursor: Option<&str>,
    ) -> Result<Page<FencedWrite>, Error> {
        let query = [("job_id", job.map(|id| id.to_string())), ("limit", text(limit)), ("cursor", text(cursor))];
        self.get(&["v1", "fenced-writes"], &present(query)).await
    }

    /// All that was done in the last `minutes` (1…1440), oldest first.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn throughput(&self, minutes: u16) -> Result<Page<ThroughputPoint>, Error> {
        self.every(&["v1", "throughput"], &[("minutes", minutes.to_string())]).await
    }

    /// Acts that were recorded, newest first.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn audit(
        &self,
        subject_kind: Option<&str>,
        subject: Option<&str>,
        limit: Option<u16>,
        cursor: Option<&str>,
    ) -> Result<Page<AuditEvent>, Error> {
        let query = [
            ("subject_kind", text(subject_kind)),
            ("subject", text(subject)),
            ("limit", text(limit)),
            ("cursor", text(cursor)),
        ];
        self.get(&["v1", "audit"], &present(query)).await
    }

    /// Keys, newest first.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn keys(&self, limit: Option<u16>, cursor: Option<&str>) -> Result<Page<Key>, Error> {
        self.get(&["v1", "keys"], &present([("limit", text(limit)), ("cursor", text(cursor))])).await
    }

    /// Creates a key; its secret is in this answer only.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn create_key(&self, key: &NewKey, idempotency_key: Option<&str>) -> Result<Answer<MadeKey>, Error> {
        self.create(&["v1", "keys"], key, idempotency_key).await
    }

    /// Revokes a key.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn revoke_key(&self, id: Uuid, reason: &Reason) -> Result<Key, Error> {
        self.act(&["v1", "keys", &id.to_string(), "revoke"], reason, None).await
    }

    /// Whether the API can do its work; an answer also when it cannot.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn ready(&self) -> Result<Readiness, Error> {
        let request = self.request(Method::GET, &["readyz"]);
        let response = request.send().await.map_err(|source| self.unreachable(source))?;
        let (url, status) = (response.url().to_string(), response.status());
        response.json().await.map_err(|_| Error::Unexpected { url, status: status.as_u16() })
    }

    fn request(&self, method: Method, path: &[&str]) -> reqwest::RequestBuilder {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        let request = self.http.request(method, url);
        match &self.key {
            Some(key) => request.bearer_auth(key.expose_secret()),
            None => request,
        }
    }

    async fn get<T: DeserializeOwned>(&self, path: &[&str], query: &impl Serialize) -> Result<T, Error> {
        Ok(self.send(self.request(Method::GET, path).query(query)).await?.value)
    }

    /// A whole list, page by page.
    async fn every<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&'static str, String)],
    ) -> Result<Page<T>, Error> {
        let mut whole = Page { items: Vec::new(), next_cursor: None };
        loop {
            let paging = present([("limit", Some(MAX_LIMIT.to_string())), ("cursor", whole.next_cursor.take())]);
            let page: Page<T> = self.get(path, &[query, paging.as_slice()].concat()).await?;
            whole.items.extend(page.items);
            if page.next_cursor.is_none() {
                return Ok(whole);
            }
            whole.next_cursor = page.next_cursor;
        }
    }

    async fn create<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &impl Serialize,
        idempotency_key: Option<&str>,
    ) -> Result<Answer<T>, Error> {
        self.create_if(path, body, idempotency_key, None).await
    }

    async fn create_if<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &impl Serialize,
        idempotency_key: Option<&str>,
        if_revision: Option<i64>,
    ) -> Result<Answer<T>, Error> {
        let mut request = self.request(Method::POST, path).json(body);
        if let Some(key) = idempotency_key {
            request = request.header("idempotency-key", key);
        }
        if let Some(revision) = if_revision {
            request = request.header("if-match", format!("\"{revision}\""));
        }
        self.send(request).await
    }

    async fn act<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &impl Serialize,
        if_revision: Option<i64>,
    ) -> Result<T, Error> {
        Ok(self.create_if(path, body, None, if_revision).await?.value)
    }

    async fn send<T: DeserializeOwned>(&self, request: reqwest::RequestBuilder) -> Result<Answer<T>, Error> {
        let response = request.send().await.map_err(|source| self.unreachable(source))?;
        let (url, status) = (response.url().to_string(), response.status());
        let replayed = response.headers().get("idempotent-replayed").is_some_and(|value| value == "true");
        let unexpected = || Error::Unexpected { url, status: status.as_u16() };
        if status.is_success() {
            let value = response.json().await.map_err(|_| unexpected())?;
            return Ok(Answer { value, created: status == StatusCode::CREATED, replayed });
        }
        match response.json::<Problem>().await {
            Ok(problem) => Err(Error::Problem(Box::new(problem))),
            Err(_) => Err(unexpected()),
        }
    }

    fn unreachable(&self, source: reqwest::Error) -> Error {
        Error::Unreachable { url: self.base.to_string(), source: source.without_url() }
    }
}

fn text(value: Option<impl ToString>) -> Option<String> {
    value.map(|value| value.to_string())
}

fn present<const N: usize>(query: [(&'static str, Option<String>); N]) -> Vec<(&'static str, String)> {
    query.into_iter().filter_map(|(name, value)| value.map(|value| (name, value))).collect()
}
