//! The passes of a move's job: where they stage, what they find, when they promote, how long they wait.

use std::time::Duration;

use domain::ids::MoveId;
use domain::instances::moves::MoveState;
use domain::nodes::{self, Bucket};
use domain::queue;
use sandbox::s3::{Fault, Rule};

use crate::support::{Fleet, HOST, INTERVAL, armed, bucket, ltx, put_region, region};

async fn state(fleet: &Fleet, id: MoveId) -> MoveState {
    fleet.read_move(id).await.state.known().expect("a state of ours")
}

#[tokio::test]
async fn a_round_stages_the_replica_and_no_byte_passes_through_the_box() {
    // M-039, M-040, M-058, M-035.
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    let serial = fleet.serial("eu").await;
    let before = fleet.db.clock().now().await;
    let ran = fleet.run(&fleet.eu).await;
    assert_eq!(ran.snoozed(), INTERVAL);
    assert!(fleet.is_mirrored(HOST));
    let faults = fleet.s3.faults();
    assert_eq!((faults.bytes_in(), faults.bytes_out()), (0, 0));
    let found = fleet.read_move(id).await;
    assert_eq!(found.state.known(), Some(MoveState::Ready));
    assert!(found.ready_at.expect("stamped") >= before, "by the database's clock");
    assert_eq!(found.target, Some(bucket("uk")), "pinned at the first round");
    assert_eq!(fleet.serial("eu").await, serial + 1, "the box's own write of the move");
    let journal = fleet.journal(id).await;
    let steps: Vec<(&str, Option<&str>)> =
        journal.iter().map(|step| (step.step.as_str(), step.outcome.as_deref())).collect();
    assert_eq!(steps, [("pin_target", Some("pinned")), ("round", Some("in_sync")), ("ready", Some("ready"))]);
    assert!(journal.iter().all(|step| step.fence == ran.lease.fence && step.job == ran.lease.job));
    let round = &journal[1];
    assert_eq!((round.round, round.iterations), (Some(1), Some(1)));
    assert_eq!(round.evidence["numbers"]["copied"], 5);
    assert_eq!(round.evidence["numbers"]["newest_txid"], 14);
    let job = queue::get(&mut *fleet.conn().await, ran.lease.job).await.expect("an answer").expect("the job");
    let progress = job.progress.expect("progress is shown");
    assert_eq!((&progress["done"], &progress["unit"]), (&5.into(), &"objects".into()));
    let logs = queue::logs(&mut *fleet.conn().await, ran.lease.job).await.expect("an answer");
    assert_eq!(logs.len(), 1, "one line a round");
    assert!(logs[0].line.starts_with("round 1: 5 keys, copied 5 "), "{}", logs[0].line);
}

#[tokio::test]
async fn rounds_are_an_interval_apart_on_the_databases_clock_and_need_no_nudge() {
    // M-043: a fake clock, and nobody raises a serial.
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    fleet.run(&fleet.eu).await;
    let serial = fleet.serial("eu").await;
    for round in 2..=4 {
        fleet.pass_time(INTERVAL - Duration::from_secs(2)).await;
        assert!(fleet.lease(&fleet.eu).await.is_none(), "round {round} is not due yet");
        fleet.pass_time(Duration::from_secs(2)).await;
        fleet.run(&fleet.eu).await;
        assert_eq!(fleet.read_move(id).await.round, round);
    }
    assert_eq!(fleet.serial("eu").await, serial, "rounds that promote nothing raise no serial");
}

#[tokio::test]
async fn rounds_go_on_after_ready_and_stage_what_was_written_later() {
    // M-059.
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    fleet.run(&fleet.eu).await;
    let ready_at = fleet.read_move(id).await.ready_at;
    fleet.put(HOST, &ltx(0, 15, 15), b"written after ready");
    assert!(!fleet.is_mirrored(HOST));
    fleet.next_round(&fleet.eu).await;
    assert!(fleet.is_mirrored(HOST));
    assert_eq!(fleet.read_move(id).await.ready_at, ready_at, "stamped once");
    fleet.s3.faults().reset_record();
    fleet.next_round(&fleet.eu).await;
    assert_eq!(fleet.s3.faults().counts().keys().collect::<Vec<_>>(), [&"ListObjectsV2"], "no change, no copy (M-045)");
}

/// A source that changes between any two listings of it.
fn keep_writing(fleet: &Fleet) {
    let objects = fleet.s3.objects();
    let next = std::sync::atomic::AtomicU64::new(1000);
    fleet.s3.faults().on("ListObjectsV2", move |call| {
        if call.bucket == "eu-data" {
            let txid = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            objects.put("eu-data", &format!("instances/{HOST}/{}", ltx(0, txid, txid)), b"busy");
        }
    });
}

#[tokio::test]
async fn only_a_round_that_finds_no_difference_promotes() {
    // M-057: an instance that writes between any two listings is busy, with the numbers, and preparing.
    let fleet = Fleet::with_instance().await;
    keep_writing(&fleet);
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    for round in 1..=2 {
        assert_eq!(fleet.run(&fleet.eu).await.snoozed(), INTERVAL, "busy is no failure");
        let found = fleet.read_move(id).await;
        assert_eq!((found.state.known(), found.ready_at), (Some(MoveState::Preparing), None), "round {round}");
        let numbers = found.status.last.expect("numbers");
        assert_eq!((numbers.differ_copies, found.status.last_round), (1, Some(round)));
        assert_eq!(fleet.obstacle(id).await, Some(("busy".to_owned(), false)));
        fleet.pass_time(INTERVAL).await;
    }
    fleet.s3.faults().clear();
    fleet.run(&fleet.eu).await;
    let found = fleet.read_move(id).await;
    assert_eq!(found.state.known(), Some(MoveState::Ready));
    assert_eq!((found.status.obstacle, found.status.obstacle_since), (None, None));
    let ready: Vec<_> = fleet.journal(id).await.into_iter().filter(|step| step.step == "ready").collect();
    assert_eq!((ready.len(), &ready[0].evidence["round"]), (1, &3.into()));
}

#[tokio::test]
async fn differences_after_ready_are_shown_and_do_not_take_it_back() {
    // M-060: a level, not an edge.
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    fleet.run(&fleet.eu).await;
    let ready_at = fleet.read_move(id).await.ready_at.expect("ready");
    keep_writing(&fleet);
    fleet.next_round(&fleet.eu).await;
    let found = fleet.read_move(id).await;
    assert_eq!((found.state.known(), found.ready_at), (Some(MoveState::Ready), Some(ready_at)));
    assert_eq!(found.status.last.expect("numbers").found().copies, 1);
    assert_eq!(found.status.obstacle.map(|o| o.code).as_deref(), Some("busy"));
}

#[tokio::test]
async fn a_target_that_published_no_coordinates_keeps_the_move_preparing_and_says_so() {
    // M-051: asked again every round; the first box that publishes lets it go on.
    let fleet = Fleet::with_instance().await;
    put_region(&fleet.db, &armed("us")).await;
    let silent = nodes::NodeSpec {
        identity: "us-1".to_owned(),
        region: region("us"),
        capabilities: nodes::Capabilities { exec: true, ..nodes::Capabilities::default() },
        data: None,
    };
    let node = crate::support::put_node(&fleet.db, &silent).await;
    let id = fleet.start_move_to(HOST, "us").await.expect("the move begins").id;
    for _ in 0..2 {
        fleet.s3.faults().reset_record();
        assert_eq!(fleet.run(&fleet.eu).await.snoozed(), INTERVAL);
        assert_eq!(fleet.s3.faults().record(), [], "no request before it is known where to");
        assert_eq!(state(&fleet, id).await, MoveState::Preparing);
        assert_eq!(fleet.obstacle(id).await, Some(("target_coordinates_missing".to_owned(), false)));
        assert_eq!(fleet.read_move(id).await.round, 0);
        fleet.pass_time(INTERVAL).await;
    }
    let since = fleet.read_move(id).await.status.obstacle_since.expect("since when");
    assert!(fleet.db.clock().now().await - since >= chrono::TimeDelta::seconds(60), "since the first time");
    fleet.s3.objects().create_bucket("us-data");
    let published = nodes::NodeSpec { data: Some(bucket("us")), ..silent };
    assert_eq!(crate::support::put_node(&fleet.db, &published).await.id, node.id);
    fleet.run(&fleet.eu).await;
    assert_eq!(state(&fleet, id).await, MoveState::Ready);
    assert_eq!(fleet.content("us-data", &format!("moves/{HOST}/")).len(), 5);
}

#[tokio::test]
async fn a_target_that_changes_its_bucket_mid_move_stops_the_rounds() {
    // Never half here and half there.
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    fleet.run(&fleet.eu).await;
    fleet.sql("update regions set data_bucket = 'other' where code = 'uk'; update nodes set data_bucket = 'other' where region = 'uk'").await;
    fleet.s3.faults().reset_record();
    assert_eq!(fleet.next_round(&fleet.eu).await.snoozed(), 4 * INTERVAL);
    assert_eq!(fleet.s3.faults().record(), []);
    let found = fleet.read_move(id).await;
    assert_eq!(found.target, Some(bucket("uk")), "pinned for the move");
    let obstacle = found.status.obstacle.expect("it says why");
    assert_eq!((obstacle.code.as_str(), obstacle.permanent), ("target_changed", true));
    assert!(obstacle.message.contains("other") && obstacle.message.contains("abort"), "{}", obstacle.message);
    fleet.sql("update regions set data_bucket = 'uk-data' where code = 'uk'; update nodes set data_bucket = null, data_bucket_region = null where region = 'uk'").await;
    fleet.pass_time(4 * INTERVAL).await;
    fleet.run(&fleet.eu).await;
    assert_eq!(fleet.obstacle(id).await, None, "a target that is only silent keeps what was pinned");
    let unknown = Bucket { name: "x".to_owned(), region: "y".to_owned() };
    let lease = fleet.lease_next_round().await;
    let kept = domain::instances::moves::pin_target(&mut *fleet.conn().await, lease, id, &unknown).await;
    assert_eq!(kept.expect("an answer"), bucket("uk"), "pinned once");
}

#[tokio::test]
async fn a_target_that_is_disarmed_mid_move_holds_it_with_the_reason() {
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    fleet.sql("update regions set armed = false where code = 'uk'").await;
    fleet.run(&fleet.eu).await;
    assert_eq!(fleet.obstacle(id).await, Some(("target_unarmed".to_owned(), true)));
    assert_eq!(state(&fleet, id).await, MoveState::Preparing);
}

#[tokio::test]
async fn an_empty_source_is_never_ready_and_says_why() {
    // M-055: not even with an empty staging, where nothing differs.
    let fleet = Fleet::start().await;
    fleet.place(HOST).await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    for _ in 0..2 {
        fleet.run(&fleet.eu).await;
        assert_eq!(state(&fleet, id).await, MoveState::Preparing);
        assert_eq!(fleet.obstacle(id).await, Some(("source_empty".to_owned(), false)));
        fleet.pass_time(INTERVAL).await;
    }
    fleet.put(HOST, &ltx(9, 1, 10), b"snapshot");
    fleet.run(&fleet.eu).await;
    assert_eq!(state(&fleet, id).await, MoveState::Ready);
}

#[tokio::test]
async fn an_unreadable_source_is_never_ready_and_says_why() {
    // M-055, M-056.
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    fleet.s3.faults().add(Rule::on("ListObjectsV2", Fault::Answer("AccessDenied")).bucket("eu-data"));
    assert_eq!(fleet.run(&fleet.eu).await.snoozed(), 4 * INTERVAL, "slower, since somebody must act");
    assert_eq!(state(&fleet, id).await, MoveState::Preparing);
    assert_eq!(fleet.obstacle(id).await, Some(("source_unreadable".to_owned(), true)));
    fleet.s3.faults().clear();
    fleet.pass_time(4 * INTERVAL).await;
    fleet.run(&fleet.eu).await;
    assert_eq!(state(&fleet, id).await, MoveState::Ready, "never for the last time");
}

#[tokio::test]
async fn transient_and_permanent_obstacles_are_told_apart_and_wait_differently() {
    // M-056: failures wait longer each time, up to a cap; what somebody must repair is looked at slowly; neither is a
    // hot loop, and neither spends the job's attempts.
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    let slow = fleet.s3.faults().add(Rule::on("CopyObject", Fault::SlowDown));
    let mut waits = Vec::new();
    for _ in 0..6 {
        let waited = fleet.run(&fleet.eu).await.snoozed();
        assert_eq!(fleet.obstacle(id).await, Some(("target_throttled".to_owned(), false)));
        waits.push(waited.as_secs());
        fleet.pass_time(waited).await;
    }
    assert_eq!(waits, [30, 60, 120, 240, 300, 300]);
    assert_eq!(fleet.read_move(id).await.status.failures, 6);
    fleet.s3.faults().remove(slow);
    let denied = fleet.s3.faults().add(Rule::on("CopyObject", Fault::Answer("AccessDenied")));
    let ran = fleet.run(&fleet.eu).await;
    assert_eq!(ran.snoozed(), 4 * INTERVAL);
    assert_eq!(fleet.obstacle(id).await, Some(("copy_forbidden".to_owned(), true)));
    let job = queue::get(&mut *fleet.conn().await, ran.lease.job).await.expect("an answer").expect("the job");
    assert_eq!(job.attempt, 0, "a snooze spends no attempt");
    fleet.s3.faults().remove(denied);
    fleet.pass_time(4 * INTERVAL).await;
    fleet.run(&fleet.eu).await;
    let found = fleet.read_move(id).await;
    assert_eq!((found.state.known(), found.status.failures), (Some(MoveState::Ready), 0));
    let outcomes: Vec<String> = fleet.journal(id).await.into_iter().filter_map(|step| step.outcome).collect();
    assert_eq!(
        outcomes,
        ["pinned", "failed", "failed", "failed", "failed", "failed", "failed", "failed", "in_sync", "ready"]
    );
}

#[tokio::test]
async fn a_draining_worker_hands_the_move_back_and_the_next_pass_goes_on() {
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    let leased = fleet.lease(&fleet.eu).await.expect("a job is due");
    let (lease, context) = (leased.lease, fleet.context(leased.clone()));
    let draining = context.draining.clone();
    // The snapshot and the first raw file arrive; the second raw file is held until the worker drains.
    let mut hold = fleet.s3.faults().hold("CopyObject", &ltx(0, 12, 12));
    let ((), done) = tokio::join!(
        async {
            assert!(hold.reached().await);
            draining.cancel();
            hold.release();
        },
        fleet.handle_in(&fleet.eu, leased, context)
    );
    fleet.settle(lease, &done).await;
    assert!(matches!(done, Ok(workers::jobs::Done::Snooze { after }) if after.is_zero()), "{done:?}");
    let found = fleet.read_move(id).await;
    assert_eq!((found.state.known(), found.status.failures), (Some(MoveState::Preparing), 0));
    assert_eq!(fleet.journal(id).await.last().and_then(|step| step.outcome.clone()).as_deref(), Some("cancelled"));
    let kept: i64 =
        sqlx::query_scalar("select count(*) from move_keys").fetch_one(fleet.db.pool()).await.expect("rows");
    assert!((1..5).contains(&kept), "what arrived is recorded: {kept}");
    fleet.s3.faults().reset_record();
    fleet.run(&fleet.eu).await;
    assert_eq!(state(&fleet, id).await, MoveState::Ready);
    assert_eq!(
        fleet.s3.faults().calls("CopyObject"),
        5 - u64::try_from(kept).expect("a count"),
        "nothing is copied again"
    );
}

#[tokio::test]
async fn the_journal_of_copies_pages_by_the_bytes_of_the_key() {
    // M-054: the order of S3's listings, whatever the database's locale; a page begins behind the last one.
    use domain::instances::moves::{CopiedKey, forget_keys, keys_page, record_keys};
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    let lease = fleet.lease(&fleet.eu).await.expect("a job is due").lease;
    let mut conn = fleet.conn().await;
    let keys = [" ", "#", "%2F", "+", "/", "=", "?", "A", "Z", "a", "a b", "a+b", "b", "é", "€", "😀"];
    let row = |key: &str| CopiedKey { key: key.to_owned(), src_etag: "s".into(), size: 1, copied_etag: "t".into() };
    let rows: Vec<CopiedKey> = keys.iter().rev().map(|key| row(key)).collect();
    record_keys(&mut conn, lease, id, 0, &rows).await.expect("recorded");
    record_keys(&mut conn, lease, id, 1, &[row("other pair")]).await.expect("recorded");
    let mut seen: Vec<String> = Vec::new();
    loop {
        let page = keys_page(&mut conn, id, 0, seen.last().map(String::as_str), 3).await.expect("a page");
        let is_last = page.len() < 3;
        seen.extend(page.into_iter().map(|row| row.key));
        if is_last {
            break;
        }
    }
    assert_eq!(seen, keys);
    let changed = CopiedKey { size: i64::MAX, copied_etag: "t2".into(), ..row("a") };
    record_keys(&mut conn, lease, id, 0, std::slice::from_ref(&changed)).await.expect("replaced");
    forget_keys(&mut conn, lease, id, 0, &["b".to_owned(), "unknown".to_owned()]).await.expect("forgotten");
    assert_eq!(keys_page(&mut conn, id, 0, Some("Z"), 1).await.expect("a page"), [changed]);
    assert_eq!(keys_page(&mut conn, id, 0, Some("a+b"), 1).await.expect("a page")[0].key, "é");
}
