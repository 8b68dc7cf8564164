//! Rounds that the source, the store or the lease disturbs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use sandbox::s3::{Fault, Rule};
use tokio_util::sync::CancellationToken;
use workers::failpoint;
use workers::mirror::{
    JournalKey, KeyJournal, MemoryJournal, MirrorError, NotReady, Outcome, RecordError, Settings, Unobserved,
};

use crate::rig::{Rig, SOURCE, TARGET, ltx, pass};

fn deletes(rig: &Rig) -> u64 {
    rig.calls("DeleteObjects") + rig.calls("DeleteObject")
}

/// M-047: the second page of either side fails, in every way that a page can fail. Nothing is deleted, although the
/// staging holds keys that the source lacks.
#[tokio::test]
async fn nothing_is_deleted_after_an_incomplete_listing() {
    for (bucket, side) in [(SOURCE, "source"), (TARGET, "target")] {
        for (fault, code) in [
            (Fault::LostToken, "listing_incomplete"),
            (Fault::SlowDown, "throttled"),
            (Fault::Answer("InternalError"), "failing"),
            (Fault::ErrorInBody("InternalError"), "failing"),
            (Fault::Disconnect, "unreachable"),
            (Fault::Hang, "unreachable"),
        ] {
            let rig = Rig::for_fault(&fault).await;
            rig.put_replica("a.example", 1_100);
            for txid in 5_000..6_100 {
                rig.server.objects().put(TARGET, &format!("moves/a.example/{}", ltx(0, txid, txid)), b"pruned");
            }
            rig.server.faults().add(Rule::on("ListObjectsV2", fault.clone()).bucket(bucket).after(1));
            let error = pass(&rig.mirror("a.example"), &MemoryJournal::default()).await.expect_err("half a listing");
            assert!(matches!(error, MirrorError::Transient { .. }), "{side} {fault:?}: {error:?}");
            assert_eq!(error.code(), format!("{side}_{code}"), "{fault:?}");
            assert_eq!((deletes(&rig), rig.calls("CopyObject")), (0, 0), "{side} {fault:?}");
        }
    }
}

/// M-047: a page that comes without its keys, though there are more, is asked for again before it is believed.
#[tokio::test]
async fn a_lost_page_is_not_an_empty_page() {
    let rig = Rig::start().await;
    rig.put_replica("a.example", 1_100);
    let (mirror, journal) = (rig.mirror("a.example"), MemoryJournal::default());
    pass(&mirror, &journal).await.expect("a pass");
    rig.server.faults().reset_record();
    rig.server.faults().add(Rule::on("ListObjectsV2", Fault::LostPage).bucket(SOURCE).times(1));
    let again = pass(&mirror, &journal).await.expect("a pass");
    assert!(matches!(again.outcome, Outcome::InSync), "{again:?}");
    assert_eq!((deletes(&rig), again.copied), (0, 0), "{again:?}");
    assert_eq!(rig.calls("ListObjectsV2"), 5, "two pages a side, and one page twice");
}

/// M-052: the source prunes keys between the listing and the copy. Not an error, and not zero differences.
#[tokio::test]
async fn a_key_that_vanishes_before_its_copy_is_treated_as_pruned() {
    let rig = Rig::start().await;
    rig.put_replica("a.example", 30);
    // Covered by the snapshot, and one of the tail.
    rig.put("a.example", &ltx(1, 5, 8), b"covered");
    let (covered, tail) = (ltx(1, 5, 8), ltx(0, 39, 39));
    for key in [&covered, &tail] {
        rig.server.faults().add(Rule::on("CopyObject", Fault::Vanish).key(key.as_str()).times(1));
    }
    let report = pass(&rig.mirror("a.example"), &MemoryJournal::default()).await.expect("a pass");
    assert!(matches!(report.outcome, Outcome::InSync), "{report:?}");
    assert_eq!(report.lost, 2);
    assert_eq!(report.iterations, 1, "the listing after it found zero differences");
    rig.assert_mirrored("a.example");
    assert!(!rig.staged("a.example").contains(&tail));
}

/// M-052, M-046: behind a lost key that nothing covers, no later key is copied before the next listing, or the staging
/// would have a hole; and nothing is deleted in that round.
#[tokio::test]
async fn nothing_follows_a_lost_key_that_nothing_covers() {
    let rig = Rig::start().await;
    rig.put_replica("a.example", 30);
    rig.server.objects().put(TARGET, &format!("moves/a.example/{}", ltx(0, 2, 2)), b"pruned");
    let objects = rig.server.objects();
    let lists = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&lists);
    rig.server.faults().on("ListObjectsV2", move |call| {
        if call.bucket == TARGET && seen.fetch_add(1, Ordering::SeqCst) == 1 {
            let staged = objects.keys(TARGET, "moves/a.example/");
            assert!(staged.contains(&format!("moves/a.example/{}", ltx(0, 24, 24))));
            assert!(!staged.contains(&format!("moves/a.example/{}", ltx(0, 26, 26))), "copied beyond the hole");
            assert!(staged.contains(&format!("moves/a.example/{}", ltx(0, 2, 2))), "deleted after a loss");
        }
    });
    let lost = ltx(0, 25, 25);
    let (objects, key) = (rig.server.objects(), lost.clone());
    rig.server.faults().on("CopyObject", move |call| {
        if call.key.ends_with(&key) {
            // What pruned the key: a compaction.
            objects.put(SOURCE, &format!("instances/a.example/{}", ltx(1, 11, 25)), b"compacted");
        }
    });
    rig.server.faults().add(Rule::on("CopyObject", Fault::Vanish).key(lost.as_str()).times(1));
    let report = pass(&rig.mirror("a.example"), &MemoryJournal::default()).await.expect("a pass");
    assert!(matches!(report.outcome, Outcome::InSync), "{report:?}");
    assert_eq!((report.lost, report.iterations), (1, 2));
    assert!(lists.load(Ordering::SeqCst) >= 3);
    rig.assert_mirrored("a.example");
}

/// M-053: the key gets another content between the listing and the copy.
#[tokio::test]
async fn a_key_that_changes_before_its_copy_is_listed_again() {
    let rig = Rig::start().await;
    rig.put_replica("a.example", 10);
    let objects = rig.server.objects();
    let (key, once) = (format!("instances/a.example/{}", ltx(0, 15, 15)), AtomicUsize::new(0));
    rig.server.faults().on("CopyObject", move |call| {
        if call.source.as_ref().is_some_and(|(_, source)| *source == key) && once.fetch_add(1, Ordering::SeqCst) == 0 {
            objects.put(SOURCE, &key, b"another content");
        }
    });
    let report = pass(&rig.mirror("a.example"), &MemoryJournal::default()).await.expect("a pass");
    assert!(matches!(report.outcome, Outcome::InSync), "{report:?}");
    assert_eq!((report.lost, report.iterations), (1, 2));
    rig.assert_mirrored("a.example");
}

/// M-057, M-119: an object changes between its copy and the listing that follows, at every key in turn. The pass is
/// never in sync with the old content.
#[tokio::test]
async fn a_change_between_copy_and_listing_is_never_in_sync() {
    let keys: Vec<String> = [ltx(9, 1, 10)].into_iter().chain((11..16).map(|txid| ltx(0, txid, txid))).collect();
    for key in keys {
        let rig = Rig::start().await;
        rig.put_replica("a.example", 6);
        let mut mirror = rig.mirror("a.example");
        mirror.settings.max_iterations = 1;
        let (objects, source, copied) =
            (rig.server.objects(), format!("instances/a.example/{key}"), AtomicUsize::new(0));
        rig.server.faults().on("ListObjectsV2", move |call| {
            if call.bucket == SOURCE && copied.fetch_add(1, Ordering::SeqCst) == 1 {
                // Equal size: only the ETag tells.
                let size = objects.get(SOURCE, &source).expect("there").len();
                objects.put(SOURCE, &source, &vec![b'!'; size]);
            }
        });
        let journal = MemoryJournal::default();
        let report = pass(&mirror, &journal).await.expect("a pass");
        assert!(matches!(report.outcome, Outcome::NotReady(NotReady::Busy)), "{key}: {report:?}");
        assert_eq!(report.found.copies, 1, "{key}");
        assert!(matches!(pass(&mirror, &journal).await.expect("a pass").outcome, Outcome::InSync), "{key}");
        rig.assert_mirrored("a.example");
    }
}

/// Cut after any copy, and begun anew: what was recorded is not copied again, and the end is the same.
#[tokio::test]
async fn a_pass_that_is_cut_goes_on_where_it_was() {
    let rig = Rig::start().await;
    rig.put_replica("cut.example", 12);
    let journal = Arc::new(MemoryJournal::default());
    for cut in 1..=12 {
        let mut mirror = rig.mirror("cut.example");
        mirror.settings = Settings { concurrency: 1, journal_batch: 1, ..crate::rig::settings() };
        // One copy more each time, then the process dies before it could record it.
        let gate = failpoint::gate("mirror.after_copy", "cut.example", 0);
        let held = Arc::clone(&journal);
        let running = tokio::spawn(async move { pass(&mirror, held.as_ref()).await });
        gate.arrived(1).await;
        running.abort();
        assert!(running.await.expect_err("aborted").is_cancelled());
        drop(gate);
        assert_eq!(rig.staged("cut.example").len(), cut.min(12));
        // Another worker takes over, and dies right after recording one copy.
        let mut mirror = rig.mirror("cut.example");
        mirror.settings = Settings { concurrency: 1, journal_batch: 1, ..crate::rig::settings() };
        let gate = failpoint::gate("mirror.after_copy", "cut.example", 1);
        let held = Arc::clone(&journal);
        let running = tokio::spawn(async move { pass(&mirror, held.as_ref()).await });
        if cut < 12 {
            gate.arrived(2).await;
        } else {
            drop(gate);
            let report = running.await.expect("no panic").expect("a pass");
            assert!(matches!(report.outcome, Outcome::InSync));
            break;
        }
        running.abort();
        let _ = running.await;
        drop(gate);
        assert_eq!(journal.len(), cut);
        rig.server.objects().delete(TARGET, &format!("moves/cut.example/{}", rig.staged("cut.example")[cut]));
    }
    rig.assert_mirrored("cut.example");
}

/// A cancelled pass stops between requests, and records what had arrived.
#[tokio::test]
async fn a_cancelled_pass_ends_soon_and_keeps_what_it_copied() {
    let rig = Rig::start().await;
    rig.put_replica("a.example", 200);
    rig.server.faults().add(Rule::on("CopyObject", Fault::Latency(Duration::from_millis(20))));
    let (mut mirror, journal, cancel) =
        (rig.mirror("a.example"), Arc::new(MemoryJournal::default()), CancellationToken::new());
    mirror.settings.cancel_grace = Duration::from_secs(30);
    let (held, token) = (Arc::clone(&journal), cancel.clone());
    let running = tokio::spawn(async move { mirror.pass(held.as_ref(), &Unobserved, &token).await });
    tests::wait::until("some copies", Duration::from_secs(10), || async {
        (rig.calls("CopyObject") > 10).then_some(())
    })
    .await;
    cancel.cancel();
    let began = std::time::Instant::now();
    let error = running.await.expect("no panic").expect_err("cancelled");
    assert!(matches!(error, MirrorError::Cancelled), "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let staged = rig.staged("a.example").len();
    assert!(staged < 200 && journal.len() == staged, "{staged} staged, {} recorded", journal.len());
    assert_eq!(deletes(&rig), 0);
}

/// A journal whose lease is taken over after a number of writes.
struct Fenced {
    rows: MemoryJournal,
    writes: AtomicUsize,
}

#[async_trait]
impl KeyJournal for Fenced {
    async fn page(&self, pair: usize, after: Option<&str>, limit: usize) -> Result<Vec<JournalKey>, RecordError> {
        self.rows.page(pair, after, limit).await
    }

    async fn record(&self, pair: usize, copied: &[JournalKey]) -> Result<(), RecordError> {
        if self.writes.fetch_add(1, Ordering::SeqCst) >= 2 {
            return Err(RecordError::LeaseLost);
        }
        self.rows.record(pair, copied).await
    }

    async fn forget(&self, _pair: usize, _keys: &[String]) -> Result<(), RecordError> {
        Err(RecordError::LeaseLost)
    }
}

#[tokio::test]
async fn a_lost_lease_ends_the_pass_without_a_delete() {
    let rig = Rig::start().await;
    rig.put_replica("a.example", 60);
    rig.server.objects().put(TARGET, &format!("moves/a.example/{}", ltx(0, 2, 2)), b"pruned");
    let mut mirror = rig.mirror("a.example");
    mirror.settings.journal_batch = 5;
    mirror.settings.concurrency = 1;
    let journal = Fenced { rows: MemoryJournal::default(), writes: AtomicUsize::new(0) };
    let error = pass(&mirror, &journal).await.expect_err("fenced");
    assert!(matches!(error, MirrorError::LeaseLost), "{error:?}");
    assert_eq!((deletes(&rig), journal.rows.len()), (0, 6), "the snapshot's set, and one batch of raw files");
    assert!(rig.calls("CopyObject") < 20, "it stopped soon after");
}
