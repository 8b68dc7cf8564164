//! What the log says of a request, and what it never says.

use std::io::Write;
use std::sync::{Arc, Mutex};

use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tests::api::{Server, Told};
use tracing_subscriber::fmt::format::FmtSpan;

/// Where the test's log goes.
#[derive(Debug, Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no holder panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Buffer {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("no holder panics")).into_owned()
    }
}

#[tokio::test]
async fn a_request_has_one_span_with_its_route_its_caller_and_its_outcome_and_no_secret() {
    let buffer = Buffer::default();
    let writer = buffer.clone();
    // The test runs on one thread, and so does its server: the subscriber is the thread's own.
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_max_level(tracing::Level::TRACE)
        .with_span_events(FmtSpan::CLOSE)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let server = Server::start().await;
    let payload = json!({"kind": "test.free", "args": {"card": "4111-payload"}});
    let request = server.request("POST", "/v1/jobs").header("x-request-id", "of-the-test");
    let made = Told::by(request.json(&payload)).await;
    assert_eq!((made.status, made.header("x-request-id")), (201, Some("of-the-test")));
    let id = made.json()["id"].as_str().expect("an id").to_owned();
    assert_eq!(Told::by(server.request("GET", &format!("/v1/jobs/{id}?x=1"))).await.status, 400);
    let text = buffer.text();
    let of_request: Vec<Value> = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| line["span"]["request.id"] == "of-the-test" && line["target"] == "leasehold_api::door::observe")
        .collect();
    let closed: Vec<&Value> = of_request.iter().filter(|line| line["fields"]["message"] == "close").collect();
    let [closed] = closed.as_slice() else { panic!("one span: {of_request:#?}") };
    let span = &closed["span"];
    assert_eq!((span["http.method"].as_str(), span["http.route"].as_str()), (Some("POST"), Some("/v1/jobs")));
    assert_eq!(span["http.status"], 201);
    assert!(span["elapsed_ms"].is_u64() && span["identity.id"].is_string(), "{span}");
    assert!(text.contains("\"code\":\"invalid_query\""), "a refusal is logged with its code");
    let secret = server.admin.expose_secret().rsplit('_').next().expect("a secret part");
    assert!(!text.contains(secret), "no secret, also not at the finest level");
    let ours: Vec<&str> = text.lines().filter(|line| line.contains("\"target\":\"leasehold_api")).collect();
    assert!(!ours.is_empty() && ours.iter().all(|line| !line.contains("4111-payload") && !line.contains(&id)));
}
