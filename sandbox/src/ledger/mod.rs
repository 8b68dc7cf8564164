//! The demo's application: a ledger of numbered rows in SQLite, behind a small HTTP door.
//!
//! It is what a tenant's application is to a box: it takes its region, its database and its address from the
//! environment, listens once its database is open, and ends on SIGTERM when the answers under way are given.
//!
//! ```text
//! GET  /, /state            {"host", "region", "rows", "last", "frozen", "booted"}
//! POST /rows {"note": "…"}  {"n", "region"} once the row is committed; 503 {"frozen": true} under a freeze
//! GET  /rows?after=&limit=  {"rows": [{"n", "note", "region"}], "last"}
//! POST /freeze, /thaw       the state, in which no write is under way any more
//! ```
//! Numbers are 1, 2, 3…, each given once, so `rows == last` says that there is no hole. A row tells the region that wrote
//! it. The freeze is the application's own and lasts as long as its process: `booted`, another word at each start, tells
//! whether it is still the same.

mod door;
mod store;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

pub use store::{Error, Row, State, Store};

use crate::environment::var;
use crate::web;

/// The name of the hidden subcommand.
pub const SUBCOMMAND: &str = "internal-ledger";
/// With this variable set, SIGTERM does nothing: an application that hangs, for tests.
pub const HANG_VARIABLE: &str = "LEDGER_HANG";
/// What it then writes to its log at each SIGTERM.
pub const HANGS: &str = "told to end, and does not";

/// What the application learns of its surroundings, read once at its start.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its region (`CARLOS_REGION`).
    pub region: String,
    /// The host that it is reached under (`LEASEHOLD_HOST`).
    pub host: String,
    /// The database (`LEASEHOLD_DATABASE`); created if it is not there.
    pub database: PathBuf,
    /// Where it listens (`LEASEHOLD_LISTEN`).
    pub listen: SocketAddr,
    /// Whether it ignores SIGTERM.
    pub hang: bool,
}

impl Settings {
    /// From the environment.
    ///
    /// # Errors
    /// Which variable is missing, or means nothing.
    pub fn of_process() -> anyhow::Result<Self> {
        let text = |name: &'static str| {
            let value = var(name).with_context(|| format!("{name} is not set"))?;
            value.into_string().map_err(|_| anyhow::anyhow!("{name} is not UTF-8"))
        };
        let listen = text("LEASEHOLD_LISTEN")?;
        Ok(Self {
            region: text("CARLOS_REGION")?,
            host: text("LEASEHOLD_HOST")?,
            database: var("LEASEHOLD_DATABASE").context("LEASEHOLD_DATABASE is not set")?.into(),
            listen: listen.parse().with_context(|| format!("LEASEHOLD_LISTEN is no address: {listen}"))?,
            hang: var(HANG_VARIABLE).is_some(),
        })
    }
}

/// Runs the hidden subcommand to its end.
pub fn internal_ledger() -> ExitCode {
    let run = || -> anyhow::Result<()> {
        let settings = Settings::of_process()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(run(settings))
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{SUBCOMMAND}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until SIGTERM.
///
/// # Errors
/// The database or the address cannot be had.
pub async fn run(settings: Settings) -> anyhow::Result<()> {
    // Before anybody can know that we are there: a signal is never met by its default.
    let mut terminate = signal(SignalKind::terminate()).context("watch SIGTERM")?;
    let path = settings.database.display();
    let store = Store::open(&settings.database).with_context(|| format!("open the database {path}"))?;
    let listener =
        TcpListener::bind(settings.listen).await.with_context(|| format!("listen on {}", settings.listen))?;
    let (stop, stopped) = watch::channel(false);
    let hang = settings.hang;
    let door = Arc::new(door::Door::new(settings, store));
    let serving = web::serve(listener, stopped, move |request| Arc::clone(&door).answer(request));
    let ending = async {
        loop {
            terminate.recv().await;
            if !hang {
                let _ = stop.send(true);
                return std::future::pending::<()>().await;
            }
            eprintln!("{SUBCOMMAND}: {HANGS}");
        }
    };
    tokio::select! {
        () = serving => Ok(()),
        () = ending => Ok(()),
    }
}
