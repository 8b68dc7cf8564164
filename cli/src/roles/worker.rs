//! `leasehold worker`, the role: leases jobs and runs them until it is told to end.
//!
//! The first SIGTERM or Ctrl-C drains: nothing new is leased, running jobs get their time, what is
//! left is handed to another worker. The second ends at once.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use domain::ids::{Kind, QueueName, RegionCode};
use domain::nodes::Bucket;
use sqlx::PgPool;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;
use workers::activator::{self, ReplicaCredentials};
use workers::jobs::{self, Environment};
use workers::node::{self, NodeConfig, NodeContext};
use workers::objects::{Credentials, Endpoint};
use workers::runner::{RunnerConfig, Worker};
use workers::seam::{LeaseStore, PgLeaseStore};

use super::{Outage, wait_for_schema};
use crate::exit::{Ending, Exit};
use crate::settings::{Setting, Settings, table};
use crate::{database, environment, folder, interrupt};

/// Runs the role.
///
/// # Errors
/// Settings that do not fit together, a schema or a node that is refused, a worker that cannot go on.
pub(crate) async fn run(settings: &Settings) -> anyhow::Result<Exit> {
    let stop_now = CancellationToken::new();
    let shutdown = interrupt::watch(&stop_now)?;
    let node = node_config(settings)?;
    let mut queues = names(settings, &table::WORKER_QUEUES, |name| QueueName::new(name))?;
    let kinds = names(settings, &table::WORKER_KINDS, |name| Kind::new(name))?;
    let figures = super::listen(settings, &table::WORKER_METRICS_LISTEN).await?;
    let pool = database::connect_lazy(settings)?;
    // Until the very end: a drain is seen too.
    let ended_all = CancellationToken::new();
    let _ended_all = ended_all.clone().drop_guard();
    if let Some(listener) = figures {
        // Before the first figure is counted: what is counted without a recorder is lost.
        let _ = api::metrics_handle();
        tokio::spawn(api::serve_metrics(listener, ended_all));
    }
    if !wait_for_schema(&pool, &shutdown).await? {
        return Ok(Exit::Ok);
    }
    database::warn_of_role_gaps(&pool).await;

    let kept = settings.switch(&table::PRUNE_BY_WORKERS).then(|| crate::retention::of(settings));
    let store = PgLeaseStore::new(&pool).keeping(kept);
    let store: Arc<dyn LeaseStore> =
        Arc::new(if settings.switch(&table::DATABASE_HINTS) { store } else { store.without_hints() });
    let mut environment = Environment::new(pool.clone());
    // Held until the end: two workers on one folder would be two boxes in one.
    let mut _folder = None;
    let mut keeping = Vec::new();
    let identity = node.as_ref().map(|node| node.identity.clone());
    if let Some(config) = node {
        _folder = Some(take_folder(&config.data_dir)?);
        let Some(node) = register(&pool, &config, &shutdown).await? else { return Ok(Exit::Ok) };
        queues.extend(node.queues());
        let keep = workers::node::keep(pool.clone(), node.clone(), Arc::clone(&store), shutdown.clone());
        keeping.push(tokio::spawn(keep));
        if let Some(activator) = node.activator() {
            let keep = activator::keep(pool.clone(), node.id(), activator.clone(), shutdown.clone());
            keeping.push(tokio::spawn(keep));
        }
        environment.node = Some(node);
    }
    let registry = jobs::registry(&environment);
    refuse_unknown(&kinds, registry.specs().iter().map(|spec| spec.kind.as_str()))?;
    let config = RunnerConfig {
        queues,
        kinds: (!kinds.is_empty()).then_some(kinds),
        concurrency: u16::try_from(settings.number(&table::WORKER_CONCURRENCY)).unwrap_or(u16::MAX),
        drain: settings.seconds(&table::WORKER_DRAIN_SECONDS),
        node: identity,
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        ..RunnerConfig::default()
    };
    let running = Worker::builder(store, registry, config).stop_now(stop_now.clone()).run(shutdown.clone());
    let (ended, kept) = until_all_end(running, keeping, &shutdown).await;
    let summary = ended?;
    kept.context("keep the node's beat and its instances")?;
    if summary.abandoned > 0 {
        tracing::warn!(worker.id = %summary.worker, leases = summary.abandoned, "leases were left to expire");
    }
    Ok(if stop_now.is_cancelled() { Exit::Failed } else { Exit::Ok })
}

/// Runs the worker and its box's loops until all have ended. The loops end with the worker; if one dies, the worker
/// drains: without its beat the box counts as away, while its jobs would go on, and without the other nothing would be
/// started or ended for its instances.
async fn until_all_end<T>(
    running: impl Future<Output = T>,
    loops: Vec<JoinHandle<()>>,
    shutdown: &CancellationToken,
) -> (T, Result<(), JoinError>) {
    let running = async {
        let ended = running.await;
        shutdown.cancel();
        ended
    };
    let loops = futures::future::try_join_all(loops.into_iter().map(async |one| {
        let ended = one.await;
        if ended.is_err() {
            tracing::error!("a loop of the node died: the worker drains");
        }
        shutdown.cancel();
        ended
    }));
    let (ended, loops) = tokio::join!(running, loops);
    (ended, loops.map(drop))
}

/// The box, where this worker is one.
fn node_config(settings: &Settings) -> anyhow::Result<Option<NodeConfig>> {
    let Some(identity) = settings.text(&table::NODE_IDENTITY) else { return Ok(None) };
    let region = settings.require(&table::NODE_REGION)?;
    let region = RegionCode::new(region).map_err(|error| wrong(&table::NODE_REGION, &error))?;
    let data = Bucket {
        name: settings.require(&table::NODE_DATA_BUCKET)?.to_owned(),
        region: settings.require(&table::NODE_DATA_BUCKET_REGION)?.to_owned(),
    };
    let data_dir = settings.require(&table::NODE_DATA_DIR)?.into();
    let mut config = NodeConfig::new(identity, region, data.clone(), endpoint(settings, data.region)?, data_dir);
    config.round_interval = settings.seconds(&table::NODE_ROUND_INTERVAL_SECONDS);
    // Also where nothing runs here: a wrong file is refused at the start, not when it is needed.
    let keys = settings.path(&table::NODE_CONFIG_KEY).map(|path| node::read_config_key(&path)).transpose();
    let keys = keys.map_err(|error| wrong(&table::NODE_CONFIG_KEY, &format!("{:#}", anyhow::Error::new(error))))?;
    config.activator = activator_settings(settings, &config)?;
    if let Some(activator) = &mut config.activator {
        activator.config_key = keys;
    }
    // A box that cannot restore, or has nothing to run, takes no landing, and counts for no region as one that hosts
    // (M-115).
    config.capabilities.exec = config.activator.as_ref().is_some_and(|activator| activator.exec.is_some());
    Ok(Some(config))
}

/// What runs the box's instances; `None` where the box can only mirror. That is told and no reason to end: its moves'
/// rounds go on, and only a person can bring litestream.
fn activator_settings(settings: &Settings, node: &NodeConfig) -> anyhow::Result<Option<activator::Settings>> {
    let instances = node.data_dir.join("instances");
    let store = node::endpoint_in(&node.s3, &node.data_bucket_region);
    // Not this program's path: what lies there may be another version by the time that a child starts.
    let launcher = "/proc/self/exe".into();
    let mut config =
        activator::Settings::new(instances, node.region.clone(), store, node.data_bucket.clone(), launcher);
    config.environment = environment::plain();
    let exec = settings.list(&table::NODE_EXEC);
    config.exec = (!exec.is_empty()).then(|| exec.iter().map(Into::into).collect());
    config.litestream = settings.require(&table::NODE_LITESTREAM)?.into();
    let (command, chain) = (settings.list(&table::NODE_CREDENTIALS_COMMAND), environment::aws_chain());
    config.credentials = if command.is_empty() {
        ReplicaCredentials::Own { chain }
    } else {
        ReplicaCredentials::Command { command: command.to_vec(), chain }
    };
    if !config.has_litestream() {
        let litestream = config.litestream.display();
        tracing::warn!(
            %litestream,
            "no litestream is found: this box mirrors, and neither runs, lands nor cuts instances (node.litestream)"
        );
        return Ok(None);
    }
    Ok(Some(config))
}

fn endpoint(settings: &Settings, region: String) -> anyhow::Result<Endpoint> {
    let url = settings.text(&table::S3_ENDPOINT).map(str::to_owned);
    let key = (settings.text(&table::S3_ACCESS_KEY_ID), settings.secret(&table::S3_SECRET_ACCESS_KEY));
    let credentials = match key {
        (Some(access_key), Some(secret_key)) => {
            Credentials::Static { access_key: access_key.to_owned(), secret_key, session_token: None }
        }
        (None, None) => Credentials::Chain,
        (Some(_), None) | (None, Some(_)) => {
            let message =
                "s3.access_key_id and s3.secret_access_key go together; without both, AWS's default chain is used";
            return Err(Ending { exit: Exit::Usage, message: message.to_owned() }.into());
        }
    };
    // Nearly every store that is not AWS wants the bucket in the path.
    let force_path_style = url.is_some();
    Ok(Endpoint { url, region, force_path_style, credentials })
}

/// Registers the box; `None` where `shutdown` came first. A database that went away is waited for.
async fn register(
    pool: &PgPool,
    config: &NodeConfig,
    shutdown: &CancellationToken,
) -> anyhow::Result<Option<NodeContext>> {
    let mut outage = Outage::default();
    loop {
        match NodeContext::register(pool, config.clone()).await {
            Ok(node) => return Ok(Some(node)),
            Err(error) if error.is_transient() => {
                if !outage.wait("the node cannot register yet; trying again", &error, shutdown).await {
                    return Ok(None);
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn take_folder(dir: &Path) -> anyhow::Result<File> {
    folder::take(dir)?.ok_or_else(|| {
        let message = format!("another worker uses {}: one worker a box", dir.display());
        Ending { exit: Exit::Conflict, message }.into()
    })
}

fn names<T, E: std::fmt::Display>(
    settings: &Settings,
    setting: &Setting,
    read: impl Fn(&str) -> Result<T, E>,
) -> anyhow::Result<Vec<T>> {
    settings.list(setting).iter().map(|name| read(name).map_err(|error| wrong(setting, &error))).collect()
}

fn wrong(setting: &Setting, error: &dyn std::fmt::Display) -> anyhow::Error {
    Ending { exit: Exit::Usage, message: format!("{}: {error}", setting.key) }.into()
}

fn refuse_unknown<'a>(kinds: &[Kind], known: impl Iterator<Item = &'a str> + Clone) -> anyhow::Result<()> {
    for kind in kinds {
        if !known.clone().any(|name| name == kind.as_str()) {
            let known: Vec<&str> = known.collect();
            let message =
                format!("worker.kinds: {kind} is not a kind that this worker can run; it can run {}", known.join(", "));
            bail!(Ending { exit: Exit::Usage, message });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_worker_whose_beat_died_drains_and_ends_with_an_error() {
        let shutdown = CancellationToken::new();
        let beat = tokio::spawn(async { panic!("the beat dies") });
        let ((), kept) = until_all_end(shutdown.cancelled(), vec![beat], &shutdown).await;
        assert!(kept.is_err_and(|error| error.is_panic()));
    }

    #[tokio::test]
    async fn the_beat_of_a_worker_that_ended_ends_too() {
        let shutdown = CancellationToken::new();
        let told = shutdown.clone();
        let beat = tokio::spawn(async move { told.cancelled().await });
        let (ended, kept) = until_all_end(std::future::ready(7), vec![beat], &shutdown).await;
        assert!(ended == 7 && kept.is_ok());
    }
}
