//! The API and the boxes of the sandbox: this program, started as the roles that it is in production.
//!
//! Children get what they need by name and nothing of the user's environment, and secrets in
//! variables: arguments are seen by every user of a machine.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use sandbox::exec::{Running, Signal, Spawn};
use sandbox::s3::{self, Identity};

use super::regions::Site;
use super::{Instances, host_keys};

/// How long the API may take until it listens.
const API_LIMIT: Duration = Duration::from_secs(30);
/// Pause between two looks.
const POLL: Duration = Duration::from_millis(20);
/// How long a child may take to end after SIGTERM. A worker's own drain is shorter.
pub(super) const STOP_LIMIT: Duration = Duration::from_secs(15);
/// How long a worker of the sandbox waits for its running jobs when it ends.
const DRAIN_SECONDS: &str = "8";

/// What every child needs.
#[derive(Debug)]
pub(super) struct Family {
    program: PathBuf,
    dir: PathBuf,
    logs: PathBuf,
    database_url: String,
    round_seconds: u32,
}

impl Family {
    /// Children of this program that work in `dir`, log into `logs` and share a database.
    pub(super) fn new(dir: &Path, logs: &Path, database_url: String, round_seconds: u32) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("find this program's own file")?;
        Ok(Self { program, dir: dir.to_owned(), logs: logs.to_owned(), database_url, round_seconds })
    }

    /// Starts the API and waits until it listens.
    ///
    /// That somebody answers on the port proves nothing, since it may be a stranger who took it first, and the next
    /// thing that is sent there is the administrator's key. Only the child's own word, written once the port was its
    /// own, counts.
    ///
    /// # Errors
    /// Where it ended or did not listen in time, with the end of its log.
    pub(super) async fn start_api(&self, port: u16) -> anyhow::Result<Running> {
        let address = format!("127.0.0.1:{port}");
        let log = self.log("api");
        // The log of an earlier run says the same words.
        let begin = std::fs::metadata(&log).map_or(0, |found| found.len());
        let child = self.role("api", "api").env("LEASEHOLD_API_LISTEN", &address).start()?;
        let deadline = Instant::now() + API_LIMIT;
        while child.status().is_some() || !says_that_it_listens(&log, begin) {
            if child.status().is_some() || Instant::now() >= deadline {
                bail!("the API does not listen on {address}; its log:\n{}", child.log_tail());
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(child)
    }

    /// Starts the worker of a region's box.
    ///
    /// # Errors
    /// Where it could not be started at all; that it serves is seen in the API.
    pub(super) fn start_box(
        &self,
        site: Site,
        s3: &s3::Server,
        key: &Identity,
        instances: Option<&Instances>,
    ) -> anyhow::Result<Running> {
        let data = self.dir.join("boxes").join(site.code);
        std::fs::create_dir_all(&data).with_context(|| format!("create {}", data.display()))?;
        let mut spawn = self
            .role("worker", &format!("worker-{}", site.code))
            .env("LEASEHOLD_NODE_IDENTITY", site.node)
            .env("LEASEHOLD_NODE_REGION", site.code)
            .env("LEASEHOLD_NODE_DATA_DIR", &data)
            .env("LEASEHOLD_NODE_DATA_BUCKET", site.bucket)
            .env("LEASEHOLD_NODE_DATA_BUCKET_REGION", site.bucket_region)
            .env("LEASEHOLD_S3_ENDPOINT", s3.endpoint())
            .env("LEASEHOLD_S3_ACCESS_KEY_ID", &key.access_key)
            .env("LEASEHOLD_S3_SECRET_ACCESS_KEY", &key.secret_key)
            .env("LEASEHOLD_NODE_ROUND_INTERVAL_SECONDS", self.round_seconds.to_string())
            .env("LEASEHOLD_WORKER_DRAIN_SECONDS", DRAIN_SECONDS);
        if let Some(instances) = instances {
            let program = self.program.display();
            spawn = spawn
                .env("LEASEHOLD_NODE_EXEC", format!("{program},{}", sandbox::ledger::SUBCOMMAND))
                .env("LEASEHOLD_NODE_LITESTREAM", &instances.litestream);
            if !instances.hosts.is_empty() {
                let keys = data.join("instance-keys.json");
                host_keys::draw(&keys, site, &instances.hosts, s3)?;
                let command = format!("{program},{},{}", host_keys::SUBCOMMAND, keys.display());
                spawn = spawn.env("LEASEHOLD_NODE_CREDENTIALS_COMMAND", command);
            }
        }
        Ok(spawn.start()?)
    }

    /// Starts a worker that serves one queue and belongs to no box.
    ///
    /// # Errors
    /// Where it could not be started at all.
    pub(super) fn start_worker(&self, name: &str, queue: &str) -> anyhow::Result<Running> {
        let spawn = self
            .role("worker", name)
            .env("LEASEHOLD_WORKER_QUEUES", queue)
            .env("LEASEHOLD_WORKER_CONCURRENCY", "32")
            .env("LEASEHOLD_WORKER_DRAIN_SECONDS", DRAIN_SECONDS);
        Ok(spawn.start()?)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.log"))
    }

    fn role(&self, role: &str, log: &str) -> Spawn {
        // A folder of their own, so that no leasehold.toml of the user's steers them.
        Spawn::new(&self.program)
            .arg(role)
            .cwd(&self.dir)
            .env("LEASEHOLD_DATABASE_URL", &self.database_url)
            .env("LEASEHOLD_LOG_FORMAT", "json")
            .log_file(self.log(log))
    }
}

/// Whether the role `api` wrote into `log`, behind its first `begin` bytes, that it has its port.
fn says_that_it_listens(log: &Path, begin: u64) -> bool {
    let mut said = Vec::new();
    let read = File::open(log).and_then(|mut file| {
        file.seek(SeekFrom::Start(begin))?;
        file.read_to_end(&mut said)
    });
    read.is_ok() && String::from_utf8_lossy(&said).contains(api::LISTENS)
}

/// Refuses a port that somebody else has.
///
/// # Errors
/// That it is taken, or why else it cannot be had.
pub(super) fn require_free(port: u16) -> anyhow::Result<()> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            bail!("port {port} is taken: end whoever listens there, or choose another with --port")
        }
        Err(error) => Err(error).with_context(|| format!("listen on 127.0.0.1:{port}")),
    }
}

/// Ends a child in order, and kills it where that takes too long.
pub(super) async fn end(child: &Running) {
    let stopped = child.stop(Signal::TERM, STOP_LIMIT).await;
    if stopped.killed {
        tracing::warn!(child = child.name(), pid = child.pid(), "did not end in time and was killed");
    }
}
