//! SeaweedFS as one process (`weed mini`): an S3 server that enforces rights as AWS does, for the
//! tests of what the in-process server cannot vouch for.
//!
//! Quirks worth knowing: `a//b` becomes `a/b`; a key that ends in `/` is a folder and loses its
//! body; a copy into a bucket that does not exist answers 500; SIGTERM takes seconds, and SIGKILL
//! loses nothing that was acknowledged, so that is how it is stopped.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::exec::{ExecError, Running, Spawn};
use crate::identity::Identity;
use crate::ports;
use crate::tools::{ToolError, find_weed};

/// How long a start may take; 1.2 s on an idle machine, a recovery more.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How often ports are drawn anew when somebody took one first.
const MAX_STARTS: u32 = 4;
/// How long one look at an HTTP port may take.
const TRY_LIMIT: Duration = Duration::from_secs(2);
/// Pause between two looks.
const POLL: Duration = Duration::from_millis(25);
/// The Unix sockets that it lays in /tmp, by the port in their name; it does not clean up when killed.
const SOCKETS: [(&str, &str); 7] = [
    ("s3", "s3.port"),
    ("s3-grpc", "s3.port.grpc"),
    ("filer", "filer.port"),
    ("filer-grpc", "filer.port.grpc"),
    ("master-grpc", "master.port.grpc"),
    ("volume-grpc", "volume.port.grpc"),
    ("admin-grpc", "admin.port.grpc"),
];
/// The ports of `weed mini`, each of which must be named or it takes a well-known one.
const PORTS: [&str; 10] = [
    "s3.port",
    "s3.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "admin.port",
    "admin.port.grpc",
];

/// What to start.
#[derive(Debug, Clone)]
pub struct Options {
    /// The folder for its data, configuration and log; kept.
    pub dir: PathBuf,
    /// Buckets that exist when the start returns.
    pub buckets: Vec<String>,
    /// Key pairs besides the administrator's, with the rights of [`Identity::actions`], or of [`Identity::policy`].
    pub identities: Vec<Identity>,
}

/// Why the server is not there.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No binary.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The folder cannot be used.
    #[error("prepare the SeaweedFS folder {path}")]
    Folder {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No ports.
    #[error("choose ports for SeaweedFS")]
    Port(#[source] io::Error),
    /// It could not be executed.
    #[error("start SeaweedFS")]
    Exec(#[source] ExecError),
    /// It ended, or does not answer.
    #[error("SeaweedFS was not ready within {limit:?}; log {log}:\n{tail}")]
    NotReady {
        /// How long it was given.
        limit: Duration,
        /// Its log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
    /// A bucket could not be made.
    #[error("create the bucket {name} in SeaweedFS")]
    Bucket {
        /// Its name.
        name: String,
    },
}

/// A running SeaweedFS; killed when dropped.
#[derive(Debug)]
pub struct Weed {
    running: Running,
    ports: BTreeMap<&'static str, u16>,
    admin: Identity,
    log: PathBuf,
}

impl Weed {
    /// Starts it and waits until its S3 port answers and every bucket exists.
    ///
    /// # Errors
    /// [`StartError`], with the end of its log.
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let weed = find_weed()?;
        let draw = || format!("{:032x}", fastrand::u128(..));
        let admin = Identity::admin(&format!("WEED{}", &draw()[..16]), &draw());
        let data = options.dir.join("data");
        fs::create_dir_all(&data).map_err(|source| StartError::Folder { path: data.clone(), source })?;
        let config = options.dir.join("s3.json");
        fs::write(&config, identities(&admin, &options.identities).to_string())
            .map_err(|source| StartError::Folder { path: config.clone(), source })?;
        let log = options.dir.join("weed.log");
        let mut starts = 1;
        let server = loop {
            let given = ports::free_ports(PORTS.len()).map_err(StartError::Port)?;
            let ports: BTreeMap<_, _> = PORTS.into_iter().zip(given).collect();
            let running =
                command(&weed, &options.dir, &config, &ports).log_file(&log).start().map_err(StartError::Exec)?;
            let server = Self { running, ports, admin: admin.clone(), log: log.clone() };
            match server.wait_until_ready().await {
                Ok(()) => break server,
                // It ends at once when a port was taken between our look and its bind.
                Err(_) if server.running.status().is_some() && starts < MAX_STARTS => starts += 1,
                Err(error) => return Err(error),
            }
        };
        for bucket in &options.buckets {
            server.create_bucket(bucket).await?;
        }
        Ok(server)
    }

    /// The S3 endpoint's URL; buckets are addressed by path.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port("s3.port"))
    }

    /// The administrator's key pair.
    #[must_use]
    pub fn admin(&self) -> &Identity {
        &self.admin
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Its log.
    #[must_use]
    pub fn logs(&self) -> &Path {
        &self.log
    }

    /// Creates a bucket, through the filer: no S3 client is needed. One that is there stays.
    ///
    /// # Errors
    /// [`StartError::Bucket`] when the filer does not make it.
    pub async fn create_bucket(&self, name: &str) -> Result<(), StartError> {
        let path = format!("/buckets/{name}/");
        let deadline = Instant::now() + START_LIMIT;
        // The filer answers before it can write; asking again is harmless.
        while Instant::now() < deadline {
            let filer = self.port("filer.port");
            if http_status(filer, "POST", &path).await.is_some() && http_status(filer, "GET", &path).await == Some(200)
            {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
        Err(StartError::Bucket { name: name.to_owned() })
    }

    /// Kills it. What was acknowledged is on disk.
    pub fn stop(&self) {
        self.running.kill9();
    }

    fn port(&self, name: &str) -> u16 {
        self.ports.get(name).copied().unwrap_or_default()
    }

    /// Waits until S3 refuses an anonymous request in order, and the filer serves.
    async fn wait_until_ready(&self) -> Result<(), StartError> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let s3 = http_status(self.port("s3.port"), "GET", "/").await;
            let filer = http_status(self.port("filer.port"), "GET", "/").await;
            if s3 == Some(403) && filer == Some(200) {
                return Ok(());
            }
            if self.running.status().is_some() || Instant::now() >= deadline {
                return Err(StartError::NotReady {
                    limit: START_LIMIT,
                    log: self.log.clone(),
                    tail: self.running.log_tail(),
                });
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Drop for Weed {
    fn drop(&mut self) {
        self.running.kill9();
        for (role, port) in SOCKETS {
            let _ = fs::remove_file(format!("/tmp/seaweedfs-{role}-{}.sock", self.port(port)));
        }
    }
}

/// SeaweedFS's own configuration of who may do what. A policy document bears its identity's name.
fn identities(admin: &Identity, limited: &[Identity]) -> serde_json::Value {
    let entry = |identity: &Identity, actions: &[String]| {
        json!({
            "name": identity.name,
            "credentials": [{ "accessKey": identity.access_key, "secretKey": identity.secret_key }],
            "actions": actions,
            "policyNames": identity.policy.iter().map(|_| &identity.name).collect::<Vec<_>>(),
        })
    };
    let everything = ["Admin", "Read", "Write", "List", "Tagging"].map(str::to_owned);
    let all: Vec<_> = std::iter::once(entry(admin, &everything))
        .chain(limited.iter().map(|identity| entry(identity, &identity.actions)))
        .collect();
    let policies: Vec<_> = limited
        .iter()
        .filter_map(|identity| {
            let document = identity.policy.as_ref()?;
            Some(json!({ "name": identity.name, "content": document.to_string() }))
        })
        .collect();
    json!({ "identities": all, "policies": policies })
}

fn command(weed: &Path, dir: &Path, config: &Path, ports: &BTreeMap<&str, u16>) -> Spawn {
    let flag = |name: &str, value: &dyn std::fmt::Display| format!("-{name}={value}");
    Spawn::new(weed)
        .arg("mini")
        .arg(flag("dir", &dir.join("data").display()))
        .arg(flag("s3.config", &config.display()))
        .args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1"])
        // Both would call or listen beyond what a test needs; telemetry is on by default.
        .args(["-master.telemetry=false", "-admin.ui=false", "-webdav=false"])
        .args(["-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam.readOnly=false"])
        .args(ports.iter().map(|(name, port)| flag(name, port)))
        // Its own files beside the data, not wherever we were started.
        .cwd(dir)
}

/// The status with which a loopback server answers a request without a body; nothing when it does not.
async fn http_status(port: u16, method: &str, path: &str) -> Option<u16> {
    let ask = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.ok()?;
        let request = format!("{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 0\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        // "HTTP/1.0 403": the rest of the answer is of no interest.
        let mut start = [0; 12];
        stream.read_exact(&mut start).await.ok()?;
        std::str::from_utf8(&start).ok()?.split_once(' ')?.1.parse().ok()
    };
    tokio::time::timeout(TRY_LIMIT, ask).await.ok().flatten()
}
