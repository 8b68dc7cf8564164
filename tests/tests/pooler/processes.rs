//! The built program, told of the pooler by its setting alone.

use sandbox::exec::Signal;
use sandbox::ports;
use sqlx::{Connection as _, Executor as _};
use tests::db::Database;
use tests::pgbouncer::PgBouncer;
use tests::wait::until;

#[path = "../cli/support.rs"]
#[allow(dead_code, unreachable_pub, reason = "this area needs a part of it")]
mod cli;

use cli::{Cli, LIMIT, end, start, until_logged};

/// From an empty database on: schema, first key, API and two workers, and a page of the dashboard's.
#[tokio::test]
async fn the_program_migrates_serves_and_works_through_a_pooler() {
    let database = Database::start().await;
    let bouncer = PgBouncer::before(&database).await;
    let name = format!("{}_empty", database.url().rsplit('/').next().expect("a URL has a path"));
    let mut session = sqlx::PgConnection::connect(database.url()).await.expect("the database answers");
    session.execute(sqlx::AssertSqlSafe(format!("create database {name} template template0"))).await.expect("made");
    let port = ports::free_port().expect("a port");
    let listen = format!("127.0.0.1:{port}");
    let cli = Cli::new()
        .with(
            "LEASEHOLD_DATABASE_URL",
            bouncer.url().rsplit_once('/').map(|(at, _)| format!("{at}/{name}")).expect("a URL"),
        )
        .with("LEASEHOLD_DATABASE_POOLER", "transaction")
        .with("LEASEHOLD_URL", format!("http://{listen}"));

    assert_eq!(cli.json(&["migrate"]).await["schema_version"], domain::db::known_version());
    assert_eq!(cli.run(&["migrate"]).await.code, Some(0), "a second time changes nothing");
    let made = cli.run(&["key", "bootstrap"]).await;
    assert_eq!(made.code, Some(0), "{}", made.err);
    let cli = cli.with("LEASEHOLD_KEY", made.out.trim());
    let api = start(&cli, &["api", "--listen", &listen], "api.log");
    let workers = ["one.log", "two.log"].map(|log| start(&cli, &["worker"], log));
    until_logged(&workers[0], "alter role").await;
    until("the API answers", LIMIT, || async {
        assert!(api.status().is_none(), "the API ended: {}", api.log_tail());
        (cli.run(&["queue", "list"]).await.code == Some(0)).then_some(())
    })
    .await;

    let mut ids = Vec::new();
    for _ in 0..5 {
        let job = cli.json(&["job", "enqueue", "system.noop"]).await;
        ids.push(job["id"].as_str().expect("an id").to_owned());
    }
    for id in &ids {
        until("the job is completed", LIMIT, || async {
            (cli.json(&["job", "show", id]).await["state"] == "completed").then_some(())
        })
        .await;
    }
    assert_eq!(cli.json(&["worker", "list"]).await["items"].as_array().map(Vec::len), Some(2));
    for worker in &workers {
        assert!(end(worker, Signal::TERM).await.success(), "{}", worker.log_tail());
    }
    assert!(end(&api, Signal::TERM).await.success());
    session.execute(sqlx::AssertSqlSafe(format!("drop database {name} with (force)"))).await.expect("dropped");
}

/// Two that migrate at once: one waits for the other's transaction, and both end well.
#[tokio::test]
async fn two_migrations_at_once_through_a_pooler_apply_each_step_once() {
    let database = Database::start().await;
    let bouncer = PgBouncer::before(&database).await;
    let name = format!("{}_twice", database.url().rsplit('/').next().expect("a URL has a path"));
    let mut session = sqlx::PgConnection::connect(database.url()).await.expect("the database answers");
    session.execute(sqlx::AssertSqlSafe(format!("create database {name} template template0"))).await.expect("made");
    let url = bouncer.url().rsplit_once('/').map(|(at, _)| format!("{at}/{name}")).expect("a URL");
    let pool = || domain::db::connect_lazy_through(&url, 1, domain::db::Pooler::Transaction).expect("a URL");
    let (first, second) = (pool(), pool());
    let (one, two) = tokio::join!(domain::db::migrate(&first), domain::db::migrate(&second));
    one.and(two).expect("both end well");
    domain::db::check_schema(&first).await.expect("the schema is this program's");
    first.close().await;
    second.close().await;
    session.execute(sqlx::AssertSqlSafe(format!("drop database {name} with (force)"))).await.expect("dropped");
}
