//! Edges documents: where they come from, and how they are kept up to date.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;

use super::Options;
use super::table::Table;

/// Largest document that is read; it carries 100,000 hosts at most.
const MAX_DOCUMENT: usize = 64 * 1024 * 1024;

/// What an edge reads of a region's document; of any version, since fields are only ever added.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Document {
    /// The region.
    pub region: String,
    /// Who is served, and where.
    #[serde(default)]
    pub routes: Vec<Route>,
    /// Hosts with a record here and no serving route.
    #[serde(default)]
    pub unserved: Vec<String>,
    /// Whether a list was cut at its limit: then a host that is missing is not known to be absent.
    #[serde(default)]
    pub partial: bool,
}

/// A host that is served.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Route {
    /// The host.
    pub host: String,
    /// The box.
    #[serde(default)]
    pub node: String,
    /// Where the box answers for it (`127.0.0.1:7100`); absent until it said so.
    #[serde(default)]
    pub address: Option<String>,
}

/// One look at a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// It is the same as the one with the entity tag that was named.
    Unchanged,
    /// The whole document, as JSON.
    Whole {
        /// Its entity tag, to be named at the next look.
        etag: Option<String>,
        /// Its text.
        body: Bytes,
    },
}

/// Where documents come from.
#[async_trait]
pub trait Documents: Send + Sync {
    /// The document of `region`, which was last seen with `etag`.
    async fn read(&self, region: &str, etag: Option<&str>) -> anyhow::Result<Read>;
}

/// Any function that gives a region's document as JSON.
#[async_trait]
impl<F> Documents for F
where
    F: Fn(&str) -> anyhow::Result<String> + Send + Sync,
{
    async fn read(&self, region: &str, _etag: Option<&str>) -> anyhow::Result<Read> {
        Ok(Read::Whole { etag: None, body: self(region)?.into() })
    }
}

/// The API, over plain HTTP: an edge of the sandbox stands beside it.
#[derive(Clone)]
pub struct Api {
    authority: String,
    bearer: HeaderValue,
}

impl Api {
    /// The API at `url` (`http://127.0.0.1:7070`), asked with `key`.
    ///
    /// # Errors
    /// The URL is none of `http`, or the key cannot be a header.
    pub fn new(url: &str, key: &str) -> anyhow::Result<Self> {
        let parsed: Uri = url.parse().with_context(|| format!("{url} is no URL"))?;
        ensure!(parsed.scheme_str() == Some("http"), "{url} does not begin with http://");
        let authority = parsed.authority().with_context(|| format!("{url} names no host"))?;
        let authority = format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80));
        let mut bearer = HeaderValue::from_str(&format!("Bearer {key}")).context("the key cannot be sent")?;
        bearer.set_sensitive(true);
        Ok(Self { authority, bearer })
    }
}

#[async_trait]
impl Documents for Api {
    async fn read(&self, region: &str, etag: Option<&str>) -> anyhow::Result<Read> {
        let mut request = Request::get(format!("/v1/edges/{region}"))
            .header(header::HOST, &self.authority)
            .header(header::AUTHORIZATION, &self.bearer);
        if let Some(etag) = etag {
            request = request.header(header::IF_NONE_MATCH, etag);
        }
        let request = request.body(Empty::<Bytes>::new())?;
        let stream = TcpStream::connect(&self.authority).await.context("reach the API")?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // The connection has to be driven while the answer is read, and goes with it.
        let ask = async {
            let answer = sender.send_request(request).await.context("ask the API")?;
            match answer.status() {
                StatusCode::NOT_MODIFIED => return Ok(Read::Unchanged),
                StatusCode::OK => {}
                status => bail!("the API answered {status}"),
            }
            let etag = answer.headers().get(header::ETAG).and_then(|tag| tag.to_str().ok()).map(str::to_owned);
            let body = Limited::new(answer.into_body(), MAX_DOCUMENT).collect().await;
            let body = body.map_err(anyhow::Error::from_boxed).context("read the document")?;
            Ok(Read::Whole { etag, body: body.to_bytes() })
        };
        let mut connection = std::pin::pin!(connection);
        let mut ask = std::pin::pin!(ask);
        tokio::select! {
            told = &mut ask => told,
            // What it had received by then is there to be read.
            _ = &mut connection => ask.await,
        }
    }
}

/// The document of `region`. Nearly everything in one may be absent, so that what is none at all must be told by more than
/// its fields: taken for one, it would make every host unknown.
fn parse(region: &str, body: &[u8]) -> anyhow::Result<Document> {
    ensure!(body.trim_ascii_start().starts_with(b"{"), "no object");
    let document: Document = serde_json::from_slice(body)?;
    ensure!(document.region == region, "it is of {}", document.region);
    Ok(document)
}

/// Keeps one region's document up to date.
pub(super) struct Reader {
    n: usize,
    region: String,
    poll: Duration,
    limit: Duration,
    documents: Arc<dyn Documents>,
    etag: Option<String>,
    last: Option<Bytes>,
}

impl Reader {
    pub(super) fn new(n: usize, region: &str, options: &Options, documents: Arc<dyn Documents>) -> Self {
        let (poll, limit) = (options.poll, options.read_limit);
        Self { n, region: region.to_owned(), poll, limit, documents, etag: None, last: None }
    }

    /// Looks again and again, for as long as it is polled. An outage is logged once, and its end.
    pub(super) async fn keep(mut self, table: Arc<Table>) {
        let mut away = false;
        loop {
            match self.look(&table).await {
                Ok(()) if away => {
                    away = false;
                    tracing::info!(region = self.region, "the edges document is read again");
                }
                Ok(()) => {}
                Err(error) if away => tracing::debug!(region = self.region, "still no edges document: {error:#}"),
                Err(error) => {
                    away = true;
                    tracing::warn!(region = self.region, "the last edges document stays in force: {error:#}");
                }
            }
            tokio::time::sleep(self.poll).await;
        }
    }

    async fn look(&mut self, table: &Table) -> anyhow::Result<()> {
        let begun = table.begin();
        let read = self.documents.read(&self.region, self.etag.as_deref());
        match tokio::time::timeout(self.limit, read).await.context("it was not there in time")?? {
            Read::Unchanged => table.read(self.n, begun, None),
            Read::Whole { body, .. } if self.last.as_ref() == Some(&body) => table.read(self.n, begun, None),
            Read::Whole { etag, body } => {
                let document = parse(&self.region, &body).context("it makes no sense")?;
                table.read(self.n, begun, Some(document));
                // Only now: one that made no sense is asked for again.
                (self.etag, self.last) = (etag, Some(body));
            }
        }
        Ok(())
    }
}
