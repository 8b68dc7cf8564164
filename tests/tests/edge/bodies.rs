//! Bodies stream both ways, and what breaks off is seen to break off.

use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::rig::{Documents, Upstream, ask, client, head_of, reply};

const HOST: &str = "ledger.acme.example";

async fn edge_of(upstream: &Upstream) -> sandbox::edge::Edge {
    let documents = Documents::default();
    documents.say("eu", &[(HOST, upstream.address)], &[]);
    documents.say("uk", &[], &[]);
    let edge = documents.edge().await;
    edge.until_read().await;
    edge
}

#[tokio::test]
async fn an_answer_arrives_while_it_is_still_made() {
    let seen = Arc::new(Notify::new());
    let waits_for = Arc::clone(&seen);
    let upstream = Upstream::start(move |mut stream| {
        let seen = Arc::clone(&waits_for);
        async move {
            head_of(&mut stream).await;
            reply(&mut stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n").await;
            // The rest only once the client has had the beginning.
            seen.notified().await;
            reply(&mut stream, "6\r\nsecond\r\n0\r\n\r\n").await;
        }
    })
    .await;
    let edge = edge_of(&upstream).await;
    let mut answer = ask(&edge, HOST, "/").await;
    assert_eq!(answer.chunk().await.expect("a chunk").as_deref(), Some(&b"first"[..]));
    seen.notify_one();
    assert_eq!(answer.chunk().await.expect("a chunk").as_deref(), Some(&b"second"[..]));
    assert_eq!(answer.chunk().await.expect("the end"), None);
}

#[tokio::test]
async fn a_request_arrives_while_it_is_still_sent() {
    let upstream = Upstream::start(|mut stream| async move {
        let head = head_of(&mut stream).await.to_lowercase();
        assert!(head.contains("transfer-encoding: chunked"), "{head}");
        let mut first = [0; 10];
        let _ = stream.read_exact(&mut first).await;
        let told = String::from_utf8_lossy(&first).replace("\r\n", " ");
        reply(&mut stream, &format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{told}", told.len())).await;
        // Kept open: whoever ends here would end the other half as well.
        let _ = stream.read_to_end(&mut Vec::new()).await;
    })
    .await;
    let edge = edge_of(&upstream).await;
    let mut stream = TcpStream::connect(edge.address()).await.expect("connect");
    let head = format!("POST /rows HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n");
    stream.write_all(head.as_bytes()).await.expect("send");
    // The request has no end yet, and its answer is there.
    let answer = head_of(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    let mut body = [0; 8];
    stream.read_exact(&mut body).await.expect("a body");
    assert_eq!(&body, b"5 first ");
}

#[tokio::test]
async fn large_bodies_arrive_byte_equal_both_ways() {
    const SIZE: usize = 12 << 20;
    let upstream = Upstream::start(|mut stream| async move {
        head_of(&mut stream).await;
        let mut body = vec![0; SIZE];
        stream.read_exact(&mut body).await.expect("the whole body");
        body.reverse();
        reply(&mut stream, &format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n")).await;
        stream.write_all(&body).await.expect("the whole answer");
    })
    .await;
    let edge = edge_of(&upstream).await;
    let mut sent: Vec<u8> = (0..SIZE).map(|n| u8::try_from(n % 251).expect("below 251")).collect();
    let request = client().post(edge.url()).header("host", HOST).body(sent.clone());
    let answer = request.send().await.expect("an answer").bytes().await.expect("a body");
    sent.reverse();
    assert!(answer == sent, "byte-equal");
}

/// A simple client sends all that it has before it reads. Were the connection closed under it, it would see a reset and
/// not that it may come again.
#[tokio::test]
async fn a_client_that_sends_all_before_it_reads_is_told_to_come_again() {
    const SIZE: usize = 1_000_000;
    let documents = Documents::default();
    documents.say("eu", &[], &[HOST]);
    documents.say("uk", &[], &[]);
    let edge = documents.edge().await;
    edge.until_read().await;
    for _ in 0..20 {
        let mut stream = TcpStream::connect(edge.address()).await.expect("connect");
        let head = format!("POST /rows HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {SIZE}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.expect("send");
        for part in vec![7; SIZE].chunks(50_000) {
            stream.write_all(part).await.expect("the body is taken");
            // The edge has its turn, and could answer already.
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        }
        let answer = head_of(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("retry-after: 2\r\n"), "{answer:?}");
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_not_taken_for_a_whole_one() {
    let upstream = Upstream::start(|mut stream| async move {
        head_of(&mut stream).await;
        reply(&mut stream, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nten bytes.").await;
    })
    .await;
    let edge = edge_of(&upstream).await;
    ask(&edge, HOST, "/").await.bytes().await.expect_err("90 bytes are missing");
}

/// What speaks of one connection stays there; everything else passes, an application's own redirect included.
#[tokio::test]
async fn headers_pass_but_for_those_of_one_connection() {
    let (told, mut asked) = tokio::sync::mpsc::unbounded_channel();
    let upstream = Upstream::start(move |mut stream| {
        let told = told.clone();
        async move {
            let _ = told.send(head_of(&mut stream).await.to_lowercase());
            let answer = "HTTP/1.1 302 Found\r\nLocation: /there\r\nX-Kept: 1\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n\
                          Connection: x-hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nContent-Length: 0\r\n\r\n";
            reply(&mut stream, answer).await;
        }
    })
    .await;
    let edge = edge_of(&upstream).await;
    let request = client().get(edge.url()).header("host", HOST).header("x-kept", "1").header("x-hop", "1");
    let answer = request.header("connection", "X-Hop, close").header("te", "trailers").send().await.expect("an answer");
    assert_eq!(answer.status(), 302);
    let of = |name: &str| {
        answer.headers().get_all(name).iter().map(|value| value.to_str().expect("text")).collect::<Vec<_>>()
    };
    assert_eq!((of("location"), of("x-kept"), of("set-cookie")), (vec!["/there"], vec!["1"], vec!["a=1", "b=2"]));
    assert_eq!((of("x-hop"), of("keep-alive")), (vec![], vec![]));
    let head = asked.recv().await.expect("a request");
    assert!(head.contains("x-kept: 1\r\n"), "{head}");
    assert!(["x-hop", "te:", "connection:"].iter().all(|name| !head.contains(name)), "{head}");
}
