//! Those who show no key, or none that is known: how often they may ask, and whom they keep out.

use domain::authority::{IdentityKind, Role, Scopes};
use secrecy::{ExposeSecret as _, SecretString};
use tests::api::{Server, Told};

/// Forty at once are none too many.
fn config() -> api::Config {
    api::Config { rate_per_second: 1, rate_burst: 40, ..Server::config() }
}

/// Somebody else's machine.
fn elsewhere() -> reqwest::Client {
    client().local_address(std::net::IpAddr::from([127, 0, 0, 2])).build().expect("a client")
}

fn client() -> reqwest::ClientBuilder {
    reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none())
}

/// Asks until it is refused by its rate; returns how often it was not.
async fn until_refused(ask: impl Fn() -> reqwest::RequestBuilder) -> (usize, Vec<u16>) {
    let mut others = Vec::new();
    for n in 0..200 {
        let told = Told::by(ask()).await;
        if told.status == 429 {
            assert!(told.header("retry-after").is_some());
            others.sort_unstable();
            others.dedup();
            return (n, others);
        }
        others.push(told.status);
    }
    panic!("two hundred were not refused: {others:?}");
}

async fn fresh_key(server: &Server) -> SecretString {
    server.key(IdentityKind::Person, &[Role::Viewer], None, Scopes::default()).await.1
}

#[tokio::test]
async fn whoever_tries_keys_is_slowed_before_they_are_looked_up_and_a_right_one_is_too() {
    let server = Server::start_with(config()).await;
    let known = server.admin.expose_secret().to_owned();
    let unproven = fresh_key(&server).await;
    assert_eq!(Told::by(server.request("GET", "/v1/kinds")).await.status, 200);
    // Another secret of a key that exists, a key that never was, and what is no key.
    let guesses = [
        format!("{}{}", &known[..known.len() - 8], "0".repeat(8)),
        format!("lh_{}_{}", "0".repeat(32), "0".repeat(64)),
        "nonsense".to_owned(),
    ];
    let turn = std::sync::atomic::AtomicUsize::new(0);
    let guess = || {
        let n = turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        server.bare("GET", "/v1/kinds").bearer_auth(&guesses[n % 3])
    };
    let (admitted, statuses) = until_refused(guess).await;
    assert!((40..60).contains(&admitted) && statuses == [401], "{admitted} guesses: {statuses:?}");
    // Asked of nobody: the right answer would come as 200.
    let told = Told::by(server.bare("GET", "/v1/kinds").bearer_auth(unproven.expose_secret())).await;
    assert_eq!(told.problem(), (429, "rate_limited".to_owned()));
    assert_eq!(Told::by(server.request("GET", "/v1/kinds")).await.status, 200, "a key that worked lately passes");
    for place in ["/login", "/docs", "/healthz"] {
        assert_eq!(Told::by(server.bare("GET", place)).await.status, 200, "{place} is open to who shows no key");
    }
    let theirs = elsewhere().get(format!("{}/v1/kinds", server.base)).bearer_auth(unproven.expose_secret());
    assert_eq!(Told::by(theirs).await.status, 200, "another address has its own rate");
    let told = Told::by(server.bare("GET", "/v1/kinds").bearer_auth(unproven.expose_secret())).await;
    assert_eq!(told.status, 200, "and what worked there is known here");
}

#[tokio::test]
async fn sessions_that_never_were_are_slowed_as_keys_are() {
    for place in ["/v1/events", "/"] {
        let server = Server::start_with(config()).await;
        let cookie = format!("lh_session={}", "0".repeat(64));
        let http = client().build().expect("a client");
        let ask = || http.get(format!("{}{place}", server.base)).header("cookie", &cookie);
        let (admitted, statuses) = until_refused(ask).await;
        assert!((40..60).contains(&admitted), "{admitted} of {place}: {statuses:?}");
        assert!(statuses == [401] || statuses == [303], "{place}: {statuses:?}");
        assert_eq!(Told::by(server.bare("GET", "/login")).await.status, 200);
    }
}

#[tokio::test]
async fn whoever_floods_open_pages_keeps_out_nobody_with_a_key_and_nobody_elsewhere() {
    let server = Server::start_with(config()).await;
    let (admitted, _) = until_refused(|| server.bare("GET", "/docs")).await;
    assert!((40..60).contains(&admitted), "{admitted}");
    assert_eq!(Told::by(server.request("GET", "/v1/kinds")).await.status, 200, "a key that nobody saw before");
    let theirs = elsewhere().get(format!("{}/login", server.base));
    assert_eq!(Told::by(theirs).await.status, 200);
    // A word in the place of a key opens nothing: it has the rate of guesses.
    let (admitted, _) = until_refused(|| server.bare("GET", "/docs").bearer_auth("nonsense")).await;
    assert!((35..60).contains(&admitted), "{admitted}");
}

#[tokio::test]
async fn a_key_that_stopped_working_is_a_guess_from_then_on() {
    let server = Server::start_with(config()).await;
    let key = fresh_key(&server).await;
    let ask = || server.bare("GET", "/v1/kinds").bearer_auth(key.expose_secret());
    assert_eq!(Told::by(ask()).await.status, 200);
    sqlx::query("update api_keys set revoked_at = lh_now()").execute(server.db.pool()).await.expect("revoked");
    let (admitted, statuses) = until_refused(ask).await;
    assert!((40..60).contains(&admitted) && statuses == [401], "{admitted}: {statuses:?}");
}

#[tokio::test]
async fn keys_that_work_take_nothing_from_those_that_are_tried() {
    let server = Server::start_with(config()).await;
    for n in 0..60 {
        let key = fresh_key(&server).await;
        let told = Told::by(server.bare("GET", "/v1/kinds").bearer_auth(key.expose_secret())).await;
        assert_eq!(told.status, 200, "key {n}");
    }
}
