//! litestream: what it is told, and its commands.
//!
//! Its exit codes prove nothing: the daemon ends with 0 when S3 is away and the tail is lost. What its commands print
//! is read instead. Its environment is an allow-list: with `AWS_CA_BUNDLE` set it refuses every S3 URL.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use domain::ids::Host;
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use serde_json::json;

use super::files::Files;
use super::process::{self, Detached, Exits, Life, NoEnd, POLL};
use super::record::Ended;
use super::settings::{ReplicaCredentials, Settings};
use super::{Error, Role, control};
use crate::objects::Credentials;

/// The control socket, by its name alone: every process that uses it stands in its folder, since the whole path of a
/// long host would not fit into a socket's address.
const SOCKET: &str = "litestream.sock";
/// What a record says of the daemon, of a run that uploads once, and of a daemon that uploads the whole database at once.
const DAEMON: &str = "replicate";
const ONCE: &str = "replicate -once";
const WHOLE: &str = "replicate, the whole database at once";
/// How often such a daemon uploads the whole database: it is ended when it did.
const WHOLE_INTERVAL: Duration = Duration::from_secs(1);
/// How long the daemon may take until its socket answers.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long the daemon may take to end: it tries to save the tail, for [`Settings::sync_limit`].
const STOP_LIMIT: Duration = Duration::from_secs(45);
/// How long one upload of everything missing may take: litestream has no limit of its own here.
const ONCE_LIMIT: Duration = Duration::from_secs(30);
/// How long a question to the local state may take.
const LOCAL_LIMIT: Duration = Duration::from_secs(30);
/// How long an answer of the daemon about itself may take.
const CONTROL_LIMIT: Duration = Duration::from_secs(2);
/// What a command with a limit of its own gets on top.
const GRACE: Duration = Duration::from_secs(5);
/// How much of what a command said a message carries, characters.
const SAID: usize = 1_000;

/// The litestream of one host. Whoever uses it holds the host's mutex.
pub(super) struct Litestream<'a> {
    pub(super) settings: &'a Settings,
    pub(super) program: &'a Path,
    pub(super) host: &'a Host,
    pub(super) files: &'a Files,
    pub(super) exits: &'a Exits,
}

/// The positions after a sync; equal when everything is in S3.
#[derive(Debug, Deserialize)]
pub(super) struct Synced {
    pub(super) txid: u64,
    pub(super) replica_txid: u64,
}

/// What a restore looks at when it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checks {
    /// The whole database.
    Full,
    /// Nothing: whoever asked compares the file with one that was checked.
    None,
}

impl Checks {
    fn word(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::None => "none",
        }
    }
}

impl Litestream<'_> {
    /// Starts the daemon and waits until its socket answers. Does nothing while it runs.
    pub(super) async fn replicate(&self) -> Result<(), Error> {
        self.replicate_as(DAEMON).await
    }

    /// As [`Litestream::replicate`], and the daemon uploads the whole database as soon as it has a transaction that no such
    /// upload covers. To be ended when it did: it goes on with every further transaction.
    pub(super) async fn replicate_whole(&self) -> Result<(), Error> {
        self.replicate_as(WHOLE).await
    }

    async fn replicate_as(&self, note: &'static str) -> Result<(), Error> {
        match self.look()? {
            Life::Lives(record) if record.note == note => return self.until_ready().await,
            // Another, of a worker that died meanwhile: two on one database would disturb each other.
            Life::Lives(_) | Life::Lingers(..) => drop(self.end().await?),
            Life::Gone => {}
        }
        // A socket that a killed daemon left would look like one that is there.
        let socket = self.files.folder.join(SOCKET);
        super::durable::remove(&socket).map_err(Error::file(&socket))?;
        crate::failpoint::hit("activator.before_litestream", self.host.as_str()).await;
        self.launch(note, &["replicate"]).await?;
        self.until_ready().await
    }

    async fn until_ready(&self) -> Result<(), Error> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if self.answers() {
                return Ok(());
            }
            let (host, role, log) = (self.host.clone(), Role::Litestream, self.files.litestream_log());
            let tail = process::tail(&log);
            match self.look()? {
                Life::Lives(_) if Instant::now() < deadline => tokio::time::sleep(POLL).await,
                Life::Lives(_) => return Err(Error::NotReady { host, role, limit: START_LIMIT, log, tail }),
                Life::Gone | Life::Lingers(..) => return Err(Error::Exited { host, role, log, tail }),
            }
        }
    }

    /// Whether the socket takes a connection, through a path that always fits.
    fn answers(&self) -> bool {
        let Ok(folder) = std::fs::File::open(&self.files.folder) else { return false };
        UnixStream::connect(control::address(&folder, SOCKET)).is_ok()
    }

    /// When the daemon says that everything was uploaded last, in its own words; `None` where nothing ever was.
    pub(super) async fn last_upload(&self) -> Result<Option<String>, Error> {
        let answer = tokio::time::timeout(CONTROL_LIMIT, control::get(&self.files.folder, SOCKET, "/list")).await;
        let answer = answer.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)));
        let answer = answer.map_err(|source| self.failed("list", &source.to_string()))?;
        let list: serde_json::Value =
            serde_json::from_slice(&answer).map_err(|_| self.failed("list", &String::from_utf8_lossy(&answer)))?;
        // One daemon has one database.
        Ok(list.pointer("/databases/0/last_sync_at").and_then(serde_json::Value::as_str).map(str::to_owned))
    }

    /// Makes the daemon upload everything, and returns when it says that S3 has it.
    pub(super) async fn sync(&self) -> Result<Synced, Error> {
        let limit = self.settings.sync_limit;
        let seconds = limit.as_secs().max(1).to_string();
        let database = self.files.database().into_os_string();
        let args = ["sync", "-wait", "-json", "-timeout", &seconds, "-socket", SOCKET].map(OsString::from);
        let args = [&args[..], &[database]].concat();
        let said = self.run("sync", &args, &self.base(), limit + GRACE).await?;
        serde_json::from_str(&said).map_err(|_| self.failed("sync", &said))
    }

    /// Uploads what is missing, and ends; lists the replica first.
    pub(super) async fn once(&self) -> Result<(), Error> {
        self.launch(ONCE, &["replicate", "-once"]).await?;
        let deadline = Instant::now() + ONCE_LIMIT.max(self.settings.sync_limit);
        while matches!(self.look()?, Life::Lives(_)) {
            if Instant::now() >= deadline {
                self.end().await?;
                return Err(self.failed(ONCE, "not done in time"));
            }
            tokio::time::sleep(POLL).await;
        }
        match self.end().await? {
            Some(Ended { exit_code: Some(0), .. }) => Ok(()),
            Some(_) | None => Err(self.failed(ONCE, &process::tail(&self.files.litestream_log()))),
        }
    }

    /// The local database's last transaction as 16 hex digits, from its own files: S3 is not asked.
    pub(super) async fn local_txid(&self) -> Result<String, Error> {
        self.configure(self.settings.pace.snapshot_interval)?;
        let config = self.files.config().into_os_string();
        let args = ["status", "-json", "-config"].map(OsString::from);
        let said = self.run("status", &[&args[..], &[config]].concat(), &self.base(), LOCAL_LIMIT).await?;
        let answer: serde_json::Value = serde_json::from_str(&said).map_err(|_| self.failed("status", &said))?;
        let txid = answer.pointer("/0/local_txid").and_then(serde_json::Value::as_str);
        txid.map(str::to_owned).ok_or_else(|| self.failed("status", &said))
    }

    /// Restores `prefix` of the box's bucket up to and including `txid` into the file `out`, which must not exist, as the box
    /// itself.
    pub(super) async fn restore(&self, prefix: &str, txid: &str, checks: Checks, out: &Path) -> Result<(), Error> {
        let (config, database) = (self.files.restore_config(), self.files.database());
        let content = json!({ "dbs": [{ "path": database, "replica": self.replica(prefix) }] });
        super::durable::write(&config, content.to_string().as_bytes()).map_err(Error::file(&config))?;
        let args = ["restore", "-integrity-check", checks.word(), "-txid", txid, "-config"].map(OsString::from);
        let rest = [config.into_os_string(), "-o".into(), out.as_os_str().to_owned(), database.into_os_string()];
        let (ReplicaCredentials::Own { chain } | ReplicaCredentials::Command { chain, .. }) =
            &self.settings.credentials;
        let environment = self.own_key(chain);
        self.run("restore", &[&args[..], &rest].concat(), &environment, self.settings.restore_limit).await?;
        Ok(())
    }

    /// Ends it, whichever of its commands it is, and proves the end. Its exit code says nothing about the tail.
    pub(super) async fn end(&self) -> Result<Option<Ended>, Error> {
        let limit = STOP_LIMIT.max(self.settings.stop_limit).max(self.settings.sync_limit + GRACE);
        process::end(&self.files.litestream(), limit, self.exits)
            .await
            .map_err(|error| no_end(error, self.host, Role::Litestream))
    }

    pub(super) fn look(&self) -> Result<Life, Error> {
        process::look(&self.files.litestream()).map_err(|source| Error::Processes { host: self.host.clone(), source })
    }

    async fn launch(&self, note: &'static str, words: &[&str]) -> Result<(), Error> {
        let snapshots = if note == WHOLE { Some(WHOLE_INTERVAL) } else { self.settings.pace.snapshot_interval };
        self.configure(snapshots)?;
        let mut args: Vec<OsString> = words.iter().map(OsString::from).collect();
        args.extend(["-config".into(), self.files.config().into_os_string()]);
        let detached = Detached {
            launcher: &self.settings.launcher,
            record: &self.files.litestream(),
            note,
            program: self.program,
            args,
            environment: self.replicating()?,
            folder: &self.files.folder,
            log: &self.files.litestream_log(),
        };
        let started = detached.start(self.exits).await;
        started.map(drop).map_err(|source| Error::Launch { host: self.host.clone(), role: Role::Litestream, source })
    }

    /// Written as JSON, which is YAML: nothing needs quoting rules of its own. No secret stands in it.
    fn configure(&self, snapshots: Option<Duration>) -> Result<(), Error> {
        let pace = &self.settings.pace;
        let text = |duration: Duration| format!("{}ms", duration.as_millis());
        let mut replica = self.replica(&format!("instances/{}", self.host));
        if let Some(interval) = pace.sync_interval {
            replica["sync-interval"] = json!(text(interval));
        }
        let mut config = json!({
            "socket": { "enabled": true, "path": SOCKET, "permissions": 0o600 },
            "dbs": [{ "path": self.files.database(), "replica": replica }],
            "shutdown-sync-timeout": text(self.settings.sync_limit),
        });
        if let Some(interval) = pace.compaction_interval {
            config["levels"] = json!([{ "interval": text(interval) }]);
        }
        if let Some(retention) = pace.l0_retention {
            config["l0-retention"] = json!(text(retention));
            config["l0-retention-check-interval"] = json!(text(retention.min(Duration::from_secs(15))));
        }
        if let Some(interval) = snapshots {
            config["snapshot"]["interval"] = json!(text(interval));
        }
        if let Some(retention) = pace.snapshot_retention {
            config["snapshot"]["retention"] = json!(text(retention));
        }
        let path = self.files.config();
        super::durable::write(&path, config.to_string().as_bytes()).map_err(Error::file(&path))
    }

    fn replica(&self, prefix: &str) -> serde_json::Value {
        let store = &self.settings.store;
        let mut replica = json!({
            "type": "s3",
            "region": store.region,
            "bucket": self.settings.bucket,
            "path": prefix,
            "force-path-style": store.force_path_style,
        });
        if let Some(url) = &store.url {
            replica["endpoint"] = json!(url);
        }
        replica
    }

    fn base(&self) -> BTreeMap<OsString, OsString> {
        self.settings.environment.clone()
    }

    /// The environment of the box's own key.
    fn own_key(&self, chain: &BTreeMap<OsString, OsString>) -> BTreeMap<OsString, OsString> {
        let mut environment = self.base();
        match &self.settings.store.credentials {
            Credentials::Static { access_key, secret_key, session_token } => {
                environment.insert("AWS_ACCESS_KEY_ID".into(), access_key.into());
                environment.insert("AWS_SECRET_ACCESS_KEY".into(), secret_key.expose_secret().into());
                if let Some(token) = session_token {
                    environment.insert("AWS_SESSION_TOKEN".into(), token.expose_secret().into());
                }
            }
            Credentials::Chain => environment.extend(chain.clone()),
        }
        environment
    }

    /// The environment of whoever replicates.
    fn replicating(&self) -> Result<BTreeMap<OsString, OsString>, Error> {
        let command = match &self.settings.credentials {
            ReplicaCredentials::Own { chain } => return Ok(self.own_key(chain)),
            ReplicaCredentials::Command { command, .. } => command,
        };
        // The command stands in a variable, so that it needs no quoting in a file of AWS's dialect.
        let path = self.files.aws_config();
        let config = b"[default]\ncredential_process = eval \"$LEASEHOLD_CREDENTIALS\"\n";
        super::durable::write(&path, config).map_err(Error::file(&path))?;
        let mut environment = self.base();
        environment.insert("AWS_CONFIG_FILE".into(), path.into_os_string());
        environment.insert("AWS_SHARED_CREDENTIALS_FILE".into(), "/dev/null".into());
        environment.insert("AWS_EC2_METADATA_DISABLED".into(), "true".into());
        let words = command.iter().map(String::as_str).chain([self.host.as_str()]);
        let quoted: Vec<String> = words.map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
        environment.insert("LEASEHOLD_CREDENTIALS".into(), quoted.join(" ").into());
        Ok(environment)
    }

    async fn run(
        &self,
        verb: &'static str,
        args: &[OsString],
        environment: &BTreeMap<OsString, OsString>,
        limit: Duration,
    ) -> Result<String, Error> {
        let ran = process::run(self.program, args, environment, &self.files.folder, limit).await;
        let launch = |source| Error::Launch { host: self.host.clone(), role: Role::Litestream, source };
        match ran.map_err(launch)? {
            Some(output) if output.success => Ok(output.stdout),
            Some(output) => Err(self.failed(verb, &format!("{}{}", output.stdout, output.stderr))),
            None => Err(self.failed(verb, &format!("no answer within {limit:?}"))),
        }
    }

    fn failed(&self, verb: &'static str, said: &str) -> Error {
        let said = said.trim();
        let begin = said.char_indices().rev().nth(SAID).map_or(0, |(at, _)| at);
        Error::Litestream { host: self.host.clone(), verb, said: said[begin..].to_owned() }
    }
}

/// An end without proof, as an error.
pub(super) fn no_end(error: NoEnd, host: &Host, role: Role) -> Error {
    let host = host.clone();
    match error {
        NoEnd::Hangs { pid, lingering, waited } => Error::Hangs { host, role, pid, lingering, waited },
        NoEnd::Unknown(source) => Error::Processes { host, source },
    }
}
