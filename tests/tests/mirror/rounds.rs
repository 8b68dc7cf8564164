//! Rounds that nothing disturbs: what is copied, deleted, left alone, and at how many requests.

use std::sync::Mutex;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;
use workers::mirror::{MemoryJournal, Observer, Outcome, Pair, RecordError, RoundProgress, Settings};
use workers::objects::Op;

use crate::rig::{Rig, SOURCE, TARGET, ltx, pass};

#[tokio::test]
async fn a_pass_mirrors_the_replica_and_ends_in_sync() {
    let rig = Rig::start().await;
    rig.put_replica("a.example", 30);
    let report = pass(&rig.mirror("a.example"), &MemoryJournal::default()).await.expect("a pass");
    assert!(matches!(report.outcome, Outcome::InSync), "{report:?}");
    assert_eq!((report.copied, report.source_keys, report.iterations), (30, 30, 1));
    assert!(report.found.is_zero(), "the verdict rests on a listing after the copies: {:?}", report.found);
    assert_eq!(report.newest.map(|txid| txid.0), Some(39));
    rig.assert_mirrored("a.example");
}

/// M-040: the box asks the store to copy; it never reads or writes an object.
#[tokio::test]
async fn no_object_byte_passes_through_the_box() {
    let rig = Rig::tuned(workers::objects::Tuning { copy_limit: 64, part_size: 50, ..crate::rig::quick() }).await;
    rig.server.set_min_part(1);
    rig.put_replica("a.example", 20);
    rig.put("a.example", &ltx(1, 1, 10), &[7; 200]);
    pass(&rig.mirror("a.example"), &MemoryJournal::default()).await.expect("a pass");
    rig.assert_mirrored("a.example");
    let faults = rig.server.faults();
    let allowed = [
        "ListObjectsV2",
        "CopyObject",
        "HeadObject",
        "CreateMultipartUpload",
        "UploadPartCopy",
        "CompleteMultipartUpload",
        "DeleteObjects",
    ];
    for call in faults.record() {
        assert!(allowed.contains(&call.op), "{call:?}");
    }
    assert_eq!((faults.bytes_in(), faults.bytes_out()), (0, 0));
    assert!(rig.calls("UploadPartCopy") > 0 && rig.calls("CopyObject") > 0);
}

/// M-044, M-045: three pages a side; then a round that copies only what is new or changed.
#[tokio::test]
async fn both_sides_are_listed_in_full_and_unchanged_keys_are_not_copied_again() {
    let rig = Rig::start().await;
    rig.put_replica("a.example", 2_345);
    let (mirror, journal) = (rig.mirror("a.example"), MemoryJournal::default());
    let first = pass(&mirror, &journal).await.expect("the first pass");
    assert!(matches!(first.outcome, Outcome::InSync));
    assert_eq!((first.copied, first.source_keys), (2_345, 2_345));
    rig.assert_mirrored("a.example");

    rig.server.faults().reset_record();
    let second = pass(&mirror, &journal).await.expect("a pass without a change");
    assert!(matches!(second.outcome, Outcome::InSync));
    assert_eq!(second.requests.of(Op::List), 6, "three pages a side");
    assert_eq!(second.requests.total(), 6, "and nothing else");
    assert_eq!(rig.server.faults().counts().into_iter().collect::<Vec<_>>(), [("ListObjectsV2", 6)]);

    rig.put("a.example", &ltx(0, 50, 50), b"another content under an old name");
    rig.put("a.example", &ltx(0, 3_000, 3_000), b"new");
    rig.server.faults().reset_record();
    let third = pass(&mirror, &journal).await.expect("a pass with two changes");
    assert!(matches!(third.outcome, Outcome::InSync));
    assert_eq!((third.copied, rig.calls("CopyObject")), (2, 2));
    rig.assert_mirrored("a.example");
}

/// M-046: the deletes come after the last copy, in batches, and only what the source pruned goes.
#[tokio::test]
async fn pruned_keys_are_deleted_after_all_copies() {
    let rig = Rig::start().await;
    rig.put_replica("a.example", 1_200);
    let (mirror, journal) = (rig.mirror("a.example"), MemoryJournal::default());
    pass(&mirror, &journal).await.expect("the first pass");

    let objects = rig.server.objects();
    for txid in 11..1_150 {
        assert!(objects.delete(SOURCE, &format!("instances/a.example/{}", ltx(0, txid, txid))));
    }
    rig.put("a.example", &ltx(9, 1, 1_160), b"newer snapshot");
    rig.put("a.example", &ltx(1, 1_140, 1_209), b"compacted");
    rig.server.faults().reset_record();
    let report = pass(&mirror, &journal).await.expect("the second pass");
    assert!(matches!(report.outcome, Outcome::InSync));
    assert_eq!((report.copied, report.deleted), (2, 1_139));
    rig.assert_mirrored("a.example");
    assert_eq!(journal.len(), rig.staged("a.example").len(), "deleted keys are forgotten");
    let writes: Vec<&str> =
        rig.server.faults().record().iter().map(|call| call.op).filter(|op| *op != "ListObjectsV2").collect();
    assert_eq!(writes, ["CopyObject", "CopyObject", "DeleteObjects", "DeleteObjects"]);
}

/// M-046: snapshots first, then the levels downwards, with a barrier between them.
#[tokio::test]
async fn copies_go_level_by_level_and_the_tail_in_order() {
    let rig = Rig::start().await;
    for (level, min, max) in [(9, 1, 50), (9, 1, 80), (2, 1, 40), (2, 41, 80), (1, 71, 80), (1, 81, 90), (1, 91, 100)] {
        rig.put("a.example", &ltx(level, min, max), b"x");
    }
    for txid in 95..130 {
        rig.put("a.example", &ltx(0, txid, txid), b"x");
    }
    pass(&rig.mirror("a.example"), &MemoryJournal::default()).await.expect("a pass");
    rig.assert_mirrored("a.example");
    let copied: Vec<String> = rig
        .server
        .faults()
        .record()
        .into_iter()
        .filter(|call| call.op == "CopyObject")
        .map(|call| call.key["moves/a.example/".len()..].to_owned())
        .collect();
    let levels: Vec<&str> = copied.iter().map(|key| &key[..4]).collect();
    assert!(levels.is_sorted_by(|a, b| a >= b), "{levels:?}");
    // 81 and later reach beyond what the snapshots and the levels above cover.
    let tail: Vec<&String> = copied.iter().filter(|key| key[5..21] >= *format!("{:016x}", 81)).collect();
    let raw = |txid: u64| ltx(0, txid, txid);
    let expected: Vec<String> = [ltx(1, 81, 90), ltx(1, 91, 100)].into_iter().chain((101..130).map(raw)).collect();
    assert_eq!(tail.iter().filter(|key| ***key > raw(100)).copied().cloned().collect::<Vec<_>>(), expected);
}

/// M-048: neither a longer name nor one that goes on with a dot is touched, on either side.
#[tokio::test]
async fn a_host_never_touches_the_hosts_whose_names_begin_alike() {
    let rig = Rig::start().await;
    for host in ["a", "ab", "a.b"] {
        rig.put_replica(host, 3);
        rig.server.objects().put(TARGET, &format!("moves/{host}/{}", ltx(0, 500, 500)), b"stale");
    }
    pass(&rig.mirror("a"), &MemoryJournal::default()).await.expect("a pass");
    rig.assert_mirrored("a");
    for other in ["ab", "a.b"] {
        assert_eq!(rig.staged(other), [ltx(0, 500, 500)], "{other} is as it was");
    }
    for call in rig.server.faults().record() {
        let keys = call.keys.iter().chain([&call.key]).chain(call.source.iter().map(|(_, key)| key));
        for key in keys.filter(|key| !key.is_empty()) {
            assert!(key.starts_with("instances/a/") || key.starts_with("moves/a/"), "{call:?}");
        }
    }
}

/// M-112: a marker is neither copied, nor a difference, nor deleted.
#[tokio::test]
async fn markers_are_left_alone_on_both_sides() {
    let rig = Rig::start().await;
    rig.put_replica("a.example", 3);
    rig.put("a.example", "lock.json", b"source");
    rig.put("a.example", "0000/lock.json", b"source");
    rig.server.objects().put(TARGET, "moves/a.example/lease.json", b"target");
    let report = pass(&rig.mirror("a.example"), &MemoryJournal::default()).await.expect("a pass");
    assert!(matches!(report.outcome, Outcome::InSync));
    assert_eq!((report.copied, report.deleted, report.source_keys), (3, 0, 3));
    let staged = rig.staged("a.example");
    assert!(staged.contains(&"lease.json".to_owned()) && !staged.iter().any(|key| key.contains("lock")), "{staged:?}");
}

/// What stands at the target and was not copied by us is not believed, whatever its ETag.
#[tokio::test]
async fn only_the_journal_proves_that_a_key_is_staged() {
    let rig = Rig::start().await;
    rig.put_replica("a.example", 3);
    for (key, bytes) in rig.content(SOURCE, "instances/a.example/") {
        rig.server.objects().put(TARGET, &format!("moves/a.example/{key}"), &bytes);
    }
    let (mirror, journal) = (rig.mirror("a.example"), MemoryJournal::default());
    let report = pass(&mirror, &journal).await.expect("a pass");
    assert_eq!(report.copied, 3, "equal bytes and ETags, and yet copied");

    // Somebody writes another object of equal size over a staged one.
    rig.server.objects().put(TARGET, &format!("moves/a.example/{}", ltx(9, 1, 10)), b"SNAPSHOT");
    let report = pass(&mirror, &journal).await.expect("a pass");
    assert_eq!(report.copied, 1);
    rig.assert_mirrored("a.example");
}

/// A store that renames the copy of an object that was uploaded in parts, as AWS does.
#[tokio::test]
async fn an_etag_that_the_copy_changes_is_not_a_difference() {
    let rig = Rig::tuned(workers::objects::Tuning { copy_limit: 64, part_size: 50, ..crate::rig::quick() }).await;
    rig.server.set_min_part(1);
    rig.put("a.example", &ltx(9, 1, 10), &[1; 200]);
    let (mirror, journal) = (rig.mirror("a.example"), MemoryJournal::default());
    pass(&mirror, &journal).await.expect("the first pass");
    let etag = |bucket: &str, prefix: &str| {
        rig.server.objects().stat(bucket, &format!("{prefix}/a.example/{}", ltx(9, 1, 10))).expect("there").etag
    };
    assert_ne!(etag(SOURCE, "instances"), etag(TARGET, "moves"), "the case that this test is about");
    let second = pass(&mirror, &journal).await.expect("the second pass");
    assert!(matches!(second.outcome, Outcome::InSync));
    assert_eq!(second.copied, 0);
}

/// Two pairs, one journal, one verdict; nothing is deleted anywhere before everything is copied.
#[tokio::test]
async fn a_list_of_pairs_is_one_mirror() {
    let rig = Rig::start().await;
    rig.put_replica("a.example", 3);
    let objects = rig.server.objects();
    objects.put(SOURCE, "uploads/a.example/cat é+1.png", b"cat");
    objects.put(TARGET, "moves-uploads/a.example/gone", b"gone");
    objects.put(TARGET, &format!("moves/a.example/{}", ltx(0, 1, 1)), b"gone");
    let mut mirror = rig.mirror("a.example");
    mirror.pairs.push(Pair::of_files("uploads/a.example/", "moves-uploads/a.example/"));
    let report = pass(&mirror, &MemoryJournal::default()).await.expect("a pass");
    assert!(matches!(report.outcome, Outcome::InSync));
    assert_eq!((report.copied, report.deleted, report.source_keys), (4, 2, 4));
    rig.assert_mirrored("a.example");
    assert_eq!(rig.content(TARGET, "moves-uploads/a.example/"), [("cat é+1.png".to_owned(), b"cat".to_vec())]);
    let record = rig.server.faults().record();
    let last_copy = record.iter().rposition(|call| call.op == "CopyObject").expect("copies");
    let first_delete = record.iter().position(|call| call.op == "DeleteObjects").expect("deletes");
    assert!(last_copy < first_delete);
}

/// M-059, M-060: rounds go on after ready. A later write is staged by the next pass, which shows what it found.
#[tokio::test]
async fn a_write_after_ready_is_staged_by_the_next_pass_and_shown() {
    #[derive(Default)]
    struct Seen(Mutex<Vec<RoundProgress>>);
    #[async_trait]
    impl Observer for Seen {
        async fn round(&self, progress: &RoundProgress) -> Result<(), RecordError> {
            self.0.lock().expect("not poisoned").push(*progress);
            Ok(())
        }
    }
    let rig = Rig::start().await;
    rig.put_replica("a.example", 5);
    let (mirror, journal) = (rig.mirror("a.example"), MemoryJournal::default());
    assert!(matches!(pass(&mirror, &journal).await.expect("a pass").outcome, Outcome::InSync));

    rig.put("a.example", &ltx(0, 15, 15), b"later write");
    let seen = Seen::default();
    let report = mirror.pass(&journal, &seen, &CancellationToken::new()).await.expect("a pass");
    assert!(matches!(report.outcome, Outcome::InSync));
    assert!(rig.staged("a.example").contains(&ltx(0, 15, 15)));
    let seen = seen.0.into_inner().expect("not poisoned");
    assert_eq!((seen[0].found.copies, seen[0].found.copy_bytes, seen[0].finished), (1, 11, false));
    assert!(seen.iter().any(|round| round.finished && round.copied == 1 && round.copied_bytes == 11));
    assert!(seen.last().is_some_and(|round| round.found.is_zero() && round.finished), "{seen:?}");
}

/// Memory stays bounded: sets that outgrow it go to nameless files, and the pass is the same.
#[tokio::test]
async fn difference_sets_larger_than_memory_go_through_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let rig = Rig::start().await;
    rig.put_replica("a.example", 2_500);
    let mut mirror = rig.mirror("a.example");
    mirror.settings =
        Settings { spill_folder: Some(folder.path().to_owned()), journal_page: 7, ..crate::rig::settings() };
    let journal = MemoryJournal::default();
    let report = pass(&mirror, &journal).await.expect("a pass");
    assert_eq!(report.copied, 2_500);
    rig.assert_mirrored("a.example");
    assert_eq!(pass(&mirror, &journal).await.expect("a pass").copied, 0, "seven rows of the journal at a time");
    assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 0, "nothing is left behind");
}
