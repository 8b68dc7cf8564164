//! Two regions with a box each, and the jobs of the boxes run one at a time.

use std::sync::Arc;
use std::time::Duration;

use domain::audit::Actor;
use domain::ids::{AppName, Host, Kind, MoveId, RegionCode, WorkerId};
use domain::instances::moves::{self, Move, MoveStep, Started};
use domain::instances::{self, NewInstance, Record, Refusal, jobs};
use domain::lease::Lease;
use domain::nodes::{self, Bucket, NodeSpec, RegionSpec};
use domain::queue::{self, Leased, Outcome, Settlement, WorkerSpec};
use sandbox::s3::{Options, Server};
use secrecy::SecretString;
use serde_json::{Value, json};
use sqlx::pool::PoolConnection;
use sqlx::{Postgres, Row as _};
use tempfile::TempDir;
use tests::db::Database;
use workers::jobs::instance_land::InstanceLand;
use workers::jobs::instance_move::InstanceMove;
use workers::jobs::instance_purge::InstancePurge;
use workers::jobs::instance_rehearse::InstanceRehearse;
use workers::jobs::{Done, Environment, Job as _, JobContext, JobError};
use workers::node::{NodeConfig, NodeContext, NodeError};
use workers::objects::{Credentials, Endpoint, Tuning};
use workers::seam::PgLeaseStore;

/// The wait between two rounds.
pub const INTERVAL: Duration = Duration::from_secs(30);
/// The instance of most tests.
pub const HOST: &str = "ledger.acme.example";

/// A database, an S3 server, and boxes `eu-1` and `uk-1`.
pub struct Fleet {
    pub db: Database,
    pub s3: Server,
    pub eu: NodeContext,
    pub uk: NodeContext,
    pub folder: TempDir,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // What is made to outlive its worker would outlive its test, too.
        for node in ["eu-1", "uk-1", "uk-2", "uk-3"] {
            tests::activator::kill_all(&self.folder.path().join(node).join("instances"));
        }
    }
}

impl Fleet {
    pub async fn start() -> Self {
        Self::start_with(|config| config).await
    }

    /// A fleet whose boxes are set up by `change`.
    pub async fn start_with(change: impl Fn(NodeConfig) -> NodeConfig) -> Self {
        let db = Database::start().await;
        let buckets = vec!["eu-data".to_owned(), "uk-data".to_owned()];
        let s3 = Server::start(Options { buckets, ..Options::default() }).expect("start the S3 server");
        let folder = TempDir::new().expect("a temporary folder");
        for code in ["eu", "uk"] {
            put_region(&db, &armed(code)).await;
        }
        let eu = register(&db, change(config(&s3, &folder, "eu-1", "eu"))).await.expect("the box may begin");
        let uk = register(&db, change(config(&s3, &folder, "uk-1", "uk"))).await.expect("the box may begin");
        Self { db, s3, eu, uk, folder }
    }

    /// A fleet whose instance is placed on `eu-1` and has a replica of some objects.
    pub async fn with_instance() -> Self {
        let fleet = Self::start().await;
        fleet.place(HOST).await;
        fleet.put(HOST, &ltx(9, 1, 10), b"snapshot");
        for txid in 11..=14 {
            fleet.put(HOST, &ltx(0, txid, txid), format!("raw {txid}").as_bytes());
        }
        fleet
    }

    pub async fn conn(&self) -> PoolConnection<Postgres> {
        self.db.pool().acquire().await.expect("the database answers")
    }

    /// How a box of this fleet is set up.
    pub fn config(&self, identity: &str, code: &str) -> NodeConfig {
        config(&self.s3, &self.folder, identity, code)
    }

    pub async fn register(&self, config: NodeConfig) -> Result<NodeContext, NodeError> {
        register(&self.db, config).await
    }

    /// Creates an instance in eu.
    pub async fn create(&self, host: &str) -> Record {
        let new = NewInstance::new(app(), self::host(host), region("eu"));
        instances::create(&mut *self.conn().await, &new, Actor::System).await.expect("the record is created")
    }

    /// Creates an instance in eu and lets `eu-1` take it.
    pub async fn place(&self, host: &str) {
        self.create(host).await;
        assert_eq!(self.run(&self.eu).await.result()["landed"], true);
    }

    /// Begins a move to uk.
    pub async fn start_move(&self, host: &str) -> Result<Started, instances::Error> {
        self.start_move_to(host, "uk").await
    }

    pub async fn start_move_to(&self, host: &str, to: &str) -> Result<Started, instances::Error> {
        moves::start(&mut *self.conn().await, &app(), &self::host(host), to, Actor::System).await
    }

    /// The refusal of a start that is refused, and that changes nothing.
    #[track_caller]
    pub fn refusal(result: Result<Started, instances::Error>) -> Refusal {
        match result {
            Err(instances::Error::Refused(refusal)) => refusal,
            other => panic!("refused, not {other:?}"),
        }
    }

    pub async fn record(&self, host: &str) -> Record {
        let found = instances::get(&mut *self.conn().await, &app(), &self::host(host)).await;
        found.expect("the database answers").expect("the record exists")
    }

    pub async fn read_move(&self, id: MoveId) -> Move {
        moves::get(&mut *self.conn().await, id).await.expect("the database answers").expect("the move exists")
    }

    /// The journal, oldest first.
    pub async fn journal(&self, id: MoveId) -> Vec<MoveStep> {
        let mut steps = moves::steps(&mut *self.conn().await, id, None, 200).await.expect("the database answers");
        steps.reverse();
        steps
    }

    pub async fn serial(&self, code: &str) -> i64 {
        let found = nodes::region(&mut *self.conn().await, &region(code)).await;
        found.expect("the database answers").expect("the region exists").serial
    }

    /// The code of what holds the move up.
    pub async fn obstacle(&self, id: MoveId) -> Option<(String, bool)> {
        self.read_move(id).await.status.obstacle.map(|obstacle| (obstacle.code, obstacle.permanent))
    }

    /// Leases the one job that is due on a box's queues.
    pub async fn lease(&self, node: &NodeContext) -> Option<Leased> {
        queue::stage_due(&mut *self.conn().await, 100).await.expect("the database answers");
        let kind = |name: &str| (Kind::new(name).expect("a constant name"), Duration::from_secs(30));
        let worker = WorkerSpec {
            worker: WorkerId::generate(),
            queues: node.queues(),
            kinds: vec![
                kind(jobs::MOVE_KIND),
                kind(jobs::LAND_KIND),
                kind(jobs::PURGE_KIND),
                kind(jobs::REHEARSE_KIND),
            ],
        };
        queue::lease_next(&mut *self.conn().await, &worker, 1, &[]).await.expect("the database answers").pop()
    }

    /// A context as the runner makes it, without the runner.
    pub fn context(&self, leased: Leased) -> JobContext {
        JobContext::detached(Arc::new(PgLeaseStore::new(self.db.pool())), leased)
    }

    /// Runs the handler of a leased job on a box, without settling.
    pub async fn handle(&self, node: &NodeContext, leased: Leased) -> Result<Done, JobError> {
        let context = self.context(leased.clone());
        self.handle_in(node, leased, context).await
    }

    pub async fn handle_in(&self, node: &NodeContext, leased: Leased, context: JobContext) -> Result<Done, JobError> {
        let environment = Environment::new(self.db.pool().clone()).with_node(node.clone());
        let args = leased.args.clone();
        match leased.kind.as_str() {
            jobs::MOVE_KIND => {
                let job = InstanceMove::of(&environment).expect("a box");
                job.run(serde_json::from_value(args).expect("its arguments"), context).await
            }
            jobs::LAND_KIND => {
                let job = InstanceLand::of(&environment).expect("a box");
                job.run(serde_json::from_value(args).expect("its arguments"), context).await
            }
            jobs::PURGE_KIND => {
                let job = InstancePurge::of(&environment).expect("a box");
                job.run(serde_json::from_value(args).expect("its arguments"), context).await
            }
            jobs::REHEARSE_KIND => {
                let job = InstanceRehearse::of(&environment).expect("a box");
                job.run(serde_json::from_value(args).expect("its arguments"), context).await
            }
            other => panic!("no handler for {other}"),
        }
    }

    /// Leases the job that is due on a box, runs it and settles it, as the runner does.
    pub async fn run(&self, node: &NodeContext) -> Ran {
        let leased = self.lease(node).await.expect("a job is due");
        let lease = leased.lease;
        let done = self.handle(node, leased).await;
        self.settle(lease, &done).await;
        Ran { lease, done }
    }

    pub async fn settle(&self, lease: Lease, done: &Result<Done, JobError>) {
        let outcome = match done {
            Ok(Done::Complete(result)) => Outcome::Completed { result: result.clone() },
            Ok(Done::Snooze { after }) => Outcome::Snoozed { after: *after },
            Err(error) => {
                Outcome::Failed { error: json!({"message": error.to_string()}), after: Duration::from_secs(1) }
            }
        };
        let settled = queue::settle(&mut *self.conn().await, &[Settlement { lease, outcome }]).await;
        settled.expect("the database answers");
    }

    /// Waits for the next round, and runs it.
    pub async fn next_round(&self, node: &NodeContext) -> Ran {
        self.pass_time(INTERVAL).await;
        self.run(node).await
    }

    /// Waits for the next round, and leases its job without running it.
    pub async fn lease_next_round(&self) -> Lease {
        self.pass_time(INTERVAL).await;
        self.lease(&self.eu).await.expect("a job is due").lease
    }

    /// Moves the database's clock; the boxes go on beating meanwhile.
    pub async fn pass_time(&self, by: Duration) {
        self.db.clock().advance(by).await;
        for node in [&self.eu, &self.uk] {
            nodes::seen(&mut *self.conn().await, node.id()).await.expect("the database answers");
        }
    }

    /// Puts an object of an instance's replica in eu.
    pub fn put(&self, host: &str, suffix: &str, bytes: &[u8]) {
        self.s3.objects().put("eu-data", &format!("instances/{host}/{suffix}"), bytes);
    }

    /// The suffixes and bytes below a prefix.
    pub fn content(&self, bucket: &str, prefix: &str) -> Vec<(String, Vec<u8>)> {
        let objects = self.s3.objects();
        let keys = objects.keys(bucket, prefix).into_iter();
        keys.map(|key| (key[prefix.len()..].to_owned(), objects.get(bucket, &key).expect("listed"))).collect()
    }

    /// What is staged for the host equals what its replica holds.
    pub fn is_mirrored(&self, host: &str) -> bool {
        let source = self.content("eu-data", &format!("instances/{host}/"));
        !source.is_empty() && source == self.content("uk-data", &format!("moves/{host}/"))
    }

    /// Runs a statement of the test's own.
    pub async fn sql(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(self.db.pool()).await.expect("the test's statement");
    }

    /// Every row of every table, so that "changes nothing" means nothing.
    pub async fn dump(&self) -> Vec<(String, Value)> {
        self.dump_without(&[]).await
    }

    pub async fn dump_without(&self, left_out: &[&str]) -> Vec<(String, Value)> {
        let mut conn = self.conn().await;
        let tables: Vec<String> = sqlx::query_scalar(
            "select c.relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
              where n.nspname = 'public' and c.relkind in ('r', 'p') and not c.relispartition
              order by 1",
        )
        .fetch_all(&mut *conn)
        .await
        .expect("the catalogue");
        assert!(tables.iter().any(|t| t == "moves") && tables.iter().any(|t| t == "jobs"), "{tables:?}");
        let mut dump = Vec::new();
        for table in tables.into_iter().filter(|table| !left_out.contains(&table.as_str())) {
            let sql =
                format!("select coalesce(jsonb_agg(to_jsonb(t) order by to_jsonb(t)::text), '[]') from {table} t");
            let row = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_one(&mut *conn).await.expect("the rows");
            dump.push((table, row.get(0)));
        }
        dump
    }
}

/// A job that ran.
#[derive(Debug)]
pub struct Ran {
    pub lease: Lease,
    pub done: Result<Done, JobError>,
}

impl Ran {
    /// What it returned when it completed.
    #[track_caller]
    pub fn result(&self) -> &Value {
        match &self.done {
            Ok(Done::Complete(result)) => result,
            other => panic!("completed, not {other:?}"),
        }
    }

    /// How long it snoozed.
    #[track_caller]
    pub fn snoozed(&self) -> Duration {
        match &self.done {
            Ok(Done::Snooze { after }) => *after,
            other => panic!("snoozed, not {other:?}"),
        }
    }
}

fn config(s3: &Server, folder: &TempDir, identity: &str, code: &str) -> NodeConfig {
    let credentials = Credentials::Static {
        access_key: s3.access_key().to_owned(),
        secret_key: SecretString::from(s3.secret_key().to_owned()),
        session_token: None,
    };
    let endpoint =
        Endpoint { url: Some(s3.endpoint()), region: "us-east-1".to_owned(), force_path_style: true, credentials };
    NodeConfig {
        round_interval: INTERVAL,
        tuning: Tuning {
            attempts: 2,
            backoff_min: Duration::from_millis(5),
            backoff_max: Duration::from_millis(20),
            request_timeout: Duration::from_secs(5),
            copy_timeout: Duration::from_secs(5),
            ..Tuning::default()
        },
        ..NodeConfig::new(identity, region(code), bucket(code), endpoint, folder.path().join(identity))
    }
}

async fn register(db: &Database, config: NodeConfig) -> Result<NodeContext, NodeError> {
    NodeContext::register(db.pool(), config).await
}

/// The bucket of a region.
pub fn bucket(code: &str) -> Bucket {
    Bucket { name: format!("{code}-data"), region: "us-east-1".to_owned() }
}

/// An armed region that no box has published a bucket of yet.
pub fn armed(code: &str) -> RegionSpec {
    RegionSpec {
        code: region(code),
        name: code.to_uppercase(),
        armed: true,
        dormant: false,
        home: false,
        is_default: false,
        data: None,
    }
}

pub async fn put_region(db: &Database, spec: &RegionSpec) {
    let mut conn = db.pool().acquire().await.expect("the database answers");
    nodes::put_region(&mut conn, spec).await.expect("the region is declared");
}

/// A box that is known, without a worker.
pub async fn put_node(db: &Database, spec: &NodeSpec) -> nodes::Node {
    let mut conn = db.pool().acquire().await.expect("the database answers");
    nodes::register(&mut conn, spec).await.expect("the box is registered")
}

pub fn app() -> AppName {
    AppName::new("acme").expect("a constant name")
}

pub fn host(name: &str) -> Host {
    Host::new(name).expect("a host of the tests")
}

pub fn region(code: &str) -> RegionCode {
    RegionCode::new(code).expect("a region of the tests")
}

/// The key of a replica's object behind the prefix.
pub fn ltx(level: u8, min: u64, max: u64) -> String {
    format!("{level:04x}/{min:016x}-{max:016x}.ltx")
}
