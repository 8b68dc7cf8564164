//! litestream, against both servers: what is in S3 is restored, and what is not is said.

mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use sandbox::litestream::{Error, Litestream, Options, Pace, Replica, restore};
use sandbox::s3::{Fault, Rule};
use sandbox::seaweed::{self, Weed};
use sandbox::tools::{Tool, ensure};

use crate::support::{server, use_launcher};

/// A database with rows 1…n, in the journal mode that litestream needs.
fn database(path: &Path) -> Connection {
    let db = Connection::open(path).expect("open");
    db.pragma_update(None, "journal_mode", "wal").expect("wal");
    db.execute_batch("create table rows (n integer primary key)").expect("create");
    db
}

fn add_rows(db: &Connection, count: u32) {
    for _ in 0..count {
        db.execute("insert into rows select coalesce(max(n), 0) + 1 from rows", []).expect("insert");
    }
}

fn count_rows(path: &Path) -> i64 {
    let db = Connection::open(path).expect("open");
    db.query_row("select count(*) from rows", [], |row| row.get(0)).expect("count")
}

fn litestream_for(db: &Path, dir: PathBuf, replica: Replica) -> Litestream {
    use_launcher();
    ensure(Tool::Litestream).expect("litestream");
    let pace = Pace { sync_interval: Some(Duration::from_millis(100)), ..Pace::default() };
    Litestream::new(Options { db: db.to_owned(), replica, dir, pace }).expect("configure")
}

/// Replicates, syncs, writes on, syncs, and restores both states from S3.
async fn replicates_and_restores(replica: Replica) {
    let folder = tempfile::tempdir().expect("tempdir");
    let path = folder.path().join("app.db");
    let db = database(&path);
    let mut litestream = litestream_for(&path, folder.path().join("litestream"), replica.clone());
    litestream.replicate().await.expect("start");
    add_rows(&db, 20);
    let first = litestream.sync_wait(Duration::from_secs(20)).await.expect("sync");
    assert_eq!(first.txid, first.replica_txid);
    add_rows(&db, 30);
    let second = litestream.sync_wait(Duration::from_secs(20)).await.expect("sync");
    assert!(second.txid > first.txid && second.txid == second.replica_txid);
    assert!(!litestream.stop().await.expect("it ran").killed);
    litestream.replicate_once(Duration::from_secs(60)).await.expect("once");
    let local = litestream.local_txid().await.expect("status");
    assert_eq!(u64::from_str_radix(&local, 16).ok(), Some(second.txid));
    let (newest, older) = (folder.path().join("newest.db"), folder.path().join("older.db"));
    restore(&replica, &newest, Some(&local)).await.expect("restore");
    restore(&replica, &older, Some(&format!("{:016x}", first.txid))).await.expect("restore");
    assert_eq!((count_rows(&newest), count_rows(&older)), (50, 20));
    // A transaction that S3 does not have is not made up.
    let none = folder.path().join("none.db");
    let beyond = restore(&replica, &none, Some(&format!("{:016x}", second.txid + 100))).await;
    assert!(matches!(beyond, Err(Error::Command { .. })) && !none.exists(), "{beyond:?}");
}

fn replica(endpoint: String, access_key: &str, secret_key: &str) -> Replica {
    Replica {
        endpoint,
        bucket: "src".to_owned(),
        prefix: "instances/h".to_owned(),
        access_key: access_key.to_owned(),
        secret_key: secret_key.to_owned(),
    }
}

#[tokio::test]
async fn litestream_replicates_into_the_in_process_server_and_restores_from_it() {
    let (server, _) = server();
    replicates_and_restores(replica(server.endpoint(), server.access_key(), server.secret_key())).await;
    let keys = server.objects().keys("src", "");
    assert!(keys.iter().any(|key| key.starts_with("instances/h/0000/")), "{keys:?}");
    assert!(keys.iter().all(|key| key.starts_with("instances/h/0") && key.ends_with(".ltx")), "{keys:?}");
}

#[tokio::test]
async fn litestream_replicates_into_seaweed_and_restores_from_it() {
    let folder = tempfile::tempdir().expect("tempdir");
    use_launcher();
    ensure(Tool::Weed).expect("weed");
    let dir = folder.path().to_owned();
    let weed = Weed::start(seaweed::Options { dir, buckets: vec!["src".into()], identities: Vec::new() });
    let weed = weed.await.expect("start");
    let admin = weed.admin();
    replicates_and_restores(replica(weed.endpoint(), &admin.access_key, &admin.secret_key)).await;
}

/// The one answer that proves the tail must be a refusal when S3 does not take it.
#[tokio::test]
async fn a_sync_fails_in_its_time_when_s3_does_not_answer() {
    let (server, _) = server();
    let folder = tempfile::tempdir().expect("tempdir");
    let path = folder.path().join("app.db");
    let db = database(&path);
    let place = replica(server.endpoint(), server.access_key(), server.secret_key());
    let mut litestream = litestream_for(&path, folder.path().join("litestream"), place);
    litestream.replicate().await.expect("start");
    add_rows(&db, 1);
    litestream.sync_wait(Duration::from_secs(20)).await.expect("sync");
    server.faults().add(Rule::on("PutObject", Fault::Hang));
    add_rows(&db, 1);
    let error = litestream.sync_wait(Duration::from_secs(1)).await.expect_err("no proof");
    assert!(matches!(error, Error::Command { verb: "sync", .. }), "{error:?}");
    server.faults().clear();
    litestream.kill9();
    assert_eq!(litestream.pid(), None);
    // The next daemon finds the tail locally and saves it.
    litestream.replicate().await.expect("start again");
    let saved = litestream.sync_wait(Duration::from_secs(30)).await.expect("sync");
    assert_eq!(saved.txid, saved.replica_txid);
}
