//! Two regions with a box each, an application's key, and the doors of instances.

use std::time::Duration;

use domain::authority::IdentityKind;
use domain::ids::{QueueName, WorkerId};
use domain::instances::jobs::LandArgs;
use domain::nodes::{self, Capabilities, Node, NodeSpec};
use secrecy::SecretString;
use sqlx::PgPool;
use wire::{Code, Instance, MoveRequest, NewInstance, RegionRequest};

use crate::api::{Server, of_app};

/// The application.
pub const APP: &str = "acme";
/// Its instance of most tests.
pub const HOST: &str = "ledger.acme.example";
/// Where that is moved.
pub const DOOR: &str = "/v1/apps/acme/instances/ledger.acme.example/move";

/// Asks for a move there.
#[must_use]
pub fn to(region: &str) -> MoveRequest {
    MoveRequest { region: region.to_owned(), ..MoveRequest::default() }
}

/// What is needed to create an instance.
#[must_use]
pub fn new_instance(host: &str, region: &str) -> NewInstance {
    NewInstance::new(host, region)
}

/// An armed region with a bucket.
#[must_use]
pub fn region(name: &str) -> RegionRequest {
    RegionRequest {
        name: name.to_owned(),
        armed: true,
        dormant: false,
        home: false,
        default: false,
        data_bucket: format!("data-{name}"),
        data_bucket_region: "us-east-1".to_owned(),
    }
}

/// A server with the regions eu and uk, a box in each, and an application's key.
#[derive(Debug)]
pub struct Fleet {
    /// The API.
    pub server: Server,
    /// The application's key.
    pub app: SecretString,
    /// The box in eu.
    pub eu: Node,
}

impl Fleet {
    /// Two regions with a box each.
    ///
    /// # Panics
    /// When the API does not answer.
    pub async fn start() -> Self {
        let server = Server::start().await;
        for code in ["eu", "uk"] {
            server.client().put_region(code, &region(code)).await.expect("declared");
        }
        let (_, app) = server.key(IdentityKind::App, &[], None, of_app(APP)).await;
        let eu = put_box(&server, "eu").await;
        put_box(&server, "uk").await;
        Self { server, app, eu }
    }

    /// With an instance that the box in eu serves.
    ///
    /// # Panics
    /// As [`Fleet::start`].
    pub async fn with_instance() -> Self {
        let fleet = Self::start().await;
        fleet.create(&new_instance(HOST, "eu")).await;
        fleet
    }

    /// The application's own.
    #[must_use]
    pub fn client(&self) -> wire::Client {
        self.server.client_of(&self.app)
    }

    /// Creates a record and lands it in eu, as the box's worker would.
    ///
    /// # Panics
    /// When the API or the database does not answer.
    pub async fn create(&self, new: &NewInstance) -> Instance {
        let made = self.client().create_instance(APP, new, None).await.expect("created");
        assert!(made.created);
        land_one(self.server.db.pool(), &self.eu).await;
        self.client().instance(APP, &new.host).await.expect("found")
    }

    /// Runs a statement of the test's own.
    ///
    /// # Panics
    /// When the database refuses it.
    pub async fn sql(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(self.server.db.pool()).await.expect("the test's statement");
    }

    /// Everything that a refused call must leave as it was.
    ///
    /// # Panics
    /// When the database does not answer.
    pub async fn dump(&self) -> Vec<String> {
        let mut rows = Vec::new();
        for table in ["regions", "instances", "moves", "jobs", "jobs_finished", "audit_events", "routes", "api_keys"] {
            let query = format!("select to_jsonb(t)::text from {table} t order by 1");
            let found: Vec<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(query))
                .fetch_all(self.server.db.pool())
                .await
                .expect("the rows");
            rows.extend(found);
        }
        rows
    }

    /// As [`Fleet::dump`], without what making keys writes.
    pub async fn dump_of_world(&self) -> Vec<String> {
        let of_keys = |row: &String| row.contains("\"action\": \"key.") || row.contains("\"secret_hash\":");
        self.dump().await.into_iter().filter(|row| !of_keys(row)).collect()
    }
}

/// The box of a region, as it presents itself.
///
/// # Panics
/// For a code that is none.
#[must_use]
pub fn box_of(code: &str) -> NodeSpec {
    NodeSpec {
        identity: format!("box-{code}"),
        region: code.parse().expect("a code"),
        capabilities: Capabilities { exec: true, ..Capabilities::default() },
        data: Some(nodes::Bucket { name: format!("data-{code}"), region: "us-east-1".to_owned() }),
    }
}

/// A live box of a region.
///
/// # Panics
/// When the database does not answer.
pub async fn put_box(server: &Server, code: &str) -> Node {
    put_box_in(server.db.pool(), code).await
}

/// As [`put_box`], straight in a database.
///
/// # Panics
/// As [`put_box`].
pub async fn put_box_in(pool: &PgPool, code: &str) -> Node {
    let mut conn = pool.acquire().await.expect("a connection");
    nodes::register(&mut conn, &box_of(code)).await.expect("registered")
}

/// The status and the code of a refusal.
#[must_use]
pub fn refusal(error: &wire::Error) -> (u16, Option<Code>) {
    error.problem().map_or((0, None), |problem| (problem.status, Code::parse(&problem.code)))
}

/// Lands the record that waits for it on a box, as its worker would.
///
/// # Panics
/// When none waits, or the database does not answer.
pub async fn land_one(pool: &PgPool, node: &Node) {
    let mut conn = pool.acquire().await.expect("a connection");
    let worker = domain::queue::WorkerSpec {
        worker: WorkerId::generate(),
        queues: vec![QueueName::of_region(&node.region)],
        kinds: vec![(domain::instances::jobs::land_spec().kind, Duration::from_secs(30))],
    };
    let leased = domain::queue::lease_next(&mut conn, &worker, 1, &[]).await.expect("leased").pop().expect("a landing");
    let args: LandArgs = serde_json::from_value(leased.args).expect("the arguments");
    let (lease, id) = (leased.lease, args.instance_id);
    domain::instances::land(&mut conn, lease, id, node.id).await.expect("taken");
    let served = domain::instances::landing::serve(&mut conn, lease, id, node.id, None, Duration::ZERO).await;
    assert!(served.expect("an answer"), "it serves");
}

/// A worker that is heard now and serves a box's own queues, so that the box is not taken for silent.
///
/// # Panics
/// When the database does not answer.
pub async fn put_worker(pool: &PgPool, node: &Node) {
    let kinds = [domain::instances::jobs::move_spec().kind, domain::instances::jobs::land_spec().kind];
    let kinds = kinds.map(|kind| (kind, Duration::from_secs(30))).into();
    let spec = domain::queue::WorkerSpec { worker: WorkerId::generate(), queues: node.queues(), kinds };
    let mut conn = pool.acquire().await.expect("a connection");
    let made = domain::queue::register_worker(&mut conn, &spec, "host-1", 1, "0", Some(&node.identity), 4).await;
    made.expect("registered");
}

/// Does what the worker of a box does with the look that a dry run asked for, and gives its job: it found this.
///
/// # Panics
/// When none waits, or the database does not answer.
pub async fn answer_look(pool: &PgPool, node: &Node, found: serde_json::Value) -> uuid::Uuid {
    let mut conn = pool.acquire().await.expect("a connection");
    let worker = domain::queue::WorkerSpec {
        worker: WorkerId::generate(),
        queues: vec![QueueName::of_node(node.id)],
        kinds: vec![(domain::instances::jobs::rehearse_spec().kind, Duration::from_secs(30))],
    };
    let leased = domain::queue::lease_next(&mut conn, &worker, 1, &[]).await.expect("leased").pop().expect("a look");
    let outcome = domain::queue::Outcome::Completed { result: found };
    let settlement = domain::queue::Settlement { lease: leased.lease, outcome };
    domain::queue::settle(&mut conn, &[settlement]).await.expect("settled");
    leased.lease.job.0
}

/// What a box tells that found five objects and nothing staged.
#[must_use]
pub fn five_objects(node: &Node) -> serde_json::Value {
    serde_json::json!({
        "node": node.id, "identity": node.identity, "source": {"keys": 5, "bytes": 2048}, "newest_txid": 14,
        "staged": {"keys": 0, "bytes": 0},
        "first_round": {"copies": {"keys": 5, "bytes": 2048}, "deletes": 0, "requests": 9},
        "obstacle": null, "requests": 2, "elapsed_ms": 70,
    })
}
