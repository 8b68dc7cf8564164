//! The documents are enough: the mirror's whole life as the source's box, and what a landing and a purge do as the target's.

use aws_sdk_s3::Client;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{BucketVersioningStatus, Delete, ObjectIdentifier, VersioningConfiguration};
use futures::StreamExt as _;
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;
use workers::mirror::{MemoryJournal, Mirror, Outcome, Pair, PassReport, Place, Settings, Unobserved};
use workers::objects::{CopyLimits, Credentials, Endpoint, LimitSettings, ObjectStore, Op, Tuning};

use crate::stand::{Stand, client, policy};

const HOST: &str = "a.example";

fn ltx(level: u8, min: u64, max: u64) -> String {
    format!("{level:04x}/{min:016x}-{max:016x}.ltx")
}

async fn mirror(stand: &Stand) -> Mirror {
    let credentials = Credentials::Static {
        access_key: stand.source.access_key.clone(),
        secret_key: SecretString::from(stand.source.secret_key.clone()),
        session_token: None,
    };
    let (url, region) = (Some(stand.weed.endpoint()), "us-east-1".to_owned());
    let endpoint = Endpoint { url, region, force_path_style: true, credentials };
    let tuning = Tuning { copy_limit: 6 << 20, part_size: 5 << 20, attempts: 2, ..Tuning::default() };
    let store = ObjectStore::open(&endpoint, tuning, CopyLimits::new(LimitSettings::default())).await;
    let place = |bucket: &str| Place { store: store.clone(), bucket: bucket.to_owned() };
    let pairs = vec![Pair::of_instance(HOST).expect("a host")];
    Mirror { source: place("eu-data"), target: place("uk-data"), pairs, settings: Settings::default() }
}

async fn pass(mirror: &Mirror, journal: &MemoryJournal) -> PassReport {
    let report = mirror.pass(journal, &Unobserved, &CancellationToken::new()).await.expect("a pass");
    assert!(matches!(report.outcome, Outcome::InSync), "{report:?}");
    report
}

/// A replica of a snapshot that needs parts, more raw files than a page of a listing holds, and a marker beside them.
async fn put_replica(stand: &Stand) {
    stand.put("eu-data", &format!("instances/{HOST}/{}", ltx(9, 1, 10)), &vec![7; 12 << 20]).await;
    let raw = futures::stream::iter(11..1_031);
    raw.for_each_concurrent(16, |txid| async move {
        let key = format!("instances/{HOST}/{}", ltx(0, txid, txid));
        stand.put("eu-data", &key, txid.to_string().as_bytes()).await;
    })
    .await;
}

#[tokio::test]
async fn a_whole_move_passes_under_the_policies() {
    let stand = Stand::start(policy("eu-data", &["uk-data"], false), policy("uk-data", &[], false)).await;
    put_replica(&stand).await;
    let (mirror, journal) = (mirror(&stand).await, MemoryJournal::default());
    let first = pass(&mirror, &journal).await;
    assert_eq!((first.copied, first.requests.of(Op::CopyPart)), (1_021, 3));
    // The source changes one key and prunes another: the round that follows copies and deletes.
    let prune = stand.admin.delete_object().bucket("eu-data").key(format!("instances/{HOST}/{}", ltx(0, 11, 11)));
    prune.send().await.expect("prune");
    stand.put("eu-data", &format!("instances/{HOST}/{}", ltx(0, 12, 12)), b"another content").await;
    let second = pass(&mirror, &journal).await;
    assert_eq!((second.copied, second.deleted), (1, 1));
    let staged = stand.content("uk-data", &format!("moves/{HOST}/")).await;
    assert!(staged == stand.content("eu-data", &format!("instances/{HOST}/")).await, "byte-equal");

    // The landing: what an earlier stay left is removed, the staging copied, read, and deleted.
    let old = format!("instances/{HOST}/{}", ltx(9, 1, 2));
    stand.put("uk-data", &old, b"an earlier stay").await;
    let target = client(&stand.weed.endpoint(), &stand.target);
    let copy = |from: String, to: String| {
        target.copy_object().bucket("uk-data").copy_source(format!("uk-data/{from}")).key(to).send()
    };
    target.delete_object().bucket("uk-data").key(&old).send().await.expect("empty the own prefix");
    let listed = target.list_objects_v2().bucket("uk-data").prefix(format!("moves/{HOST}/")).send().await;
    assert_eq!(listed.expect("list the staging").contents().len(), 1_000, "a page");
    for (key, bytes) in &staged[..3] {
        copy(format!("moves/{HOST}/{key}"), format!("instances/{HOST}/{key}")).await.expect("land");
        let got = target.get_object().bucket("uk-data").key(format!("instances/{HOST}/{key}")).send().await;
        assert!(got.expect("restore").body.collect().await.expect("read").to_vec() == *bytes);
    }
    // Its litestream goes on there.
    let next = target.put_object().bucket("uk-data").key(format!("instances/{HOST}/{}", ltx(0, 2_000, 2_000)));
    next.body(ByteStream::from_static(b"next")).send().await.expect("replicate");
    delete(&target, "uk-data", "moves", &staged).await;
    assert_eq!(stand.content("uk-data", "moves/").await, []);

    // The source's old replica is purged by its own box.
    delete(&client(&stand.weed.endpoint(), &stand.source), "eu-data", "instances", &staged).await;
    assert_eq!(stand.content("eu-data", "").await, []);
}

async fn delete(who: &Client, bucket: &str, prefix: &str, keys: &[(String, Vec<u8>)]) {
    for batch in keys.chunks(1_000) {
        let key = |suffix: &String| ObjectIdentifier::builder().key(format!("{prefix}/{HOST}/{suffix}")).build();
        let keys: Vec<_> = batch.iter().map(|(suffix, _)| key(suffix).expect("a key")).collect();
        let keys = Delete::builder().set_objects(Some(keys)).build().expect("a batch");
        let answer = who.delete_objects().bucket(bucket).delete(keys).send().await.expect("a batch");
        assert_eq!(answer.errors(), []);
    }
}

/// A bucket that keeps versions is purged of them, too, by a box whose policy says so and by no other.
#[tokio::test]
async fn old_versions_are_purged_under_the_policy_of_a_versioned_bucket_alone() {
    let stand = Stand::start(policy("eu-data", &["uk-data"], true), policy("uk-data", &[], false)).await;
    let (source, target) =
        (client(&stand.weed.endpoint(), &stand.source), client(&stand.weed.endpoint(), &stand.target));
    for bucket in ["eu-data", "uk-data"] {
        let on = VersioningConfiguration::builder().status(BucketVersioningStatus::Enabled).build();
        let switched = stand.admin.put_bucket_versioning().bucket(bucket).versioning_configuration(on);
        switched.send().await.expect("versioning");
        stand.put(bucket, "instances/a.example/x", b"1").await;
        stand.put(bucket, "instances/a.example/x", b"2").await;
    }
    let told = source.get_bucket_versioning().bucket("eu-data").send().await.expect("ask");
    assert_eq!(told.status(), Some(&BucketVersioningStatus::Enabled));
    let found = source.list_object_versions().bucket("eu-data").prefix("instances/a.example/").send().await;
    let found = found.expect("list versions").versions.unwrap_or_default();
    assert_eq!(found.len(), 2);
    for version in &found {
        let id = version.version_id().expect("an id");
        let purge = source.delete_object().bucket("eu-data").key("instances/a.example/x").version_id(id);
        purge.send().await.expect("purge a version");
    }
    let left = stand.admin.list_object_versions().bucket("eu-data").send().await.expect("list");
    assert_eq!((left.versions().len(), left.delete_markers().len()), (0, 0));
    for who in [&source, &target] {
        let refused = who.list_object_versions().bucket("uk-data").prefix("instances/").send().await;
        let status = refused.expect_err("refused").raw_response().map(|answer| answer.status().as_u16());
        assert_eq!(status, Some(403), "another's bucket, or a policy without versions");
    }
}
