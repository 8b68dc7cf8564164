//! Replicas of thousands of objects and databases of many megabytes, carried whole, with real children and litestream.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use domain::ids::MoveId;
use domain::instances::moves::MoveState;
use rusqlite::Connection;
use tests::trials::ballast;
use tests::wait::until;

use crate::acting::rows_of;
use crate::support::{Fleet, HOST};

/// Bound of every wait: far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(240);

/// Has litestream upload what was written since, as an object of its own: by itself it does so once a second.
fn sync(socket: &Path, database: &Path) {
    let asked = serde_json::json!({"path": database, "wait": true, "timeout": 20}).to_string();
    let mut stream = UnixStream::connect(socket).expect("litestream listens");
    let head = format!("POST /sync HTTP/1.0\r\nContent-Length: {}\r\n\r\n", asked.len());
    stream.write_all(&[head.as_bytes(), asked.as_bytes()].concat()).expect("it is asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
}

/// Cuts the move. What the replica lacks is uploaded within a bound: where that is not enough, the cut goes on.
async fn cut_through(fleet: &Fleet, id: MoveId) {
    fleet.cut().await;
    for _ in 0..40 {
        let ran = fleet.run(&fleet.eu).await;
        if fleet.read_move(id).await.finished_at.is_some() {
            return;
        }
        fleet.pass_time(ran.snoozed()).await;
    }
    panic!("it is not cut: {:?}", fleet.read_move(id).await.status);
}

fn keys(fleet: &Fleet, bucket: &str, prefix: &str) -> usize {
    fleet.s3.objects().keys(bucket, &format!("{prefix}/{HOST}/")).len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_of_thousands_of_objects_is_cut_and_landed_whole() {
    // M-044, M-085: more keys than two listings hold, under a writer that never stops before the cut.
    let fleet = Fleet::writing().await;
    fleet.until_replica().await;
    let (socket, database) = (fleet.file("eu-1", "litestream.sock"), fleet.database(&fleet.eu));
    until("a replica of thousands of objects", PATIENCE, async || {
        sync(&socket, &database);
        (keys(&fleet, "eu-data", "instances") >= 2_345).then_some(())
    })
    .await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    fleet.until_ready(&fleet.eu, id).await;
    assert!(keys(&fleet, "uk-data", "moves") >= 2_345);
    let before = rows_of(&fleet.database(&fleet.eu)).expect("a database");
    cut_through(&fleet, id).await;
    let staged = keys(&fleet, "uk-data", "moves");
    assert!(staged >= 2_345, "{staged}");
    assert_eq!(fleet.run(&fleet.uk).await.result()["landed"], true);
    assert!(rows_of(&fleet.database(&fleet.uk)).expect("a database") >= before);
    let found = fleet.read_move(id).await;
    let steps = fleet.journal(id).await;
    let restored = steps.iter().find(|step| step.step == "restore").expect("journalled");
    assert_eq!(restored.evidence["sha256"], found.tail.expect("proven").sha256.as_str());
    assert!(found.staging_deleted_at.is_some());
    assert_eq!(keys(&fleet, "uk-data", "moves"), 0, "all of it is deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_many_megabytes_is_moved_whole_while_it_is_written() {
    // 48 MiB in an ordinary run, a gibibyte in a soak.
    let fleet = Fleet::writing().await;
    fleet.until_replica().await;
    let database = fleet.database(&fleet.eu);
    let bytes = ballast();
    let filled = tokio::task::spawn_blocking(move || {
        let conn = Connection::open(&database).expect("the database");
        conn.busy_timeout(Duration::from_secs(60)).expect("a timeout");
        conn.execute_batch("create table ballast (n integer primary key, body blob not null)").expect("a table");
        for _ in 0..bytes >> 20 {
            conn.execute("insert into ballast (body) values (randomblob(1 << 20))", []).expect("a row");
        }
    });
    filled.await.expect("it is filled");
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    fleet.until_ready(&fleet.eu, id).await;
    assert_eq!(fleet.read_move(id).await.state.known(), Some(MoveState::Ready));
    let before = rows_of(&fleet.database(&fleet.eu)).expect("a database");
    cut_through(&fleet, id).await;
    let found = fleet.read_move(id).await;
    assert!(found.tail.expect("proven").size > bytes);
    assert_eq!(fleet.run(&fleet.uk).await.result()["landed"], true);
    assert!(rows_of(&fleet.database(&fleet.uk)).expect("a database") >= before);
    let conn = Connection::open(fleet.database(&fleet.uk)).expect("the database");
    let held: u64 = conn.query_row("select sum(length(body)) from ballast", [], |row| row.get(0)).expect("the rows");
    assert_eq!(held, bytes >> 20 << 20);
}
