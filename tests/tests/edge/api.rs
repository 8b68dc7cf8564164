//! Edges of a running API.

use std::sync::Arc;
use std::time::Duration;

use domain::authority::IdentityKind;
use domain::nodes::{self, Bucket, Capabilities, NodeSpec};
use sandbox::edge::{Answer, Api, Edge, Options, SUBCOMMAND};
use sandbox::exec::{Signal, Spawn, launcher};
use secrecy::ExposeSecret as _;
use tests::api::{Door, Server, of_app};
use tests::wait::until;
use wire::{NewInstance, RegionRequest};

use crate::rig::{SOON, ask, assert_come_again, client};

const APP: &str = "acme";
const HOST: &str = "ledger.acme.example";

/// An API with the regions eu and uk and a record in eu that its box does not serve.
async fn api() -> Server {
    let server = Server::start().await;
    for code in ["eu", "uk"] {
        let region = RegionRequest {
            name: code.to_owned(),
            armed: true,
            dormant: false,
            home: false,
            default: false,
            data_bucket: format!("data-{code}"),
            data_bucket_region: "us-east-1".to_owned(),
        };
        server.client().put_region(code, &region).await.expect("declared");
    }
    let spec = NodeSpec {
        identity: "box-eu".to_owned(),
        region: "eu".parse().expect("a code"),
        capabilities: Capabilities { exec: true, ..Capabilities::default() },
        data: Some(Bucket { name: "data-eu".to_owned(), region: "us-east-1".to_owned() }),
    };
    let mut conn = server.db.pool().acquire().await.expect("a connection");
    nodes::register(&mut conn, &spec).await.expect("a box");
    drop(conn);
    create(&server, HOST).await;
    server
}

async fn create(server: &Server, host: &str) {
    let (_, key) = server.key(IdentityKind::App, &[], None, of_app(APP)).await;
    let new: NewInstance =
        serde_json::from_value(serde_json::json!({ "host": host, "region": "eu" })).expect("the required fields");
    server.client_of(&key).create_instance(APP, &new, None).await.expect("created");
}

#[tokio::test]
async fn an_edge_reads_the_documents_of_a_running_api_and_outlives_its_outage() {
    let server = api().await;
    let address = server.base.strip_prefix("http://").expect("a URL").parse().expect("an address");
    let door = Door::before(address).await;
    let documents = Api::new(&format!("http://{}", door.address()), server.admin.expose_secret()).expect("the API");
    let options = Options { poll: Duration::from_millis(20), ..Options::of(["eu", "uk"]) };
    let edge = Edge::start(options, Arc::new(documents)).await.expect("an edge");
    edge.until_read().await;
    assert_come_again(&ask(&edge, HOST, "/").await, "no box serves it yet");
    assert_eq!(ask(&edge, "nobody.example", "/").await.status(), 404);
    door.shut();
    assert_come_again(&ask(&edge, HOST, "/").await, "the last document stays in force");
    assert_eq!(ask(&edge, "nobody.example", "/").await.status(), 404);
    create(&server, "second.acme.example").await;
    door.open();
    edge.until_answer("second.acme.example", |answer| *answer == Answer::Unserved).await;
}

#[tokio::test]
async fn an_edge_is_also_a_process_of_its_own() {
    let server = api().await;
    let folder = tempfile::tempdir().expect("a folder");
    let (key, log) = (folder.path().join("key"), folder.path().join("log"));
    std::fs::write(&key, format!("{}\n", server.admin.expose_secret())).expect("write the key");
    let program = launcher().expect("the launcher");
    let edge = Spawn::new(&program)
        .args([SUBCOMMAND, "--listen", "127.0.0.1:0", "--api", &server.base, "--key-file"])
        .arg(&key)
        .args(["eu", "uk"])
        .log_file(&log)
        .start()
        .expect("the edge starts");
    let url = until("it tells its URL", SOON, async || {
        assert_eq!(edge.status(), None, "{}", edge.log_tail());
        let told = std::fs::read_to_string(&log).ok()?;
        told.lines().find(|line| line.starts_with("http://")).map(str::to_owned)
    })
    .await;
    let asked = client().get(&url).header("host", HOST).send().await.expect("an answer");
    assert_come_again(&asked, "no box serves it yet");
    assert_eq!(client().get(&url).header("host", "nobody.example").send().await.expect("an answer").status(), 404);
    assert!(edge.stop(Signal::TERM, SOON).await.status.success());
    let bad = Spawn::new(&program).args([SUBCOMMAND, "--listen", "here"]).run(SOON).await.expect("it ends");
    assert!(!bad.status.success() && bad.stderr.contains("--key-file"), "{}", bad.stderr);
}
