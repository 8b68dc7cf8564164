//! Objects, conditions, copies, multipart, and what is kept on disk.

use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{
    ChecksumMode, CompletedMultipartUpload, CompletedPart, Delete, MetadataDirective, ObjectIdentifier,
};
use sandbox::s3::{Options, Server};

use crate::support::{client, refusal, server, source};

/// Keys that are awkward in a URL, in XML or in a copy's source.
const AWKWARD: [&str; 8] = ["a b", "a+b", "a%2Fb", "a=b", "a?b", "a#b", "é/ü", "q\"<&>'~!@$^*()"];

#[tokio::test]
async fn awkward_keys_arrive_byte_equal_by_put_copy_and_listing() {
    let (server, s3) = server();
    for key in AWKWARD {
        s3.put_object().bucket("src").key(key).body(ByteStream::from_static(b"x")).send().await.expect("put");
        s3.copy_object().bucket("tgt").key(key).copy_source(source("src", key)).send().await.expect("copy");
        let got = s3.get_object().bucket("tgt").key(key).send().await.expect("get");
        assert_eq!(got.body.collect().await.expect("body").to_vec(), b"x");
    }
    let mut wanted: Vec<String> = AWKWARD.iter().map(|key| (*key).to_owned()).collect();
    wanted.sort();
    assert_eq!(server.objects().keys("tgt", ""), wanted);
    let listed = s3.list_objects_v2().bucket("tgt").send().await.expect("list");
    let keys: Vec<_> = listed.contents().iter().filter_map(|object| object.key().map(str::to_owned)).collect();
    assert_eq!(keys, wanted);
}

#[tokio::test]
async fn keys_that_could_escape_their_prefix_are_refused_everywhere() {
    let (server, s3) = server();
    server.objects().put("src", "x", b"1");
    for key in ["moves/../instances/x", "../src/x", "a//b", "./a", "a/.", "a/", "a\u{1}b"] {
        let put = s3.put_object().bucket("tgt").key(key).body(ByteStream::from_static(b"x")).send().await;
        assert_eq!(refusal(put), (400, "InvalidArgument".into()), "put {key:?}");
        let into = s3.copy_object().bucket("tgt").key(key).copy_source("src/x").send().await;
        assert_eq!(refusal(into).0, 400, "copy into {key:?}");
        let from = s3.copy_object().bucket("tgt").key("ok").copy_source(source("src", key)).send().await;
        assert_eq!(refusal(from).0, 400, "copy from {key:?}");
        let one = ObjectIdentifier::builder().key(key).build().expect("identifier");
        let delete = Delete::builder().objects(one).build().expect("delete");
        assert_eq!(refusal(s3.delete_objects().bucket("tgt").delete(delete).send().await).0, 400, "delete {key:?}");
    }
    assert!(server.objects().keys("tgt", "").is_empty());
    assert_eq!(server.objects().keys("src", ""), ["x"]);
}

#[tokio::test]
async fn conditions_on_writes_hold_and_of_sixteen_racers_one_wins() {
    let (_server, s3) = server();
    let race = (0..16).map(|n| {
        let put = s3.put_object().bucket("src").key("lock").if_none_match("*").body(ByteStream::from(vec![n]));
        tokio::spawn(put.send())
    });
    let mut winners = 0;
    for racer in race.collect::<Vec<_>>() {
        match racer.await.expect("join") {
            Ok(_) => winners += 1,
            Err(error) => assert_eq!(refusal::<(), _>(Err(error)), (412, "PreconditionFailed".into())),
        }
    }
    assert_eq!(winners, 1);
    let etag = s3.head_object().bucket("src").key("lock").send().await.expect("head").e_tag.expect("etag");
    let put = |etag: &str| {
        s3.put_object().bucket("src").key("lock").if_match(etag).body(ByteStream::from_static(b"new")).send()
    };
    assert_eq!(refusal(put("\"0000\"").await).0, 412);
    put(&etag).await.expect("the right etag");
    assert_eq!(refusal(put(&etag).await).0, 412);
    let absent =
        s3.put_object().bucket("src").key("none").if_match(&etag).body(ByteStream::from_static(b"x")).send().await;
    assert_eq!(refusal(absent).0, 404);
    let delete = s3.delete_object().bucket("src").key("lock").if_match(&etag).send().await;
    assert_eq!(refusal(delete).0, 412);
}

#[tokio::test]
async fn a_copy_keeps_type_and_metadata_unless_they_are_replaced() {
    let (server, s3) = server();
    let put = s3.put_object().bucket("src").key("k").content_type("application/x-ltx").cache_control("no-store");
    put.metadata("litestream-timestamp", "t1").body(ByteStream::from_static(b"body")).send().await.expect("put");
    s3.copy_object().bucket("tgt").key("k").copy_source("src/k").send().await.expect("copy");
    assert_eq!(server.objects().stat("tgt", "k"), server.objects().stat("src", "k"));
    let head = s3.head_object().bucket("tgt").key("k").send().await.expect("head");
    assert_eq!(head.content_type(), Some("application/x-ltx"));
    assert_eq!(head.cache_control(), Some("no-store"));
    assert_eq!(head.metadata().and_then(|all| all.get("litestream-timestamp")).map(String::as_str), Some("t1"));
    let replaced =
        s3.copy_object().bucket("tgt").key("r").copy_source("src/k").metadata_directive(MetadataDirective::Replace);
    replaced.content_type("text/plain").send().await.expect("copy");
    let head = s3.head_object().bucket("tgt").key("r").send().await.expect("head");
    assert_eq!((head.content_type(), head.metadata().map_or(0, |all| all.len())), (Some("text/plain"), 0));
    // And no object byte passed a client.
    assert_eq!((server.faults().bytes_in(), server.faults().bytes_out()), (4, 0));
}

#[tokio::test]
async fn a_copy_is_refused_for_another_etag_a_missing_source_and_a_missing_bucket() {
    let (server, s3) = server();
    server.objects().put("src", "k", b"1");
    let etag = server.objects().stat("src", "k").expect("stat").etag;
    let copy = |from: &str, to: &str, etag: &str| {
        s3.copy_object().bucket(to).key("k").copy_source(from).copy_source_if_match(format!("\"{etag}\"")).send()
    };
    copy("src/k", "tgt", &etag).await.expect("the etag that was listed");
    server.objects().put("src", "k", b"2");
    assert_eq!(refusal(copy("src/k", "tgt", &etag).await), (412, "PreconditionFailed".into()));
    assert_eq!(refusal(copy("src/gone", "tgt", &etag).await), (404, "NoSuchKey".into()));
    assert_eq!(refusal(copy("src/k", "absent", &etag).await), (404, "NoSuchBucket".into()));
    assert_eq!(server.objects().get("tgt", "k"), Some(b"1".to_vec()));
}

#[tokio::test]
async fn above_the_copy_limit_only_ranges_work_and_they_keep_everything() {
    let (server, s3) = server();
    server.set_copy_limit(10);
    server.set_min_part(1);
    let bytes: Vec<u8> = (0..25).collect();
    let copy = |key: &'static str| s3.copy_object().bucket("tgt").key(key).copy_source(format!("src/{key}")).send();
    server.objects().put("src", "at", &bytes[..10]);
    server.objects().put("src", "over", &bytes[..11]);
    server.objects().put("src", "far", &bytes);
    copy("at").await.expect("at the limit");
    assert_eq!(refusal(copy("over").await), (400, "InvalidRequest".into()));
    assert_eq!(refusal(copy("far").await), (400, "InvalidRequest".into()));
    let begin =
        s3.create_multipart_upload().bucket("tgt").key("far").content_type("application/x-ltx").metadata("m", "1");
    let id = begin.send().await.expect("create").upload_id.expect("id");
    let part = |number: i32, range: &str| {
        let part = s3.upload_part_copy().bucket("tgt").key("far").upload_id(&id).part_number(number);
        part.copy_source("src/far").copy_source_range(range).send()
    };
    assert_eq!(refusal(part(1, "bytes=0-10").await).0, 400, "a range over the limit");
    assert_eq!(refusal(part(3, "bytes=20-25").await), (416, "InvalidRange".into()), "a range over the end");
    let mut parts = Vec::new();
    for (number, range) in [(1, "bytes=0-9"), (2, "bytes=10-19"), (3, "bytes=20-24")] {
        let etag = part(number, range).await.expect("part").copy_part_result.and_then(|result| result.e_tag);
        parts.push(CompletedPart::builder().part_number(number).set_e_tag(etag).build());
    }
    let complete = |parts: Vec<CompletedPart>| {
        let parts = CompletedMultipartUpload::builder().set_parts(Some(parts)).build();
        s3.complete_multipart_upload().bucket("tgt").key("far").upload_id(&id).multipart_upload(parts).send()
    };
    let mut wrong = parts.clone();
    wrong.swap(0, 1);
    assert_eq!(refusal(complete(wrong).await), (400, "InvalidPartOrder".into()));
    let etag = complete(parts.clone()).await.expect("complete").e_tag.expect("etag");
    assert!(etag.ends_with("-3\""), "{etag}");
    assert_eq!(server.objects().get("tgt", "far"), Some(bytes));
    let head = s3.head_object().bucket("tgt").key("far").send().await.expect("head");
    assert_eq!(head.content_type(), Some("application/x-ltx"));
    assert_eq!(head.metadata().and_then(|all| all.get("m")).map(String::as_str), Some("1"));
    assert_eq!(refusal(complete(parts).await), (404, "NoSuchUpload".into()));
    assert_eq!((server.faults().bytes_in(), server.faults().bytes_out()), (0, 0));
}

#[tokio::test]
async fn a_copy_of_an_object_uploaded_in_parts_gets_another_etag() {
    let (server, s3) = server();
    server.set_min_part(1);
    let id = s3.create_multipart_upload().bucket("src").key("m").send().await.expect("create").upload_id.expect("id");
    let mut parts = Vec::new();
    for number in 1..=2 {
        let part = s3.upload_part().bucket("src").key("m").upload_id(&id).part_number(number);
        let etag = part.body(ByteStream::from_static(b"half")).send().await.expect("part").e_tag;
        parts.push(CompletedPart::builder().part_number(number).set_e_tag(etag).build());
    }
    let uploads = s3.list_multipart_uploads().bucket("src").send().await.expect("list uploads");
    assert_eq!(uploads.uploads().len(), 1);
    let parts = CompletedMultipartUpload::builder().set_parts(Some(parts)).build();
    let complete = s3.complete_multipart_upload().bucket("src").key("m").upload_id(&id).multipart_upload(parts);
    let etag = complete.send().await.expect("complete").e_tag.expect("etag");
    let copy = s3.copy_object().bucket("tgt").key("m").copy_source("src/m").send().await.expect("copy");
    let copied = copy.copy_object_result.and_then(|result| result.e_tag).expect("etag");
    assert!(etag.contains("-2") && !copied.contains('-'), "{etag} {copied}");
    assert_eq!(server.objects().get("tgt", "m"), Some(b"halfhalf".to_vec()));
}

#[tokio::test]
async fn an_aborted_upload_is_gone() {
    let (server, s3) = server();
    let id = s3.create_multipart_upload().bucket("src").key("m").send().await.expect("create").upload_id.expect("id");
    s3.abort_multipart_upload().bucket("src").key("m").upload_id(&id).send().await.expect("abort");
    let again = s3.abort_multipart_upload().bucket("src").key("m").upload_id(&id).send().await;
    assert_eq!(refusal(again), (404, "NoSuchUpload".into()));
    assert!(server.objects().keys("src", "").is_empty());
}

#[tokio::test]
async fn ranges_checksums_and_missing_keys_are_answered_as_s3_does() {
    let (server, s3) = server();
    let put =
        s3.put_object().bucket("src").key("k").checksum_sha256("bad").body(ByteStream::from_static(b"0123456789"));
    assert_eq!(refusal(put.send().await), (400, "BadDigest".into()));
    let put = s3.put_object().bucket("src").key("k").body(ByteStream::from_static(b"0123456789"));
    let stored = put.send().await.expect("put").checksum_crc32.expect("the SDK's own checksum comes back");
    let head = s3.head_object().bucket("src").key("k").checksum_mode(ChecksumMode::Enabled).send().await.expect("head");
    assert_eq!(head.checksum_crc32(), Some(stored.as_str()));
    let range = s3.get_object().bucket("src").key("k").range("bytes=2-4").send().await.expect("range");
    assert_eq!(range.content_range(), Some("bytes 2-4/10"));
    assert_eq!(range.body.collect().await.expect("body").to_vec(), b"234");
    assert_eq!(refusal(s3.get_object().bucket("src").key("k").range("bytes=10-").send().await).0, 416);
    assert_eq!(refusal(s3.get_object().bucket("src").key("none").send().await), (404, "NoSuchKey".into()));
    assert_eq!(refusal(s3.list_objects_v2().bucket("none").send().await), (404, "NoSuchBucket".into()));
    s3.delete_object().bucket("src").key("none").send().await.expect("deleting what is not there is no error");
    server.objects().corrupt("src", "k", |bytes| bytes[0] ^= 1);
    let got = s3.get_object().bucket("src").key("k").checksum_mode(ChecksumMode::Enabled).send().await.expect("get");
    assert!(got.body.collect().await.is_err(), "the client sees the damage");
}

#[tokio::test]
async fn a_folder_keeps_objects_between_runs_and_belongs_to_one_server() {
    let folder = tempfile::tempdir().expect("tempdir");
    let options = Options { root: Some(folder.path().join("s3")), buckets: vec!["kept".into()], ..Options::default() };
    let big = vec![7_u8; 3 * 1024 * 1024];
    let before = {
        let server = Server::start(options.clone()).expect("start");
        assert!(Server::start(options.clone()).is_err(), "a second server on one folder");
        let s3 = client(&server.endpoint(), server.access_key(), server.secret_key());
        let put = s3.put_object().bucket("kept").key("a/é").content_type("x/y").metadata("m", "1");
        put.body(ByteStream::from(big.clone())).send().await.expect("put");
        s3.put_object().bucket("kept").key("old").body(ByteStream::from_static(b"1")).send().await.expect("put");
        s3.put_object().bucket("kept").key("old").body(ByteStream::from_static(b"2")).send().await.expect("put");
        s3.put_object().bucket("kept").key("gone").body(ByteStream::from_static(b"3")).send().await.expect("put");
        s3.copy_object().bucket("kept").key("copy").copy_source("kept/gone").send().await.expect("copy");
        s3.delete_object().bucket("kept").key("gone").send().await.expect("delete");
        server.objects().stat("kept", "a/é")
    };
    let server = Server::start(options).expect("start again");
    let objects = server.objects();
    assert_eq!(objects.keys("kept", ""), ["a/é", "copy", "old"]);
    assert_eq!(objects.stat("kept", "a/é"), before);
    assert_eq!(objects.get("kept", "a/é"), Some(big));
    assert_eq!(objects.get("kept", "old"), Some(b"2".to_vec()));
    assert_eq!(objects.get("kept", "copy"), Some(b"3".to_vec()));
    let bodies = std::fs::read_dir(folder.path().join("s3/bodies")).expect("bodies").count();
    assert_eq!(bodies, 3, "what was replaced or deleted left nothing");
}

#[test]
fn a_bucket_that_no_request_could_name_is_refused() {
    for name in ["b", "../src", "UPPER"] {
        assert!(Server::start(Options { buckets: vec![name.into()], ..Options::default() }).is_err(), "{name}");
    }
}
