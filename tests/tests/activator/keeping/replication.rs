//! Whether what is served is replicated, and what the record's page is told of it.

use std::time::Duration;

use domain::instances::moves::Obstacle;
use domain::instances::{self, NOT_REPLICATED, config_key};
use sandbox::s3::{Fault, Rule};

use super::{Kept, SOON};
use crate::rig::rows;

/// litestream's own pauses between two tries grow while the store is away.
const PATIENCE: Duration = Duration::from_secs(60);

/// The store takes nothing of one instance: its child goes on, and whoever looks is told, until everything is there.
#[tokio::test]
async fn an_instance_whose_writes_are_not_uploaded_is_told_until_they_are() {
    let mut kept = Kept::start_with(|settings| settings.unreplicated_after = Duration::from_secs(2)).await;
    let (alone, other) =
        (kept.place("alone.example", &[("TENANT_WRITES", "1")]).await, kept.place("other.example", &[]).await);
    kept.until_served(&alone).await;
    kept.until_served(&other).await;
    kept.rig.until_rows(&alone, 10).await;
    let faults = kept.rig.server.faults();
    let rule = faults.add(Rule::on("*", Fault::Disconnect).key(alone.as_str()));
    tests::wait::until("it says so", SOON, || async {
        let held = kept.held(&alone).await?;
        let told = held["message"].as_str().is_some_and(|told| told.ends_with("was uploaded for 2 s"));
        (told && held["code"] == NOT_REPLICATED && held["permanent"] == false).then_some(())
    })
    .await;
    assert!(kept.address(&alone).await.is_some(), "it serves on");
    kept.restart().await;
    kept.until_served(&alone).await;
    assert!(kept.held(&alone).await.is_some(), "that it answers takes nothing back");
    assert_eq!(kept.held(&other).await, None);
    // Whoever clears the route meanwhile hides it for no longer than a look.
    kept.change("update routes set held = null, held_since = null where host = $1", &alone).await;
    tests::wait::until("it says so again", SOON, || kept.held(&alone)).await;
    faults.remove(rule);
    tests::wait::until("it is taken back", PATIENCE, || async { kept.held(&alone).await.is_none().then_some(()) })
        .await;
    assert!(!kept.rig.replica(&alone).is_empty());
}

/// What nobody writes is replicated, whether it was written before, was restored, or never had a row.
#[tokio::test]
async fn an_instance_that_nobody_writes_is_not_said_to_be_behind() {
    let kept = Kept::start_with(|settings| settings.unreplicated_after = Duration::from_secs(2)).await;
    let restored = crate::rig::host("restored.example");
    kept.rig.written(&restored).await;
    let tail = kept.rig.activator.prove_tail(&restored).await.expect("a proof");
    kept.rig.activator.purge(&restored).await.expect("purged");
    let prefix = format!("instances/{restored}");
    let file = kept.rig.activator.restore(&restored, &prefix, &tail.txid).await.expect("restored");
    kept.rig.activator.adopt(&restored, file).await.expect("adopted");
    let written = crate::rig::host("written.example");
    kept.rig.written(&written).await;
    for name in ["restored.example", "written.example", "empty.example"] {
        let host = kept.place(name, &[]).await;
        kept.until_served(&host).await;
    }
    // One that is told later has stood still for as long as the others at least.
    let late = kept.place("late.example", &[("TENANT_WRITES", "1")]).await;
    kept.until_served(&late).await;
    kept.rig.until_rows(&late, 10).await;
    let _away = kept.rig.server.faults().add(Rule::on("*", Fault::Disconnect).key(late.as_str()));
    tests::wait::until("it says so", SOON, || kept.held(&late)).await;
    for name in ["restored.example", "written.example", "empty.example"] {
        assert_eq!(kept.held(&crate::rig::host(name)).await, None, "{name}");
    }
}

/// What holds a start up stands before that nothing is replicated, and neither is taken back by the other's end.
#[tokio::test]
async fn a_start_that_waits_and_a_replica_that_stands_still_are_told_apart() {
    let mut kept = Kept::start().await;
    let host = kept.place("both.example", &[]).await;
    kept.until_served(&host).await;
    kept.end().await;
    let waits = Obstacle::lasting(config_key::CODE, "its child does not start");
    let stands = Obstacle::passing(NOT_REPLICATED, "nothing was uploaded");
    let code = async || kept.held(&host).await.map(|held| held["code"].as_str().expect("a code").to_owned());
    let mut conn = kept.db.session().await;
    let node = kept.node;
    assert!(instances::note_replication(&mut conn, node, &host, Some(&stands)).await.expect("noted"));
    instances::note_start(&mut conn, node, &host, None).await.expect("noted");
    assert_eq!(
        code().await.as_deref(),
        Some(NOT_REPLICATED),
        "that nothing holds a start up says nothing of the replica"
    );
    instances::publish_address(&mut conn, node, &host, Some("127.0.0.1:1")).await.expect("told");
    assert_eq!(code().await.as_deref(), Some(NOT_REPLICATED), "and neither does an answer");
    assert!(instances::note_start(&mut conn, node, &host, Some(&waits)).await.expect("noted"));
    assert_eq!(code().await.as_deref(), Some(config_key::CODE));
    for told in [Some(&stands), None] {
        assert!(
            !instances::note_replication(&mut conn, node, &host, told).await.expect("left"),
            "the start comes first"
        );
    }
    instances::publish_address(&mut conn, node, &host, Some("127.0.0.1:2")).await.expect("told");
    assert_eq!(code().await, None, "what answers has started");
}

/// A file of litestream's own was damaged while the box was down: without a mend nothing is uploaded any more, and a cut
/// waits for ever.
#[tokio::test]
async fn a_litestream_that_begins_with_a_damaged_file_of_its_own_uploads_the_database_anew() {
    let mut kept = Kept::start_with(|settings| settings.unreplicated_after = Duration::from_secs(2)).await;
    let host = kept.place("mended.example", &[("TENANT_WRITES", "1")]).await;
    kept.until_served(&host).await;
    kept.rig.until_rows(&host, 30).await;
    kept.end().await;
    kept.rig.activator.stop(&host).await.expect("stop");
    kept.rig.damage_newest_own(&host);
    kept.restart().await;
    let child = kept.until_served(&host).await;
    let before = kept.rig.replica(&host);
    tests::wait::until("an upload", PATIENCE, || async { (kept.rig.replica(&host) != before).then_some(()) }).await;
    tests::wait::until("it is taken back", SOON, || async { kept.held(&host).await.is_none().then_some(()) }).await;
    assert_eq!(kept.identity(&host), child, "the child goes on meanwhile");
    kept.end().await;
    kept.rig.activator.stop_child(&host).await.expect("stop");
    kept.rig.proves_every_row(&host).await;
}

/// litestream goes on saying that everything is uploaded, of which it knows: what is written since it does not take in.
#[tokio::test]
async fn a_litestream_that_takes_in_nothing_any_more_is_found_beside_its_own_word_and_mended() {
    let mut kept = Kept::start_with(|settings| settings.unreplicated_after = Duration::from_secs(2)).await;
    let host = kept.place("deaf.example", &[("TENANT_WRITES", "1")]).await;
    kept.until_served(&host).await;
    kept.rig.until_rows(&host, 10).await;
    tests::wait::until("some uploads", SOON, || async { (kept.rig.replica(&host).len() > 4).then_some(()) }).await;
    // What an earlier worker told is taken back by a look that finds it replicated: it has seen the files.
    let told = "update routes set held = '{\"code\": \"not_replicated\", \"message\": \"\", \"permanent\": false}', \
                held_since = lh_now() where host = $1";
    kept.change(told, &host).await;
    kept.restart().await;
    tests::wait::until("a look", SOON, || async { kept.held(&host).await.is_none().then_some(()) }).await;
    let files = kept.rig.own_files(&host);
    std::fs::remove_file(&files[files.len() - 1]).expect("it is there");
    tests::wait::until("it begins anew", PATIENCE, || async {
        kept.rig.own_files(&host).first().is_some_and(|first| *first > files[0]).then_some(())
    })
    .await;
    let written = rows(&kept.rig.path(&host, "app.db"));
    kept.rig.until_rows(&host, written + 10).await;
    tests::wait::until("nothing holds it up", SOON, || async { kept.held(&host).await.is_none().then_some(()) }).await;
    kept.end().await;
    kept.rig.activator.stop_child(&host).await.expect("stop");
    kept.rig.proves_every_row(&host).await;
}
