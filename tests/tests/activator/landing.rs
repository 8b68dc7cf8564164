//! Databases that are restored, taken, removed, put aside; and whose keys they are replicated with.

use std::path::Path;
use std::time::Duration;

use domain::ids::Host;
use sandbox::s3::Identity;
use tests::activator::BUCKET;
use workers::activator::{Error, ReplicaCredentials, Restored, Role};
use workers::failpoint;

use crate::rig::{Rig, host, rows};

/// A host's replica and its proven tail, and no database any more.
async fn replica_only(rig: &Rig, host: &Host) -> String {
    rig.written(host).await;
    let tail = rig.activator.prove_tail(host).await.expect("prove");
    rig.activator.purge(host).await.expect("purge");
    tail.txid
}

#[tokio::test]
async fn a_restore_is_pinned_to_its_transaction() {
    let rig = Rig::start().await;
    let host = host("pinned.example");
    rig.written(&host).await;
    let first = rig.activator.prove_tail(&host).await.expect("prove");
    let written = rows(&rig.path(&host, "app.db"));
    rig.run(&host, &[("TENANT_WRITES", "1")]).await;
    rig.until_rows(&host, written + 20).await;
    rig.activator.stop_child(&host).await.expect("stop");
    let second = rig.activator.prove_tail(&host).await.expect("prove");
    assert!(first.txid < second.txid);
    let prefix = format!("instances/{host}");
    for tail in [&first, &second] {
        let restored = rig.activator.restore(&host, &prefix, &tail.txid).await.expect("restore");
        assert_eq!((&restored.sha256, restored.size), (&tail.sha256, tail.size));
    }
    let refused = rig.activator.restore(&host, &prefix, "00000000000000ff").await;
    assert!(matches!(refused, Err(Error::Litestream { verb: "restore", .. })), "no such transaction: {refused:?}");
    assert!(!rig.path(&host, "restored.db").exists());
}

/// The staging of a move, in the box's own bucket.
#[tokio::test]
async fn a_staging_is_restored_by_its_prefix() {
    let rig = Rig::start().await;
    let host = host("staged.example");
    let txid = replica_only(&rig, &host).await;
    for key in rig.replica(&host) {
        let bytes = rig.server.objects().get(BUCKET, &key).expect("listed");
        rig.server.objects().put(BUCKET, &key.replacen("instances/", "moves/", 1), &bytes);
        rig.server.objects().delete(BUCKET, &key);
    }
    let restored = rig.activator.restore(&host, &format!("moves/{host}"), &txid).await.expect("restore");
    assert!(rows(&restored.path) >= 30);
    let refused = rig.activator.restore(&host, &format!("instances/{host}"), &txid).await;
    assert!(matches!(refused, Err(Error::Litestream { .. })), "an empty prefix: {refused:?}");
}

#[tokio::test]
async fn a_damaged_object_restores_nothing_and_leaves_no_file() {
    let rig = Rig::start().await;
    let host = host("damaged.example");
    let txid = replica_only(&rig, &host).await;
    for key in rig.replica(&host) {
        rig.server.objects().corrupt(BUCKET, &key, |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0xff;
        });
    }
    let before = names(&rig.path(&host, ""));
    for _ in 0..2 {
        let refused = rig.activator.restore(&host, &format!("instances/{host}"), &txid).await;
        assert!(matches!(refused, Err(Error::Litestream { verb: "restore", .. })), "{refused:?}");
        let mut now = names(&rig.path(&host, ""));
        now.retain(|name| name != "restore.yml");
        assert_eq!(now, before, "no file");
    }
    assert!(!rig.activator.has_database(&host).expect("look"));
}

/// A log that lies where the restored database goes would be applied to it.
#[tokio::test]
async fn a_restored_file_is_taken_without_the_log_of_another_and_runs() {
    let rig = Rig::start().await;
    let host = host("taken.example");
    let txid = replica_only(&rig, &host).await;
    let prefix = format!("instances/{host}");
    let restored = rig.activator.restore(&host, &prefix, &txid).await.expect("restore");
    let written = rows(&restored.path);
    for stale in ["app.db", "app.db-wal", "app.db-shm"] {
        std::fs::write(rig.path(&host, stale), b"stale").expect("write");
    }
    std::fs::create_dir_all(rig.path(&host, ".app.db-litestream/ltx")).expect("make");
    // Between both steps nobody sees the old one, nor the new one with the old one's log.
    let gate = failpoint::gate("activator.before_rename", host.as_str(), 0);
    let adopting = tokio::spawn({
        let (activator, host, restored) = (rig.activator.clone(), host.clone(), restored.clone());
        async move { activator.adopt(&host, restored).await }
    });
    gate.arrived(1).await;
    assert!(!rig.activator.has_database(&host).expect("look"));
    assert!(!rig.path(&host, "app.db-wal").exists() && !rig.path(&host, ".app.db-litestream").exists());
    adopting.abort();
    let _ = adopting.await;
    drop(gate);
    for _ in 0..2 {
        rig.activator.adopt(&host, restored.clone()).await.expect("adopt");
        assert_eq!(rows(&rig.path(&host, "app.db")), written);
    }
    rig.run(&host, &[("TENANT_WRITES", "1")]).await;
    rig.until_rows(&host, written + 5).await;
    let again = Restored { path: rig.path(&host, "app.db"), ..restored.clone() };
    let refused = rig.activator.adopt(&host, again).await;
    assert!(matches!(refused, Err(Error::Runs { role: Role::Child, .. })), "{refused:?}");
    rig.activator.stop(&host).await.expect("stop");
    let gone = rig.activator.adopt(&host, restored).await;
    assert!(matches!(gone, Err(Error::NotRestored { .. })), "the database went on: {gone:?}");
    assert!(rows(&rig.path(&host, "app.db")) > written);
    rig.activator.prove_tail(&host).await.expect("its replica goes on, too");
}

#[tokio::test]
async fn a_purge_removes_one_database_and_nothing_of_hosts_whose_names_begin_alike() {
    let rig = Rig::start().await;
    let hosts = ["a", "ab", "a.b", "b.a"].map(host);
    for host in &hosts {
        rig.written(host).await;
        rig.activator.prove_tail(host).await.expect("prove");
    }
    let content = |host: &Host| (names(&rig.path(host, "")), rig.replica(host));
    let before: Vec<_> = hosts.iter().map(content).collect();
    let purged = rig.activator.purge(&hosts[0]).await.expect("purge");
    assert_eq!(purged.removed, ["app.db", ".app.db-litestream"]);
    assert!(rig.activator.purge(&hosts[0]).await.expect("again").removed.is_empty());
    for (host, before) in hosts.iter().zip(&before).skip(1) {
        assert_eq!(content(host), *before, "{host}");
    }
    let mut left = before[0].0.clone();
    left.retain(|name| !purged.removed.contains(name));
    assert_eq!(content(&hosts[0]), (left, before[0].1.clone()), "its logs and its replica stay");
    assert!(rig.activator.hosts().expect("list").contains(&hosts[0]));
}

/// A worker dies between any two removals: the next purge ends it, and nothing looks like a database meanwhile.
#[tokio::test]
async fn a_purge_that_is_cut_anywhere_is_ended_by_the_next() {
    let rig = Rig::start().await;
    let host = host("cut.example");
    for cut in 0..6 {
        rig.activator.stop(&host).await.expect("stop");
        rig.activator.purge(&host).await.expect("clean");
        for name in ["app.db", "app.db-wal", "app.db-shm", "app.db-journal"] {
            std::fs::create_dir_all(rig.path(&host, "")).expect("make");
            std::fs::write(rig.path(&host, name), name).expect("write");
        }
        std::fs::create_dir_all(rig.path(&host, ".app.db-litestream/ltx/0")).expect("make");
        let gate = failpoint::gate("activator.before_remove", host.as_str(), cut);
        let purging = tokio::spawn({
            let (activator, host) = (rig.activator.clone(), host.clone());
            async move { activator.purge(&host).await }
        });
        gate.arrived(cut + 1).await;
        purging.abort();
        let _ = purging.await;
        drop(gate);
        assert_eq!(rig.activator.has_database(&host).expect("look"), cut == 0);
        rig.activator.purge(&host).await.expect("purge");
        assert!(names(&rig.path(&host, "")).is_empty(), "cut {cut}");
    }
}

#[tokio::test]
async fn a_quarantined_file_is_kept_for_people_and_out_of_the_way() {
    let rig = Rig::start().await;
    let host = host("aside.example");
    let txid = replica_only(&rig, &host).await;
    let prefix = format!("instances/{host}");
    let mut places = Vec::new();
    for other in [false, false, true] {
        let mut restored = rig.activator.restore(&host, &prefix, &txid).await.expect("restore");
        if other {
            restored.sha256 = "ab".repeat(32);
        }
        places.push(rig.activator.quarantine(&host, restored).await.expect("quarantine"));
    }
    assert_eq!(places[0], places[1], "what a landing comes to at every try is kept once");
    assert_ne!(places[1], places[2]);
    rig.activator.purge(&host).await.expect("purge");
    assert!(places.iter().all(|place| rows(place) >= 30), "each is kept");
    assert!(!rig.activator.has_database(&host).expect("look"));
}

/// litestream asks a command for its key, which is good for one prefix and revoked when the host leaves.
#[tokio::test]
async fn litestream_replicates_with_a_key_of_one_prefix_that_a_command_gives() {
    let folder = tempfile::tempdir().expect("a folder");
    let asked = folder.path().join("asked it's");
    let script =
        "echo \"$2\" >> \"$1\"; printf '{\"Version\":1,\"AccessKeyId\":\"LIMITED\",\"SecretAccessKey\":\"secret\"}'";
    let command = ["sh", "-c", script, "sh", asked.to_str().expect("UTF-8")].map(str::to_owned).to_vec();
    let rig = Rig::with(|settings| {
        settings.sync_limit = Duration::from_secs(2);
        settings.credentials = ReplicaCredentials::Command { command, chain: Default::default() };
    })
    .await;
    let (own, other) = (host("limited.example"), host("limited.example.other"));
    let rights = ["Read", "Write", "List"].map(|right| format!("{right}:{BUCKET}/instances/{own}/*"));
    let identity = Identity::limited("limited", "LIMITED", "secret", rights.iter().map(String::as_str));
    rig.server.add_identity(identity);
    let txid = replica_only(&rig, &own).await;
    let asked = std::fs::read_to_string(&asked).expect("asked");
    assert!(asked.lines().count() > 0 && asked.lines().all(|line| line == own.as_str()), "{asked}");
    let record = rig.server.faults().record();
    let puts: Vec<_> = record.iter().filter(|call| call.op == "PutObject").collect();
    assert!(!puts.is_empty() && puts.iter().all(|call| call.access_key == "LIMITED"), "{puts:?}");
    // What the box restores it restores as itself.
    rig.server.revoke("LIMITED");
    rig.activator.restore(&own, &format!("instances/{own}"), &txid).await.expect("restore");

    rig.written(&other).await;
    assert!(rig.replica(&other).is_empty(), "the key is good for no other prefix");
    let refused = rig.activator.prove_tail(&other).await;
    assert!(matches!(refused, Err(Error::Litestream { verb: "sync", .. })), "{refused:?}");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
