//! What a pass says when it is not in sync (M-055 to M-057).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use domain::instances::plan::Bars;
use sandbox::s3::{Fault, Rule};
use workers::mirror::{MemoryJournal, MirrorError, NotReady, Outcome, Pair};

use crate::rig::{Rig, SOURCE, TARGET, ltx, open, pass, quick};

/// M-055: an empty source is never in sync, and never empties the staging.
#[tokio::test]
async fn an_empty_source_is_not_ready_and_deletes_nothing() {
    let rig = Rig::start().await;
    rig.put("a.example", "lock.json", b"a marker is no replica");
    rig.server.objects().put(TARGET, &format!("moves/a.example/{}", ltx(9, 1, 5)), b"staged");
    let report = pass(&rig.mirror("a.example"), &MemoryJournal::default()).await.expect("a pass");
    let Outcome::NotReady(reason) = report.outcome else { panic!("{report:?}") };
    assert_eq!(reason.code(), "source_empty");
    assert!(matches!(reason, NotReady::SourceEmpty { prefix } if prefix == "instances/a.example/"));
    assert_eq!(rig.staged("a.example"), [ltx(9, 1, 5)]);
    assert_eq!(rig.calls("DeleteObjects"), 0);
}

#[tokio::test]
async fn an_unreadable_source_is_not_ready_with_its_reason() {
    for code in ["AccessDenied", "NoSuchBucket"] {
        let rig = Rig::start().await;
        rig.put_replica("a.example", 3);
        rig.server.faults().add(Rule::on("ListObjectsV2", Fault::Answer(code)).bucket(SOURCE));
        let report = pass(&rig.mirror("a.example"), &MemoryJournal::default()).await.expect("a verdict");
        let Outcome::NotReady(reason) = report.outcome else { panic!("{report:?}") };
        assert_eq!(reason.code(), "source_unreadable", "{code}");
        let NotReady::SourceUnreadable { at, .. } = reason else { panic!("{reason:?}") };
        assert_eq!(at, format!("instances/a.example/ in bucket {SOURCE}"));
        assert_eq!(rig.calls("CopyObject"), 0, "{code}");
    }
}

/// Plain files may be none at all. Then an empty, complete listing is a state like any other.
#[tokio::test]
async fn an_empty_set_of_plain_files_is_mirrored() {
    let rig = Rig::start().await;
    rig.server.objects().put(TARGET, "moves-uploads/a/gone", b"x");
    let mirror = rig.mirror_of(Pair::of_files("uploads/a/", "moves-uploads/a/"));
    let report = pass(&mirror, &MemoryJournal::default()).await.expect("a pass");
    assert!(matches!(report.outcome, Outcome::InSync));
    assert_eq!((report.deleted, rig.content(TARGET, "moves-uploads/a/").len()), (1, 0));
}

/// M-056: each fault at each place has its own stable code, and says whether waiting helps.
#[tokio::test]
async fn transient_and_permanent_faults_have_their_own_codes() {
    let cases: [(&str, &str, Fault, &str, bool); 14] = [
        ("ListObjectsV2", SOURCE, Fault::SlowDown, "source_throttled", false),
        ("ListObjectsV2", SOURCE, Fault::Disconnect, "source_unreachable", false),
        ("ListObjectsV2", SOURCE, Fault::Answer("InternalError"), "source_failing", false),
        ("ListObjectsV2", SOURCE, Fault::LostToken, "source_listing_incomplete", false),
        ("ListObjectsV2", TARGET, Fault::SlowDown, "target_throttled", false),
        ("ListObjectsV2", TARGET, Fault::Disconnect, "target_unreachable", false),
        ("ListObjectsV2", TARGET, Fault::Answer("AccessDenied"), "target_forbidden", true),
        ("ListObjectsV2", TARGET, Fault::Answer("NoSuchBucket"), "target_no_bucket", true),
        ("CopyObject", TARGET, Fault::Answer("AccessDenied"), "copy_forbidden", true),
        ("CopyObject", TARGET, Fault::Hang, "target_unreachable", false),
        ("CopyObject", TARGET, Fault::Answer("InvalidRequest"), "target_refused", true),
        ("DeleteObjects", TARGET, Fault::Answer("AccessDenied"), "delete_forbidden", true),
        ("DeleteObjects", TARGET, Fault::KeyError("AccessDenied"), "delete_forbidden", true),
        ("DeleteObjects", TARGET, Fault::KeyError("InternalError"), "delete_failing", false),
    ];
    for (op, bucket, fault, code, permanent) in cases {
        let rig = Rig::for_fault(&fault).await;
        rig.put_replica("a.example", 3);
        let stale: Vec<String> = (2..1_105).map(|txid| ltx(0, txid, txid)).collect();
        // More than a page, so that a listing can lose its token.
        for key in &stale {
            rig.server.objects().put(TARGET, &format!("moves/a.example/{key}"), b"stale");
            if code == "source_listing_incomplete" {
                rig.put("a.example", key, b"stale");
            }
        }
        rig.server.faults().add(Rule::on(op, fault.clone()).bucket(bucket));
        let error = pass(&rig.mirror("a.example"), &MemoryJournal::default()).await.expect_err(code);
        assert_eq!((error.code(), error.is_permanent()), (code, permanent), "{op} {fault:?}: {error:?}");
        // What the operator reads says where to look: the bucket, and the prefix or a key below it.
        let (bucket, prefix) = match bucket {
            SOURCE => (SOURCE, "instances/a.example/"),
            _ => (TARGET, "moves/a.example/"),
        };
        let message = error.to_string();
        assert!(message.contains(&format!("bucket {bucket}")) && message.contains(prefix), "{op} {fault:?}: {message}");
        assert!(!message.contains('_'), "words, no code: {message}");
        if op == "CopyObject" {
            assert!(message.contains("instances/a.example/0009/") && message.contains(SOURCE), "{message}");
        }
        if matches!(fault, Fault::KeyError(_)) {
            assert!(message.contains(&stale[0]) && message.contains("1000 of 1000 keys"), "{message}");
        }
    }
}

#[tokio::test]
async fn a_store_that_is_not_there_is_unreachable_and_not_empty() {
    let rig = Rig::start().await;
    rig.put_replica("a.example", 3);
    let mut mirror = rig.mirror("a.example");
    // A port that nobody listens on.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port");
    mirror.target.store = open(&format!("http://{nobody}"), "k", "s", quick()).await;
    let error = pass(&mirror, &MemoryJournal::default()).await.expect_err("no target");
    assert_eq!((error.code(), error.is_permanent()), ("target_unreachable", false));
    mirror = rig.mirror("a.example");
    mirror.source.store = open(&format!("http://{nobody}"), "k", "s", quick()).await;
    let error = pass(&mirror, &MemoryJournal::default()).await.expect_err("no source");
    assert_eq!((error.code(), error.is_permanent()), ("source_unreachable", false));
}

/// What the mirror does not understand, it neither drops nor mixes.
#[tokio::test]
async fn a_prefix_with_another_layout_is_refused() {
    for (bucket, prefix, code) in [(SOURCE, "instances", "source_format"), (TARGET, "moves", "target_format")] {
        let rig = Rig::start().await;
        rig.put_replica("a.example", 3);
        let key = format!("{prefix}/a.example/generations/0123456789abcdef/wal/00000000_00000000.wal.lz4");
        rig.server.objects().put(bucket, &key, b"0.3");
        let error = pass(&rig.mirror("a.example"), &MemoryJournal::default()).await.expect_err("two formats");
        assert_eq!((error.code(), error.is_permanent()), (code, true));
        let message = error.to_string();
        assert!(message.contains(&format!("key {key:?} of bucket {bucket}: generations/ is the layout")), "{message}");
        assert_eq!(rig.calls("CopyObject") + rig.calls("DeleteObjects"), 0);
    }
}

/// One key among good ones, on a page behind the first: it is the one that is named, with its rule.
#[tokio::test]
async fn a_file_with_another_name_is_named_with_the_rule_that_it_breaks() {
    let rig = Rig::start().await;
    rig.put("a.example", &ltx(9, 1, 999), b"snapshot");
    for txid in 1..1_200 {
        rig.put("a.example", &ltx(0, txid, txid), b"raw");
    }
    rig.put("a.example", "0000/00000000000004A0-00000000000004a0.ltx", b"another spelling");
    let error = pass(&rig.mirror("a.example"), &MemoryJournal::default()).await.expect_err("an unknown layout");
    assert_eq!((error.code(), error.is_permanent()), ("source_format", true));
    let message = error.to_string();
    for part in
        ["\"instances/a.example/0000/00000000000004A0-00000000000004a0.ltx\"", "lower case", "the level 0000 to 0009"]
    {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(rig.calls("CopyObject"), 0);
}

/// A writer that adds a key at every listing of the source: no listing is ever fresh.
fn write_at_every_listing(rig: &Rig) -> Arc<AtomicU64> {
    let (objects, next) = (rig.server.objects(), Arc::new(AtomicU64::new(1_000)));
    let written = Arc::clone(&next);
    rig.server.faults().on("ListObjectsV2", move |call| {
        if call.bucket == SOURCE {
            let txid = written.fetch_add(1, Ordering::SeqCst);
            objects.put(SOURCE, &format!("instances/a.example/{}", ltx(0, txid, txid)), &[0; 100]);
        }
    });
    next
}

/// M-057: without a bar, a source that is never still is never ready; the numbers say how busy.
#[tokio::test]
async fn a_source_that_is_never_still_is_busy_with_numbers() {
    let rig = Rig::start().await;
    rig.put("a.example", &ltx(9, 1, 999), b"snapshot");
    write_at_every_listing(&rig);
    let mut mirror = rig.mirror("a.example");
    mirror.settings.max_iterations = 4;
    let journal = MemoryJournal::default();
    let report = pass(&mirror, &journal).await.expect("a pass");
    assert!(matches!(&report.outcome, Outcome::NotReady(reason) if reason.code() == "busy"), "{report:?}");
    assert_eq!((report.iterations, report.copied), (4, 5));
    assert_eq!((report.found.copies, report.found.copy_bytes), (1, 100));
    assert!(report.lag.is_some());

    // It falls silent: the next pass is in sync.
    rig.server.faults().clear();
    assert!(matches!(pass(&mirror, &journal).await.expect("a pass").outcome, Outcome::InSync));
    rig.assert_mirrored("a.example");
}

/// A pass iterates at once, so a writer with pauses longer than a round does not keep it from ready.
#[tokio::test]
async fn fast_rounds_converge_under_a_live_writer() {
    let rig = Rig::start().await;
    rig.put("a.example", &ltx(9, 1, 999), b"snapshot");
    let written = write_at_every_listing(&rig);
    let stop = Arc::clone(&written);
    let faults = rig.server.faults();
    rig.server.faults().on("CopyObject", move |_| {
        if stop.load(Ordering::SeqCst) >= 1_003 {
            faults.clear();
        }
    });
    let report = pass(&rig.mirror("a.example"), &MemoryJournal::default()).await.expect("a pass");
    assert!(matches!(report.outcome, Outcome::InSync), "{report:?}");
    assert!(report.iterations > 1 && report.iterations < 10, "{report:?}");
    rig.assert_mirrored("a.example");
}

/// Both bars are opt-in, and every bar that is set must hold.
#[tokio::test]
async fn the_bars_of_a_busy_instance_are_opt_in() {
    let lag = Some(Duration::from_secs(60));
    for (bytes, lag, ready) in [
        (0, None, false),
        (100, None, true),
        (99, None, false),
        (0, lag, true),
        (100, lag, true),
        (100, Some(Duration::ZERO), false),
    ] {
        let rig = Rig::start().await;
        rig.put("a.example", &ltx(9, 1, 999), b"snapshot");
        write_at_every_listing(&rig);
        let mut mirror = rig.mirror("a.example");
        mirror.settings.max_iterations = 3;
        mirror.settings.bars = Bars { ready_max_delta_bytes: bytes, ready_max_lag: lag };
        let report = pass(&mirror, &MemoryJournal::default()).await.expect("a pass");
        let found = matches!(report.outcome, Outcome::WithinBars);
        assert_eq!(found, ready, "{bytes} {lag:?}: {report:?}");
    }
}

/// The budget ends a pass that the number of rounds would not.
#[tokio::test]
async fn no_round_begins_after_the_budget() {
    let rig = Rig::start().await;
    rig.put("a.example", &ltx(9, 1, 999), b"snapshot");
    write_at_every_listing(&rig);
    let mut mirror = rig.mirror("a.example");
    mirror.settings.budget = Duration::ZERO;
    let report = pass(&mirror, &MemoryJournal::default()).await.expect("a pass");
    assert_eq!(report.iterations, 1, "the first round always runs: {report:?}");
}

/// A key that the listing shows and no copy finds: the pass ends, does not spin, and is not ready.
#[tokio::test]
async fn a_store_that_contradicts_itself_ends_the_pass_as_busy() {
    let rig = Rig::start().await;
    rig.put_replica("a.example", 3);
    rig.server.faults().add(Rule::on("CopyObject", Fault::Answer("NoSuchKey")));
    let mut mirror = rig.mirror("a.example");
    mirror.settings.max_iterations = 3;
    let report = pass(&mirror, &MemoryJournal::default()).await.expect("a pass");
    assert!(matches!(report.outcome, Outcome::NotReady(NotReady::Busy)), "{report:?}");
    assert_eq!((report.lost, rig.calls("CopyObject")), (3, 3), "one loss ends each round's copies");
    assert!(report.elapsed >= Duration::from_millis(300), "with pauses between: {:?}", report.elapsed);
}

#[tokio::test]
async fn errors_name_what_was_asked_and_no_secret() {
    let rig = Rig::start().await;
    rig.put_replica("a.example", 3);
    rig.server.faults().add(Rule::on("ListObjectsV2", Fault::Answer("AccessDenied")).bucket(TARGET));
    let error = pass(&rig.mirror("a.example"), &MemoryJournal::default()).await.expect_err("forbidden");
    let MirrorError::Permanent { source: Some(source), .. } = &error else { panic!("{error:?}") };
    assert_eq!(source.to_string(), "list: the store forbids it (AccessDenied)");
    let all = format!("{error:?} {error} {:?}", rig.store);
    assert!(!all.contains(rig.server.secret_key()), "{all}");
}
