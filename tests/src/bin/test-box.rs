//! A box as `leasehold worker` runs one, with points where it kills itself; never shipped.
//!
//! ```text
//! test-box FILE        FILE: the box as JSON, see `Setup`; ends in order on SIGTERM
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use domain::ids::RegionCode;
use domain::nodes::Bucket;
use secrecy::SecretString;
use serde::Deserialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use workers::activator::{self, Pace, Settings};
use workers::failpoint;
use workers::jobs::{self, Environment};
use workers::node::{self, NodeConfig, NodeContext};
use workers::objects::{Credentials, Endpoint};
use workers::runner::{RunnerConfig, Worker};
use workers::seam::{LeaseStore, PgLeaseStore};

/// What a test says of a box.
#[derive(Debug, Deserialize)]
struct Setup {
    database: String,
    identity: String,
    region: String,
    data_dir: PathBuf,
    s3: String,
    access_key: String,
    secret_key: String,
    tenant: PathBuf,
    litestream: PathBuf,
    /// Where it dies: see `failpoint::arm_from_spec`.
    dies: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let file = std::env::args_os().nth(1).context("usage: test-box FILE")?;
    let setup: Setup = serde_json::from_slice(&std::fs::read(file)?)?;
    failpoint::arm_from_spec(&setup.dies)?;
    let pool = domain::db::connect_lazy(&setup.database, 8)?;
    let node = NodeContext::register(&pool, config(&setup)?).await?;
    let shutdown = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let ask = shutdown.clone();
    tokio::spawn(async move {
        terminate.recv().await;
        ask.cancel();
    });
    let store: Arc<dyn LeaseStore> = Arc::new(PgLeaseStore::new(&pool));
    tokio::spawn(node::keep(pool.clone(), node.clone(), Arc::clone(&store), shutdown.clone()));
    let activator = node.activator().context("a box that runs instances")?.clone();
    tokio::spawn(activator::keep(pool.clone(), node.id(), activator, shutdown.clone()));
    let environment = Environment::new(pool.clone()).with_node(node.clone());
    let config = RunnerConfig { queues: node.queues(), node: Some(setup.identity), ..RunnerConfig::default() };
    Worker::builder(store, jobs::registry(&environment), config).run(shutdown).await?;
    Ok(())
}

fn config(setup: &Setup) -> anyhow::Result<NodeConfig> {
    let credentials = Credentials::Static {
        access_key: setup.access_key.clone(),
        secret_key: SecretString::from(setup.secret_key.clone()),
        session_token: None,
    };
    let store =
        Endpoint { url: Some(setup.s3.clone()), region: "us-east-1".to_owned(), force_path_style: true, credentials };
    let region = RegionCode::new(setup.region.as_str())?;
    let data = Bucket { name: format!("{region}-data"), region: "us-east-1".to_owned() };
    let mut settings = Settings::new(
        setup.data_dir.join("instances"),
        region.clone(),
        store.clone(),
        data.name.clone(),
        setup.tenant.clone(),
    );
    settings.exec = Some(vec![setup.tenant.clone().into(), "serve".into()]);
    settings.litestream = setup.litestream.clone();
    settings.environment = BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]);
    settings.pace = Pace { sync_interval: Some(Duration::from_millis(100)), ..Pace::default() };
    let config = NodeConfig::new(setup.identity.as_str(), region, data, store, setup.data_dir.clone());
    Ok(NodeConfig { round_interval: Duration::from_secs(1), activator: Some(settings), ..config })
}
