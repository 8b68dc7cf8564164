//! Faults, hooks and the record.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{Delete, ObjectIdentifier};
use sandbox::s3::{Fault, Rule};

use crate::support::{refusal, server, until};

#[tokio::test]
async fn a_fault_strikes_its_operation_and_key_as_often_as_asked() {
    let (server, s3) = server();
    for key in ["h/0009/1", "h/0000/1"] {
        server.objects().put("src", key, b"x");
    }
    let copy = |key: &str| s3.copy_object().bucket("tgt").key(key).copy_source(format!("src/{key}")).send();
    server.faults().add(Rule::on("CopyObject", Fault::SlowDown).key("0009/").times(2));
    server.faults().add(Rule::on("CopyObject", Fault::Answer("InternalError")).key("0000/").after(1).times(1));
    copy("h/0000/1").await.expect("the first passes");
    assert_eq!(refusal(copy("h/0000/1").await), (500, "InternalError".into()));
    copy("h/0000/1").await.expect("and the third");
    for _ in 0..2 {
        assert_eq!(refusal(copy("h/0009/1").await), (503, "SlowDown".into()));
    }
    assert!(server.objects().get("tgt", "h/0009/1").is_none());
    copy("h/0009/1").await.expect("the rule is used up");
    assert_eq!(server.faults().calls("CopyObject"), 6);
}

#[tokio::test]
async fn an_error_in_a_200_body_is_not_a_success() {
    let (server, s3) = server();
    server.objects().put("src", "k", b"x");
    server.faults().add(Rule::on("CopyObject", Fault::ErrorInBody("InternalError")).times(1));
    let copy = || s3.copy_object().bucket("tgt").key("k").copy_source("src/k").send();
    assert_eq!(refusal(copy().await).1, "InternalError");
    assert!(server.objects().get("tgt", "k").is_none());
    // What was on the wire, seen without a client that knows better.
    server.faults().add(Rule::on("CopyObject", Fault::ErrorInBody("SlowDown")).times(1));
    let error = copy().await.expect_err("an error");
    let raw = error.raw_response().expect("an answer");
    assert!(raw.body().bytes().is_some_and(|body| String::from_utf8_lossy(body).contains("<Code>SlowDown</Code>")));
    copy().await.expect("copy");
}

#[tokio::test]
async fn a_hanging_call_is_ended_by_its_caller_and_a_slow_one_comes_late() {
    let (server, s3) = server();
    server.faults().add(Rule::on("PutObject", Fault::Hang).times(1));
    let put = || s3.put_object().bucket("src").key("k").body(ByteStream::from_static(b"x")).send();
    assert!(tokio::time::timeout(Duration::from_millis(300), put()).await.is_err());
    assert!(server.objects().get("src", "k").is_none());
    server.faults().add(Rule::on("PutObject", Fault::Latency(Duration::from_millis(200))).times(1));
    let began = Instant::now();
    put().await.expect("put");
    assert!(began.elapsed() >= Duration::from_millis(200));
}

#[tokio::test]
async fn a_lost_answer_was_carried_out_and_a_disconnect_was_not() {
    let (server, s3) = server();
    let put = |key: &str| s3.put_object().bucket("src").key(key).body(ByteStream::from_static(b"x")).send();
    server.faults().add(Rule::on("PutObject", Fault::Disconnect).times(1));
    assert!(put("a").await.expect_err("no answer").raw_response().is_none());
    assert!(server.objects().get("src", "a").is_none());
    server.faults().add(Rule::on("PutObject", Fault::LostAnswer).times(1));
    assert!(put("b").await.expect_err("no answer").raw_response().is_none());
    assert_eq!(server.objects().get("src", "b"), Some(b"x".to_vec()));
}

#[tokio::test]
async fn a_key_vanishes_between_listing_and_copy() {
    let (server, s3) = server();
    server.objects().put("src", "h/1", b"x");
    server.objects().put("src", "h/2", b"x");
    server.faults().add(Rule::on("CopyObject", Fault::Vanish).key("h/1"));
    let copy = |key: &str| s3.copy_object().bucket("tgt").key(key).copy_source(format!("src/{key}")).send();
    assert_eq!(refusal(copy("h/1").await), (404, "NoSuchKey".into()));
    copy("h/2").await.expect("copy");
    assert_eq!(server.objects().keys("src", ""), ["h/2"]);
}

#[tokio::test]
async fn listings_lose_a_token_or_a_page() {
    let (server, s3) = server();
    for n in 0..5 {
        server.objects().put("src", &format!("{n}"), b"x");
    }
    let list =
        |token: Option<String>| s3.list_objects_v2().bucket("src").max_keys(2).set_continuation_token(token).send();
    server.faults().add(Rule::on("ListObjectsV2", Fault::LostToken).times(1));
    let got = list(None).await.expect("list");
    assert_eq!((got.is_truncated(), got.next_continuation_token()), (Some(true), None));
    server.faults().add(Rule::on("ListObjectsV2", Fault::LostPage).times(1));
    let got = list(None).await.expect("list");
    assert!(got.contents().is_empty());
    let next = list(got.next_continuation_token).await.expect("list");
    assert_eq!(next.contents()[0].key(), Some("2"));
}

#[tokio::test]
async fn single_keys_of_a_batch_are_refused() {
    let (server, s3) = server();
    for key in ["a", "b", "c"] {
        server.objects().put("src", key, b"x");
    }
    server.faults().add(Rule::on("DeleteObjects", Fault::KeyError("InternalError")).key("b").times(1));
    let batch = || {
        let object = |key: &str| ObjectIdentifier::builder().key(key).build().expect("identifier");
        let delete = Delete::builder().objects(object("a")).objects(object("b")).objects(object("c")).build();
        s3.delete_objects().bucket("src").delete(delete.expect("delete")).send()
    };
    let answer = batch().await.expect("200");
    assert_eq!(answer.errors().len(), 1);
    assert_eq!((answer.errors()[0].key(), answer.errors()[0].code()), (Some("b"), Some("InternalError")));
    assert_eq!(server.objects().keys("src", ""), ["b"]);
    assert!(batch().await.expect("200").errors().is_empty());
    assert!(server.objects().keys("src", "").is_empty());
}

#[tokio::test]
async fn hooks_run_before_a_call_and_may_change_objects() {
    let (server, s3) = server();
    server.objects().put("src", "k", b"old");
    let seen = Arc::new(AtomicU32::new(0));
    let (objects, counter) = (server.objects(), Arc::clone(&seen));
    server.faults().on("CopyObject", move |call| {
        assert_eq!(call.source, Some(("src".to_owned(), "k".to_owned())));
        counter.fetch_add(1, Ordering::Relaxed);
        objects.put("src", "k", b"new");
    });
    s3.copy_object().bucket("tgt").key("k").copy_source("src/k").send().await.expect("copy");
    assert_eq!(server.objects().get("tgt", "k"), Some(b"new".to_vec()));
    assert_eq!(seen.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_held_call_waits_at_exactly_that_point() {
    let (server, s3) = server();
    let mut hold = server.faults().hold("PutObject", "k");
    let put = tokio::spawn(s3.put_object().bucket("src").key("k").body(ByteStream::from_static(b"x")).send());
    assert!(hold.reached().await);
    assert!(server.objects().get("src", "k").is_none() && !put.is_finished());
    hold.release();
    put.await.expect("join").expect("put");
    assert!(server.objects().get("src", "k").is_some());
    // A handle that a failing test drops lets the call go as well.
    drop(server.faults().hold("PutObject", "k2"));
    s3.put_object().bucket("src").key("k2").body(ByteStream::from_static(b"x")).send().await.expect("put");
}

#[tokio::test]
async fn every_call_is_recorded_with_the_bytes_that_clients_moved() {
    let (server, s3) = server();
    let faults = server.faults();
    s3.put_object().bucket("src").key("k").body(ByteStream::from_static(b"12345")).send().await.expect("put");
    s3.copy_object().bucket("tgt").key("k2").copy_source("src/k").send().await.expect("copy");
    s3.get_object().bucket("tgt").key("k2").send().await.expect("get").body.collect().await.expect("body");
    until("the counts", || faults.bytes_out() == 5).await;
    assert_eq!(faults.bytes_in(), 5);
    let record: Vec<_> = faults.record().into_iter().map(|call| (call.op, call.bucket, call.key)).collect();
    let entry = |op: &'static str, bucket: &str, key: &str| (op, bucket.to_owned(), key.to_owned());
    assert_eq!(
        record,
        [entry("PutObject", "src", "k"), entry("CopyObject", "tgt", "k2"), entry("GetObject", "tgt", "k2")]
    );
    faults.reset_record();
    assert!(faults.record().is_empty() && faults.counts().is_empty() && faults.bytes_in() == 0);
}
