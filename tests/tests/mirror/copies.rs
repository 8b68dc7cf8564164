//! The copy itself (M-054), and the other single calls.

use std::collections::BTreeMap;
use std::time::Duration;

use sandbox::s3::{Attributes, Fault, Rule};
use workers::failpoint;
use workers::objects::{CopySource, Error, Op, Tuning};

use crate::rig::{Rig, SOURCE, TARGET, quick};

const LIMIT: usize = 1_000;

async fn rig() -> Rig {
    let rig = Rig::tuned(Tuning { copy_limit: LIMIT as u64, part_size: 400, ..quick() }).await;
    // The server enforces the lowered limit as well: a wrong choice would be refused.
    rig.server.set_copy_limit(LIMIT as u64);
    rig.server.set_min_part(1);
    rig
}

async fn copy(rig: &Rig, key: &str) -> Result<(), Error> {
    let stat = rig.server.objects().stat(SOURCE, key).expect("the source is there");
    let source = CopySource { store: &rig.store, bucket: SOURCE, key, etag: &stat.etag, size: stat.size };
    let copied = rig.store.copy(source, TARGET, key).await?;
    assert_eq!(rig.server.objects().stat(TARGET, key).expect("copied").etag, copied.etag);
    Ok(())
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| u8::try_from(n % 251).expect("below 251")).collect()
}

fn attributes() -> Attributes {
    Attributes {
        content_type: Some("application/x-ltx".to_owned()),
        cache_control: Some("no-store".to_owned()),
        content_disposition: Some("attachment".to_owned()),
        content_language: Some("de".to_owned()),
        metadata: BTreeMap::from([("litestream-timestamp".to_owned(), "2026-01-01T00:00:00Z".to_owned())]),
        ..Attributes::default()
    }
}

#[tokio::test]
async fn an_object_at_the_limit_is_copied_whole_and_one_byte_more_in_parts() {
    for (size, whole, parts) in [(0, 1, 0), (LIMIT, 1, 0), (LIMIT + 1, 0, 3), (LIMIT * 10, 0, 25)] {
        let rig = rig().await;
        rig.server.objects().put_with(SOURCE, "k", &bytes(size), attributes());
        copy(&rig, "k").await.expect("a copy");
        assert_eq!(rig.server.objects().get(TARGET, "k").expect("copied"), bytes(size), "{size}");
        assert_eq!((rig.calls("CopyObject"), rig.calls("UploadPartCopy")), (whole, parts), "{size}");
        assert_eq!(rig.calls("CompleteMultipartUpload"), u64::from(parts > 0), "{size}");
    }
}

#[tokio::test]
async fn content_type_headers_and_metadata_survive_both_kinds_of_copy() {
    for size in [10, LIMIT * 3] {
        let rig = rig().await;
        rig.server.objects().put_with(SOURCE, "k", &bytes(size), attributes());
        copy(&rig, "k").await.expect("a copy");
        assert_eq!(rig.server.objects().stat(TARGET, "k").expect("copied").attributes, attributes(), "{size}");
    }
}

#[tokio::test]
async fn keys_with_special_characters_arrive_byte_equal() {
    for size in [10, LIMIT * 2] {
        let rig = rig().await;
        for name in ["a b", "a+b", "a%2Fb", "a%20b", "a=b", "a?b", "a#b", "aéb", "a&b;c:d@e,f$g!h*(i)'j", "日本"] {
            let key = format!("dir {size}/{name}");
            rig.server.objects().put(SOURCE, &key, format!("{name:>size$}").as_bytes());
            copy(&rig, &key).await.unwrap_or_else(|error| panic!("{key}: {error:?}"));
            assert_eq!(
                rig.server.objects().get(TARGET, &key).expect("under the same key"),
                format!("{name:>size$}").as_bytes()
            );
        }
        assert_eq!(rig.server.objects().keys(TARGET, ""), rig.server.objects().keys(SOURCE, ""));
    }
}

#[tokio::test]
async fn a_200_with_an_error_in_its_body_is_a_failure_and_tried_again() {
    for (op, size) in [("CopyObject", 10), ("UploadPartCopy", LIMIT * 2), ("CompleteMultipartUpload", LIMIT * 2)] {
        let rig = rig().await;
        rig.server.objects().put(SOURCE, "k", &bytes(size));
        let faults = rig.server.faults();
        faults.add(Rule::on(op, Fault::ErrorInBody("InternalError")).times(2));
        copy(&rig, "k").await.unwrap_or_else(|error| panic!("{op}: {error:?}"));
        assert_eq!(rig.server.objects().get(TARGET, "k").expect("copied"), bytes(size), "{op}");
        assert!(rig.calls(op) >= 3, "{op}");

        faults.clear();
        faults.add(Rule::on(op, Fault::ErrorInBody("InternalError")));
        rig.server.objects().delete(TARGET, "k");
        let error = copy(&rig, "k").await.expect_err("always fails");
        assert!(matches!(&error, Error::Failed { code, .. } if code == "InternalError"), "{op}: {error:?}");
        assert!(error.is_transient());
        assert_eq!(rig.server.objects().get(TARGET, "k"), None, "{op}");
    }
}

#[tokio::test]
async fn throttling_backs_off_and_never_loops_hot() {
    let tuning =
        Tuning { attempts: 4, backoff_min: Duration::from_millis(40), backoff_max: Duration::from_secs(1), ..quick() };
    for fault in [Fault::SlowDown, Fault::Answer("ServiceUnavailable")] {
        let rig = Rig::tuned(tuning).await;
        rig.server.objects().put(SOURCE, "k", b"x");
        rig.server.faults().add(Rule::on("*", fault));
        let began = std::time::Instant::now();
        let error = copy(&rig, "k").await.expect_err("throttled for ever");
        assert!(matches!(error, Error::Throttled { .. }), "{error:?}");
        assert_eq!(rig.calls("CopyObject"), 4, "as many attempts as were allowed");
        // 40 + 80 + 160 ms at least, and at most twice that: the jitter.
        let waited = began.elapsed();
        assert!(waited >= Duration::from_millis(280), "{waited:?}");

        let mut listing = rig.store.list(SOURCE, "");
        assert!(matches!(listing.next_page().await, Err(Error::Throttled { .. })));
        let keys = ["k".to_owned()];
        assert!(matches!(rig.store.delete_many(TARGET, &keys).await, Err(Error::Throttled { .. })));
        assert_eq!((rig.calls("ListObjectsV2"), rig.calls("DeleteObjects")), (4, 4));
    }
}

#[tokio::test]
async fn what_heals_is_waited_for() {
    for fault in [
        Fault::SlowDown,
        Fault::Answer("InternalError"),
        Fault::Disconnect,
        Fault::LostAnswer,
        Fault::Hang,
        Fault::ErrorInBody("SlowDown"),
    ] {
        let rig = Rig::for_fault(&fault).await;
        rig.server.objects().put(SOURCE, "k", b"x");
        rig.server.faults().add(Rule::on("CopyObject", fault.clone()).times(2));
        copy(&rig, "k").await.unwrap_or_else(|error| panic!("{fault:?}: {error:?}"));
        assert_eq!(rig.calls("CopyObject"), 3, "{fault:?}");
        assert_eq!(rig.store.requests().of(Op::Copy), 3, "retries are counted: {fault:?}");
    }
}

#[tokio::test]
async fn what_does_not_heal_is_asked_once() {
    for code in ["AccessDenied", "NoSuchBucket", "InvalidRequest", "NoSuchKey", "PreconditionFailed"] {
        let rig = Rig::start().await;
        rig.server.objects().put(SOURCE, "k", b"x");
        rig.server.faults().add(Rule::on("CopyObject", Fault::Answer(code)));
        let error = copy(&rig, "k").await.expect_err("refused");
        assert!(!error.is_transient(), "{code}: {error:?}");
        assert_eq!(rig.calls("CopyObject"), 1, "{code}");
    }
}

#[tokio::test]
async fn a_source_that_changed_or_vanished_is_told_apart_in_both_kinds_of_copy() {
    for size in [10, LIMIT * 2] {
        let rig = rig().await;
        rig.server.objects().put(SOURCE, "k", &bytes(size));
        let etag = rig.server.objects().stat(SOURCE, "k").expect("there").etag;
        let source = CopySource { store: &rig.store, bucket: SOURCE, key: "k", etag: &etag, size: size as u64 };
        rig.server.objects().put(SOURCE, "k", &bytes(size + 1));
        let changed = rig.store.copy(source, TARGET, "k").await.expect_err("another object");
        assert!(matches!(changed, Error::Changed { .. }), "{size}: {changed:?}");
        rig.server.objects().delete(SOURCE, "k");
        let gone = rig.store.copy(source, TARGET, "k").await.expect_err("no object");
        assert!(matches!(gone, Error::Vanished { .. }), "{size}: {gone:?}");
        assert_eq!(rig.server.objects().get(TARGET, "k"), None);
    }
}

/// The source changes while its parts are being copied: no mixture of two objects ever arrives.
#[tokio::test]
async fn a_source_that_changes_between_two_parts_is_noticed_and_the_upload_aborted() {
    let rig = Rig::tuned(Tuning { copy_limit: 100, part_size: 100, parts_at_once: 1, ..quick() }).await;
    rig.server.set_min_part(1);
    rig.server.objects().put(SOURCE, "mixed", &bytes(500));
    let gate = failpoint::gate("objects.after_part", "mixed", 2);
    let (store, objects) = (rig.store.clone(), rig.server.objects());
    let etag = objects.stat(SOURCE, "mixed").expect("there").etag;
    let copying = tokio::spawn(async move {
        let source = CopySource { store: &store, bucket: SOURCE, key: "mixed", etag: &etag, size: 500 };
        store.copy(source, TARGET, "mixed").await
    });
    gate.arrived(3).await;
    objects.put(SOURCE, "mixed", &[0; 500]);
    drop(gate);
    let error = copying.await.expect("no panic").expect_err("changed under way");
    assert!(matches!(error, Error::Changed { .. }), "{error:?}");
    assert_eq!(objects.get(TARGET, "mixed"), None);
    assert_eq!(rig.calls("AbortMultipartUpload"), 1);
}

/// A mover may lack the right to abort: the copy's own error is what counts then.
#[tokio::test]
async fn a_failed_abort_does_not_hide_why_the_copy_failed() {
    let rig = rig().await;
    rig.server.objects().put(SOURCE, "k", &bytes(LIMIT * 2));
    rig.server.faults().add(Rule::on("UploadPartCopy", Fault::Answer("AccessDenied")));
    rig.server.faults().add(Rule::on("AbortMultipartUpload", Fault::Answer("AccessDenied")));
    let error = copy(&rig, "k").await.expect_err("refused");
    assert!(matches!(error, Error::Forbidden { op: Op::CopyPart, .. }), "{error:?}");
}

#[tokio::test]
async fn a_delete_tells_which_keys_were_refused() {
    let rig = Rig::start().await;
    let keys: Vec<String> = (0..2_100).map(|n| format!("k{n:04}")).collect();
    keys.iter().for_each(|key| rig.server.objects().put(TARGET, key, b"x"));
    rig.server.faults().add(Rule::on("DeleteObjects", Fault::KeyError("AccessDenied")).key("k0007"));
    let refused = rig.store.delete_many(TARGET, &keys).await.expect("batches");
    assert_eq!(
        refused.iter().map(|r| (r.key.as_str(), r.code.as_str())).collect::<Vec<_>>(),
        [("k0007", "AccessDenied")]
    );
    assert_eq!(rig.server.objects().keys(TARGET, ""), ["k0007"]);
    assert_eq!(rig.calls("DeleteObjects"), 3);
    let missing = ["never there".to_owned()];
    assert_eq!(rig.store.delete_many(TARGET, &missing).await.expect("a batch"), []);
}

#[tokio::test]
async fn no_more_copies_run_at_once_than_the_box_allows() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    let rig = Rig::start().await;
    let limits =
        workers::objects::CopyLimits::new(workers::objects::LimitSettings { per_box: 3, ..Default::default() });
    let endpoint = workers::objects::Endpoint {
        url: Some(rig.server.endpoint()),
        region: "us-east-1".to_owned(),
        force_path_style: true,
        credentials: workers::objects::Credentials::Static {
            access_key: rig.server.access_key().to_owned(),
            secret_key: rig.server.secret_key().to_owned().into(),
            session_token: None,
        },
    };
    let store = workers::objects::ObjectStore::open(&endpoint, Tuning::default(), limits).await;
    rig.server.faults().add(Rule::on("CopyObject", Fault::Latency(Duration::from_millis(40))));
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let begun = (Arc::clone(&running), Arc::clone(&most));
    rig.server.faults().on("CopyObject", move |_| {
        let now = begun.0.fetch_add(1, Ordering::SeqCst) + 1;
        begun.1.fetch_max(now, Ordering::SeqCst);
    });
    rig.server.objects().put(SOURCE, "k", b"x");
    let etag = rig.server.objects().stat(SOURCE, "k").expect("there").etag;
    let copies = (0..12).map(|n| {
        let (store, etag, running) = (&store, &etag, &running);
        async move {
            let source = CopySource { store, bucket: SOURCE, key: "k", etag, size: 1 };
            store.copy(source, TARGET, &format!("k{n}")).await.expect("a copy");
            running.fetch_sub(1, Ordering::SeqCst);
        }
    });
    futures::future::join_all(copies).await;
    assert_eq!(most.load(Ordering::SeqCst), 3);
}
