//! The built program as a box.

use std::path::PathBuf;
use std::time::Duration;

use domain::audit::Actor;
use domain::ids::{AppName, RegionCode};
use domain::instances::{self, NewInstance};
use domain::nodes::{self, Bucket, RegionSpec};
use sandbox::exec::{Running, Signal, Spawn};
use sandbox::s3::{Options, Server};
use tests::activator::{BUCKET, kill_all};
use tests::db::Database;
use tests::keys::{BoxKey, files_with, seal};
use tests::wait::until;
use workers::activator::identity_in;

use crate::rig::{host, told};

/// Longest wait for what a box does within seconds.
const LIMIT: Duration = Duration::from_secs(60);

/// The program, built beside the tests.
fn program() -> PathBuf {
    let here = std::env::current_exe().expect("a test knows its own file");
    let program = here.ancestors().nth(2).expect("test binaries lie in <profile>/deps").join("leasehold");
    assert!(program.is_file(), "{} is not built: cargo build -p leasehold", program.display());
    program
}

struct Worker {
    db: Database,
    server: Server,
    folder: tempfile::TempDir,
}

impl Drop for Worker {
    fn drop(&mut self) {
        kill_all(&self.folder.path().join("data/instances"));
    }
}

impl Worker {
    /// A database with a region, and an S3 server; nothing runs yet.
    async fn begin() -> (Self, RegionCode) {
        let server = Server::start(Options { buckets: vec![BUCKET.to_owned()], ..Options::default() });
        let server = server.expect("start the S3 server");
        let worker = Self { db: Database::start().await, server, folder: tempfile::tempdir().expect("a folder") };
        let mut conn = worker.db.session().await;
        let region = RegionCode::new("eu").expect("a region");
        let data = Some(Bucket { name: BUCKET.to_owned(), region: "us-east-1".to_owned() });
        let (code, name) = (region.clone(), "Europe".to_owned());
        let spec = RegionSpec { code, name, armed: true, dormant: false, home: false, is_default: false, data };
        nodes::put_region(&mut conn, &spec).await.expect("a region");
        drop(conn);
        (worker, region)
    }

    fn start(&self) -> Running {
        self.start_with(&[])
    }

    fn start_with(&self, more: &[(&str, &str)]) -> Running {
        let exec = format!("{},serve", env!("CARGO_BIN_EXE_test-tenant"));
        let litestream = sandbox::tools::find_litestream().expect("find litestream");
        let settings = [
            ("LEASEHOLD_DATABASE_URL", self.db.url()),
            ("LEASEHOLD_NODE_IDENTITY", "box-eu-1"),
            ("LEASEHOLD_NODE_REGION", "eu"),
            ("LEASEHOLD_NODE_DATA_DIR", "data"),
            ("LEASEHOLD_NODE_DATA_BUCKET", BUCKET),
            ("LEASEHOLD_NODE_DATA_BUCKET_REGION", "us-east-1"),
            ("LEASEHOLD_NODE_EXEC", &exec),
            ("LEASEHOLD_NODE_LITESTREAM", litestream.to_str().expect("UTF-8")),
            ("LEASEHOLD_S3_ENDPOINT", &self.server.endpoint()),
            ("LEASEHOLD_S3_ACCESS_KEY_ID", self.server.access_key()),
            ("LEASEHOLD_S3_SECRET_ACCESS_KEY", self.server.secret_key()),
            ("AWS_CA_BUNDLE", "/nowhere"),
        ];
        let spawn = Spawn::new(program()).arg("worker").cwd(self.folder.path());
        let spawn = settings.iter().chain(more).fold(spawn, |spawn, (name, value)| spawn.env(*name, *value));
        spawn.log_file(self.folder.path().join("worker.log")).start().expect("start a worker")
    }
}

/// The program is its own launcher; what it starts outlives its SIGKILL and its orderly end, is found again, and sees
/// none of its secrets.
#[tokio::test]
async fn the_built_program_runs_an_instance_that_outlives_it_and_adopts_it() {
    let (worker, region) = Worker::begin().await;

    let first = worker.start();
    let host = host("built.example");
    let mut new = NewInstance::new(AppName::new("acme").expect("a name"), host.clone(), region);
    new.env = crate::rig::environment(&[("TENANT_WRITES", "1")]);
    until("the box is known, so that its region can host", LIMIT, || async {
        instances::create(&mut worker.db.session().await, &new, Actor::System).await.ok()
    })
    .await;
    let address = async |last: Option<&str>| {
        until("edges are told", LIMIT, || async {
            let sql = "select address from routes where host = $1 and status = 'serving'";
            let found = sqlx::query_scalar::<_, Option<String>>(sql).bind(host.as_str());
            let found = found.fetch_optional(worker.db.pool()).await.expect("the database answers").flatten();
            found.filter(|found| last.is_none_or(|last| last == found))
        })
        .await
    };
    let served = address(None).await;
    let environment = told(served.parse().expect("an address"));
    assert_eq!(environment["CARLOS_REGION"], "eu");
    let known = ["LEASEHOLD_HOST", "LEASEHOLD_DATABASE", "LEASEHOLD_LISTEN"];
    let secret = |name: &str| name.starts_with("AWS_") || name.starts_with("LEASEHOLD_") && !known.contains(&name);
    assert!(!environment.keys().any(|name| secret(name)), "{environment:?}");
    let records = ["child.json", "litestream.json"]
        .map(|name| worker.folder.path().join("data/instances").join(host.as_str()).join(name));
    let before = records.each_ref().map(|record| identity_in(record).expect("a record"));
    until("a replica, although AWS_CA_BUNDLE is set here", LIMIT, || async {
        (!worker.server.objects().keys(BUCKET, &format!("instances/{host}/")).is_empty()).then_some(())
    })
    .await;

    // Dropped, it is killed.
    drop(first);
    let second = worker.start();
    until("the next one adopts the child", LIMIT, || async { second.log_tail().contains("adopted").then_some(()) })
        .await;
    assert_eq!(address(Some(&served)).await, served);
    second.signal(Signal::TERM);
    assert!(second.wait().await.success(), "{}", second.log_tail());
    for (record, before) in records.iter().zip(&before) {
        assert!(before.lives().expect("look") && identity_in(record).as_ref() == Some(before), "{record:?}");
    }
    assert_eq!(told(served.parse().expect("an address"))["LEASEHOLD_HOST"], host.as_str());
}

/// From the key's file to the child, and nowhere else: not below the box's folder, not in its log, not in the database.
#[tokio::test]
async fn the_built_program_opens_sealed_values_for_the_child_alone() {
    const PLAIN: &str = "a5ecret-0f-the-tenant";
    let (worker, region) = Worker::begin().await;
    let mut conn = worker.db.session().await;

    let (key, kept) = (BoxKey::generate(), tempfile::tempdir().expect("a folder"));
    let file = kept.path().join("box.key");
    let settings = [("LEASEHOLD_NODE_CONFIG_KEY", file.to_str().expect("UTF-8")), ("LEASEHOLD_LOG_FILTER", "debug")];
    // A file that is not there, one that others may read and one that is none are refused at the start, and not quoted.
    for (mode, words) in [(None, "read the key file"), (Some(0o640), "chmod 600"), (Some(0o600), "age-keygen")] {
        match mode {
            Some(0o600) => std::fs::write(&file, "AGE-SECRET-KEY-1HUNTER2").expect("write"),
            Some(mode) => key.write(&file, mode),
            None => {}
        }
        let refused = worker.start_with(&settings);
        assert_eq!(refused.wait().await.code(), Some(2), "{}", refused.log_tail());
        let log = refused.log_tail();
        assert!(log.contains("node.config_key") && log.contains(words) && !log.contains("HUNTER2"), "{log}");
        let _ = std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600));
    }
    assert_eq!(nodes::list(&mut conn, None).await.expect("an answer"), [], "a refused box is not known");

    key.write(&file, 0o600);
    let running = worker.start_with(&settings);
    let listed = until("the region tells to whom one seals", LIMIT, || async {
        let found = nodes::region(&mut worker.db.session().await, &region).await.expect("an answer")?;
        (!found.config_key.is_empty()).then_some(found.config_key)
    })
    .await;
    assert_eq!(listed, [key.recipient.as_str()]);
    let host = host("sealed.example");
    let mut new = NewInstance::new(AppName::new("acme").expect("a name"), host.clone(), region);
    new.env = crate::rig::environment(&[("TENANT_WRITES", "1"), ("TENANT_KEY", &seal(PLAIN, &[&key]))]);
    instances::create(&mut conn, &new, Actor::System).await.expect("created");
    let address = until("edges are told", LIMIT, || async {
        let sql = "select address from routes where host = $1 and status = 'serving'";
        let found = sqlx::query_scalar::<_, Option<String>>(sql).bind(host.as_str());
        found.fetch_optional(worker.db.pool()).await.expect("the database answers").flatten()
    })
    .await;
    assert_eq!(told(address.parse().expect("an address"))["TENANT_KEY"], PLAIN);
    running.signal(Signal::TERM);
    assert!(running.wait().await.success(), "{}", running.log_tail());
    let identity = std::fs::read_to_string(&file).expect("the key file").lines().last().expect("a line").to_owned();
    assert_eq!(files_with(worker.folder.path(), &[PLAIN, &identity]), Vec::<String>::new());
    let log = std::fs::read_to_string(worker.folder.path().join("worker.log")).expect("its log");
    assert!(log.contains("a child is started"), "the log that was searched is the worker's");
    for table in ["instances", "routes", "nodes", "jobs", "jobs_finished", "audit_events", "job_logs", "job_steps"] {
        let sql = sqlx::AssertSqlSafe(format!("select coalesce(string_agg(t::text, ' '), '') from {table} t"));
        let rows: String = sqlx::query_scalar(sql).fetch_one(worker.db.pool()).await.expect(table);
        assert!(!rows.contains(PLAIN) && !rows.contains(&identity), "{table}");
        assert!(table != "instances" || rows.contains("age:"));
    }
}
