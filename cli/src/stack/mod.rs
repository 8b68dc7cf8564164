//! Leasehold as a whole on one machine, for `dev` and `demo`: a private PostgreSQL, an S3 server
//! with the buckets of two regions, the API, and the box of each region.
//!
//! PostgreSQL, the API and the boxes are processes of their own; the S3 server lives in this one.
//! All of it listens on loopback only and dies with this process, also on SIGKILL.
//!
//! Deliberately absent: any shortcut. Migrations, keys, settings and roles are those of production;
//! only the places are ours.

mod children;
mod host_keys;
mod key;
mod narrator;
mod reap;
mod regions;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use sandbox::edge::{self, Api, Edge};
use sandbox::exec::Running;
use sandbox::postgres::{self, Postgres};
use sandbox::tools::{self, Tool};
use sandbox::{ports, s3};
use secrecy::{ExposeSecret as _, SecretString};
use sqlx::PgPool;
use wire::RegionRequest;

use crate::folder;

pub(crate) use host_keys::{SUBCOMMAND as INSTANCE_KEY, internal_instance_key};
pub(crate) use key::{database_path, path as key_path};
pub(crate) use narrator::Narrator;
pub(crate) use reap::reap;
pub(crate) use regions::{EU, SITES, Site, UK};

/// Sessions with the database of this process itself; the roles have their own.
const OWN_SESSIONS: u32 = 8;
/// How long the boxes may take until they can host.
const BOXES_LIMIT: Duration = Duration::from_secs(30);
/// Pause between two looks at something that is not ready.
const POLL: Duration = Duration::from_millis(50);

/// What to start.
#[derive(Debug)]
pub(crate) struct Options {
    /// The folder that holds everything.
    pub(crate) dir: PathBuf,
    /// The API's port; a free one where none is named.
    pub(crate) api_port: Option<u16>,
    /// Whether another run takes up what this one leaves.
    pub(crate) keep: bool,
    /// The wait between two rounds of a move.
    pub(crate) round_seconds: u32,
    /// What runs the boxes' instances; `None` where they only mirror.
    pub(crate) instances: Option<Instances>,
}

/// What runs the boxes' instances.
#[derive(Debug)]
pub(crate) struct Instances {
    /// litestream.
    pub(crate) litestream: PathBuf,
    /// Hosts whose litestream has a key of its own, limited to its prefix. Those of others use the box's.
    pub(crate) hosts: Vec<&'static str>,
}

/// The running whole.
pub(crate) struct Stack {
    dir: PathBuf,
    /// The API's address.
    pub(crate) url: String,
    /// An administrator's key.
    pub(crate) key: SecretString,
    /// The API, with that key.
    pub(crate) client: wire::Client,
    /// The database, for what only the operator of a database may see.
    pub(crate) pool: PgPool,
    /// The object store.
    pub(crate) s3: s3::Server,
    /// The access keys of the boxes, in the order of [`SITES`].
    pub(crate) box_keys: Vec<String>,
    /// Where the world reaches the instances, by their hosts.
    pub(crate) edge: Edge,
    family: children::Family,
    // Fields are dropped in this order where nobody stops them: first who uses, then what is used.
    boxes: Vec<Running>,
    api: Running,
    postgres: Postgres,
    _lock: File,
}

impl Stack {
    /// Starts everything, and returns when a box in each region can host, or is heard where the boxes only mirror.
    ///
    /// # Errors
    /// What did not start, why, and where its log is. What had started is stopped.
    pub(crate) async fn start(options: Options, narrator: &Narrator) -> anyhow::Result<Self> {
        let dir = std::path::absolute(&options.dir).context("find the folder of this run")?;
        let logs = logs(&dir);
        std::fs::create_dir_all(&logs).with_context(|| format!("create {}", logs.display()))?;
        // Two runs that share a folder would stop each other's children.
        let Some(lock) = folder::take(&dir)? else {
            bail!("{} is in use by another run; end that one first", dir.display());
        };
        // What an earlier run left that was killed.
        reap(&dir);

        let port = match options.api_port {
            // Before anything is started: a start that will fail fails at once.
            Some(port) => children::require_free(port).map(|()| port)?,
            None => ports::free_port().context("choose a port for the API")?,
        };

        narrator.doing("looking for PostgreSQL");
        let bin = blocking(|| tools::ensure(Tool::Postgres)).await?;
        tracing::info!(bin = %bin.display(), "PostgreSQL was found");
        narrator.doing("starting PostgreSQL");
        let options_of_postgres =
            postgres::Options { dir: dir.join("postgres"), durable: options.keep, keep: options.keep };
        let postgres = Postgres::start(options_of_postgres).await?;
        if let Some(note) = postgres.note() {
            narrator.line(&format!("          {note}"));
        }
        narrator.done(&format!("PostgreSQL on 127.0.0.1:{}", postgres.port()));

        let root = options.keep.then(|| dir.join("buckets"));
        let buckets = SITES.map(|site| site.bucket.to_owned()).to_vec();
        let s3 = s3::Server::start(s3::Options { root, buckets, ..s3::Options::default() })?;
        narrator.done(&format!("S3 on {}, buckets {} and {}", s3.endpoint(), EU.bucket, UK.bucket));

        let pool = domain::db::connect(&postgres.url(), OWN_SESSIONS).await?;
        domain::db::migrate(&pool).await?;
        narrator.done(&format!("schema at version {}", domain::db::known_version()));
        let key = key::of_administrator(&pool, &dir).await?;
        if options.keep {
            key::keep_database_url(&dir, &postgres.url())?;
        }

        narrator.doing("starting the API");
        let family = children::Family::new(&dir, &logs, postgres.url(), options.round_seconds)?;
        let api = family.start_api(port).await?;
        let url = format!("http://127.0.0.1:{port}");
        let client = wire::Client::new(&url, Some(key.clone()))?;
        wait_until_ready(&client).await?;
        narrator.done(&format!("API and dashboard on {url}"));

        for site in SITES {
            let region = RegionRequest {
                name: site.name.to_owned(),
                armed: true,
                dormant: false,
                home: site.code == EU.code,
                default: site.code == EU.code,
                data_bucket: site.bucket.to_owned(),
                data_bucket_region: site.bucket_region.to_owned(),
            };
            client.put_region(site.code, &region).await.with_context(|| format!("define region {}", site.code))?;
        }
        narrator.doing("starting the boxes");
        let (mut boxes, mut box_keys) = (Vec::new(), Vec::new());
        for site in SITES {
            let key = site.box_key();
            s3.add_identity(key.clone());
            boxes.push(family.start_box(site, &s3, &key, options.instances.as_ref())?);
            box_keys.push(key.access_key);
        }
        let edges = Api::new(&url, key.expose_secret())?;
        let edge = Edge::start(edge::Options::of(SITES.map(|site| site.code)), Arc::new(edges)).await?;
        let stack = Self { dir, url, key, client, pool, s3, box_keys, edge, family, boxes, api, postgres, _lock: lock };
        stack.wait_for_boxes(options.instances.is_some()).await?;
        narrator.done(&format!("two workers: {} in {} and {} in {}", EU.node, EU.code, UK.node, UK.code));
        Ok(stack)
    }

    /// Starts a worker that serves one queue and belongs to no box. It is the caller's to end.
    ///
    /// # Errors
    /// Where it could not be started at all.
    pub(crate) fn start_worker(&self, name: &str, queue: &str) -> anyhow::Result<Running> {
        self.family.start_worker(name, queue)
    }

    /// Restarts PostgreSQL under whoever uses it.
    ///
    /// # Errors
    /// Why it did not come back.
    pub(crate) async fn restart_postgres(&self) -> anyhow::Result<()> {
        Ok(self.postgres.restart().await?)
    }

    /// Where the logs are.
    pub(crate) fn logs(&self) -> PathBuf {
        logs(&self.dir)
    }

    /// Refuses where a process of ours has ended, which none does by itself.
    ///
    /// # Errors
    /// Which one, with the end of its log.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if !self.postgres.is_running() {
            bail!("PostgreSQL has ended; its log is {}", self.postgres.logs().display());
        }
        for child in self.children() {
            if let Some(status) = child.status() {
                let log = child.log_path().unwrap_or(&self.dir).display();
                bail!(
                    "{} has ended ({status}); its log is {log}, which ends with:\n{}",
                    child.name(),
                    child.log_tail()
                );
            }
        }
        Ok(())
    }

    /// Ends everything in order: the boxes drain, then the API, then what they use.
    pub(crate) async fn stop(self) {
        let draining = self.boxes.iter().map(children::end);
        futures::future::join_all(draining).await;
        self.edge.stop().await;
        reap(&self.dir);
        children::end(&self.api).await;
        self.pool.close().await;
        self.postgres.stop().await;
    }

    fn children(&self) -> impl Iterator<Item = &Running> {
        self.boxes.iter().chain([&self.api])
    }

    async fn wait_for_boxes(&self, host: bool) -> anyhow::Result<()> {
        let without = format!("the boxes are not ready; their logs are in {}", self.logs().display());
        self.until(BOXES_LIMIT, &without, async || {
            let regions = self.client.regions().await?.items;
            let workers = self.client.workers().await?.items;
            let is_ready = |site: &Site| {
                if host {
                    regions.iter().any(|region| region.code == site.code && region.can_host)
                } else {
                    workers.iter().any(|worker| worker.node.as_deref() == Some(site.node))
                }
            };
            Ok(SITES.iter().all(is_ready).then_some(()))
        })
        .await
    }

    /// Looks until there is something, within `limit`, while everything of ours runs; `without` says what there was not.
    ///
    /// # Errors
    /// That it never was, what a look met, or which process has ended.
    pub(crate) async fn until<T>(
        &self,
        limit: Duration,
        without: &str,
        mut look: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(found) = look().await? {
                return Ok(found);
            }
            self.check()?;
            if Instant::now() >= deadline {
                bail!("{without}, after {limit:?}");
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

fn logs(dir: &Path) -> PathBuf {
    dir.join("logs")
}

/// Waits until the API says that it can work.
async fn wait_until_ready(client: &wire::Client) -> anyhow::Result<()> {
    let deadline = Instant::now() + BOXES_LIMIT;
    loop {
        let readiness = client.ready().await?;
        if readiness.ready {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let failing: Vec<_> = readiness.checks.iter().filter(|check| !check.ok).collect();
            bail!("the API is not ready after {BOXES_LIMIT:?}: {failing:?}");
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Runs what blocks without holding up everything else.
pub(crate) async fn blocking<T, E, F>(work: F) -> anyhow::Result<T>
where
    T: Send + 'static,
    E: std::error::Error + Send + Sync + 'static,
    F: FnOnce() -> Result<T, E> + Send + 'static,
{
    Ok(tokio::task::spawn_blocking(work).await.context("run a blocking step")??)
}
