//! Documents that a test writes, edges that read them, and boxes that answer as a test says.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use reqwest::redirect::Policy;
use sandbox::edge::{Edge, Options};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// How long anything may take that happens soon.
pub const SOON: Duration = Duration::from_secs(20);

/// The documents of regions, as their API would tell them; a region that has none cannot be read.
#[derive(Clone, Default)]
pub struct Documents {
    told: Arc<Mutex<HashMap<String, String>>>,
    reads: Arc<AtomicUsize>,
}

impl Documents {
    /// Says of a region who is served where, and who is not.
    pub fn say(&self, region: &str, routes: &[(&str, SocketAddr)], unserved: &[&str]) {
        let routes: Vec<_> = routes
            .iter()
            .map(|(host, at)| json!({ "host": host, "node": format!("box-{region}"), "address": at.to_string() }))
            .collect();
        self.say_json(region, &json!({ "region": region, "serial": 1, "routes": routes, "unserved": unserved }));
    }

    pub fn say_json(&self, region: &str, document: &Value) {
        self.say_text(region, &document.to_string());
    }

    pub fn say_text(&self, region: &str, text: &str) {
        self.told().insert(region.to_owned(), text.to_owned());
    }

    /// From here on it cannot be read.
    pub fn lose(&self, region: &str) {
        self.told().remove(region);
    }

    /// How often any of them was asked for.
    pub fn reads(&self) -> usize {
        self.reads.load(Ordering::SeqCst)
    }

    fn told(&self) -> std::sync::MutexGuard<'_, HashMap<String, String>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An edge of the two regions that reads them, often.
    pub async fn edge(&self) -> Edge {
        self.edge_with(Options::of(["eu", "uk"])).await
    }

    pub async fn edge_with(&self, options: Options) -> Edge {
        let documents = self.clone();
        let read = move |region: &str| {
            documents.reads.fetch_add(1, Ordering::SeqCst);
            documents.told().get(region).cloned().with_context(|| format!("{region} cannot be read"))
        };
        let options = Options { poll: Duration::from_millis(20), ..options };
        Edge::start(options, Arc::new(read)).await.expect("an edge")
    }
}

/// Asks an edge for a path of a host; redirects are shown and not followed.
pub async fn ask(edge: &Edge, host: &str, path: &str) -> reqwest::Response {
    client().get(format!("{}{path}", edge.url())).header("host", host).send().await.expect("the edge answers")
}

/// A plain client.
pub fn client() -> reqwest::Client {
    // The typed client installs the process's TLS provider, without which no other HTTP client can be made.
    let _ = wire::Client::new("http://127.0.0.1:1", None).expect("a client");
    reqwest::Client::builder().no_proxy().redirect(Policy::none()).timeout(SOON).build().expect("a client")
}

/// A 503 with a time to come again, and nothing that leads elsewhere.
#[track_caller]
pub fn assert_come_again(answer: &reqwest::Response, what: &str) {
    assert_eq!(answer.status(), 503, "{what}");
    assert_eq!(answer.headers().get("retry-after").and_then(|value| value.to_str().ok()), Some("2"), "{what}");
    assert!(answer.headers().get("location").is_none(), "{what}");
}

/// A box on loopback that does with each connection what a test says.
pub struct Upstream {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Upstream {
    pub async fn start<F, Fut>(act: F) -> Self
    where
        F: Fn(TcpStream) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let connections = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&connections);
        let task = tokio::spawn(async move {
            let mut running = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                running.spawn(act(stream));
            }
        });
        Self { address, connections, task }
    }

    /// One that answers with its name and the head of the request.
    pub async fn named(name: &'static str) -> Self {
        Self::start(move |mut stream| async move {
            let head = head_of(&mut stream).await;
            let body = json!({ "by": name, "head": head }).to_string();
            reply(&mut stream, &format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())).await;
        })
        .await
    }

    /// How many connections it was given.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads a request up to its first empty line.
pub async fn head_of(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}

pub async fn reply(stream: &mut TcpStream, text: &str) {
    // Whoever hung up needs no answer.
    let _ = stream.write_all(text.as_bytes()).await;
}
