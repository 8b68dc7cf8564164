//! The cut and the landing, with real children, a real litestream and real databases.

use std::io::Read as _;
use std::net::TcpStream;

use domain::instances::moves::{MoveState, Outcome};
use domain::instances::{self, EdgesDocument};
use sandbox::s3::Objects;
use sha2::{Digest as _, Sha256};
use workers::failpoint;

use crate::acting::{acting, activator, rows_of};
use crate::support::{Fleet, HOST, host, region};

async fn edges(fleet: &Fleet, code: &str) -> EdgesDocument {
    let found = instances::edges(&mut *fleet.conn().await, &region(code)).await;
    found.expect("the database answers").expect("the region exists")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_carries_every_row_to_the_target_which_serves_it_under_its_own_region() {
    // M-008, M-062 (the order), M-063, M-068, M-070, M-092, M-095, M-101, M-109, M-111.
    let fleet = Fleet::writing().await;
    let id = fleet.make_ready().await;
    let record = fleet.record(HOST).await;
    let serials = (fleet.serial("eu").await, fleet.serial("uk").await);
    let running = fleet.lease_next_round_of(&fleet.eu).await;
    fleet.settle(running, &Ok(workers::jobs::Done::Snooze { after: crate::support::INTERVAL })).await;
    fleet.cut().await;
    let done = fleet.run(&fleet.eu).await;
    assert_eq!(done.result()["outcome"], "moved");

    let found = fleet.read_move(id).await;
    let tail = found.tail.clone().expect("proven");
    let after = fleet.record(HOST).await;
    assert_eq!((after.region.as_str(), &after.moving, found.outcome), ("uk", &None, Some(Outcome::Moved)));
    assert_eq!(after.replica_regions, record.replica_regions, "nothing else follows");
    assert!(fleet.serial("eu").await > serials.0 && fleet.serial("uk").await > serials.1);
    assert!(activator(&fleet.eu).running(&host(HOST)).is_none());
    for name in ["app.db", "app.db-wal", "app.db-shm", ".app.db-litestream"] {
        assert!(!fleet.file("eu-1", name).exists(), "{name} is purged");
    }
    let steps = fleet.steps_from(id, "close_route").await;
    let done = |step: &str| (step.to_owned(), Some("done".to_owned()));
    let word = |step: &str, outcome: &str| (step.to_owned(), Some(outcome.to_owned()));
    let expected = [
        word("close_route", "closed"),
        done("stop_child"),
        done("prove_tail"),
        done("final_delta"),
        done("purge"),
        word("flip", "flipped"),
    ];
    assert_eq!(steps, expected);
    assert!(edges(&fleet, "eu").await.routes.is_empty(), "the source's route is retired");
    assert_eq!(edges(&fleet, "uk").await.unserved, [host(HOST)], "503, not 404, until it is served");

    assert_eq!(fleet.run(&fleet.uk).await.result()["landed"], true);
    let database = fleet.database(&fleet.uk);
    assert!(rows_of(&database).expect("a database") >= 30);
    let document = edges(&fleet, "uk").await;
    let address = document.routes[0].address.clone().expect("it runs");
    let mut told = String::new();
    TcpStream::connect(address).expect("it answers").read_to_string(&mut told).expect("its environment");
    assert!(told.lines().any(|line| line == "CARLOS_REGION=uk"), "{told}");
    let found = fleet.read_move(id).await;
    assert!(found.landed_at.is_some() && found.staging_deleted_at.is_some(), "{found:?}");
    assert_eq!(fleet.content("uk-data", &format!("moves/{HOST}/")), [], "the staging is deleted");
    assert!(!fleet.content("eu-data", &format!("instances/{HOST}/")).is_empty(), "the old replica is kept");
    let steps = fleet.steps_from(id, "mirror_in").await;
    assert_eq!(steps, [done("mirror_in"), done("restore"), word("delete_staging", "deleted")]);
    let restored = fleet.journal(id).await.into_iter().find(|step| step.step == "restore").expect("journalled");
    assert_eq!(restored.evidence["sha256"], tail.sha256.as_str(), "the very file of the cut");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_restored_is_the_file_that_the_source_had_and_an_instance_that_comes_back_is_the_newest() {
    // M-102: A to B to A. The region that it comes back to holds an older replica with higher transactions of its own.
    let fleet = Fleet::writing().await;
    fleet.make_ready().await;
    fleet.cut().await;
    fleet.run(&fleet.eu).await;
    fleet.run(&fleet.uk).await;
    let before = rows_of(&fleet.database(&fleet.uk)).expect("a database");
    fleet.until_rows(&fleet.uk, before + 20).await;
    // What the first life left in eu goes on: its own replica, with transactions beyond those of the second.
    let stale = format!("instances/{HOST}/{}", crate::support::ltx(0, 999_999, 999_999));
    fleet.s3.objects().put("eu-data", &stale, b"of an older life");

    let back = fleet.start_move_to(HOST, "eu").await.expect("the way back begins").id;
    fleet.until_ready(&fleet.uk, back).await;
    fleet.cut().await;
    assert_eq!(fleet.run(&fleet.uk).await.result()["outcome"], "moved");
    let tail = fleet.read_move(back).await.tail.expect("proven");
    let parked = fleet.place_parked().await;
    assert_eq!(fleet.run(&fleet.eu).await.result()["landed"], true);
    let database = fleet.database(&fleet.eu);
    assert_eq!(hex::encode(Sha256::digest(std::fs::read(&database).expect("the file"))), tail.sha256);
    assert!(rows_of(&database).expect("a database") >= before + 20);
    assert!(fleet.s3.objects().get("eu-data", &stale).is_none(), "nothing of the older life is left");
    parked.wake(&fleet).await;
    fleet.until_rows(&fleet.eu, before + 40).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_instance_is_moved_without_being_woken() {
    // M-041, M-079, M-080.
    let fleet = Fleet::writing().await;
    let parked = fleet.place_parked().await;
    activator(&fleet.eu).stop(&host(HOST)).await.expect("parked");
    let rows = rows_of(&fleet.database(&fleet.eu)).expect("a database");
    for purged in [false, true] {
        if purged {
            // The box was rebuilt: its replica is all that there is.
            activator(&fleet.uk).purge(&host(HOST)).await.expect("purged");
        }
        let (from, to, node) = if purged { ("uk", "eu", &fleet.uk) } else { ("eu", "uk", &fleet.eu) };
        let target = if purged { &fleet.eu } else { &fleet.uk };
        let id = fleet.start_move_to(HOST, to).await.expect("the move begins").id;
        fleet.until_ready(node, id).await;
        fleet.cut().await;
        assert_eq!(fleet.run(node).await.result()["outcome"], "moved", "from {from}");
        assert_eq!(fleet.run(target).await.result()["landed"], true);
        for node in [&fleet.eu, &fleet.uk] {
            assert!(activator(node).running(&host(HOST)).is_none(), "nobody woke it");
        }
        assert_eq!(rows_of(&fleet.database(target)), Some(rows));
    }
    drop(parked);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_does_not_end_blocks_the_cut_visibly_and_nothing_is_lost() {
    // M-065: nobody kills it, nothing is purged, the region does not change.
    let fleet = Fleet::acting().await;
    fleet.place_with(&[("TENANT_HANG", "1"), ("TENANT_WRITES", "1")]).await;
    fleet.until_rows(&fleet.eu, 30).await;
    let id = fleet.make_ready().await;
    fleet.cut().await;
    fleet.run(&fleet.eu).await.snoozed();
    assert_eq!(fleet.obstacle(id).await, Some(("child_hangs".to_owned(), true)));
    let found = fleet.read_move(id).await;
    assert_eq!((found.state.known(), found.purge_began_at), (Some(MoveState::Cutting), None));
    assert!(fleet.database(&fleet.eu).exists());
    let pid = found.status.obstacle.expect("held up").message;
    assert!(pid.contains("process "), "it says which: {pid}");
    tests::activator::kill_all(&fleet.folder.path().join("eu-1/instances"));
    fleet.pass_time(crate::support::INTERVAL).await;
    assert_eq!(fleet.run(&fleet.eu).await.result()["outcome"], "moved", "once somebody ended it");
    assert_eq!(fleet.obstacle(id).await, None, "nothing holds up what is over");
    assert_eq!(fleet.run(&fleet.uk).await.result()["landed"], true);
}

/// M-068: names and positions are whole, and what an object holds is not, or it is gone: the database is still there, and is
/// uploaded anew.
/// Returns what was wrong, where it was renewed.
async fn a_cut_survives(damage: impl FnOnce(&Objects, Vec<String>)) -> Option<String> {
    let fleet = Fleet::start_with(|config| {
        let mut config = acting(config);
        let settings = config.activator.as_mut().expect("it runs instances");
        // What travels along is met by the target's litestream at its next compaction.
        settings.pace.compaction_interval =
            (config.region.as_str() == "uk").then_some(std::time::Duration::from_secs(1));
        config
    })
    .await;
    fleet.place_with(&[("TENANT_WRITES", "1")]).await;
    fleet.until_rows(&fleet.eu, 30).await;
    let id = fleet.make_ready().await;
    let objects = fleet.s3.objects();
    damage(&objects, objects.keys("eu-data", &format!("instances/{HOST}/")));
    let rows = rows_of(&fleet.database(&fleet.eu)).expect("the database");
    fleet.cut().await;
    assert_eq!(fleet.run(&fleet.eu).await.result()["outcome"], "moved");
    let journal = fleet.journal(id).await;
    let proven = journal.iter().find(|step| step.step == "prove_tail").expect("journalled");
    let renewed = proven.evidence["renewed"].as_str().map(str::to_owned);
    assert_eq!(fleet.run(&fleet.uk).await.result()["landed"], true);
    assert!(rows_of(&fleet.database(&fleet.uk)).is_some_and(|there| there >= rows));
    let tail = fleet.read_move(id).await.tail.expect("it was proven").txid;
    tests::wait::until("what is written there is compacted", crate::acting::PATIENCE, || async {
        let keys = objects.keys("uk-data", &format!("instances/{HOST}/0001/"));
        let end =
            |key: &String| key.rsplit_once('-').is_some_and(|(_, end)| end.trim_end_matches(".ltx") > tail.as_str());
        keys.iter().any(end).then_some(())
    })
    .await;
    // litestream reads the newest object when it begins beside a restored database.
    let there = activator(&fleet.uk);
    there.stop_child(&host(HOST)).await.expect("it stops");
    let rehearsed = there.rehearse(&host(HOST)).await.expect("a tail");
    assert_eq!(rehearsed.renewed, None, "the replica is its database there");
    renewed
}

fn spoil(objects: &Objects, key: &str) {
    objects.corrupt("eu-data", key, |bytes| {
        let middle = bytes.len() / 2;
        bytes[middle..].fill(0);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_was_damaged_long_ago_is_found_while_the_database_is_still_there() {
    let why = a_cut_survives(|objects, keys| spoil(objects, keys.last().expect("a replica"))).await;
    assert!(why.as_ref().is_some_and(|why| why.contains("does not restore")), "{why:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_whose_objects_are_all_damaged_is_uploaded_anew() {
    let all = |objects: &Objects, keys: Vec<String>| keys.iter().for_each(|key| spoil(objects, key));
    let why = a_cut_survives(all).await;
    assert!(why.as_ref().is_some_and(|why| why.contains("does not restore")), "{why:?}");
}

/// A restore reads another level in its place, and litestream in the target begins with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_newest_raw_object_that_is_damaged_below_another_level_is_found_before_the_target_begins_with_it() {
    let fleet = Fleet::start_with(|config| {
        let mut config = acting(config);
        let settings = config.activator.as_mut().expect("it runs instances");
        settings.pace.compaction_interval = Some(std::time::Duration::from_secs(1));
        config
    })
    .await;
    fleet.place_with(&[("TENANT_WRITES", "1")]).await;
    fleet.until_rows(&fleet.eu, 30).await;
    // litestream stays, and compacts what nobody adds to.
    activator(&fleet.eu).stop_child(&host(HOST)).await.expect("it stops");
    let objects = fleet.s3.objects();
    let prefix = format!("instances/{HOST}/");
    let (here, from) = (rows_of(&fleet.database(&fleet.eu)), prefix.trim_end_matches('/'));
    tests::wait::until("all is uploaded: no other raw object comes", crate::acting::PATIENCE, || async {
        let newest = activator(&fleet.eu).newest(&host(HOST), from).await.ok()?;
        let restored = activator(&fleet.eu).restore(&host(HOST), from, &newest).await.ok()?;
        (rows_of(&restored.path) == here).then_some(())
    })
    .await;
    // What a restore reads in place of the newest raw object: one of another level that ends with the same transaction.
    let covered = |keys: &[String]| {
        let end = |key: &String| key.rsplit_once('-').map(|(_, end)| end.to_owned());
        let raw = keys.iter().filter(|key| key.contains("/0000/")).filter_map(end).max();
        raw.is_some() && keys.iter().filter(|key| !key.contains("/0000/")).filter_map(end).max() == raw
    };
    let keys = tests::wait::until("all is compacted", crate::acting::PATIENCE, || async {
        Some(objects.keys("eu-data", &prefix)).filter(|keys| covered(keys))
    })
    .await;
    let id = fleet.make_ready().await;
    spoil(&objects, keys.iter().rfind(|key| key.contains("/0000/")).expect("a raw object"));
    fleet.cut().await;
    assert_eq!(fleet.run(&fleet.eu).await.result()["outcome"], "moved");
    let journal = fleet.journal(id).await;
    let proven = journal.iter().find(|step| step.step == "prove_tail").expect("journalled");
    let why = proven.evidence["renewed"].as_str().expect("it says what was wrong");
    assert!(why.contains("is not what litestream has here of it"), "{why}");
    assert_eq!(fleet.run(&fleet.uk).await.result()["landed"], true);
    let there = activator(&fleet.uk);
    there.stop_child(&host(HOST)).await.expect("it stops");
    assert_eq!(there.rehearse(&host(HOST)).await.expect("it replicates there").renewed, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_with_a_hole_is_uploaded_anew() {
    let first = |objects: &Objects, keys: Vec<String>| {
        for key in keys.iter().filter(|key| key.contains("/0000000000000001-")) {
            objects.delete("eu-data", key);
        }
    };
    let why = a_cut_survives(first).await;
    assert!(why.as_ref().is_some_and(|why| why.contains("has a hole")), "{why:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_lost_its_raw_objects_gets_them_again() {
    let raw = |objects: &Objects, keys: Vec<String>| {
        for key in keys.iter().filter(|key| key.contains("/0000/")) {
            objects.delete("eu-data", key);
        }
    };
    // litestream has its own copies of them, or the whole database is uploaded.
    a_cut_survives(raw).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_cannot_be_renewed_holds_the_cut_until_somebody_mends_it() {
    let fleet = Fleet::writing().await;
    let id = fleet.make_ready().await;
    let objects = fleet.s3.objects();
    let prefix = format!("instances/{HOST}/");
    fleet.cut().await;
    let gate = failpoint::gate("activator.before_checkpoint", HOST, 0);
    let leased = fleet.lease(&fleet.eu).await.expect("the cut is due");
    let lease = leased.lease;
    let spoiled = async {
        for proof in 1..=2 {
            gate.arrived(proof).await;
            objects.keys("eu-data", &prefix).iter().for_each(|key| spoil(&objects, key));
            gate.allow(1);
        }
    };
    let (done, ()) = tokio::join!(fleet.handle(&fleet.eu, leased), spoiled);
    fleet.settle(lease, &done).await;
    assert!(matches!(done, Ok(workers::jobs::Done::Snooze { .. })), "{done:?}");
    assert_eq!(fleet.obstacle(id).await, Some(("tail_unproven".to_owned(), true)), "somebody must mend it");
    let found = fleet.read_move(id).await;
    assert_eq!((found.tail, found.purge_began_at), (None, None));
    let rows = rows_of(&fleet.database(&fleet.eu)).expect("the database is still there");
    drop(gate);
    fleet.pass_time(crate::support::INTERVAL).await;
    assert_eq!(fleet.run(&fleet.eu).await.result()["outcome"], "moved", "nobody damages it any more, and it goes on");
    assert_eq!(fleet.run(&fleet.uk).await.result()["landed"], true);
    assert!(rows_of(&fleet.database(&fleet.uk)).is_some_and(|there| there >= rows));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_not_its_database_is_uploaded_anew_from_the_database_that_nobody_writes() {
    // M-068: every object is whole, and what they restore to is another file, as after a fault of litestream's own.
    let fleet = Fleet::writing().await;
    let id = fleet.make_ready().await;
    let database = fleet.database(&fleet.eu);
    fleet.cut().await;
    let done = cut_with(&fleet, || {
        let conn = rusqlite::Connection::open(&database).expect("the database");
        conn.execute("update entries set filler = 'not replicated' where n = 1", []).expect("changed");
        conn.close().expect("closed");
    })
    .await;
    assert!(matches!(&done, Ok(workers::jobs::Done::Complete(result)) if result["outcome"] == "moved"), "{done:?}");
    let journal = fleet.journal(id).await;
    let proven = journal.iter().find(|step| step.step == "prove_tail").expect("journalled");
    let why = proven.evidence["renewed"].as_str().expect("it says how it differed");
    assert!(why.contains("it restores to"), "{why}");
    assert_eq!(fleet.run(&fleet.uk).await.result()["landed"], true);
    let landed = fleet.database(&fleet.uk);
    assert!(rows_of(&landed).is_some_and(|rows| rows >= 30));
    let conn = rusqlite::Connection::open(&landed).expect("the database");
    let held: String = conn.query_row("select filler from entries where n = 1", [], |row| row.get(0)).expect("a row");
    assert_eq!(held, "not replicated", "what the database had, not what the replica had");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_damaged_itself_is_never_cut() {
    // M-068: its landing would be refused, with nothing left at the source.
    let fleet = Fleet::writing().await;
    let id = fleet.make_ready().await;
    fleet.cut().await;
    let database = fleet.database(&fleet.eu);
    let done = cut_with(&fleet, || {
        // What stands in the log would heal the file.
        let conn = rusqlite::Connection::open(&database).expect("the database");
        let busy: i64 = conn.query_row("pragma wal_checkpoint(truncate)", [], |row| row.get(0)).expect("an answer");
        assert_eq!(busy, 0);
        conn.close().expect("closed");
        let mut bytes = std::fs::read(&database).expect("the file");
        bytes[4_096..].fill(7);
        std::fs::write(&database, bytes).expect("damaged");
    })
    .await;
    assert!(matches!(done, Ok(workers::jobs::Done::Snooze { .. })), "{done:?}");
    let found = fleet.read_move(id).await;
    let held = found.status.obstacle.expect("held up");
    assert!(held.code == "tail_unproven" && held.permanent && held.message.contains("damaged"), "{held:?}");
    assert_eq!((found.tail, found.purge_began_at), (None, None));
}

/// Runs the cut, and does something to the database when everything of it is uploaded and nobody uses it.
async fn cut_with(fleet: &Fleet, change: impl FnOnce()) -> Result<workers::jobs::Done, workers::jobs::JobError> {
    let leased = fleet.lease(&fleet.eu).await.expect("the cut is due");
    let lease = leased.lease;
    let gate = failpoint::gate_next("activator.before_checkpoint", HOST);
    let change = async {
        gate.arrived(1).await;
        change();
        gate.allow(1);
    };
    let (done, ()) = tokio::join!(fleet.handle(&fleet.eu, leased), change);
    fleet.settle(lease, &done).await;
    done
}
