//! SeaweedFS starts with its buckets, enforces rights, and does what the in-process server leaves out.

mod support;

use std::path::Path;

use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{BucketVersioningStatus, VersioningConfiguration};
use sandbox::Identity;
use sandbox::seaweed::{Options, Weed};
use sandbox::tools::{Tool, ensure};

use crate::support::{client_of, refusal, use_launcher};

async fn weed(dir: &Path, identities: Vec<Identity>) -> Weed {
    use_launcher();
    ensure(Tool::Weed).expect("weed");
    let options = Options { dir: dir.to_owned(), buckets: vec!["src".into(), "tgt".into()], identities };
    Weed::start(options).await.expect("start")
}

#[tokio::test]
async fn seaweed_has_its_buckets_at_once_and_keeps_a_mover_to_its_rights() {
    let folder = tempfile::tempdir().expect("tempdir");
    let rights = ["Read:src/instances/*", "List:src/instances/*", "Write:tgt/moves/*", "List:tgt/moves/*"];
    let mover = Identity::limited("mover", "MOVERKEY", "moversecret", rights);
    let weed = weed(folder.path(), vec![mover.clone()]).await;
    let admin = client_of(&weed.endpoint(), weed.admin());
    for (bucket, key) in [("src", "instances/h/1"), ("src", "other"), ("tgt", "instances/h/1")] {
        admin.put_object().bucket(bucket).key(key).body(ByteStream::from_static(b"x")).send().await.expect("put");
    }
    let s3 = client_of(&weed.endpoint(), &mover);
    let copy = |from: &str, to: &str| s3.copy_object().bucket("tgt").key(to).copy_source(from).send();
    copy("src/instances/h/1", "moves/h/1").await.expect("copy");
    let listed = s3.list_objects_v2().bucket("tgt").prefix("moves/h/").send().await.expect("list");
    assert_eq!(listed.contents()[0].key(), Some("moves/h/1"));
    let denied = (403, "AccessDenied".to_owned());
    assert_eq!(refusal(copy("src/other", "moves/h/2").await), denied);
    assert_eq!(refusal(copy("src/instances/h/1", "instances/h/2").await), denied);
    assert_eq!(refusal(s3.get_object().bucket("tgt").key("moves/h/1").send().await), denied);
    assert_eq!(refusal(s3.list_objects_v2().bucket("tgt").prefix("instances/").send().await), denied);
    weed.create_bucket("later").await.expect("a bucket while it runs");
    admin.put_object().bucket("later").key("k").body(ByteStream::from_static(b"x")).send().await.expect("put");
}

/// The story: it is killed right after a write, and started again on the same folder.
#[tokio::test]
async fn seaweed_keeps_what_it_acknowledged_through_a_kill() {
    let folder = tempfile::tempdir().expect("tempdir");
    let first = weed(folder.path(), Vec::new()).await;
    let s3 = client_of(&first.endpoint(), first.admin());
    s3.put_object().bucket("src").key("k").body(ByteStream::from_static(b"kept")).send().await.expect("put");
    let pid = first.pid();
    first.stop();
    drop(first);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    let second = weed(folder.path(), Vec::new()).await;
    let s3 = client_of(&second.endpoint(), second.admin());
    let got = s3.get_object().bucket("src").key("k").send().await.expect("get");
    assert_eq!(got.body.collect().await.expect("body").to_vec(), b"kept");
}

/// What our in-process server does not have: two writes are two versions, and a delete hides both.
#[tokio::test]
async fn seaweed_keeps_versions_and_lets_one_of_sixteen_racers_win() {
    let folder = tempfile::tempdir().expect("tempdir");
    let weed = weed(folder.path(), Vec::new()).await;
    let s3 = client_of(&weed.endpoint(), weed.admin());
    let on = VersioningConfiguration::builder().status(BucketVersioningStatus::Enabled).build();
    s3.put_bucket_versioning().bucket("tgt").versioning_configuration(on).send().await.expect("versioning");
    for body in [b"1", b"2"] {
        s3.put_object().bucket("tgt").key("k").body(ByteStream::from_static(body)).send().await.expect("put");
    }
    s3.delete_object().bucket("tgt").key("k").send().await.expect("delete");
    assert_eq!(refusal(s3.get_object().bucket("tgt").key("k").send().await).0, 404);
    let versions = s3.list_object_versions().bucket("tgt").prefix("k").send().await.expect("versions");
    assert_eq!((versions.versions().len(), versions.delete_markers().len()), (2, 1));
    let racers: Vec<_> = (0..16)
        .map(|n| s3.put_object().bucket("src").key("lock").if_none_match("*").body(ByteStream::from(vec![n])).send())
        .map(tokio::spawn)
        .collect();
    let mut winners = 0;
    for racer in racers {
        winners += u32::from(racer.await.expect("join").is_ok());
    }
    assert_eq!(winners, 1);
}
