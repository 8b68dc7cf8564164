//! Which answer an edge gives.

use std::time::Duration;

use sandbox::edge::{Answer, Edge, Options};
use serde_json::{Value, json};
use tests::wait::until;

use crate::rig::{Documents, SOON, Upstream, ask, assert_come_again, head_of, reply};

const HOST: &str = "ledger.acme.example";

async fn by(answer: reqwest::Response) -> Value {
    assert_eq!(answer.status(), 200);
    answer.json::<Value>().await.expect("JSON")
}

#[tokio::test]
async fn a_served_host_is_answered_by_its_box_whatever_the_case_and_port_of_its_name() {
    let (here, there) = (Upstream::named("eu").await, Upstream::named("uk").await);
    let documents = Documents::default();
    documents.say("eu", &[(HOST, here.address)], &[]);
    documents.say("uk", &[("Other.Acme.Example", there.address)], &[]);
    let edge = documents.edge().await;
    edge.until_read().await;
    for name in [HOST, "LEDGER.acme.EXAMPLE", "ledger.acme.example:8080", "ledger.acme.example."] {
        let told = by(ask(&edge, name, "/state?x=1%2F2").await).await;
        assert_eq!(told["by"], "eu", "{name}");
        let head = told["head"].as_str().expect("a head").to_lowercase();
        assert!(head.starts_with("get /state?x=1%2f2 http/1.1\r\n"), "the path as it was asked: {head}");
        assert!(head.contains(&format!("host: {}\r\n", name.to_lowercase())), "the host as it was asked: {head}");
    }
    assert_eq!(by(ask(&edge, "other.acme.example", "/").await).await["by"], "uk");
}

#[tokio::test]
async fn a_host_that_nobody_serves_is_told_to_come_again_and_an_unknown_one_is_not_found() {
    let documents = Documents::default();
    documents.say("eu", &[], &[HOST]);
    let nowhere = json!({ "region": "uk", "routes": [{ "host": "mute.acme.example", "node": "n" }], "unserved": [] });
    documents.say_json("uk", &nowhere);
    let edge = documents.edge().await;
    edge.until_read().await;
    assert_come_again(&ask(&edge, HOST, "/").await, "unserved");
    assert_come_again(&ask(&edge, "mute.acme.example", "/").await, "served where nobody said");
    let unknown = ask(&edge, "nobody.example", "/").await;
    assert_eq!(unknown.status(), 404);
    assert!(unknown.headers().get("retry-after").is_none() && unknown.headers().get("location").is_none());
    let nonsense = ask(&edge, "a@b", "/").await;
    assert_eq!(nonsense.status(), 400);
}

/// Refused, hung up, silent: each is a 503, and no request is sent a second time.
#[tokio::test]
async fn a_route_that_does_not_answer_is_told_as_unserved_and_asked_once() {
    let gone = Upstream::named("gone").await.address;
    let hangs_up = Upstream::start(|mut stream| async move {
        head_of(&mut stream).await;
    })
    .await;
    let silent = Upstream::start(|mut stream| async move {
        head_of(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let talks_nonsense = Upstream::start(|mut stream| async move {
        head_of(&mut stream).await;
        reply(&mut stream, "SSH-2.0-none\r\n\r\n").await;
    })
    .await;
    let documents = Documents::default();
    let routes = [
        ("gone.example", gone),
        ("hangs-up.example", hangs_up.address),
        ("silent.example", silent.address),
        ("nonsense.example", talks_nonsense.address),
    ];
    documents.say("eu", &routes, &[]);
    documents.say("uk", &[], &[]);
    let options = Options { answer_limit: Duration::from_millis(300), ..Options::of(["eu", "uk"]) };
    let edge = documents.edge_with(options).await;
    edge.until_read().await;
    for (host, _) in routes {
        assert_come_again(&ask(&edge, host, "/").await, host);
        let post = crate::rig::client().post(edge.url()).header("host", host).body(vec![7; 1_000_000]);
        assert_come_again(&post.send().await.expect("an answer, though the body is large"), host);
    }
    for upstream in [&hangs_up, &silent, &talks_nonsense] {
        assert_eq!(upstream.connections(), 2, "one for each request");
    }
}

#[tokio::test]
async fn a_document_that_cannot_be_read_leaves_the_last_one_in_force() {
    let (first, second) = (Upstream::named("first").await, Upstream::named("second").await);
    let documents = Documents::default();
    documents.say("eu", &[(HOST, first.address)], &["waits.example"]);
    let edge = documents.edge().await;
    let unread = "until every region was read, nobody can know that a host is unknown";
    assert_come_again(&ask(&edge, "nobody.example", "/").await, unread);
    documents.say("uk", &[], &[]);
    edge.until_read().await;
    let texts = ["", "{", "{}", "[]", r#"["eu"]"#, "null", r#"{"region":"eu","routes":7}"#, r#"{"region":"uk"}"#];
    for bad in [None].into_iter().chain(texts.map(Some)) {
        match bad {
            None => documents.lose("eu"),
            Some(text) => documents.say_text("eu", text),
        }
        let before = documents.reads();
        until("it was asked for again", SOON, async || (documents.reads() > before + 4).then_some(())).await;
        assert_eq!(by(ask(&edge, HOST, "/").await).await["by"], "first", "{bad:?}");
        assert_come_again(&ask(&edge, "waits.example", "/").await, "unserved");
        assert_eq!(ask(&edge, "nobody.example", "/").await.status(), 404);
    }
    documents.say("eu", &[(HOST, second.address)], &[]);
    let moved =
        |answer: &Answer| *answer == Answer::Serves { region: "eu".into(), address: second.address.to_string() };
    edge.until_answer(HOST, moved).await;
    assert_eq!(by(ask(&edge, HOST, "/").await).await["by"], "second");
}

/// A list that was cut at its limit says nothing of who is missing in it.
#[tokio::test]
async fn a_host_that_is_missing_in_a_partial_document_is_not_told_as_unknown() {
    let documents = Documents::default();
    documents.say_json("eu", &json!({ "region": "eu", "routes": [], "unserved": [], "partial": true }));
    documents.say("uk", &[], &[]);
    let edge = documents.edge().await;
    edge.until_read().await;
    assert_come_again(&ask(&edge, "nobody.example", "/").await, "it may be one of the others");
}

/// Until each edge has read both documents some times.
async fn stays_unserved(documents: &Documents, edges: &[Edge]) {
    let before = documents.reads();
    until("each edge has read both again", SOON, async || {
        for edge in edges {
            assert_come_again(&ask(edge, HOST, "/").await, "flipped");
        }
        (documents.reads() > before + 20).then_some(())
    })
    .await;
}

/// Every phase of a cut as the documents tell it, and between two phases the documents one after the other, in either
/// order. At no time does an edge send a request where it does not belong, or say that the host does not exist (M-125).
#[tokio::test]
async fn every_edge_answers_503_in_every_phase_of_a_cut_and_never_404_or_a_redirect() {
    let (eu, uk) = (Upstream::named("eu").await, Upstream::named("uk").await);
    let documents = Documents::default();
    documents.say("eu", &[(HOST, eu.address)], &[]);
    documents.say("uk", &[], &[]);
    let edges = [documents.edge().await, documents.edge().await, documents.edge().await];
    for edge in &edges {
        edge.until_read().await;
        assert_eq!(by(ask(edge, HOST, "/").await).await["by"], "eu");
    }
    // The route is `moving`: the source's document names the host as unserved.
    documents.say("eu", &[], &[HOST]);
    for edge in &edges {
        edge.until_answer(HOST, |answer| *answer == Answer::Unserved).await;
        assert_come_again(&ask(edge, HOST, "/").await, "stopped");
    }
    // The flip, as one who reads the documents one after the other can see it: in neither.
    documents.lose("uk");
    documents.say("eu", &[], &[]);
    stays_unserved(&documents, &edges).await;
    documents.say("uk", &[], &[HOST]);
    stays_unserved(&documents, &edges).await;
    documents.say("uk", &[(HOST, uk.address)], &[]);
    for edge in &edges {
        edge.until_answer(HOST, |answer| matches!(answer, Answer::Serves { region, .. } if region == "uk")).await;
        assert_eq!(by(ask(edge, HOST, "/").await).await["by"], "uk");
    }
    assert_eq!((eu.connections(), uk.connections()), (3, 3), "no request went anywhere else");
}
