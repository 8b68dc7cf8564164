//! Everything else is refused: each operation that the client knows of objects and buckets, on every bucket and prefix.
//!
//! The expectation below is written by hand and not read from the documents, so that a right that slips into them fails
//! here.

use std::collections::BTreeMap;

use aws_sdk_s3::Client;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{
    BucketVersioningStatus, Delete, ObjectAttributes, ObjectCannedAcl, ObjectIdentifier, Tagging,
    VersioningConfiguration,
};

use crate::stand::{BUCKETS, Stand, client, policy};

/// Keys below every prefix that means something, and below some that only look like them.
const KEYS: [&str; 7] =
    ["instances/a/x", "moves/a/x", "archive/a/x", "other/x", "other/moves/a/x", "instancesX/x", "movesX/x"];
/// What lists are asked for.
const PREFIXES: [&str; 9] =
    ["instances/", "instances/a/", "moves/", "moves/a/", "archive/", "other/", "movesX/", "move", ""];

/// Whether a box of `own`, which moves to `sibling`, may do `call` on `key` of `bucket`.
fn may(call: &str, bucket: &str, key: &str, own: &str, sibling: Option<&str>) -> bool {
    let below = |prefixes: &[&str]| prefixes.iter().any(|prefix| key.starts_with(prefix));
    let of_objects =
        ["get", "head", "get tags", "put", "copy into", "copy from", "delete", "delete many", "begin upload"];
    if bucket == own {
        return match call {
            "list" | "list v1" | "ask for versioning" | "head bucket" => true,
            "upload part" | "copy part" | "list parts" | "abort upload" => below(&["instances/", "moves/"]),
            call => of_objects.contains(&call) && below(&["instances/", "moves/"]),
        };
    }
    if sibling == Some(bucket) {
        return match call {
            "list" | "list v1" | "put" | "copy into" | "delete" | "delete many" | "begin upload" | "upload part"
            | "copy part" => below(&["moves/"]),
            // These two are this server's: it takes the right to put for them, and AWS has rights of their own.
            "list parts" | "abort upload" => below(&["moves/"]),
            _ => false,
        };
    }
    false
}

fn refused<T, E: ProvideErrorMetadata + std::fmt::Debug>(told: Result<T, SdkError<E>>) -> bool {
    told.is_err_and(|error| error.raw_response().is_some_and(|answer| answer.status().as_u16() == 403))
}

/// Every call by name, bucket and key, and whether it was refused.
type Told = BTreeMap<(&'static str, String, String), bool>;

async fn on_object(who: &Client, stand: &Stand, bucket: &str, key: &str, own: &str, told: &mut Told) {
    let mut note = |call: &'static str, refused: bool| told.insert((call, bucket.to_owned(), key.to_owned()), refused);
    macro_rules! calls {
        ($($call:literal: $request:expr;)*) => {
            $(note($call, refused($request.bucket(bucket).key(key).send().await));)*
        };
    }
    let body = || ByteStream::from_static(b"y");
    calls! {
        "get": who.get_object();
        "head": who.head_object();
        "get a version": who.get_object().version_id("null");
        "get tags": who.get_object_tagging();
        "get acl": who.get_object_acl();
        "get attributes": who.get_object_attributes().object_attributes(ObjectAttributes::Etag);
        "get retention": who.get_object_retention();
        "get legal hold": who.get_object_legal_hold();
        "put": who.put_object().body(body());
        "put acl": who.put_object_acl().acl(ObjectCannedAcl::PublicRead);
        "put tags": who.put_object_tagging().tagging(Tagging::builder().set_tag_set(Some(vec![])).build().expect("tags"));
        "delete tags": who.delete_object_tagging();
        "begin upload": who.create_multipart_upload();
        "copy into": who.copy_object().copy_source(format!("{own}/instances/a/source"));
    }
    // A copy out of it, to where the box may write.
    let out = who.copy_object().copy_source(format!("{bucket}/{key}")).bucket(own).key("instances/a/copy").send().await;
    note("copy from", refused(out));
    // An upload that somebody else began.
    let begun = stand.admin.create_multipart_upload().bucket(bucket).key(key).send().await.expect("begin");
    let id = begun.upload_id().expect("an id");
    let source = format!("{own}/instances/a/source");
    calls! {
        "upload part": who.upload_part().upload_id(id).part_number(1).body(body());
        "copy part": who.upload_part_copy().upload_id(id).part_number(2).copy_source(&source);
        "list parts": who.list_parts().upload_id(id);
        "abort upload": who.abort_multipart_upload().upload_id(id);
    }
    // Last, so that the others spoke of an object that is there.
    calls! {
        "delete a version": who.delete_object().version_id("null");
        "delete": who.delete_object();
    }
    stand.put(bucket, key, b"x").await;
    let one = ObjectIdentifier::builder().key(key).build().expect("a key");
    let batch = who.delete_objects().bucket(bucket).delete(Delete::builder().objects(one).build().expect("a batch"));
    let answer = batch.send().await;
    let kept = answer.as_ref().is_ok_and(|answer| answer.errors().iter().any(|e| e.code() == Some("AccessDenied")));
    note("delete many", kept || refused(answer));
}

async fn on_bucket(who: &Client, bucket: &str, told: &mut Told) {
    let mut note =
        |call: &'static str, key: &str, refused| told.insert((call, bucket.to_owned(), key.to_owned()), refused);
    for prefix in PREFIXES {
        note("list", prefix, refused(who.list_objects_v2().bucket(bucket).prefix(prefix).send().await));
        note("list v1", prefix, refused(who.list_objects().bucket(bucket).prefix(prefix).send().await));
        note("list versions", prefix, refused(who.list_object_versions().bucket(bucket).prefix(prefix).send().await));
    }
    macro_rules! calls {
        ($($call:literal: $request:expr;)*) => { $(note($call, "", refused($request.bucket(bucket).send().await));)* };
    }
    let on = VersioningConfiguration::builder().status(BucketVersioningStatus::Enabled).build();
    calls! {
        "head bucket": who.head_bucket();
        "ask for versioning": who.get_bucket_versioning();
        "set versioning": who.put_bucket_versioning().versioning_configuration(on);
        "list uploads": who.list_multipart_uploads();
        "get location": who.get_bucket_location();
        "get bucket acl": who.get_bucket_acl();
        "get policy": who.get_bucket_policy();
        "set policy": who.put_bucket_policy().policy("{}");
        "delete policy": who.delete_bucket_policy();
        "get lifecycle": who.get_bucket_lifecycle_configuration();
        "delete lifecycle": who.delete_bucket_lifecycle();
        "get cors": who.get_bucket_cors();
        "delete cors": who.delete_bucket_cors();
        "get encryption": who.get_bucket_encryption();
        "get bucket tags": who.get_bucket_tagging();
        "delete the bucket": who.delete_bucket();
    }
    note("create", "", refused(who.create_bucket().bucket(format!("{bucket}-2")).send().await));
}

/// A box that moves and one that does not, on three buckets: what `may` names goes, and all else is refused.
#[tokio::test]
async fn whatever_a_policy_does_not_name_is_refused() {
    let stand = Stand::start(policy("eu-data", &["uk-data"], false), policy("uk-data", &[], false)).await;
    for (who, own, sibling) in [(&stand.source, "eu-data", Some("uk-data")), (&stand.target, "uk-data", None)] {
        let box_ = client(&stand.weed.endpoint(), who);
        stand.put(own, "instances/a/source", b"source").await;
        let mut told = Told::new();
        for bucket in BUCKETS {
            on_bucket(&box_, bucket, &mut told).await;
            for key in KEYS {
                stand.put(bucket, key, b"x").await;
                on_object(&box_, &stand, bucket, key, own, &mut told).await;
            }
        }
        let wrong: Vec<_> = told
            .iter()
            .filter(|((call, bucket, key), refused)| **refused == may(call, bucket, key, own, sibling))
            .map(|((call, bucket, key), refused)| format!("{call} {bucket}/{key}: refused {refused}"))
            .collect();
        assert!(wrong.is_empty(), "a box of {own}:\n  {}", wrong.join("\n  "));
        let count = told.values().filter(|refused| **refused).count();
        assert!(count > 400, "{count} calls were refused to a box of {own}");
    }
}
