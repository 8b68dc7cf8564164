//! Boxes that run instances: real children, a real litestream, real databases.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::audit::Actor;
use domain::ids::MoveId;
use domain::instances::moves::{self, MoveState};
use domain::instances::{self, NewInstance};
use rusqlite::{Connection, OpenFlags};
use tests::wait::until;
use workers::activator::{Activator, Pace, Settings};
use workers::node::{NodeConfig, NodeContext};

use crate::support::{Fleet, HOST, app, host, region};

/// Bound of every wait: far more than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A box that runs the test's tenant.
pub fn acting(mut config: NodeConfig) -> NodeConfig {
    let tenant = PathBuf::from(env!("CARGO_BIN_EXE_test-tenant"));
    let folder = config.data_dir.join("instances");
    let (code, store) = (config.region.clone(), config.s3.clone());
    let mut settings = Settings::new(folder, code, store, config.data_bucket.clone(), tenant.clone());
    settings.exec = Some(vec![tenant.into(), "serve".into()]);
    settings.litestream = sandbox::tools::find_litestream().expect("find litestream");
    settings.environment = BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]);
    settings.stop_limit = Duration::from_secs(3);
    settings.sync_limit = Duration::from_secs(5);
    settings.pace = Pace { sync_interval: Some(Duration::from_millis(100)), ..Pace::default() };
    config.activator = Some(settings);
    config
}

impl Fleet {
    /// Boxes that run instances.
    pub async fn acting() -> Self {
        Self::start_with(acting).await
    }

    /// A fleet with an instance in eu that writes all the time.
    pub async fn writing() -> Self {
        let fleet = Self::acting().await;
        fleet.place_with(&[("TENANT_WRITES", "1")]).await;
        fleet.until_rows(&fleet.eu, 30).await;
        fleet
    }

    /// Creates the instance in eu with this environment, and lets `eu-1` take and start it.
    pub async fn place_with(&self, env: &[(&str, &str)]) {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let new = NewInstance { env, ..NewInstance::new(app(), host(HOST), region("eu")) };
        instances::create(&mut *self.conn().await, &new, Actor::System).await.expect("the record is created");
        assert_eq!(self.run(&self.eu).await.result()["landed"], true);
        assert!(activator(&self.eu).running(&host(HOST)).is_some(), "it runs");
    }

    /// Begins a move to uk and lets eu make it ready.
    pub async fn make_ready(&self) -> MoveId {
        self.until_replica().await;
        let id = self.start_move(HOST).await.expect("the move begins").id;
        self.until_ready(&self.eu, id).await;
        id
    }

    pub async fn until_replica(&self) {
        let prefix = format!("instances/{HOST}/");
        until("a replica", PATIENCE, || async { (!self.content("eu-data", &prefix).is_empty()).then_some(()) }).await;
    }

    /// The move of the instance that is in flight.
    pub async fn open_move(&self) -> Option<MoveId> {
        let found = moves::open_of_host(&mut *self.conn().await, &host(HOST)).await;
        found.expect("the database answers").map(|found| found.id)
    }

    pub async fn until_ready(&self, node: &NodeContext, id: MoveId) {
        for _ in 0..20 {
            self.run(node).await.snoozed();
            if self.read_move(id).await.state.known() == Some(MoveState::Ready) {
                return;
            }
            self.pass_time(crate::support::INTERVAL).await;
        }
        panic!("never ready: {:?}", self.read_move(id).await.status);
    }

    pub async fn abort(&self) {
        let done = moves::abort(&mut *self.conn().await, &app(), &host(HOST), Actor::System, None).await;
        done.expect("the abort is taken");
    }

    pub async fn cut(&self) {
        let done = moves::cut(&mut *self.conn().await, &app(), &host(HOST), Actor::System, None).await;
        done.expect("the cut is taken");
    }

    /// Waits until the next round of a box is due, and leases its job without running it.
    pub async fn lease_next_round_of(&self, node: &NodeContext) -> domain::lease::Lease {
        self.pass_time(crate::support::INTERVAL).await;
        self.lease(node).await.expect("a job is due").lease
    }

    /// Has the record say that it is not to run.
    pub async fn place_parked(&self) -> Parked {
        let parked = instances::set_parked(&mut *self.conn().await, &app(), &host(HOST), true, Actor::System).await;
        parked.expect("it is parked");
        Parked
    }

    pub fn file(&self, node: &str, name: &str) -> PathBuf {
        self.folder.path().join(node).join("instances").join(HOST).join(name)
    }

    pub fn database(&self, node: &NodeContext) -> PathBuf {
        self.file(node.identity(), "app.db")
    }

    pub async fn until_rows(&self, node: &NodeContext, rows: u64) {
        let database = self.database(node);
        until("rows", PATIENCE, || async {
            (database.exists() && rows_of(&database).is_some_and(|n| n >= rows)).then_some(())
        })
        .await;
    }

    /// The journal's steps and how each ended, from `from` on.
    pub async fn steps_from(&self, id: MoveId, from: &str) -> Vec<(String, Option<String>)> {
        let steps = self.journal(id).await.into_iter().map(|step| (step.step, step.outcome));
        steps.skip_while(|(step, _)| step != from).collect()
    }
}

/// A record that is not to run.
#[must_use]
pub struct Parked;

impl Parked {
    /// Has it run again, on `eu-1`.
    pub async fn wake(self, fleet: &Fleet) {
        let woken = instances::set_parked(&mut *fleet.conn().await, &app(), &host(HOST), false, Actor::System).await;
        woken.expect("it may run");
        let env = BTreeMap::from([("TENANT_WRITES".to_owned(), "1".to_owned())]);
        let may = async { Ok(instances::may_start(&mut *fleet.conn().await, fleet.eu.id(), &host(HOST)).await?) };
        activator(&fleet.eu).start(&host(HOST), tests::activator::plain(&env), may).await.expect("it starts");
    }
}

pub fn activator(node: &NodeContext) -> &Activator {
    node.activator().expect("the box runs instances")
}

/// How many rows a database of the test's tenant has; they are 1 to n without a hole. `None` before it has its table.
pub fn rows_of(database: &Path) -> Option<u64> {
    let conn = Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_WRITE).ok()?;
    conn.busy_timeout(Duration::from_secs(5)).expect("a timeout");
    let (count, last): (u64, u64) = conn
        .query_row("select count(*), coalesce(max(n), 0) from entries", [], |row| Ok((row.get(0)?, row.get(1)?)))
        .ok()?;
    assert_eq!(count, last, "rows are 1 to n without a hole");
    Some(count)
}
