//! The demo's application, as a process.

use std::path::{Path, PathBuf};

use sandbox::exec::{Running, Signal, Spawn, launcher};
use sandbox::ledger::{HANG_VARIABLE, HANGS, SUBCOMMAND, Store};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::wait::until;

use crate::rig::{SOON, client};

/// A running ledger on a database in a folder.
struct Ledger {
    process: Running,
    url: String,
    client: reqwest::Client,
}

impl Ledger {
    async fn start(folder: &Path, region: &str) -> Self {
        Self::start_with(folder, region, &[]).await
    }

    async fn start_with(folder: &Path, region: &str, env: &[(&str, &str)]) -> Self {
        let port = sandbox::ports::free_port().expect("a free port");
        let spawn = spawn(folder, region, &format!("127.0.0.1:{port}"));
        let spawn = env.iter().fold(spawn, |spawn, (name, value)| spawn.env(*name, *value));
        let process = spawn.start().expect("the ledger starts");
        let ledger = Self { process, url: format!("http://127.0.0.1:{port}"), client: client() };
        until("the ledger listens", SOON, async || {
            assert_eq!(ledger.process.status(), None, "{}", ledger.process.log_tail());
            ledger.client.get(&ledger.url).send().await.ok()
        })
        .await;
        ledger
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        told(self.client.get(format!("{}{path}", self.url))).await.expect("an answer")
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        told(self.client.post(format!("{}{path}", self.url)).json(body)).await.expect("an answer")
    }

    async fn write(&self, note: &str) -> u64 {
        let (status, told) = self.post("/rows", &json!({ "note": note })).await;
        assert_eq!(status, 200, "{told}");
        told["n"].as_u64().expect("a number")
    }
}

fn database(folder: &Path) -> PathBuf {
    folder.join("app.db")
}

fn spawn(folder: &Path, region: &str, listen: &str) -> Spawn {
    Spawn::new(launcher().expect("the launcher"))
        .arg(SUBCOMMAND)
        .env("CARLOS_REGION", region)
        .env("LEASEHOLD_HOST", "ledger.acme.example")
        .env("LEASEHOLD_DATABASE", database(folder))
        .env("LEASEHOLD_LISTEN", listen)
        .log_file(folder.join("child.log"))
}

async fn told(request: reqwest::RequestBuilder) -> reqwest::Result<(u16, Value)> {
    let answer = request.send().await?;
    Ok((answer.status().as_u16(), answer.json().await?))
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

#[tokio::test]
async fn the_ledger_numbers_its_rows_and_tells_the_region_that_wrote_them() {
    let folder = folder();
    let first = Ledger::start(folder.path(), "eu").await;
    assert_eq!((first.write("one").await, first.write("two").await), (1, 2));
    let (_, state) = first.get("/state").await;
    assert_eq!(state["host"], "ledger.acme.example");
    assert_eq!((&state["region"], &state["rows"], &state["last"]), (&json!("eu"), &json!(2), &json!(2)));
    assert_eq!(first.get("/").await.1, state, "the same page");
    assert!(first.process.stop(Signal::TERM, SOON).await.status.success());

    // It lands in another region, and goes on with the next number.
    let second = Ledger::start(folder.path(), "uk").await;
    assert_eq!(second.write("three").await, 3);
    let (_, rows) = second.get("/rows?after=1&limit=5").await;
    let expected = json!([{ "n": 2, "note": "two", "region": "eu" }, { "n": 3, "note": "three", "region": "uk" }]);
    assert_eq!(rows, json!({ "rows": expected, "last": 3 }));
    assert_ne!(second.get("/state").await.1["booted"], state["booted"], "another start is told as another");
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_and_writes_nothing() {
    let folder = folder();
    let ledger = Ledger::start(folder.path(), "eu").await;
    for body in [json!({}), json!({ "note": 7 }), json!([])] {
        assert_eq!(ledger.post("/rows", &body).await.0, 400, "{body}");
    }
    assert_eq!(ledger.post("/rows", &json!({ "note": "x".repeat(70_000) })).await.0, 413);
    for path in ["/rows?limit=0", "/rows?limit=1001", "/rows?after=x", "/rows?what=1"] {
        assert_eq!(ledger.get(path).await.0, 400, "{path}");
    }
    assert_eq!((ledger.get("/freeze").await.0, ledger.get("/nowhere").await.0), (405, 404));
    assert_eq!(ledger.get("/state").await.1["rows"], 0);
}

/// Writers go on while the freeze comes: what was answered before it is there, and nothing follows.
#[tokio::test]
async fn a_freeze_is_behind_every_write_that_was_answered_and_before_every_other() {
    let folder = folder();
    let ledger = Ledger::start(folder.path(), "eu").await;
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let (client, url) = (ledger.client.clone(), format!("{}/rows", ledger.url));
            tokio::spawn(async move {
                let mut last = 0;
                loop {
                    let (status, body) = told(client.post(&url).json(&json!({ "note": "" }))).await.expect("an answer");
                    match status {
                        200 => last = body["n"].as_u64().expect("a number"),
                        _ => return (last, status, body),
                    }
                }
            })
        })
        .collect();
    until("rows are there", SOON, async || (ledger.get("/state").await.1["last"].as_u64()? > 20).then_some(())).await;
    let (status, frozen) = ledger.post("/freeze", &json!({})).await;
    assert_eq!((status, &frozen["frozen"]), (200, &json!(true)));
    let mut last = 0;
    for writer in writers {
        let ended = tokio::time::timeout(SOON, writer).await.expect("the freeze ends it");
        let (its_last, status, body) = ended.expect("a writer");
        assert_eq!((status, body), (503, json!({ "frozen": true })));
        last = last.max(its_last);
    }
    assert_eq!((&frozen["last"], &frozen["rows"]), (&json!(last), &json!(last)), "as the last writer was told");
    assert_eq!(ledger.get("/state").await.1, frozen, "and so it stays");
    ledger.post("/thaw", &json!({})).await;
    assert_eq!(ledger.write("after").await, last + 1);
}

/// Killed in the middle of writes: every row whose number was told is in the file, and there is no hole.
#[tokio::test]
async fn a_killed_ledger_keeps_every_row_that_it_told() {
    let folder = folder();
    let ledger = Ledger::start(folder.path(), "eu").await;
    let (client, url) = (ledger.client.clone(), format!("{}/rows", ledger.url));
    let (acknowledge, acknowledged) = tokio::sync::watch::channel(0);
    let writer = tokio::spawn(async move {
        while let Ok((200, body)) = told(client.post(&url).json(&json!({ "note": "" }))).await {
            acknowledge.send_replace(body["n"].as_u64().expect("a number"));
        }
    });
    let mut seen = acknowledged.clone();
    seen.wait_for(|n| *n > 50).await.expect("it writes");
    ledger.process.kill9();
    writer.await.expect("the writer ends with it");
    let store = Store::open(&database(folder.path())).expect("it opens");
    let state = store.state().expect("a state");
    let told = *acknowledged.borrow();
    assert!(state.last == told || state.last == told + 1, "{state:?}, told {told}");
    assert_eq!(state.rows, state.last, "no hole");
}

#[tokio::test]
async fn a_ledger_that_hangs_does_not_end_on_sigterm() {
    let folder = folder();
    let ledger = Ledger::start_with(folder.path(), "eu", &[(HANG_VARIABLE, "1")]).await;
    ledger.process.signal(Signal::TERM);
    until("it has the signal", SOON, async || ledger.process.log_tail().contains(HANGS).then_some(())).await;
    assert_eq!(ledger.write("it still answers").await, 1);
    assert_eq!(ledger.process.status(), None);
}

#[tokio::test]
async fn a_ledger_without_its_surroundings_says_what_is_missing() {
    let folder = folder();
    let bare = Spawn::new(launcher().expect("the launcher")).arg(SUBCOMMAND).run(SOON).await.expect("it ends");
    assert!(!bare.status.success());
    assert!(bare.stderr.contains("is not set"), "{}", bare.stderr);
    let nowhere = folder.path().join("nowhere");
    let ended = spawn(&nowhere, "eu", "127.0.0.1:0").run(SOON).await.expect("it ends");
    assert!(ended.stderr.contains("open the database"), "{}", ended.stderr);
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = taken.local_addr().expect("it is bound").to_string();
    let ended = spawn(folder.path(), "eu", &address).run(SOON).await.expect("it ends");
    assert!(ended.stderr.contains(&format!("listen on {address}")), "{}", ended.stderr);
}
