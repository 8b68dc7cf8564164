//! The built program as a box.

use std::path::PathBuf;
use std::time::Duration;

use domain::audit::Actor;
use domain::ids::{AppName, RegionCode};
use domain::instances::{self, NewInstance};
use domain::nodes::{self, Bucket, RegionSpec};
use sandbox::exec::{Running, Signal, Spawn};
use sandbox::s3::{Options, Server};
use tests::activator::{BUCKET, identity_in, kill_all};
use tests::db::Database;
use tests::wait::until;

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
    fn start(&self) -> Running {
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
        let spawn = settings.iter().fold(spawn, |spawn, (name, value)| spawn.env(*name, *value));
        spawn.log_file(self.folder.path().join("worker.log")).start().expect("start a worker")
    }
}

/// The program is its own launcher; what it starts outlives its SIGKILL and its orderly end, is found again, and sees
/// none of its secrets.
#[tokio::test]
async fn the_built_program_runs_an_instance_that_outlives_it_and_adopts_it() {
    let server = Server::start(Options { buckets: vec![BUCKET.to_owned()], ..Options::default() });
    let server = server.expect("start the S3 server");
    let worker = Worker { db: Database::start().await, server, folder: tempfile::tempdir().expect("a folder") };
    let mut conn = worker.db.session().await;
    let region = RegionCode::new("eu").expect("a region");
    let data = Some(Bucket { name: BUCKET.to_owned(), region: "us-east-1".to_owned() });
    let (code, name) = (region.clone(), "Europe".to_owned());
    let spec = RegionSpec { code, name, armed: true, dormant: false, home: false, is_default: false, data };
    nodes::put_region(&mut conn, &spec).await.expect("a region");

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
