//! A browser without a face: it keeps cookies, fills forms in, follows nothing by itself.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::ids::{QueueName, WorkerId};
use domain::queue::{self, Leased, NewJob, WorkerSpec};
use reqwest::redirect::Policy;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;
use tests::api::{Server, Told, kinds};

/// Somebody with cookies.
pub struct Visitor<'a> {
    server: &'a Server,
    http: reqwest::Client,
    pub cookies: BTreeMap<String, String>,
}

impl<'a> Visitor<'a> {
    pub fn of(server: &'a Server) -> Self {
        let http = reqwest::Client::builder().no_proxy().redirect(Policy::none()).build().expect("a client");
        Self { server, http, cookies: BTreeMap::new() }
    }

    /// A visitor with the administrator's session.
    pub async fn signed_in(server: &'a Server) -> Self {
        Self::signed_in_as(server, &server.admin).await
    }

    pub async fn signed_in_as(server: &'a Server, key: &SecretString) -> Self {
        let mut visitor = Self::of(server);
        let told = visitor.sign_in(key.expose_secret(), "/").await;
        assert_eq!((told.status, told.header("location")), (303, Some("/")), "{told:?}");
        visitor
    }

    /// Opens the form and sends it.
    pub async fn sign_in(&mut self, key: &str, next: &str) -> Told {
        let form = self.get("/login").await;
        self.post("/login", &[("csrf", hidden(&form.text, "csrf")), ("next", next), ("key", key)]).await
    }

    pub fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let method = reqwest::Method::from_bytes(method.as_bytes()).expect("a method");
        let cookies: Vec<String> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let request = self.http.request(method, format!("{}{path}", self.server.base)).header("accept", "text/html");
        if cookies.is_empty() { request } else { request.header("cookie", cookies.join("; ")) }
    }

    pub async fn get(&mut self, path: &str) -> Told {
        let told = Told::by(self.request("GET", path)).await;
        self.keep(told)
    }

    /// As the script asks.
    pub async fn get_live(&mut self, path: &str) -> Told {
        let told = Told::by(self.request("GET", path).header("x-leasehold-part", "live")).await;
        self.keep(told)
    }

    pub async fn post(&mut self, path: &str, form: &[(&str, &str)]) -> Told {
        let body: Vec<String> = form.iter().map(|(name, value)| format!("{name}={}", escaped(value))).collect();
        let request =
            self.request("POST", path).header("content-type", "application/x-www-form-urlencoded").body(body.join("&"));
        let told = Told::by(request).await;
        self.keep(told)
    }

    fn keep(&mut self, told: Told) -> Told {
        for cookie in told.headers.get_all("set-cookie") {
            let text = cookie.to_str().expect("a cookie is text");
            let (name, value) = text.split(';').next().and_then(|pair| pair.split_once('=')).expect("a pair");
            if text.contains("Max-Age=0") {
                self.cookies.remove(name);
            } else {
                self.cookies.insert(name.to_owned(), value.to_owned());
            }
        }
        told
    }
}

fn escaped(value: &str) -> String {
    value
        .bytes()
        .map(|b| if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}

/// The value of a hidden field.
pub fn hidden<'t>(html: &'t str, name: &str) -> &'t str {
    between(html, &format!("name=\"{name}\" value=\""), "\"")
}

/// The text between two others.
pub fn between<'t>(text: &'t str, before: &str, after: &str) -> &'t str {
    let rest = text.split_once(before).unwrap_or_else(|| panic!("{before:?} stands in {text}")).1;
    rest.split_once(after).unwrap_or_else(|| panic!("{after:?} stands in {rest}")).0
}

/// A page's text without its markup, with plain spaces.
pub fn plain(html: &str) -> String {
    let mut text = String::new();
    let mut inside = false;
    for c in html.chars() {
        match c {
            '<' => inside = true,
            '>' => inside = false,
            '\u{a0}' | '\u{202f}' if !inside => text.push(' '),
            c if !inside => text.push(c),
            _ => {}
        }
    }
    text
}

/// A job of the kind `test.free`.
pub fn job(on: &str) -> NewJob {
    let spec = kinds().into_iter().find(|spec| spec.kind.as_str() == "test.free").expect("the tests' own kind");
    NewJob::new(&spec, json!({})).on(QueueName::new(on).expect("a valid name"))
}

pub async fn enqueue(server: &Server, jobs: &[NewJob]) {
    let mut conn = server.db.pool().acquire().await.expect("the database answers");
    queue::enqueue_many(&mut conn, jobs).await.expect("valid jobs");
}

/// A registered worker of these queues with four slots.
pub async fn worker(server: &Server, queues: &[&str]) -> WorkerSpec {
    let names = queues.iter().map(|name| QueueName::new(*name).expect("a valid name"));
    let kinds = kinds().into_iter().map(|spec| (spec.kind, Duration::from_secs(30)));
    let spec = WorkerSpec { worker: WorkerId::generate(), queues: names.collect(), kinds: kinds.collect() };
    let mut conn = server.db.pool().acquire().await.expect("the database answers");
    queue::register_worker(&mut conn, &spec, "host-1", 4711, "0.1.0", None, 4).await.expect("registered");
    spec
}

pub async fn lease(server: &Server, worker: &WorkerSpec, limit: u16) -> Vec<Leased> {
    let mut conn = server.db.pool().acquire().await.expect("the database answers");
    queue::lease_next(&mut conn, worker, limit, &[]).await.expect("leased")
}

/// One number from the test's database, by SQL of the test's own.
pub async fn number(server: &Server, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(server.db.pool()).await.expect("a number")
}
