//! A real API server on a loopback port over a test's database.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use domain::authority::{self, IdentityKind, NewIdentity, NewKey, Permission, Role, Scopes};
use domain::queue::KindSpec;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::db::Database;

/// Arguments of the kind `test.greet`.
#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Greet {
    /// Whom.
    pub name: String,
    /// How often.
    #[serde(default)]
    pub times: Option<u8>,
}

/// Arguments of any shape.
pub type Anything = serde_json::Map<String, Value>;

/// The kinds that the tests' API knows.
#[must_use]
pub fn kinds() -> Vec<KindSpec> {
    let inner = KindSpec { public: false, ..KindSpec::new::<Anything>("test.inner", "Belongs to another verb.") };
    let protected =
        KindSpec { protected: true, ..KindSpec::new::<Anything>("test.protected", "Is ended by its own verb.") };
    vec![
        KindSpec::new::<Greet>("test.greet", "Greets."),
        KindSpec::new::<Anything>("test.free", "Takes anything."),
        inner,
        protected,
    ]
}

/// A server and its database. Dropping it stops the server.
#[derive(Debug)]
pub struct Server {
    /// The database.
    pub db: Database,
    /// Where it listens, e.g. `http://127.0.0.1:4711`.
    pub base: String,
    /// The first administrator's key.
    pub admin: SecretString,
    /// For requests that the typed client cannot make.
    pub http: reqwest::Client,
    stop: CancellationToken,
    task: JoinHandle<Result<(), api::ServeError>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
        self.task.abort();
    }
}

impl Server {
    /// Starts a server with every default, but a rate that no test meets by accident.
    ///
    /// # Panics
    /// When it cannot start.
    pub async fn start() -> Self {
        Self::start_with(Self::config()).await
    }

    /// The configuration of [`Server::start`].
    #[must_use]
    pub fn config() -> api::Config {
        api::Config { rate_per_second: 100_000, rate_burst: 100_000, ..api::Config::default() }
    }

    /// Starts a server.
    ///
    /// # Panics
    /// When it cannot start.
    pub async fn start_with(config: api::Config) -> Self {
        let db = Database::start().await;
        let pool = db.pool().clone();
        Self::start_over(db, pool, config).await
    }

    /// Starts a server that reaches the database through this pool.
    ///
    /// # Panics
    /// When it cannot start.
    pub async fn start_over(db: Database, pool: sqlx::PgPool, config: api::Config) -> Self {
        let mut tx = db.pool().begin().await.expect("the test's database answers");
        let made = authority::bootstrap(&mut tx).await.expect("there is no administrator yet");
        tx.commit().await.expect("the test's database answers");
        let admin = made.secret.whole().clone();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let base = format!("http://{}", listener.local_addr().expect("a bound socket has an address"));
        let stop = CancellationToken::new();
        let app = api::App::new(pool, kinds(), config);
        let task = tokio::spawn(api::serve(app, listener, stop.clone()));
        // The client installs the process's TLS provider, without which no other HTTP client can be made.
        let _ = wire::Client::new(&base, None).expect("a client");
        let http = reqwest::Client::builder().no_proxy().build().expect("a client");
        Self { db, base, admin, http, stop, task }
    }

    /// A typed client with the administrator's key.
    #[must_use]
    pub fn client(&self) -> wire::Client {
        self.client_of(&self.admin)
    }

    /// A typed client with this key.
    ///
    /// # Panics
    /// Never: the address is the server's own.
    #[must_use]
    pub fn client_of(&self, key: &SecretString) -> wire::Client {
        wire::Client::new(&self.base, Some(key.clone())).expect("a client")
    }

    /// A plain request with the administrator's key.
    pub fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        self.bare(method, path).bearer_auth(self.admin.expose_secret())
    }

    /// A plain request without a key.
    ///
    /// # Panics
    /// When the test names no HTTP method.
    pub fn bare(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let method = reqwest::Method::from_bytes(method.as_bytes()).expect("a method");
        self.http.request(method, format!("{}{path}", self.base))
    }

    /// A key of a new identity.
    ///
    /// # Panics
    /// When the authority refuses it.
    pub async fn key(
        &self,
        kind: IdentityKind,
        roles: &[Role],
        permissions: Option<&[Permission]>,
        scopes: Scopes,
    ) -> (domain::ids::KeyId, SecretString) {
        let name = format!("test {}", domain::entropy::uuid_v7());
        let mut tx = self.db.pool().begin().await.expect("the test's database answers");
        let identity = NewIdentity { name: name.clone(), kind, roles: roles.iter().copied().collect() };
        let identity = authority::create_identity(&mut tx, &identity).await.expect("a valid identity");
        let permissions: Option<BTreeSet<Permission>> = permissions.map(|list| list.iter().copied().collect());
        let new = NewKey { identity, name, permissions, scopes, expires_at: None };
        let made = authority::create_key(&mut tx, &new).await.expect("a valid key");
        tx.commit().await.expect("the test's database answers");
        (made.id, made.secret.whole().clone())
    }

    /// Stops the server as a signal would.
    ///
    /// # Panics
    /// When it does not end in order.
    pub async fn stop(mut self) {
        self.stop.cancel();
        (&mut self.task).await.expect("the server's task ends").expect("the server ends in order");
    }
}

/// Looks again and again until `condition` holds.
///
/// # Panics
/// When it did not hold within 20 seconds: `what` says which.
pub async fn until<Fut: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> Fut) {
    let look = || {
        let holds = condition();
        async move { holds.await.then_some(()) }
    };
    crate::wait::until(what, std::time::Duration::from_secs(20), look).await;
}

/// The scopes of an application's key.
#[must_use]
pub fn of_app(app: &str) -> Scopes {
    Scopes { app: Some(BTreeSet::from([app.to_owned()])), node: None }
}

/// An answer, read whole.
#[derive(Debug)]
pub struct Told {
    /// HTTP's status.
    pub status: u16,
    /// The headers.
    pub headers: http::HeaderMap,
    /// The body's bytes.
    pub text: String,
}

impl Told {
    /// Sends a request and reads its answer.
    ///
    /// # Panics
    /// When there is no answer.
    pub async fn by(request: reqwest::RequestBuilder) -> Self {
        let response = request.send().await.expect("the server answers");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Self { status, headers, text: response.text().await.expect("a whole answer") }
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// When it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The status and the problem's code; checks the problem's form.
    ///
    /// # Panics
    /// When it is no problem.
    #[must_use]
    pub fn problem(&self) -> (u16, String) {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem: wire::Problem = serde_json::from_str(&self.text).expect("a problem");
        assert_eq!(problem.status, self.status);
        assert_eq!(problem.kind, format!("/docs/errors/{}", problem.code));
        assert!(wire::Code::parse(&problem.code).is_some_and(|code| code.status() == self.status), "{problem:?}");
        assert_eq!(problem.request_id.as_deref(), self.header("x-request-id"));
        (self.status, problem.code)
    }

    /// A header's text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The JSON pointers of a problem's errors.
    #[must_use]
    pub fn pointers(&self) -> Vec<String> {
        let problem: wire::Problem = serde_json::from_str(&self.text).expect("a problem");
        problem.errors.into_iter().filter_map(|error| error.pointer).collect()
    }
}

/// A door before a server that a test shuts and opens again: what is behind it is then away.
#[derive(Debug)]
pub struct Door {
    address: SocketAddr,
    open: Arc<AtomicBool>,
    cut: Arc<std::sync::Mutex<CancellationToken>>,
    task: JoinHandle<()>,
}

impl Drop for Door {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Door {
    /// An open door before `behind`.
    ///
    /// # Panics
    /// When no port is free.
    pub async fn before(behind: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let open = Arc::new(AtomicBool::new(true));
        let cut = Arc::new(std::sync::Mutex::new(CancellationToken::new()));
        let (is_open, token) = (Arc::clone(&open), Arc::clone(&cut));
        let task = tokio::spawn(async move {
            loop {
                let Ok((mut inside, _)) = listener.accept().await else { continue };
                if !is_open.load(Ordering::SeqCst) {
                    continue; // Dropped: the caller sees a connection that breaks at once.
                }
                let token = token.lock().expect("no holder panics").clone();
                tokio::spawn(async move {
                    let Ok(mut outside) = TcpStream::connect(behind).await else { return };
                    token.run_until_cancelled(tokio::io::copy_bidirectional(&mut inside, &mut outside)).await;
                });
            }
        });
        Self { address, open, cut, task }
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts every connection and takes no other.
    ///
    /// # Panics
    /// Never: no holder of the lock panics.
    pub fn shut(&self) {
        self.open.store(false, Ordering::SeqCst);
        let old = std::mem::take(&mut *self.cut.lock().expect("no holder panics"));
        old.cancel();
    }

    /// Takes connections again.
    pub fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }
}
