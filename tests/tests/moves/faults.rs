//! Cuts and landings in a world that goes wrong: objects that change under the final copy, a target that vanishes, clocks
//! that are stepped, neighbours whose names begin alike.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use domain::ids::MoveId;
use domain::instances::moves::MoveState;
use domain::queue;
use sandbox::s3::{Fault, Rule};
use workers::failpoint;
use workers::node::NodeContext;

use crate::acting::{activator, rows_of};
use crate::support::{Fleet, HOST, INTERVAL, host};

/// Longer than any lease.
const LEASE: Duration = Duration::from_secs(60);

/// A fleet whose instance is about to be cut, and the rows that it has at least.
async fn cutting() -> (Fleet, MoveId, u64) {
    let fleet = Fleet::writing().await;
    let id = fleet.make_ready().await;
    let rows = rows_of(&fleet.database(&fleet.eu)).expect("a database");
    fleet.cut().await;
    (fleet, id, rows)
}

/// The cut has not come to its purge: the source has everything, and the record.
async fn assert_held(fleet: &Fleet, id: MoveId, why: &str) {
    let found = fleet.read_move(id).await;
    assert_eq!((found.state.known(), found.purge_began_at), (Some(MoveState::Cutting), None), "{why}");
    assert_eq!(fleet.record(HOST).await.region.as_str(), "eu", "{why}: no flip");
    assert!(fleet.database(&fleet.eu).exists(), "{why}: nothing is purged");
    assert!(activator(&fleet.uk).running(&host(HOST)).is_none(), "{why}");
}

/// Runs what is due on both boxes until the move has landed with these rows.
async fn assert_lands(fleet: &Fleet, id: MoveId, rows: u64) {
    for _ in 0..6 {
        for node in [&fleet.eu, &fleet.uk] {
            if let Some(leased) = fleet.lease(node).await {
                let lease = leased.lease;
                let done = fleet.handle(node, leased).await;
                fleet.settle(lease, &done).await;
            }
        }
        fleet.pass_time(INTERVAL).await;
    }
    let found = fleet.read_move(id).await;
    assert!(found.landed_at.is_some() && found.staging_deleted_at.is_some(), "{:?}", found.status);
    assert!(rows_of(&fleet.database(&fleet.uk)).is_some_and(|n| n >= rows));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_changes_between_the_final_copy_and_its_listing_flips_nothing() {
    // M-069, M-119: at every key in turn.
    let (fleet, id, rows) = cutting().await;
    // The first run ends before its delta, so that the replica is what the cut will copy.
    let list = Rule::on("ListObjectsV2", Fault::Answer("AccessDenied")).bucket("uk-data");
    let list = fleet.s3.faults().add(list);
    fleet.run(&fleet.eu).await.snoozed();
    fleet.s3.faults().remove(list);
    let prefix = format!("instances/{HOST}/");
    let keys = fleet.s3.objects().keys("eu-data", &prefix);
    assert!(!keys.is_empty());
    // Of many raw files some are enough; of the rest each.
    let (raw, rest): (Vec<String>, Vec<String>) = keys.into_iter().partition(|key| key.contains("/0000/"));
    let every = raw.len().div_ceil(4);
    for key in rest.into_iter().chain(raw.into_iter().rev().step_by(every)) {
        let whole = fleet.s3.objects().get("eu-data", &key).expect("an object");
        let (objects, prefix, changed) = (fleet.s3.objects(), prefix.clone(), key.clone());
        // Something to delete, so that the delta lists more than once.
        fleet.s3.objects().put("uk-data", &format!("moves/{HOST}/{}", crate::support::ltx(8, 1, 1)), b"stale");
        let (size, listings, begun) = (whole.len(), AtomicU64::new(0), AtomicBool::new(false));
        fleet.s3.faults().on("ListObjectsV2", move |call| {
            // The target's listing is the delta's alone: what proves the tail lists and restores the source's, and is done.
            if call.bucket == "uk-data" {
                begun.store(true, Ordering::SeqCst);
            } else if call.key == prefix && begun.load(Ordering::SeqCst) {
                // Of equal size: only the ETag tells.
                let byte = if listings.fetch_add(1, Ordering::SeqCst) % 2 == 0 { b'!' } else { b'?' };
                objects.put("eu-data", &changed, &vec![byte; size]);
            }
        });
        fleet.pass_time(Duration::from_secs(2)).await;
        fleet.run(&fleet.eu).await.snoozed();
        fleet.s3.faults().clear();
        fleet.s3.objects().put("eu-data", &key, &whole);
        assert_held(&fleet, id, &key).await;
        assert_eq!(fleet.obstacle(id).await, Some(("busy".to_owned(), false)), "{key}");
    }
    assert_lands(&fleet, id, rows).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_vanishes_mid_cut_holds_it_and_says_so() {
    // Refused, throttled, missing, out of reach: before the purge nothing is lost, and it goes on once the target is back.
    let (fleet, id, rows) = cutting().await;
    let whys = [
        Fault::Answer("AccessDenied"),
        Fault::SlowDown,
        Fault::Answer("NoSuchBucket"),
        Fault::Disconnect,
        Fault::Answer("InternalError"),
    ];
    for fault in whys {
        let why = format!("{fault:?}");
        let permanent = matches!(fault, Fault::Answer("AccessDenied" | "NoSuchBucket"));
        let rule = fleet.s3.faults().add(Rule::on("*", fault).bucket("uk-data"));
        fleet.pass_time(Duration::from_secs(2)).await;
        fleet.run(&fleet.eu).await.snoozed();
        fleet.s3.faults().remove(rule);
        assert_held(&fleet, id, &why).await;
        let (code, told) = fleet.obstacle(id).await.expect("it says why");
        assert_eq!(told, permanent, "{why}: {code}");
        let tail = fleet.steps_from(id, "prove_tail").await.pop();
        assert_eq!(tail, Some(("final_delta".to_owned(), Some("failed".to_owned()))), "{why}");
    }
    assert_lands(&fleet, id, rows).await;
}

/// Steps the database's clock, back or forth.
async fn step(fleet: &Fleet, hours: i32) {
    sqlx::query("update lh_test_clock set shift = shift + $1 * interval '1 hour'")
        .bind(f64::from(hours))
        .execute(fleet.db.pool())
        .await
        .expect("the clock");
    for node in [&fleet.eu, &fleet.uk] {
        domain::nodes::seen(&mut *fleet.conn().await, node.id()).await.expect("an answer");
    }
}

/// Runs the due job of a box until a point, where it dies.
async fn die_at(fleet: &Fleet, node: &NodeContext, point: &str) {
    let leased = fleet.lease(node).await.expect("a job is due");
    let gate = failpoint::gate(point, "", 0);
    tokio::select! {
        () = gate.arrived(1) => {}
        done = fleet.handle(node, leased) => panic!("{point} is passed: {done:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_that_are_stepped_by_an_hour_between_the_steps_lose_nothing() {
    // Forth: leases end, waits are over. Back: they last an hour longer, and nothing more.
    let (fleet, id, rows) = cutting().await;
    let mut hours = [1, -1].into_iter().cycle();
    let mut stepped = async |fleet: &Fleet| {
        step(fleet, hours.next().expect("a cycle")).await;
        fleet.pass_time(LEASE).await;
        queue::rescue_expired(&mut *fleet.conn().await, 100).await.expect("an answer");
        if fleet.lease(&fleet.uk).await.is_some() {
            panic!("nothing is due for the target");
        }
    };
    for point in ["cut.after_close", "cut.before_delta", "cut.before_purge", "cut.before_flip"] {
        die_at(&fleet, &fleet.eu, point).await;
        stepped(&fleet).await;
        // A lease that was taken before a step back lives an hour longer.
        fleet.pass_time(Duration::from_secs(3600)).await;
        queue::rescue_expired(&mut *fleet.conn().await, 100).await.expect("an answer");
        assert_eq!(fleet.record(HOST).await.region.as_str(), "eu", "{point}");
    }
    assert_eq!(fleet.run(&fleet.eu).await.result()["outcome"], "moved");
    for point in ["land.after_mint", "land.before_adopt"] {
        die_at(&fleet, &fleet.uk, point).await;
        step(&fleet, -1).await;
        fleet.pass_time(Duration::from_secs(3600) + LEASE).await;
        queue::rescue_expired(&mut *fleet.conn().await, 100).await.expect("an answer");
        assert!(activator(&fleet.uk).running(&host(HOST)).is_none(), "{point}");
    }
    assert_lands(&fleet, id, rows).await;
    let times = fleet.journal(id).await;
    assert!(times.iter().any(|step| step.step == "flip"), "one flip");
}

/// Every file below a folder.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            found.extend(files(&entry));
        } else if let Ok(bytes) = std::fs::read(&entry) {
            found.insert(entry.display().to_string(), bytes);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_move_leaves_hosts_whose_names_begin_alike_alone() {
    // M-048, M-070, M-088: their replicas, their stagings, their files, on both sides, until after the purge.
    let (fleet, id, rows) = cutting().await;
    let longer = format!("{HOST}.au");
    let neighbours = [longer.clone(), HOST[..HOST.len() - 1].to_owned(), HOST[1..].to_owned(), format!("{HOST}-2")];
    let mut folders = Vec::new();
    for neighbour in &neighbours {
        for bucket in ["eu-data", "uk-data"] {
            for place in ["instances", "moves"] {
                let key = format!("{place}/{neighbour}/{}", crate::support::ltx(9, 1, 5));
                fleet.s3.objects().put(bucket, &key, neighbour.as_bytes());
            }
        }
        for node in ["eu-1", "uk-1"] {
            let folder = fleet.file(node, "").parent().and_then(Path::parent).expect("a folder").join(neighbour);
            std::fs::create_dir_all(folder.join(".app.db-litestream")).expect("a folder");
            for name in ["app.db", "app.db-wal", "restored.db", ".app.db-litestream/x"] {
                std::fs::write(folder.join(name), neighbour).expect("a file");
            }
            folders.push(folder);
        }
    }
    let see = || {
        let mut seen = BTreeMap::new();
        for bucket in ["eu-data", "uk-data"] {
            for neighbour in &neighbours {
                for place in ["instances", "moves"] {
                    seen.extend(
                        fleet
                            .content(bucket, &format!("{place}/{neighbour}/"))
                            .into_iter()
                            .map(|(key, bytes)| (format!("{bucket}/{place}/{neighbour}/{key}"), bytes)),
                    );
                }
            }
        }
        for folder in &folders {
            seen.extend(files(folder));
        }
        seen
    };
    let before = see();
    assert_eq!(before.len(), neighbours.len() * 12);
    assert_lands(&fleet, id, rows).await;
    fleet.pass_time(Duration::from_secs(25 * 3600)).await;
    domain::instances::residency::requeue_purges(&mut *fleet.conn().await).await.expect("an answer");
    for _ in 0..3 {
        if let Some(leased) = fleet.lease(&fleet.eu).await {
            let lease = leased.lease;
            let done = fleet.handle(&fleet.eu, leased).await;
            fleet.settle(lease, &done).await;
            fleet.pass_time(LEASE).await;
        }
    }
    assert_eq!(fleet.content("eu-data", &format!("instances/{HOST}/")), [], "its own is purged");
    assert!(see() == before, "and nothing of theirs");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_landing_that_differs_at_every_try_keeps_one_file_for_people() {
    let (fleet, id, rows) = cutting().await;
    assert_eq!(fleet.run(&fleet.eu).await.result()["outcome"], "moved");
    let proven = fleet.read_move(id).await.tail.expect("proven");
    fleet.sql("update moves set tail_sha256 = repeat('a', 64)").await;
    for _ in 0..3 {
        fleet.run(&fleet.uk).await.snoozed();
        fleet.pass_time(INTERVAL * 4).await;
    }
    let aside = fleet.file("uk-1", "quarantine");
    let kept = files(&aside);
    assert_eq!(kept.len(), 1, "{:?}", kept.keys());
    assert!(!fleet.database(&fleet.uk).exists());
    sqlx::query("update moves set tail_sha256 = $1")
        .bind(&proven.sha256)
        .execute(fleet.db.pool())
        .await
        .expect("repaired");
    assert_lands(&fleet, id, rows).await;
    assert!(files(&aside) == kept, "what was put aside stays");
}
