//! Hints for live pages.

use std::time::Duration;

use domain::authority::{IdentityKind, Role, Scopes};
use secrecy::ExposeSecret as _;
use serde_json::json;
use tests::api::Server;

/// Reads a stream until it contains `wanted`.
async fn read_until(mut response: reqwest::Response, wanted: &str) -> String {
    let mut text = String::new();
    let read = async {
        while let Some(chunk) = response.chunk().await.expect("a chunk") {
            text.push_str(std::str::from_utf8(&chunk).expect("text"));
            if text.contains(wanted) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(15), read).await.unwrap_or_else(|_| panic!("waited for {wanted:?}"));
    assert!(text.contains(wanted), "the stream ended with {text:?}");
    text
}

fn last_id(text: &str) -> String {
    text.lines().rev().find_map(|line| line.strip_prefix("id: ")).expect("an id").to_owned()
}

#[tokio::test]
async fn a_listener_hears_of_a_job_and_of_what_it_missed_and_of_a_restart() {
    let server = Server::start().await;
    let listen = async |id: Option<&str>| {
        let request = server.request("GET", "/v1/events");
        let request = match id {
            Some(id) => request.header("last-event-id", id),
            None => request,
        };
        request.send().await.expect("a stream")
    };
    let first = listen(None).await;
    assert_eq!(first.headers()["content-type"], "text/event-stream");
    let hello = read_until(listen(None).await, "\n\n").await;
    assert!(hello.contains("event: hello"), "{hello}");
    // The marks are compared once a second while somebody listens: jobs are enqueued until a hint comes.
    let enqueue = async {
        loop {
            server.client().enqueue(&wire::NewJob::new("test.free", json!({})), None).await.expect("enqueued");
        }
    };
    tokio::select! {
        text = read_until(first, "event: jobs") => assert!(!text.contains("event: workers"), "{text}"),
        () = enqueue => {}
    }
    let missed = read_until(listen(Some(&last_id(&hello))).await, "event: jobs").await;
    assert!(!missed.contains("event: reset") && !missed.contains("event: hello"), "{missed}");
    for unknown in ["0", "nonsense", "00000000000000000000000000000000-7"] {
        assert!(read_until(listen(Some(unknown)).await, "\n\n").await.contains("event: reset"), "{unknown}");
    }
}

#[tokio::test]
async fn listeners_are_bounded() {
    let config = api::Config { max_listeners: 1, ..Server::config() };
    let server = Server::start_with(config).await;
    let held = server.request("GET", "/v1/events").send().await.expect("a stream");
    assert_eq!(held.status().as_u16(), 200);
    let told = tests::api::Told::by(server.request("GET", "/v1/events")).await;
    assert_eq!(told.problem(), (503, "too_many_listeners".to_owned()));
    drop(held);
    tests::api::until("the place is free again", async || {
        server.request("GET", "/v1/events").send().await.is_ok_and(|response| response.status().as_u16() == 200)
    })
    .await;
}

#[tokio::test]
async fn one_key_holds_its_share_of_the_listeners_and_leaves_the_rest_to_others() {
    let config = api::Config { max_listeners: 3, max_listeners_per_key: 2, ..Server::config() };
    let server = Server::start_with(config).await;
    let listen = async || server.request("GET", "/v1/events").send().await.expect("an answer");
    let held = [listen().await, listen().await];
    assert!(held.iter().all(|stream| stream.status().as_u16() == 200));
    let told = tests::api::Told::by(server.request("GET", "/v1/events")).await;
    assert_eq!(told.problem(), (503, "too_many_listeners".to_owned()));
    assert!(told.text.contains("This key"), "{}", told.text);
    let (_, other) = server.key(IdentityKind::Person, &[Role::Viewer], None, Scopes::default()).await;
    let stream = server.bare("GET", "/v1/events").bearer_auth(other.expose_secret()).send().await.expect("an answer");
    assert_eq!(stream.status().as_u16(), 200, "another key finds a place");
    drop((held, stream));
    tests::api::until("the share is free again", async || listen().await.status().as_u16() == 200).await;
}

#[tokio::test]
async fn a_stream_ends_when_its_key_is_revoked_or_expires_and_others_go_on() {
    let server = Server::start_with(api::Config { keep_alive: Duration::from_millis(50), ..Server::config() }).await;
    let open = async |key: &secrecy::SecretString| {
        let stream = server.bare("GET", "/v1/events").bearer_auth(key.expose_secret()).send().await.expect("an answer");
        assert_eq!(stream.status().as_u16(), 200);
        stream
    };
    let ended = async |stream: reqwest::Response| {
        tokio::time::timeout(Duration::from_secs(15), stream.text()).await.expect("the stream ends").expect("in order")
    };
    let viewer = async || server.key(IdentityKind::Person, &[Role::Viewer], None, Scopes::default()).await;
    let ((revoked_id, revoked), (expiring_id, expiring), (_, good)) = (viewer().await, viewer().await, viewer().await);
    let (first, second, mut third) = (open(&revoked).await, open(&expiring).await, open(&good).await);
    server.client().revoke_key(revoked_id.0, &wire::Reason::default()).await.expect("revoked");
    assert!(ended(first).await.contains("event: hello"));
    sqlx::query("update api_keys set expires_at = lh_now() where id = $1")
        .bind(expiring_id.0)
        .execute(server.db.pool())
        .await
        .expect("its time is over");
    assert!(ended(second).await.contains("event: hello"));
    // Comments that come now come after many questions: the stream with a good key was asked for too.
    for _ in 0..20 {
        let chunk = tokio::time::timeout(Duration::from_secs(15), third.chunk()).await.expect("a comment is due");
        assert!(chunk.expect("a whole chunk").is_some(), "the good key's stream goes on");
    }
}
