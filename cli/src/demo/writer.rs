//! The tenant's client: it never stops writing, through the edge, as the world would.
//!
//! A row is *acknowledged* once the application answered that it is committed. The client sends one row after the other and
//! remembers every answer; a row that was refused, or whose answer was lost, is sent again under the same note. So the
//! ledger may hold a note twice, and must hold every number that was acknowledged, with its note, in order.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Rows that are written one right after the other, so that there is something to move.
const SEED_ROWS: u64 = 1_000;
/// Bytes of a row's note, drawn at random, so that a replica cannot compress them away; written as hexadecimal.
const NOTE_BYTES: usize = 1_024;
/// Time between two rows after those: about fifty a second.
const ROW_PACE: Duration = Duration::from_millis(20);
/// Time before a row that was refused is sent again.
const RETRY_PACE: Duration = Duration::from_millis(10);
/// How long one answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Rows of one page of the ledger.
const PAGE: u64 = 1_000;

/// A row that the application acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Acknowledged {
    pub(super) n: u64,
    pub(super) note: String,
    /// The region that wrote it.
    pub(super) region: String,
    /// When the answer came.
    pub(super) at: Instant,
}

/// A row of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Row {
    pub(super) n: u64,
    pub(super) note: String,
    pub(super) region: String,
}

/// What the application says of itself.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct State {
    pub(super) region: String,
}

/// The host's door at the edge.
#[derive(Debug, Clone)]
pub(super) struct Door {
    http: reqwest::Client,
    edge: String,
    host: &'static str,
}

impl Door {
    pub(super) fn new(edge: String, host: &'static str) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder().no_proxy().timeout(ANSWER_LIMIT).build().context("make a client")?;
        Ok(Self { http, edge, host })
    }

    fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}{path}", self.edge)).header("host", self.host)
    }

    /// What answers, if something does.
    pub(super) async fn state(&self) -> Option<State> {
        let answer = self.request(reqwest::Method::GET, "/state").send().await.ok()?;
        if answer.status().is_success() { answer.json().await.ok() } else { None }
    }

    /// The status with which the edge answers.
    pub(super) async fn status(&self) -> anyhow::Result<u16> {
        Ok(self.request(reqwest::Method::GET, "/state").send().await.context("ask the edge")?.status().as_u16())
    }

    /// Has the application refuse writes; when this returns none is under way any more.
    pub(super) async fn freeze(&self) -> anyhow::Result<()> {
        let answer = self.request(reqwest::Method::POST, "/freeze").send().await.context("freeze the application")?;
        if !answer.status().is_success() {
            bail!("the application does not freeze: {}", answer.status());
        }
        Ok(())
    }

    /// The whole ledger, in order.
    pub(super) async fn rows(&self) -> anyhow::Result<Vec<Row>> {
        #[derive(Deserialize)]
        struct Page {
            rows: Vec<Row>,
        }
        let mut rows: Vec<Row> = Vec::new();
        loop {
            let after = rows.last().map_or(0, |row| row.n);
            let path = format!("/rows?after={after}&limit={PAGE}");
            let answer = self.request(reqwest::Method::GET, &path).send().await.context("read the ledger")?;
            let page: Page = answer.error_for_status()?.json().await.context("read the ledger")?;
            if page.rows.is_empty() {
                return Ok(rows);
            }
            rows.extend(page.rows);
        }
    }

    async fn write(&self, note: &str) -> Option<(u64, String)> {
        #[derive(Deserialize)]
        struct Written {
            n: u64,
            region: String,
        }
        let answer = self.request(reqwest::Method::POST, "/rows").json(&json!({"note": note})).send().await.ok()?;
        if !answer.status().is_success() {
            return None;
        }
        let written: Written = answer.json().await.ok()?;
        Some((written.n, written.region))
    }
}

/// Writes until it is stopped.
#[derive(Debug)]
pub(super) struct Writer {
    acknowledged: Arc<Mutex<Vec<Acknowledged>>>,
    refused: Arc<AtomicU64>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Writer {
    pub(super) fn start(door: Door) -> Self {
        let (acknowledged, refused) = (Arc::<Mutex<Vec<Acknowledged>>>::default(), Arc::<AtomicU64>::default());
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(keep_writing(door, Arc::clone(&acknowledged), Arc::clone(&refused), stopped));
        Self { acknowledged, refused, stop, task }
    }

    /// How many rows were acknowledged.
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    /// How many tries were refused or lost.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// The last row that a region acknowledged before `before`.
    pub(super) fn last(&self) -> Option<Acknowledged> {
        self.lock().last().cloned()
    }

    /// The first row that was acknowledged by `region` after `after`.
    pub(super) fn first_after(&self, after: Instant, region: &str) -> Option<Acknowledged> {
        self.lock().iter().find(|row| row.at > after && row.region == region).cloned()
    }

    /// Ends, and gives every row that was acknowledged, in order.
    pub(super) async fn stop(self) -> anyhow::Result<Vec<Acknowledged>> {
        let _ = self.stop.send(true);
        self.task.await.context("end the writer")?;
        let rows = self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(rows)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Acknowledged>> {
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn keep_writing(
    door: Door,
    acknowledged: Arc<Mutex<Vec<Acknowledged>>>,
    refused: Arc<AtomicU64>,
    stop: watch::Receiver<bool>,
) {
    let mut number = 0_u64;
    while !*stop.borrow() {
        number += 1;
        let note = format!("entry {number} {}", hex::encode(domain::entropy::bytes::<NOTE_BYTES>()));
        loop {
            if let Some((n, region)) = door.write(&note).await {
                let row = Acknowledged { n, note, region, at: Instant::now() };
                acknowledged.lock().unwrap_or_else(PoisonError::into_inner).push(row);
                break;
            }
            refused.fetch_add(1, Ordering::Relaxed);
            if *stop.borrow() {
                return;
            }
            tokio::time::sleep(RETRY_PACE).await;
        }
        if number > SEED_ROWS {
            tokio::time::sleep(ROW_PACE).await;
        }
    }
}
