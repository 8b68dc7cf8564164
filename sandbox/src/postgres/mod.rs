//! A private PostgreSQL cluster: own folder, own loopback port, own uid when we are root.
//!
//! The folder holds `data/` (the cluster), `port` (taken again on the next run when it is free) and
//! `postgres.log` and `password`. A cluster that is there is reused. The server listens on 127.0.0.1
//! only, and its superuser needs the password, which only the folder's owner can read.
//!
//! The server dies with us. After a SIGKILL its backends notice within moments and the next start
//! recovers, as after any crash.

mod folder;
mod ready;
mod secret;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::exec::{ExecError, Running, Signal, Spawn};
use crate::ports;
use crate::tools::{ToolError, find_postgres_bin};
use folder::Home;

/// How long a start may take, crash recovery included.
const START_LIMIT: Duration = Duration::from_secs(90);
/// How long `initdb` may take; it needs a second on an idle machine.
const INIT_LIMIT: Duration = Duration::from_secs(180);
/// How long a fast stop may take before the server is killed.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// How long a dropped server may take for its immediate shutdown before it is killed.
const DROP_LIMIT: Duration = Duration::from_secs(5);
/// Pause between two looks at a server that is not ready.
const POLL: Duration = Duration::from_millis(20);
/// Room for the API, several workers and a test's own sessions.
const MAX_CONNECTIONS: u16 = 200;

/// What to start.
#[derive(Debug, Clone)]
pub struct Options {
    /// The cluster's own folder; created, and closed to others. Where root runs the server as another
    /// uid that cannot reach it, a folder under /var/tmp is used instead: see [`Postgres::note`].
    pub dir: PathBuf,
    /// Whether commits survive a crash of the machine. `false` turns fsync off: only for tests that
    /// do not crash the machine; a crash of the server alone loses nothing either way.
    pub durable: bool,
    /// Whether the folder stays when the server is dropped.
    pub keep: bool,
}

/// Why the server is not there.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No binaries.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The cluster's folder cannot be used.
    #[error("prepare the PostgreSQL folder {path}")]
    Folder {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A server runs on this folder already.
    #[error("the PostgreSQL cluster in {path} is in use by process {pid}; stop it first")]
    InUse {
        /// The cluster's folder.
        path: PathBuf,
        /// The running server.
        pid: u32,
    },
    /// The cluster was made by a version that set no password.
    #[error(
        "the PostgreSQL cluster in {0} lets every user of this machine in: it is older than its password. \
         Remove the folder, and a new cluster is made"
    )]
    Open(PathBuf),
    /// `initdb` failed.
    #[error("create a PostgreSQL cluster in {path}")]
    Init {
        /// Where.
        path: PathBuf,
        /// What initdb said.
        #[source]
        source: ExecError,
    },
    /// The server could not be executed.
    #[error("start PostgreSQL")]
    Exec(#[source] ExecError),
    /// No port.
    #[error("choose a port for PostgreSQL")]
    Port(#[source] io::Error),
    /// The server ended instead of becoming ready.
    #[error("PostgreSQL ended while starting; log {log}:\n{tail}")]
    Ended {
        /// Its log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
    /// The server runs but does not answer.
    #[error("PostgreSQL was not ready within {limit:?}; log {log}:\n{tail}")]
    NotReady {
        /// How long it was given.
        limit: Duration,
        /// Its log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
}

/// A running cluster. Dropping it shuts it down at once (as a crash that loses nothing).
pub struct Postgres {
    bin: PathBuf,
    home: Home,
    password: String,
    durable: bool,
    keep: bool,
    server: Mutex<(Arc<Running>, u16)>,
}

impl Postgres {
    /// Finds the binaries, creates the cluster if there is none, starts it and waits until it
    /// answers a session.
    ///
    /// # Errors
    /// [`StartError`], with the end of the server's log.
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let bin = find_postgres_bin()?;
        let home = Home::prepare(&options.dir)?;
        if let Some(note) = home.note() {
            tracing::info!("{note}");
        }
        home.refuse_if_in_use()?;
        let password = home.create_cluster(&bin).await?;
        let server = launch(&bin, &home, options.durable).await?;
        let server = Mutex::new((Arc::new(server.0), server.1));
        Ok(Self { bin, home, password, durable: options.durable, keep: options.keep, server })
    }

    /// A connection URL of the maintenance database, with the password.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_for("postgres")
    }

    /// A connection URL of the database `name`, which need not exist yet.
    #[must_use]
    pub fn url_for(&self, name: &str) -> String {
        format!("postgres://postgres:{}@127.0.0.1:{}/{name}", self.password, self.port())
    }

    /// The loopback port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    /// The server's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running().pid()
    }

    /// Whether the server's process is there.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running().status().is_none()
    }

    /// The server's log.
    #[must_use]
    pub fn logs(&self) -> &Path {
        self.home.log()
    }

    /// The folder in use: the one asked for, or its stand-in under /var/tmp.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.home.path()
    }

    /// The folder of PostgreSQL's programs (`psql`, `pg_dump` and others).
    #[must_use]
    pub fn bin(&self) -> &Path {
        &self.bin
    }

    /// A line for the user when another folder than the one asked for is used.
    #[must_use]
    pub fn note(&self) -> Option<&str> {
        self.home.note()
    }

    /// Stops the server in order: sessions are cut, everything committed is on disk. Does nothing
    /// when it has ended.
    pub async fn stop(&self) {
        let stopped = self.running().stop(Signal::INT, STOP_LIMIT).await;
        if stopped.killed {
            tracing::warn!(log = %self.logs().display(), "PostgreSQL did not stop in time and was killed");
        }
    }

    /// Lets the server crash: it ends at once without a checkpoint, sessions are cut. What was
    /// committed is there again after [`Postgres::restart`].
    pub async fn crash(&self) {
        self.running().stop(Signal::QUIT, DROP_LIMIT).await;
    }

    /// Kills the server with SIGKILL, as the kernel does when memory runs out.
    pub fn kill9(&self) {
        self.running().kill9();
    }

    /// Stops the server if it runs, and starts it again on the same folder and, where it is still
    /// free, the same port.
    ///
    /// # Errors
    /// [`StartError`]
    pub async fn restart(&self) -> Result<(), StartError> {
        self.stop().await;
        let (running, port) = launch(&self.bin, &self.home, self.durable).await?;
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = (Arc::new(running), port);
        Ok(())
    }

    fn running(&self) -> Arc<Running> {
        Arc::clone(&self.server.lock().unwrap_or_else(PoisonError::into_inner).0)
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("dir", &self.home.path()).field("port", &self.port()).finish_non_exhaustive()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // An immediate shutdown takes the backends along; a bare SIGKILL would leave them for moments.
        self.running().stop_blocking(Signal::QUIT, DROP_LIMIT);
        if !self.keep {
            self.home.remove();
        }
    }
}

/// Starts the server on the folder's port, or on another when that one is taken, and waits for it.
async fn launch(bin: &Path, home: &Home, durable: bool) -> Result<(Running, u16), StartError> {
    let deadline = Instant::now() + START_LIMIT;
    let mut wanted = home.last_port();
    loop {
        let port = match wanted.take().filter(|port| ports::is_free(*port)) {
            Some(port) => port,
            None => ports::free_port().map_err(StartError::Port)?,
        };
        let already_logged = home.log_length();
        let running = command(bin, home, port, durable).start().map_err(StartError::Exec)?;
        match wait_until_ready(&running, port, deadline).await {
            Ready::Yes => {
                home.remember_port(port)?;
                return Ok((running, port));
            }
            Ready::Ended => {
                let log = home.log_since(already_logged);
                // Somebody took the port between our look and the bind, or backends of a killed
                // server still hold its shared memory: both pass by themselves.
                let passes = log.contains("could not bind") || log.contains("shared memory block");
                if !passes || Instant::now() >= deadline {
                    return Err(StartError::Ended { log: home.log().to_owned(), tail: running.log_tail() });
                }
                if log.contains("shared memory block") {
                    wanted = Some(port);
                    tokio::time::sleep(POLL).await;
                }
            }
            Ready::TooLate => {
                return Err(StartError::NotReady {
                    limit: START_LIMIT,
                    log: home.log().to_owned(),
                    tail: running.log_tail(),
                });
            }
        }
    }
}

enum Ready {
    Yes,
    Ended,
    TooLate,
}

async fn wait_until_ready(running: &Running, port: u16, deadline: Instant) -> Ready {
    loop {
        if running.status().is_some() {
            return Ready::Ended;
        }
        if ready::answers_a_session(port).await {
            return Ready::Yes;
        }
        if Instant::now() >= deadline {
            return Ready::TooLate;
        }
        tokio::time::sleep(POLL).await;
    }
}

fn command(bin: &Path, home: &Home, port: u16, durable: bool) -> Spawn {
    let mut spawn = Spawn::new(bin.join("postgres"))
        .arg("-D")
        .arg(home.data())
        .args(["-p", &port.to_string()])
        .args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="])
        .args(["-c", &format!("max_connections={MAX_CONNECTIONS}")])
        .env("LC_ALL", "C")
        .cwd(home.path())
        .log_file(home.log())
        .uid(home.uid());
    if !durable {
        spawn = spawn.args(["-c", "fsync=off", "-c", "full_page_writes=off"]);
    }
    spawn
}
