//! The same engine on SeaweedFS, which enforces rights, with a key that has exactly the mover's.

use aws_sdk_s3::Client;
use aws_sdk_s3::config::{BehaviorVersion, Builder, Credentials, Region};
use aws_sdk_s3::error::ProvideErrorMetadata;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{Delete, ObjectIdentifier};
use futures::StreamExt as _;
use sandbox::Identity;
use sandbox::seaweed::{Options, Weed};
use tempfile::TempDir;
use workers::mirror::{MemoryJournal, Outcome, Pair};
use workers::objects::{CopySource, Error, Op, Tuning};

use crate::rig::{SOURCE, TARGET, ltx, mirror_of, open, pass};

/// What moves need and nothing else: read and list the instances of the own region, put, delete and list the
/// staging of the other.
const RIGHTS: [&str; 4] =
    ["Read:eu-data/instances/*", "List:eu-data/instances/*", "Write:uk-data/moves/*", "List:uk-data/moves/*"];

struct Field {
    weed: Weed,
    mover: Identity,
    admin: Client,
    _folder: TempDir,
}

impl Field {
    async fn start(rights: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mover = Identity::limited("mover", "MOVERKEY", "mover-secret", rights.iter().copied());
        let options = Options {
            dir: folder.path().to_owned(),
            buckets: vec![SOURCE.to_owned(), TARGET.to_owned()],
            identities: vec![mover.clone()],
        };
        let weed = Weed::start(options).await.expect("start SeaweedFS");
        let admin = client(&weed.endpoint(), weed.admin());
        Self { weed, mover, admin, _folder: folder }
    }

    async fn store(&self, tuning: Tuning) -> workers::objects::ObjectStore {
        open(&self.weed.endpoint(), &self.mover.access_key, &self.mover.secret_key, tuning).await
    }

    async fn put(&self, bucket: &str, key: &str, bytes: &[u8]) {
        let put = self.admin.put_object().bucket(bucket).key(key).body(ByteStream::from(bytes.to_vec()));
        put.content_type("application/x-ltx").metadata("stamp", "1").send().await.expect("put");
    }

    async fn put_replica(&self, host: &str, keys: u64) {
        let raw = (11..10 + keys).map(|txid| (ltx(0, txid, txid), format!("{txid}")));
        let all = std::iter::once((ltx(9, 1, 10), "snapshot".to_owned())).chain(raw);
        futures::stream::iter(all)
            .for_each_concurrent(16, |(key, bytes)| async move {
                self.put(SOURCE, &format!("instances/{host}/{key}"), bytes.as_bytes()).await;
            })
            .await;
    }

    async fn content(&self, bucket: &str, prefix: &str) -> Vec<(String, Vec<u8>)> {
        let mut all = Vec::new();
        let mut pages = self.admin.list_objects_v2().bucket(bucket).prefix(prefix).into_paginator().send();
        while let Some(page) = pages.next().await {
            for object in page.expect("list").contents.unwrap_or_default() {
                let key = object.key.expect("a key");
                let got = self.admin.get_object().bucket(bucket).key(&key).send().await.expect("get");
                let bytes = got.body.collect().await.expect("read").to_vec();
                all.push((key[prefix.len()..].to_owned(), bytes));
            }
        }
        all
    }
}

fn client(endpoint: &str, who: &Identity) -> Client {
    let config = Builder::new()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .endpoint_url(endpoint)
        .force_path_style(true)
        .credentials_provider(Credentials::new(&who.access_key, &who.secret_key, None, None, "test"))
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .build();
    Client::from_conf(config)
}

/// The whole life of a staging under the mover's rights: filled, unchanged, changed, pruned, with a multipart copy.
#[tokio::test]
async fn the_movers_rights_are_enough_for_whole_rounds() {
    let field = Field::start(&RIGHTS).await;
    let store = field.store(Tuning { copy_limit: 6 << 20, part_size: 5 << 20, ..Tuning::default() }).await;
    field.put_replica("a.example", 1_100).await;
    let large: Vec<u8> = (0..12 << 20).map(|n: u32| u8::try_from(n % 251).expect("below 251")).collect();
    field.put(SOURCE, &format!("instances/a.example/{}", ltx(1, 1, 10)), &large).await;
    field.put(SOURCE, "instances/a.example/lock.json", b"{}").await;
    let (mirror, journal) =
        (mirror_of(&store, Pair::of_instance("a.example").expect("a host")), MemoryJournal::default());

    let first = pass(&mirror, &journal).await.expect("a full round");
    assert!(matches!(first.outcome, Outcome::InSync), "{first:?}");
    assert_eq!((first.copied, first.requests.of(Op::CopyPart)), (1_101, 3));

    let second = pass(&mirror, &journal).await.expect("a round without a change");
    assert!(matches!(second.outcome, Outcome::InSync));
    assert_eq!((second.requests.of(Op::List), second.requests.total()), (4, 4), "the LISTs and nothing else");

    for txid in 11..60 {
        let key = format!("instances/a.example/{}", ltx(0, txid, txid));
        field.admin.delete_object().bucket(SOURCE).key(key).send().await.expect("prune");
    }
    field.put(SOURCE, &format!("instances/a.example/{}", ltx(0, 100, 100)), b"another content").await;
    let third = pass(&mirror, &journal).await.expect("a round with changes");
    assert!(matches!(third.outcome, Outcome::InSync));
    assert_eq!((third.copied, third.deleted, third.requests.of(Op::Delete)), (1, 49, 1));

    let mut source = field.content(SOURCE, "instances/a.example/").await;
    source.retain(|(key, _)| key != "lock.json");
    assert!(source == field.content(TARGET, "moves/a.example/").await, "byte-equal");
    for level in [ltx(1, 1, 10), ltx(0, 100, 100)] {
        let head = field
            .admin
            .head_object()
            .bucket(TARGET)
            .key(format!("moves/a.example/{level}"))
            .send()
            .await
            .expect("head");
        assert_eq!(head.content_type.as_deref(), Some("application/x-ltx"), "{level}");
        assert_eq!(head.metadata.expect("metadata").get("stamp").map(String::as_str), Some("1"), "{level}");
    }
}

/// Every other right is refused to the same key, so that a round can have used none of them.
#[tokio::test]
async fn every_other_right_is_refused_to_the_mover() {
    let field = Field::start(&RIGHTS).await;
    for (bucket, key) in [
        (SOURCE, "instances/a/x"),
        (SOURCE, "other/x"),
        (SOURCE, "instancesX/x"),
        (TARGET, "instances/a/x"),
        (TARGET, "moves/a/x"),
        (TARGET, "movesX/x"),
        (TARGET, "other/x"),
    ] {
        field.put(bucket, key, b"x").await;
    }
    let mover = client(&field.weed.endpoint(), &field.mover);
    let mut refused = Vec::new();
    macro_rules! refuses {
        ($what:expr, $call:expr) => {
            let error = $call.send().await.err().unwrap_or_else(|| panic!("{} was allowed", $what));
            let status = error.raw_response().map(|answer| answer.status().as_u16());
            assert!(matches!(status, Some(403)), "{}: {status:?} {:?}", $what, error.code());
            refused.push($what);
        };
    }
    let body = || ByteStream::from_static(b"y");
    // Nothing at the target is readable (M-105), nothing outside of moves/ is writable.
    refuses!("get moves/", mover.get_object().bucket(TARGET).key("moves/a/x"));
    refuses!("head moves/", mover.head_object().bucket(TARGET).key("moves/a/x"));
    for key in ["instances/a/x", "other/x", "movesX/x"] {
        refuses!("get at the target", mover.get_object().bucket(TARGET).key(key));
        refuses!("put at the target", mover.put_object().bucket(TARGET).key(key).body(body()));
        refuses!("delete at the target", mover.delete_object().bucket(TARGET).key(key));
        refuses!("multipart at the target", mover.create_multipart_upload().bucket(TARGET).key(key));
        refuses!(
            "copy into the target",
            mover.copy_object().copy_source("eu-data/instances/a/x").bucket(TARGET).key(key)
        );
    }
    for prefix in ["instances/", "other/", "", "move"] {
        refuses!("list at the target", mover.list_objects_v2().bucket(TARGET).prefix(prefix));
    }
    // The source is read-only, and nothing but instances/ is readable.
    for key in ["instances/a/x", "other/x"] {
        refuses!("put at the source", mover.put_object().bucket(SOURCE).key(key).body(body()));
        refuses!("delete at the source", mover.delete_object().bucket(SOURCE).key(key));
        refuses!("multipart at the source", mover.create_multipart_upload().bucket(SOURCE).key(key));
    }
    for key in ["other/x", "instancesX/x"] {
        refuses!("get at the source", mover.get_object().bucket(SOURCE).key(key));
        refuses!(
            "copy what it may not read",
            mover.copy_object().copy_source(format!("eu-data/{key}")).bucket(TARGET).key("moves/a/leak")
        );
    }
    refuses!("list the source", mover.list_objects_v2().bucket(SOURCE).prefix("other/"));
    refuses!("list all of the source", mover.list_objects_v2().bucket(SOURCE));
    refuses!(
        "copy the target's instances",
        mover.copy_object().copy_source("uk-data/instances/a/x").bucket(TARGET).key("moves/a/leak")
    );
    refuses!(
        "copy the staging elsewhere",
        mover.copy_object().copy_source("uk-data/moves/a/x").bucket(TARGET).key("moves/a/y")
    );
    refuses!("create a bucket", mover.create_bucket().bucket("mine"));
    refuses!("delete the bucket", mover.delete_bucket().bucket(TARGET));
    refuses!("set a policy", mover.put_bucket_policy().bucket(TARGET).policy("{}"));
    assert!(refused.len() >= 30, "{}", refused.len());

    // A batch that mixes prefixes loses only the keys that it may lose.
    let keys = ["moves/a/x", "instances/a/x"].map(|key| ObjectIdentifier::builder().key(key).build().expect("a key"));
    let delete = Delete::builder().set_objects(Some(keys.to_vec())).build().expect("a batch");
    let answer = mover.delete_objects().bucket(TARGET).delete(delete).send().await.expect("a batch");
    let errors: Vec<_> = answer.errors.unwrap_or_default().into_iter().filter_map(|error| error.key).collect();
    assert_eq!(errors, ["instances/a/x"]);
    let left: Vec<String> = field.content(TARGET, "").await.into_iter().map(|(key, _)| key).collect();
    assert_eq!(left, ["instances/a/x", "movesX/x", "other/x"]);
}

/// Each right of the four is needed: without it the pass says which is missing.
#[tokio::test]
async fn a_missing_right_has_its_own_code() {
    for (missing, code) in
        [(0, "copy_forbidden"), (1, "source_unreadable"), (2, "copy_forbidden"), (3, "target_forbidden")]
    {
        let rights: Vec<&str> =
            RIGHTS.iter().enumerate().filter(|(n, _)| *n != missing).map(|(_, right)| *right).collect();
        let field = Field::start(&rights).await;
        field.put_replica("a.example", 3).await;
        let mirror = mirror_of(&field.store(Tuning::default()).await, Pair::of_instance("a.example").expect("a host"));
        let found = match pass(&mirror, &MemoryJournal::default()).await {
            Ok(report) => match report.outcome {
                Outcome::NotReady(reason) => reason.code(),
                Outcome::InSync | Outcome::WithinBars => panic!("in sync without {}", RIGHTS[missing]),
            },
            Err(error) => {
                assert!(error.is_permanent(), "{error:?}");
                error.code()
            }
        };
        assert_eq!(found, code, "without {}", RIGHTS[missing]);
        assert_eq!(field.content(TARGET, "").await, [], "without {}", RIGHTS[missing]);
    }
}

#[tokio::test]
async fn single_calls_mean_the_same_as_on_the_in_process_server() {
    let field = Field::start(&RIGHTS).await;
    let store = field
        .store(Tuning { copy_limit: LIMIT as u64, part_size: LIMIT as u64, attempts: 2, ..Tuning::default() })
        .await;
    // The smallest part that S3 takes is the limit here: at it, one above it, and keys that need their encoding.
    const LIMIT: usize = 5 << 20;
    for name in ["a b", "a+b", "a%2Fb", "a=b", "a?b", "a#b", "aéb", "a&b;c:d@e,f$g!h*(i)'j"] {
        field.put(SOURCE, &format!("instances/files/small/{name}"), name.as_bytes()).await;
    }
    for (name, size) in [("at the limit+é", LIMIT), ("one above+é", LIMIT + 1)] {
        field.put(SOURCE, &format!("instances/files/{name}"), &vec![7; size]).await;
    }
    let mirror = mirror_of(&store, Pair::of_files("instances/files/", "moves/files/"));
    let journal = MemoryJournal::default();
    let report = pass(&mirror, &journal).await.expect("a pass");
    assert!(matches!(report.outcome, Outcome::InSync), "{report:?}");
    assert_eq!((report.requests.of(Op::Copy), report.requests.of(Op::CopyPart)), (9, 2), "{:?}", report.requests);
    let source = field.content(SOURCE, "instances/files/").await;
    assert_eq!(source.len(), 10);
    assert!(source == field.content(TARGET, "moves/files/").await, "byte-equal under equal keys");
    assert_eq!(pass(&mirror, &journal).await.expect("a pass").copied, 0, "the answered ETag is the listed one");

    let copy = |etag: &'static str, key: &'static str, bucket: &'static str| {
        let store = store.clone();
        async move {
            let source = CopySource { store: &store, bucket: SOURCE, key, etag, size: 1 };
            store.copy(source, bucket, "moves/x").await.expect_err("refused")
        }
    };
    assert!(matches!(copy("0123", "instances/files/small/a b", TARGET).await, Error::Changed { .. }));
    assert!(matches!(copy("0123", "instances/files/none", TARGET).await, Error::Vanished { .. }));
    let mut elsewhere = mirror.clone();
    elsewhere.target.bucket = "no-such-bucket".to_owned();
    let error = pass(&elsewhere, &MemoryJournal::default()).await.expect_err("no bucket");
    assert!(error.is_permanent(), "{error:?}");
}
