//! An edge for dev, demo and tests: a proxy that sends each request to the box that serves its host.
//!
//! It reads the edges documents of its regions a few times a second and answers by the `Host` header:
//!
//! | the documents say | answer |
//! |---|---|
//! | a box serves the host, and it answers | its answer, as it comes |
//! | a box serves the host, and it does not answer, or not in time, or its address is not known | 503 with Retry-After |
//! | the host has a record and no box serves it | 503 with Retry-After |
//! | no region knows the host | 404 |
//! | nothing yet, or only a part, for some region | 503 with Retry-After: nobody can know that the host is unknown |
//!
//! A document that cannot be read, or that makes no sense, leaves the last one in force. The edge itself never redirects,
//! and never sends a request twice: it cannot know what the first one did. Bodies stream both ways.
//!
//! Deliberately absent: TLS, upgrades (WebSocket), caching, waking what is parked, any knowledge of a move.

mod documents;
mod host;
mod program;
mod proxy;
mod table;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use documents::{Api, Document, Documents, Read, Route};
pub use program::internal_edge;
pub use table::Answer;

use crate::web;
use table::Table;

/// The name of the hidden subcommand.
pub const SUBCOMMAND: &str = "internal-edge";

/// What an edge works with.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where it listens; port 0 for any that is free.
    pub listen: SocketAddr,
    /// The regions whose documents it reads.
    pub regions: Vec<String>,
    /// The pause between two looks at a document.
    pub poll: Duration,
    /// How long one look may take.
    pub read_limit: Duration,
    /// How long a box may take to accept a connection.
    pub connect_limit: Duration,
    /// How long a box may take until its answer begins; how long the answer then takes is its own affair.
    pub answer_limit: Duration,
}

impl Options {
    /// An edge of these regions on any free loopback port.
    pub fn of<T: Into<String>>(regions: impl IntoIterator<Item = T>) -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            regions: regions.into_iter().map(Into::into).collect(),
            poll: Duration::from_millis(250),
            read_limit: Duration::from_secs(5),
            connect_limit: Duration::from_secs(2),
            answer_limit: Duration::from_secs(30),
        }
    }
}

/// A running edge; it ends when it is dropped, and with its runtime.
#[derive(Debug)]
pub struct Edge {
    address: SocketAddr,
    table: Arc<Table>,
    stop: watch::Sender<bool>,
    /// Aborted with it.
    tasks: JoinSet<()>,
}

impl Edge {
    /// Listens, and begins to read. It serves at once; see [`Edge::until_read`].
    ///
    /// # Errors
    /// The address cannot be had.
    pub async fn start(options: Options, documents: Arc<dyn Documents>) -> anyhow::Result<Self> {
        let listen = options.listen;
        let listener = TcpListener::bind(listen).await.with_context(|| format!("listen on {listen}"))?;
        let address = listener.local_addr()?;
        let table = Arc::new(Table::new(&options.regions));
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for (n, region) in options.regions.iter().enumerate() {
            let reader = documents::Reader::new(n, region, &options, Arc::clone(&documents));
            tasks.spawn(reader.keep(Arc::clone(&table)));
        }
        let proxy = proxy::Proxy::new(&options, Arc::clone(&table));
        tasks.spawn(web::serve(listener, stopped, move |request| proxy.clone().answer(request)));
        Ok(Self { address, table, stop, tasks })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL, without a slash at the end.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it would do with a request for `host` now.
    #[must_use]
    pub fn answer_for(&self, host: &str) -> Answer {
        self.table.answer(host)
    }

    /// Waits until each region's document was read once.
    pub async fn until_read(&self) {
        self.table.until(Table::is_complete).await;
    }

    /// Waits until it has one answer for `host` that pleases.
    pub async fn until_answer(&self, host: &str, pleases: impl Fn(&Answer) -> bool) -> Answer {
        self.table.until(|table| pleases(&table.answer(host))).await;
        self.table.answer(host)
    }

    /// Takes no more connections, lets the answers under way end, within bounds, and ends.
    pub async fn stop(mut self) {
        let _ = self.stop.send(true);
        // The readers go on for ever; the server is the one that ends.
        self.tasks.join_next().await;
    }
}
