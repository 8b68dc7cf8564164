//! The proof of the tail: what carries it, and what is refused.

use std::time::Duration;

use domain::instances::moves::Tail;
use sandbox::s3::{Fault, Rule};
use tests::activator::BUCKET;
use workers::activator::{Error, Role, identity_in};
use workers::failpoint;

use crate::rig::{Rig, host, rows};

/// The tenant is stopped in the middle of its writing. What is restored is the same file, byte by byte.
#[tokio::test]
async fn the_proven_tail_of_a_busy_database_restores_byte_equal() {
    let rig = Rig::start().await;
    let host = host("busy.example");
    rig.written(&host).await;
    let litestream = identity_in(&rig.path(&host, "litestream.json")).expect("a record");
    assert!(litestream.lives().expect("look"), "it goes on when the child ends");
    let tail = rig.activator.prove_tail(&host).await.expect("prove");
    assert!(!litestream.lives().expect("look"), "nothing is left running");
    let written = rows(&rig.path(&host, "app.db"));
    assert!(written >= 30);
    let prefix = format!("instances/{host}");
    let restored = rig.activator.restore(&host, &prefix, &tail.txid).await.expect("restore");
    assert_eq!((&restored.sha256, restored.size), (&tail.sha256, tail.size));
    assert_eq!(rows(&restored.path), written, "every row");
    assert!(rig.path(&host, "app.db").exists(), "a restore touches no database");
}

/// A worker died after the proof. The next proof holds as well, and its tail is the one that counts.
#[tokio::test]
async fn a_tail_is_proven_twice_in_a_row() {
    let rig = Rig::start().await;
    let host = host("twice.example");
    rig.written(&host).await;
    let written = rows(&rig.path(&host, "app.db"));
    let mut last: Option<Tail> = None;
    for _ in 0..3 {
        let tail = rig.activator.prove_tail(&host).await.expect("prove");
        assert!(last.is_none_or(|last| last.txid <= tail.txid), "never back");
        let prefix = format!("instances/{host}");
        let restored = rig.activator.restore(&host, &prefix, &tail.txid).await.expect("restore");
        assert_eq!((&restored.sha256, restored.size), (&tail.sha256, tail.size));
        assert_eq!(rows(&restored.path), written);
        last = Some(tail);
    }
}

/// S3 is away, or refuses, at each of the three times at which the proof speaks to it: nothing is proven.
#[tokio::test]
async fn a_tail_that_cannot_be_uploaded_is_not_proven_and_the_database_stays() {
    let rig = Rig::with(|settings| settings.sync_limit = Duration::from_secs(2)).await;
    for (name, fault) in [("refused", Fault::Answer("AccessDenied")), ("away", Fault::Disconnect)] {
        let host = host(&format!("{name}.example"));
        rig.run(&host, &[("TENANT_WRITES", "1")]).await;
        rig.until_rows(&host, 10).await;
        let faults = rig.server.faults();
        let rule = faults.add(Rule::on("*", fault.clone()).key(host.as_str()));
        let seen = rows(&rig.path(&host, "app.db"));
        rig.until_rows(&host, seen + 5).await;
        rig.activator.stop_child(&host).await.expect("stop");
        for _ in 0..2 {
            let refused = rig.activator.prove_tail(&host).await;
            assert!(matches!(refused, Err(Error::Litestream { verb: "sync", .. })), "{name}: {refused:?}");
        }
        assert!(rig.path(&host, "app.db").exists());
        let refused = rig.activator.purge(&host).await;
        assert!(matches!(refused, Err(Error::Runs { role: Role::Litestream, .. })), "it still tries: {refused:?}");
        faults.remove(rule);
        // litestream's own pauses between tries are longer than the test's limit.
        let healed = tests::wait::until("a proof", Duration::from_secs(60), || async {
            rig.activator.prove_tail(&host).await.ok()
        });
        let tail = healed.await;
        let prefix = format!("instances/{host}");
        let restored = rig.activator.restore(&host, &prefix, &tail.txid).await.expect("restore");
        assert_eq!(rows(&restored.path), rows(&rig.path(&host, "app.db")), "every row");
    }
}

/// S3 goes away after litestream has said that everything is there: the upload without a daemon, and our own listing.
#[tokio::test]
async fn a_store_that_goes_away_during_the_proof_fails_it() {
    let rig = Rig::start().await;
    for (point, verb) in [("activator.before_once", true), ("activator.before_listing", false)] {
        let host = host(&format!("{}.example", if verb { "once" } else { "listing" }));
        rig.written(&host).await;
        let gate = failpoint::gate(point, host.as_str(), 0);
        let proving = tokio::spawn({
            let (activator, host) = (rig.activator.clone(), host.clone());
            async move { activator.prove_tail(&host).await }
        });
        gate.arrived(1).await;
        let rule = rig.server.faults().add(Rule::on("*", Fault::Answer("AccessDenied")).key(host.as_str()));
        drop(gate);
        match proving.await.expect("no panic") {
            Err(Error::Litestream { verb: "replicate -once", .. }) if verb => {}
            Err(Error::Listing { .. }) if !verb => {}
            other => panic!("{point}: {other:?}"),
        }
        rig.server.faults().remove(rule);
        rig.activator.prove_tail(&host).await.expect("healed");
    }
}

/// A replica that restores, and restores an older state: its newest object is gone after everything was uploaded.
#[tokio::test]
async fn an_old_but_valid_replica_is_refused_by_the_proof() {
    let rig = Rig::start().await;
    let host = host("old.example");
    rig.run(&host, &[("TENANT_WRITES", "1")]).await;
    tests::wait::until("raw files", Duration::from_secs(30), || async { (raw(&rig, &host).len() >= 6).then_some(()) })
        .await;
    rig.activator.stop_child(&host).await.expect("stop");
    let prefix = format!("instances/{host}");
    // The last raw file, and one in the middle that no other object covers.
    for from_the_end in [0, 2] {
        let gate = failpoint::gate("activator.before_listing", host.as_str(), 0);
        let proving = tokio::spawn({
            let (activator, host) = (rig.activator.clone(), host.clone());
            async move { activator.prove_tail(&host).await }
        });
        gate.arrived(1).await;
        let keys = raw(&rig, &host);
        let lost = &keys[keys.len() - 1 - from_the_end];
        let bytes = rig.server.objects().get(BUCKET, lost).expect("listed");
        assert!(rig.server.objects().delete(BUCKET, lost));
        drop(gate);
        let refused = proving.await.expect("no panic");
        let found = (matches!(refused, Err(Error::Tail { .. })), matches!(refused, Err(Error::Hole { .. })));
        assert_eq!(found, (from_the_end == 0, from_the_end != 0), "without {lost}: {refused:?}");
        if from_the_end == 0 {
            let before = keys[keys.len() - 2].rsplit_once('-').expect("txids").1.trim_end_matches(".ltx");
            let old = rig.activator.restore(&host, &prefix, before).await.expect("it is a valid replica");
            assert!(rows(&old.path) <= rows(&rig.path(&host, "app.db")));
        }
        rig.server.objects().put(BUCKET, lost, &bytes);
    }
    rig.activator.prove_tail(&host).await.expect("whole again");
}

/// Objects of the first level, in order.
fn raw(rig: &Rig, host: &domain::ids::Host) -> Vec<String> {
    rig.replica(host).into_iter().filter(|key| key.contains("/0000/")).collect()
}

/// Another layout beside the replica: which of both a restore would take nobody knows.
#[tokio::test]
async fn a_replica_of_two_layouts_is_refused_by_the_proof() {
    let rig = Rig::start().await;
    let host = host("layouts.example");
    rig.written(&host).await;
    let key = format!("instances/{host}/generations/0123456789abcdef/snapshots/00000000.snapshot.lz4");
    rig.server.objects().put(BUCKET, &key, b"old");
    let refused = rig.activator.prove_tail(&host).await;
    assert!(matches!(&refused, Err(Error::Tail { why, .. }) if why.contains("generations/")), "{refused:?}");
}

/// Somebody has the database open and reads: what the log holds is not in the file.
#[tokio::test]
async fn a_database_that_somebody_still_reads_is_not_proven() {
    let rig = Rig::start().await;
    let host = host("read.example");
    rig.written(&host).await;
    let gate = failpoint::gate("activator.before_checkpoint", host.as_str(), 0);
    let proving = tokio::spawn({
        let (activator, host) = (rig.activator.clone(), host.clone());
        async move { activator.prove_tail(&host).await }
    });
    gate.arrived(1).await;
    let conn = rusqlite::Connection::open(rig.path(&host, "app.db")).expect("open");
    conn.execute_batch("insert into entries (filler) values ('late'); begin; select count(*) from entries")
        .expect("read");
    drop(gate);
    let refused = proving.await.expect("no panic");
    assert!(matches!(refused, Err(Error::InUse { .. })), "{refused:?}");
    drop(conn);
    rig.activator.prove_tail(&host).await.expect("free again");
}

/// A tenant that opened its database and wrote nothing yet can leave as well.
#[tokio::test]
async fn a_database_without_a_single_row_is_proven_and_restored() {
    let rig = Rig::start().await;
    let host = host("young.example");
    std::fs::create_dir_all(rig.path(&host, "")).expect("make");
    std::fs::File::create(rig.path(&host, "app.db")).expect("make");
    let tail = rig.activator.prove_tail(&host).await.expect("prove");
    let restored = rig.activator.restore(&host, &format!("instances/{host}"), &tail.txid).await.expect("restore");
    assert_eq!((&restored.sha256, restored.size), (&tail.sha256, tail.size));
}

#[tokio::test]
async fn where_no_database_is_none_is_made() {
    let rig = Rig::start().await;
    let host = host("empty.example");
    for _ in 0..2 {
        assert!(matches!(rig.activator.prove_tail(&host).await, Err(Error::Absent { .. })));
        assert!(rig.activator.purge(&host).await.expect("purge").removed.is_empty());
        assert!(!rig.activator.has_database(&host).expect("look"));
        assert!(!rig.path(&host, "app.db").exists() && !rig.path(&host, "litestream.json").exists());
    }
    assert!(rig.activator.hosts().expect("list").is_empty());
}

/// A worker dies while the whole database is uploaded, and the instance serves again: what uploads it each second is ended.
#[tokio::test]
async fn a_renewal_that_was_cut_short_leaves_no_daemon_of_its_own_to_an_instance_that_serves_again() {
    for point in ["activator.before_snapshot", "activator.after_snapshot"] {
        let rig = Rig::start().await;
        let host = host("short.example");
        rig.written(&host).await;
        rig.activator.prove_tail(&host).await.expect("all of it is uploaded");
        for key in rig.replica(&host) {
            rig.server.objects().corrupt(BUCKET, &key, |bytes| {
                let middle = bytes.len() / 2;
                bytes[middle..].fill(0);
            });
        }
        let record = rig.path(&host, "litestream.json");
        let gate = failpoint::gate(point, host.as_str(), 0);
        tokio::select! {
            () = gate.arrived(1) => {}
            done = rig.activator.rehearse(&host) => panic!("{point} is never passed: {done:?}"),
        }
        drop(gate);
        let renewing = identity_in(&record).expect("a record");
        assert!(renewing.lives().expect("look"), "{point}: it outlives its worker");
        rig.run(&host, &[("TENANT_WRITES", "1")]).await;
        let serving = identity_in(&record).expect("a record");
        assert!(!renewing.lives().expect("look") && serving.lives().expect("look"), "{point}");
        let config = std::fs::read_to_string(rig.path(&host, "litestream.yml")).expect("its configuration");
        assert!(!config.contains("snapshot"), "{point}: {config}");
    }
}

/// Nothing would be proven ever again: what litestream has of its own on the box is damaged.
#[tokio::test]
async fn a_tail_is_proven_although_litestreams_own_newest_file_is_damaged() {
    let rig = Rig::start().await;
    let host = host("damaged.example");
    rig.written(&host).await;
    rig.activator.stop(&host).await.expect("stop");
    rig.damage_newest_own(&host);
    rig.proves_every_row(&host).await;
}

/// litestream lost its own files while it ran. It complains of them, or counts from the first transaction again and takes the
/// numbers that the replica had before for uploaded.
#[tokio::test]
async fn a_tail_is_proven_although_litestream_lost_its_count() {
    let rig = Rig::start().await;
    let host = host("recounts.example");
    rig.run(&host, &[("TENANT_WRITES", "1")]).await;
    tests::wait::until("some uploads", Duration::from_secs(30), || async {
        (rig.replica(&host).len() > 4).then_some(())
    })
    .await;
    std::fs::remove_dir_all(rig.path(&host, ".app.db-litestream")).expect("it is there");
    rig.activator.stop_child(&host).await.expect("stop");
    rig.activator.rehearse(&host).await.expect("a proof");
    rig.proves_every_row(&host).await;
}
