//! Listings: pages, order, prefixes.

use aws_sdk_s3::Client;
use aws_sdk_s3::types::EncodingType;

use crate::support::server;

/// All keys under a prefix, page by page, and the number of pages.
async fn walk(s3: &Client, bucket: &str, prefix: &str, page: i32) -> (Vec<String>, usize) {
    let (mut keys, mut pages, mut token) = (Vec::new(), 0, None::<String>);
    loop {
        let list = s3.list_objects_v2().bucket(bucket).prefix(prefix).max_keys(page).set_continuation_token(token);
        let got = list.send().await.expect("list");
        pages += 1;
        assert_eq!(got.key_count(), i32::try_from(got.contents().len()).ok());
        assert!(got.contents().iter().all(|object| object.e_tag().is_some_and(|etag| etag.starts_with('"'))));
        keys.extend(got.contents().iter().filter_map(|object| object.key().map(str::to_owned)));
        match (got.is_truncated(), got.next_continuation_token) {
            (Some(true), Some(next)) => token = Some(next),
            (Some(false), None) => return (keys, pages),
            odd => panic!("{odd:?}"),
        }
    }
}

#[tokio::test]
async fn twenty_five_hundred_keys_come_in_three_pages_in_byte_order() {
    let (server, s3) = server();
    let objects = server.objects();
    let mut wanted: Vec<String> = (0..2498).map(|n| format!("h/{:04x}/{n:05}", n % 10)).collect();
    wanted.extend(["h/é".to_owned(), "h/zz".to_owned()]);
    for key in &wanted {
        objects.put("src", key, b"x");
    }
    objects.put("src", "h2/other", b"x");
    wanted.sort();
    assert_eq!(walk(&s3, "src", "h/", 1000).await, (wanted.clone(), 3));
    assert_eq!(walk(&s3, "src", "h/", 5000).await, (wanted.clone(), 3), "a page has at most 1,000 keys");
    assert_eq!(walk(&s3, "src", "h/", 833).await, (wanted, 4));
    assert_eq!(walk(&s3, "src", "nothing", 10).await, (Vec::new(), 1));
}

#[tokio::test]
async fn a_listing_starts_after_a_key_and_groups_by_a_delimiter() {
    let (server, s3) = server();
    for key in ["a/1", "a/2", "b", "c/1", "d"] {
        server.objects().put("src", key, b"x");
    }
    let after = s3.list_objects_v2().bucket("src").start_after("a/2").send().await.expect("list");
    let keys: Vec<_> = after.contents().iter().filter_map(|object| object.key()).collect();
    assert_eq!(keys, ["b", "c/1", "d"]);
    let grouped = s3.list_objects_v2().bucket("src").delimiter("/").send().await.expect("list");
    let keys: Vec<_> = grouped.contents().iter().filter_map(|object| object.key()).collect();
    let groups: Vec<_> = grouped.common_prefixes().iter().filter_map(|group| group.prefix()).collect();
    assert_eq!((keys, groups), (vec!["b", "d"], vec!["a/", "c/"]));
}

#[tokio::test]
async fn an_answer_with_url_encoding_is_encoded() {
    let (server, s3) = server();
    server.objects().put("src", "p q/a+b%é", b"x");
    let list = s3.list_objects_v2().bucket("src").prefix("p q/").encoding_type(EncodingType::Url);
    let got = list.send().await.expect("list");
    assert_eq!(got.encoding_type(), Some(&EncodingType::Url));
    assert_eq!(got.contents()[0].key(), Some("p%20q/a%2Bb%25%C3%A9"));
    assert_eq!(got.prefix(), Some("p%20q/"));
}

/// Eleven requests for 10,020 keys: what a mirror's idle round costs on each side.
#[tokio::test]
async fn ten_thousand_keys_come_in_eleven_pages() {
    let (server, s3) = server();
    for n in 0..10_020 {
        server.objects().put("src", &format!("instances/h/0000/{n:016x}-{n:016x}.ltx"), b"x");
    }
    let (keys, pages) = walk(&s3, "src", "instances/h/", 1000).await;
    assert_eq!((keys.len(), pages), (10_020, 11));
    assert_eq!(server.faults().calls("ListObjectsV2"), 11);
}
