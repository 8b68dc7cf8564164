//! Who may do what, at the in-process server.

use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{Delete, ObjectIdentifier};
use sandbox::s3::Identity;

use crate::support::{client, client_of, refusal, server};

#[tokio::test]
async fn wrong_unknown_and_revoked_keys_are_refused() {
    let (server, s3) = server();
    let list = |key: &str, secret: &str| client(&server.endpoint(), key, secret).list_objects_v2().bucket("src").send();
    assert_eq!(refusal(list(server.access_key(), "wrong").await), (403, "SignatureDoesNotMatch".into()));
    assert_eq!(refusal(list("nobody", "x").await), (403, "InvalidAccessKeyId".into()));
    s3.list_objects_v2().bucket("src").send().await.expect("the right key");
    server.revoke(server.access_key());
    assert_eq!(refusal(s3.list_objects_v2().bucket("src").send().await).0, 403);
}

#[tokio::test]
async fn a_mover_can_do_what_a_mover_needs_and_nothing_else() {
    let (server, _) = server();
    let objects = server.objects();
    for (bucket, key) in [("src", "instances/h/1"), ("src", "other"), ("tgt", "instances/h/1"), ("tgt", "moves/h/old")]
    {
        objects.put(bucket, key, b"x");
    }
    let mover = Identity::limited(
        "mover",
        "mover",
        "secret",
        ["Read:src/instances/*", "List:src/instances/*", "Write:tgt/moves/*", "List:tgt/moves/*"],
    );
    server.add_identity(mover.clone());
    let s3 = client_of(&server.endpoint(), &mover);
    let copy = |from: &str, to: &str| s3.copy_object().bucket("tgt").key(to).copy_source(from).send();
    copy("src/instances/h/1", "moves/h/1").await.expect("copy");
    s3.list_objects_v2().bucket("tgt").prefix("moves/h/").send().await.expect("list");
    s3.list_objects_v2().bucket("src").prefix("instances/h/").send().await.expect("list");
    let denied = (403, "AccessDenied".to_owned());
    assert_eq!(refusal(copy("src/other", "moves/h/2").await), denied);
    assert_eq!(refusal(copy("tgt/instances/h/1", "moves/h/2").await), denied);
    assert_eq!(refusal(copy("src/instances/h/1", "instances/h/1").await), denied);
    assert_eq!(refusal(copy("src/instances/h/1", "movesX/1").await), denied);
    assert_eq!(refusal(s3.get_object().bucket("tgt").key("moves/h/1").send().await), denied);
    assert_eq!(refusal(s3.list_objects_v2().bucket("tgt").send().await), denied);
    assert_eq!(refusal(s3.list_objects_v2().bucket("tgt").prefix("instances/").send().await), denied);
    let put = s3.put_object().bucket("src").key("instances/h/1").body(ByteStream::from_static(b"y")).send().await;
    assert_eq!(refusal(put), denied);
    assert_eq!(refusal(s3.create_bucket().bucket("new").send().await), denied);
    let object = |key: &str| ObjectIdentifier::builder().key(key).build().expect("identifier");
    let batch =
        Delete::builder().objects(object("moves/h/old")).objects(object("instances/h/1")).build().expect("delete");
    let answer = s3.delete_objects().bucket("tgt").delete(batch).send().await.expect("200 with errors by key");
    assert_eq!(answer.deleted().len(), 1);
    assert_eq!((answer.errors()[0].key(), answer.errors()[0].code()), (Some("instances/h/1"), Some("AccessDenied")));
    assert_eq!(objects.keys("tgt", ""), ["instances/h/1", "moves/h/1"]);
}
