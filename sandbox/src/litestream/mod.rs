//! litestream: a SQLite database replicated into S3, and restored from there.
//!
//! Its environment is an allow-list: with the user's `AWS_CA_BUNDLE` set it refuses every S3 URL.
//! Its exit codes prove nothing: the daemon ends with 0 when S3 is away and the tail is lost. What
//! proves that everything is in S3 is [`Litestream::sync_wait`].

mod config;

pub use config::{Pace, Replica};

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::json;

use config::{configuration, socket_in};

use crate::exec::{ExecError, Running, Signal, Spawn, Stopped};
use crate::tools::{ToolError, find_litestream};

/// How long the daemon may take until its socket answers.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long the daemon may take to end: it tries for 30 s to save the tail.
const STOP_LIMIT: Duration = Duration::from_secs(40);
/// How long a restore may take.
const RESTORE_LIMIT: Duration = Duration::from_secs(300);
/// How long a question to the local state may take.
const LOCAL_LIMIT: Duration = Duration::from_secs(30);
/// What a command with a limit of its own gets on top before we kill it.
const GRACE: Duration = Duration::from_secs(5);
/// Pause between two looks at the socket.
const POLL: Duration = Duration::from_millis(20);

/// Why litestream did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No binary.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// A file of ours could not be written.
    #[error("prepare {path} for litestream")]
    Folder {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The daemon did not become ready.
    #[error("litestream was not ready within {limit:?}; log {log}:\n{tail}")]
    NotReady {
        /// How long it was given.
        limit: Duration,
        /// Its log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
    /// A command failed or took too long; the source carries what it said.
    #[error("litestream {verb}")]
    Command {
        /// The command.
        verb: &'static str,
        /// How it ended.
        #[source]
        source: ExecError,
    },
    /// A command succeeded and said something else than expected.
    #[error("litestream {verb} answered {answer:?}")]
    Answer {
        /// The command.
        verb: &'static str,
        /// Its output.
        answer: String,
    },
}

/// What to replicate.
#[derive(Debug, Clone)]
pub struct Options {
    /// The SQLite database.
    pub db: PathBuf,
    /// Where to.
    pub replica: Replica,
    /// The folder for configuration, socket and log.
    pub dir: PathBuf,
    /// How fast.
    pub pace: Pace,
}

/// One database's litestream. The daemon, if it runs, is killed when this is dropped.
#[derive(Debug)]
pub struct Litestream {
    program: PathBuf,
    options: Options,
    config: PathBuf,
    socket: PathBuf,
    log: PathBuf,
    daemon: Option<Running>,
}

/// The positions after a sync; equal when everything is in S3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct SyncResult {
    /// The local database's last transaction.
    pub txid: u64,
    /// The last transaction in S3.
    pub replica_txid: u64,
}

impl Litestream {
    /// Finds the binary and writes the configuration. Nothing runs yet.
    ///
    /// # Errors
    /// [`Error::Tool`], [`Error::Folder`].
    pub fn new(options: Options) -> Result<Self, Error> {
        let program = find_litestream()?;
        let folder = |path: &Path, source| Error::Folder { path: path.to_owned(), source };
        fs::create_dir_all(&options.dir).map_err(|source| folder(&options.dir, source))?;
        let dir = std::path::absolute(&options.dir).map_err(|source| folder(&options.dir, source))?;
        let (config, log) = (dir.join("litestream.yml"), dir.join("litestream.log"));
        let socket = socket_in(&dir);
        let options = Options { dir, ..options };
        fs::write(&config, configuration(&options, &socket).to_string()).map_err(|source| folder(&config, source))?;
        Ok(Self { program, options, config, socket, log, daemon: None })
    }

    /// Starts the daemon and waits until its socket answers. Does nothing while it runs.
    ///
    /// # Errors
    /// [`Error::NotReady`] with the end of its log.
    pub async fn replicate(&mut self) -> Result<(), Error> {
        if self.pid().is_some() {
            return Ok(());
        }
        // A socket left by a killed daemon would look like one that is there.
        let _ = fs::remove_file(&self.socket);
        let daemon = self
            .command("replicate")
            .arg("-config")
            .arg(&self.config)
            .log_file(&self.log)
            .start()
            .map_err(|source| Error::Command { verb: "replicate", source })?;
        let deadline = Instant::now() + START_LIMIT;
        while UnixStream::connect(&self.socket).is_err() {
            if daemon.status().is_some() || Instant::now() >= deadline {
                let tail = daemon.log_tail();
                return Err(Error::NotReady { limit: START_LIMIT, log: self.log.clone(), tail });
            }
            tokio::time::sleep(POLL).await;
        }
        self.daemon = Some(daemon);
        Ok(())
    }

    /// Makes the daemon upload everything, and returns when S3 has it: the proof of the tail.
    ///
    /// # Errors
    /// [`Error::Command`] with litestream's words when S3 does not take it within `timeout` (whole
    /// seconds, at least one).
    pub async fn sync_wait(&self, timeout: Duration) -> Result<SyncResult, Error> {
        let verb = "sync";
        let seconds = timeout.as_secs().max(1);
        let finished = self
            .command(verb)
            .args(["-wait", "-json", "-timeout", &seconds.to_string(), "-socket"])
            .arg(&self.socket)
            .arg(&self.options.db)
            .run(Duration::from_secs(seconds) + GRACE)
            .await
            .and_then(|finished| finished.success())
            .map_err(|source| Error::Command { verb, source })?;
        serde_json::from_str(&finished.stdout).map_err(|_| Error::Answer { verb, answer: finished.stdout })
    }

    /// Uploads what is missing in one shot, without a daemon; lists the replica first.
    ///
    /// # Errors
    /// [`Error::Command`]; litestream itself has no limit here, `limit` is ours.
    pub async fn replicate_once(&self, limit: Duration) -> Result<(), Error> {
        self.command("replicate")
            .arg("-once")
            .arg("-config")
            .arg(&self.config)
            .run(limit)
            .await
            .and_then(|finished| finished.success())
            .map(drop)
            .map_err(|source| Error::Command { verb: "replicate -once", source })
    }

    /// The local database's last transaction as 16 hex digits, from its own files: S3 is not asked.
    ///
    /// # Errors
    /// [`Error::Command`], [`Error::Answer`].
    pub async fn local_txid(&self) -> Result<String, Error> {
        let verb = "status";
        let finished = self
            .command(verb)
            .args(["-json", "-config"])
            .arg(&self.config)
            .run(LOCAL_LIMIT)
            .await
            .and_then(|finished| finished.success())
            .map_err(|source| Error::Command { verb, source })?;
        find_text(&finished.stdout, "local_txid").ok_or(Error::Answer { verb, answer: finished.stdout })
    }

    /// Stops the daemon in order. Its exit code says nothing about the tail.
    pub async fn stop(&mut self) -> Option<Stopped> {
        let daemon = self.daemon.take()?;
        Some(daemon.stop(Signal::TERM, STOP_LIMIT).await)
    }

    /// Kills the daemon.
    pub fn kill9(&mut self) {
        self.daemon = None;
    }

    /// The daemon's process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.daemon.as_ref().filter(|daemon| daemon.status().is_none()).map(Running::pid)
    }

    /// The daemon's log.
    #[must_use]
    pub fn logs(&self) -> &Path {
        &self.log
    }

    /// The daemon's control socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    fn command(&self, verb: &'static str) -> Spawn {
        self.options.replica.environment(Spawn::new(&self.program).arg(verb)).cwd(&self.options.dir)
    }
}

/// Restores a replica into the file `out`, which must not exist, with a full integrity check: up to
/// and including `txid` (16 hex digits), or to the newest that is there.
///
/// Without `txid` a replica that lost its newest object restores an older state, successfully.
///
/// # Errors
/// [`Error::Command`] with litestream's words; `out` is then not there.
pub async fn restore(replica: &Replica, out: &Path, txid: Option<&str>) -> Result<(), Error> {
    let program = find_litestream()?;
    let folder = tempfile::tempdir().map_err(|source| Error::Folder { path: std::env::temp_dir(), source })?;
    let config = folder.path().join("restore.yml");
    // The configuration knows the replica by a database's path; ours exists nowhere.
    let db = folder.path().join("db");
    let content = json!({ "dbs": [{ "path": db, "replica": replica.config() }] });
    fs::write(&config, content.to_string()).map_err(|source| Error::Folder { path: config.clone(), source })?;
    let out = std::path::absolute(out).map_err(|source| Error::Folder { path: out.to_owned(), source })?;
    let mut command = Spawn::new(program).arg("restore").arg("-config").arg(&config);
    command = command.args(["-integrity-check", "full", "-o"]).arg(&out);
    if let Some(txid) = txid {
        command = command.args(["-txid", txid]);
    }
    replica
        .environment(command.arg(&db).cwd(folder.path()))
        .run(RESTORE_LIMIT)
        .await
        .and_then(|finished| finished.success())
        .map(drop)
        .map_err(|source| Error::Command { verb: "restore", source })
}

/// The first text under this name anywhere in a JSON answer: its shape differs between versions.
fn find_text(json: &str, name: &str) -> Option<String> {
    fn walk(value: &serde_json::Value, name: &str) -> Option<String> {
        if let Some(text) = value.get(name).and_then(serde_json::Value::as_str) {
            return Some(text.to_owned());
        }
        let list = value.as_array().into_iter().flatten();
        let object = value.as_object().into_iter().flat_map(serde_json::Map::values);
        list.chain(object).find_map(|inner| walk(inner, name))
    }
    walk(&serde_json::from_str(json).ok()?, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_found_at_any_depth() {
        assert_eq!(find_text(r#"{"a":[{"local_txid":"0a"}]}"#, "local_txid").as_deref(), Some("0a"));
        assert_eq!(find_text("[]", "local_txid"), None);
    }
}
