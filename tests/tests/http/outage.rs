//! The database away and back: told, never a hang, nothing lost.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::json;
use tests::api::{Door, Server, Told};
use tests::db::Database;

/// A server that reaches its database through a door, and the door.
async fn behind_a_door() -> (Server, Door) {
    let db = Database::start().await;
    let url = reqwest::Url::parse(db.url()).expect("a URL");
    let host = url.host_str().expect("a host");
    let behind: SocketAddr = format!("{host}:{}", url.port().unwrap_or(5432)).parse().expect("an address");
    let door = Door::before(behind).await;
    let mut through = url;
    through.set_port(Some(door.address().port())).expect("a port");
    let pool = domain::db::connect_lazy(through.as_str(), 4).expect("a URL");
    (Server::start_over(db, pool, Server::config()).await, door)
}

#[tokio::test]
async fn a_database_that_goes_away_is_told_and_when_it_is_back_so_is_everything() {
    let (server, door) = behind_a_door().await;
    let client = server.client();
    let job = wire::NewJob::new("test.free", json!({}));
    let before = client.enqueue(&job, Some("k1")).await.expect("enqueued");
    door.shut();
    for _ in 0..2 {
        let began = Instant::now();
        let request = server.request("POST", "/v1/jobs").header("idempotency-key", "k2").json(&job);
        let told = Told::by(request).await;
        assert_eq!(told.problem(), (503, "database_unavailable".to_owned()), "{told:?}");
        assert!(told.header("retry-after").is_some_and(|text| text.parse::<u32>().is_ok_and(|s| s > 0)));
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }
    assert_eq!(Told::by(server.bare("GET", "/healthz")).await.status, 200, "the process lives");
    let ready = client.ready().await.expect("an answer also then");
    assert!(!ready.ready && ready.checks.iter().any(|check| check.name == "database" && !check.ok), "{ready:?}");
    door.open();
    tests::api::until("the API is ready again", async || client.ready().await.is_ok_and(|ready| ready.ready)).await;
    assert!(client.enqueue(&job, Some("k1")).await.expect("answered").replayed, "what was answered is still known");
    assert!(client.enqueue(&job, Some("k2")).await.expect("enqueued").created);
    assert_eq!(client.job(before.value.id).await.expect("nothing is lost"), before.value);
    let jobs: i64 = sqlx::query_scalar("select count(*) from jobs").fetch_one(server.db.pool()).await.expect("a count");
    assert_eq!(jobs, 2);
}

#[tokio::test]
async fn an_api_that_starts_before_its_database_serves_when_that_comes() {
    let (server, door) = behind_a_door().await;
    door.shut();
    assert_eq!(Told::by(server.bare("GET", "/readyz")).await.status, 503);
    door.open();
    tests::api::until("the API is ready", async || Told::by(server.bare("GET", "/readyz")).await.status == 200).await;
}

#[tokio::test]
async fn a_request_beyond_its_time_is_given_up_and_its_transaction_too() {
    let config = api::Config { request_timeout: Duration::from_millis(500), ..Server::config() };
    let server = Server::start_with(config).await;
    let mut holder = server.db.session().await;
    sqlx::query("begin").execute(&mut holder).await.expect("a transaction");
    sqlx::query("lock table jobs in access exclusive mode").execute(&mut holder).await.expect("held");
    let told = Told::by(server.request("POST", "/v1/jobs").json(&json!({"kind": "test.free"}))).await;
    assert_eq!(told.problem(), (503, "request_timeout".to_owned()));
    sqlx::query("rollback").execute(&mut holder).await.expect("let go");
    tests::api::until("no session is left behind", async || {
        let left: i64 = sqlx::query_scalar(
            "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in%'",
        )
        .fetch_one(server.db.pool())
        .await
        .expect("a count");
        left == 0
    })
    .await;
    let jobs: i64 = sqlx::query_scalar("select count(*) from jobs").fetch_one(server.db.pool()).await.expect("a count");
    assert_eq!(jobs, 0);
}

#[tokio::test]
async fn a_schema_that_this_program_does_not_know_is_not_ready() {
    let server = Server::start().await;
    sqlx::query("update _sqlx_migrations set version = version + 1000 where version = (select max(version) from _sqlx_migrations)")
        .execute(server.db.pool())
        .await
        .expect("a schema of the future");
    let ready = server.client().ready().await.expect("an answer");
    let schema = ready.checks.iter().find(|check| check.name == "schema").expect("the check");
    assert!(!ready.ready && !schema.ok && schema.detail.as_deref().is_some_and(|text| text.contains("upgrade")));
}

#[tokio::test]
async fn a_server_that_stops_ends_its_streams_and_what_is_open() {
    let server = Server::start().await;
    let stream = server.request("GET", "/v1/events").send().await.expect("a stream");
    let began = Instant::now();
    let (text, ()) = tokio::join!(stream.text(), server.stop());
    assert!(text.expect("the stream ends in order").contains("event: hello"));
    assert!(began.elapsed() < Duration::from_secs(8), "within the drain time: {:?}", began.elapsed());
}
