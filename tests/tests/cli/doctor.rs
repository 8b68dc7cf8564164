//! `leasehold doctor` over a server of its own, which is durable as one in production is.

use domain::ids::WorkerId;
use sandbox::exec::Signal;
use sandbox::ports;
use sandbox::postgres::{Options, Postgres};
use serde_json::Value;
use sqlx::{Connection as _, Executor as _, PgConnection};
use tests::wait::until;

use crate::support::{Cli, LIMIT, end, start};

/// A durable server without a schema, in a folder that goes with it.
async fn bare() -> (Postgres, Cli) {
    if let Some(launcher) = tests::server::launcher() {
        sandbox::exec::set_launcher(launcher);
    }
    let dir = std::path::Path::new("/var/tmp").join(format!("leasehold-test-doctor-{}", WorkerId::generate()));
    let server = Postgres::start(Options { dir, durable: true, keep: false }).await.expect("a server");
    let cli = Cli::new().with("LEASEHOLD_DATABASE_URL", server.url());
    (server, cli)
}

/// As [`bare`], with the schema.
async fn stand() -> (Postgres, Cli) {
    let (server, cli) = bare().await;
    let made = cli.run(&["migrate"]).await;
    assert_eq!(made.code, Some(0), "{}", made.err);
    (server, cli)
}

async fn sql(server: &Postgres, statements: &[&'static str]) {
    let mut session = PgConnection::connect(&server.url()).await.expect("the server answers");
    for statement in statements {
        session.execute(*statement).await.expect("a valid statement");
    }
}

/// The names of the checks that found something.
async fn found(cli: &Cli) -> Vec<String> {
    let ended = cli.run(&["doctor", "--json"]).await;
    let told: Value = serde_json::from_str(&ended.out).expect(&ended.out);
    let checks = told["checks"].as_array().expect("a list");
    assert!(checks.iter().all(|it| it["unchecked"].is_null()), "{told}");
    let wrong = checks.iter().filter(|it| it["findings"] != serde_json::json!([]));
    let wrong: Vec<String> = wrong.map(|it| it["check"].as_str().expect("a name").to_owned()).collect();
    assert_eq!((told["clean"] == true, ended.code), (wrong.is_empty(), Some(if wrong.is_empty() { 0 } else { 7 })));
    wrong
}

#[tokio::test]
async fn the_doctor_finds_nothing_at_a_healthy_stack_and_ends_with_0() {
    let (_server, cli) = stand().await;
    let key = cli.folder().join("key");
    let made = cli.run(&["key", "bootstrap"]).await;
    std::fs::write(&key, made.out).expect("write the key");
    let address = format!("127.0.0.1:{}", ports::free_port().expect("a port"));
    let cli = cli.with("LEASEHOLD_KEY_FILE", key.as_os_str()).with("LEASEHOLD_URL", format!("http://{address}"));
    let api = start(&cli, &["api", "--listen", &address], "api.log");
    let worker = start(&cli, &["worker"], "worker.log");
    until("a job is enqueued", LIMIT, || async {
        (cli.run(&["job", "enqueue", "system.noop"]).await.code == Some(0)).then_some(())
    })
    .await;
    until("it is done", LIMIT, || async {
        let done = cli.json(&["job", "list", "--state", "completed"]).await;
        (done["items"].as_array()?.len() == 1).then_some(())
    })
    .await;
    let told = cli.run(&["doctor"]).await;
    assert_eq!(told.code, Some(0), "{}", told.said());
    assert!(told.out.starts_with("nothing wrong was found by ") && told.out.lines().count() == 1, "{}", told.out);
    assert_eq!(found(&cli).await, [""; 0]);
    assert!(end(&worker, Signal::TERM).await.success() && end(&api, Signal::TERM).await.success());
}

#[tokio::test]
async fn the_doctor_ends_with_7_and_tells_what_to_do_about_a_server_that_is_set_up_wrongly() {
    let (server, cli) = stand().await;
    let faults = [
        "alter system set fsync = off",
        "alter system set max_prepared_transactions = 2",
        "select pg_create_physical_replication_slot('nobody', true)",
    ];
    sql(&server, &faults).await;
    server.restart().await.expect("it starts again");
    let cli = cli.with("LEASEHOLD_DATABASE_URL", server.url());
    sql(&server, &["begin", "create table held ()", "prepare transaction 'forgotten'"]).await;
    assert_eq!(found(&cli).await, ["durability", "replication_slots"], "it was prepared only now");
    let later = "create or replace function lh_now() returns timestamptz language sql volatile parallel safe
                 as $$ select clock_timestamp() + interval '6 minutes' $$";
    sql(&server, &[later]).await;
    let told = cli.run(&["doctor"]).await;
    assert_eq!(told.code, Some(7), "{}", told.said());
    for words in [
        "durability: fsync is off",
        "next: `alter system set fsync = on`",
        "transaction \"forgotten\"",
        "pg_drop_replication_slot('nobody')",
        "3 findings",
    ] {
        assert!(told.out.contains(words), "{words}: {}", told.out);
    }
}

/// What the checks would need is made by the first migration.
#[tokio::test]
async fn a_database_without_the_schema_is_told_to_be_migrated_and_nothing_raw_is_quoted() {
    let (_server, cli) = bare().await;
    let told = cli.run(&["doctor"]).await;
    assert_eq!(told.code, Some(7), "{}", told.said());
    assert!(told.out.contains("next: Run `leasehold migrate`"), "{}", told.out);
    assert!(told.out.contains("long_transactions: could not be checked: the schema is not"), "{}", told.out);
    assert!(told.out.ends_with("1 finding, and 4 checks could not be made\n"), "{}", told.out);
    for args in [&["prune", "--dry-run"][..], &["prune", "--reason", "x"], &["key", "bootstrap"]] {
        let ended = cli.run(args).await;
        assert_eq!(ended.code, Some(1), "{args:?}: {}", ended.said());
        assert!(ended.err.contains("run `leasehold migrate`"), "{args:?}: {}", ended.err);
        assert!(!ended.said().contains("lh_now"), "{args:?}: {}", ended.err);
    }
    assert!(!told.said().contains("lh_now"), "{}", told.said());
}

#[tokio::test]
async fn why_the_database_gives_no_session_is_told_once() {
    let (server, cli) = bare().await;
    let password = server.url().split_once(":").expect("a scheme").1.split_once(":").expect("a user").1.to_owned();
    let password = password.split_once('@').expect("a password").0.to_owned();
    let wrong = server.url().replace(&password, "wrong");
    let cases = [
        (wrong, "password authentication failed"),
        (server.url_for("absent"), "database \"absent\" does not exist"),
        ("postgres://postgres@127.0.0.1:1/absent".to_owned(), "Connection refused"),
    ];
    for (url, cause) in cases {
        for flags in [&["doctor"][..], &["doctor", "--json"]] {
            let ended = cli.clone().with("LEASEHOLD_DATABASE_URL", &url).run(flags).await;
            assert_eq!(ended.code, Some(6), "{}", ended.said());
            assert_eq!(ended.err.replace('\\', "").matches(cause).count(), 1, "{}", ended.err);
            assert!(!ended.err.contains("at line") && !ended.err.contains(&password), "{}", ended.err);
        }
    }
}
