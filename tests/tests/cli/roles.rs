//! The roles as a service manager has them: started, drained, stopped, and started too early.

use sandbox::exec::Signal;
use sandbox::ports;
use sqlx::{Connection as _, Executor as _};
use tests::db::Database;
use tests::wait::until;

use crate::support::{Cli, LIMIT, System, end, start, until_logged};

#[tokio::test]
async fn sigterm_lets_a_running_job_end() {
    let system = System::start().await;
    let worker = system.worker(&[]);
    let id = system.enqueue(&["system.sleep", "--args", "{\"ms\": 1500}"]).await;
    system.until_state(&id, "running").await;
    let status = end(&worker, Signal::TERM).await;
    assert!(status.success(), "{status}");
    let job = system.cli.json(&["job", "show", &id]).await;
    assert_eq!((&job["state"], &job["attempt"]), (&"completed".into(), &1.into()));
    assert!(end(&system.api, Signal::TERM).await.success());
}

#[tokio::test]
async fn the_second_signal_ends_a_worker_at_once_and_hands_its_job_back() {
    let system = System::start().await;
    let worker = system.worker(&["--drain-seconds", "600"]);
    let id = system.enqueue(&["system.sleep", "--args", "{\"ms\": 600000}"]).await;
    system.until_state(&id, "running").await;
    worker.signal(Signal::TERM);
    until_logged(&worker, "worker drains").await;
    assert!(worker.status().is_none(), "the first signal waits for the job");
    let status = end(&worker, Signal::INT).await;
    assert_eq!(status.code(), Some(1));
    let job = system.cli.json(&["job", "show", &id]).await;
    assert_ne!(job["state"], "completed");
    let _other = system.worker(&[]);
    system.until_state(&id, "running").await;
}

/// The schema is empty, then migrated by hand: the roles say what to do, and start once it is done.
#[tokio::test]
async fn an_unmigrated_database_is_refused_with_the_command_that_helps() {
    let database = Database::start().await;
    let empty = format!("{}_empty", database.url());
    let name = empty.rsplit('/').next().expect("a URL has a path").to_owned();
    let mut session = sqlx::PgConnection::connect(database.url()).await.unwrap();
    session.execute(sqlx::AssertSqlSafe(format!("create database {name} template template0"))).await.unwrap();
    let cli = Cli::new().with("LEASEHOLD_DATABASE_URL", &empty);
    let listen = format!("127.0.0.1:{}", ports::free_port().unwrap());
    for role in [["worker"].as_slice(), &["api", "--listen", &listen]] {
        let ended = cli.run(role).await;
        assert_eq!(ended.code, Some(1), "{role:?}: {}", ended.err);
        assert!(ended.err.contains("run `leasehold migrate`"), "{role:?}: {}", ended.err);
    }
    assert_eq!(cli.json(&["migrate"]).await["schema_version"], domain::db::known_version());
    assert_eq!(cli.run(&["migrate"]).await.code, Some(0), "a second time changes nothing");
    let worker = start(&cli, &["worker"], "worker.log");
    until_logged(&worker, "worker started").await;
    assert!(end(&worker, Signal::TERM).await.success());
    session.execute(sqlx::AssertSqlSafe(format!("drop database {name} with (force)"))).await.unwrap();
}

/// No database at the start: the roles stay, the API answers 503 with a typed code, and both end when asked.
#[tokio::test]
async fn roles_that_start_before_their_database_wait_for_it() {
    let port = ports::free_port().unwrap();
    let cli = Cli::new()
        .with("LEASEHOLD_DATABASE_URL", "postgres://postgres@127.0.0.1:1/absent")
        .with("LEASEHOLD_URL", format!("http://127.0.0.1:{port}"))
        .with("LEASEHOLD_KEY", format!("lh_{}_{}", "0".repeat(32), "0".repeat(64)));
    let worker = start(&cli, &["worker"], "worker.log");
    let api = start(&cli, &["api", "--listen", &format!("127.0.0.1:{port}")], "api.log");
    until_logged(&worker, "the database is away; waiting for it").await;
    until("the API says that its database is away", LIMIT, || async {
        let ended = cli.run(&["job", "list"]).await;
        assert_eq!(ended.code, Some(6), "{}", ended.err);
        ended.err.contains("database_unavailable").then_some(())
    })
    .await;
    assert!(end(&worker, Signal::TERM).await.success());
    assert!(end(&api, Signal::TERM).await.success());
}

#[tokio::test]
async fn a_worker_refuses_settings_that_do_not_fit_together() {
    let database = Database::start().await;
    let cli = Cli::new().with("LEASEHOLD_DATABASE_URL", database.url());
    let node = cli.clone().with("LEASEHOLD_NODE_IDENTITY", "box-1").with("LEASEHOLD_NODE_REGION", "eu");
    let cases: [(&Cli, &[&str], &str); 4] = [
        (&cli, &["worker", "--kinds", "no.such"], "it can run"),
        (&cli, &["worker", "--queues", "no spaces"], "worker.queues"),
        (&node, &["worker"], "node.data_bucket is not set"),
        (&Cli::new(), &["worker"], "LEASEHOLD_DATABASE_URL"),
    ];
    for (cli, args, words) in cases {
        let ended = cli.run(args).await;
        assert_eq!(ended.code, Some(2), "{args:?}: {}", ended.err);
        assert!(ended.err.contains(words), "{args:?}: {}", ended.err);
    }
}

#[tokio::test]
async fn a_worker_shows_its_figures_where_it_is_told_to_and_nowhere_else() {
    let system = System::start().await;
    let address = format!("127.0.0.1:{}", ports::free_port().unwrap());
    let _worker = system.worker(&["--metrics-listen", &address]);
    // Whoever makes a client of the product first chooses how TLS is spoken; plain HTTP needs the choice too.
    let _chosen = wire::Client::new("http://127.0.0.1:1", None).unwrap();
    let http = reqwest::Client::new();
    let read = |path: &'static str| {
        let (http, url) = (http.clone(), format!("http://{address}{path}"));
        async move { http.get(url).send().await.ok()?.error_for_status().ok()?.text().await.ok() }
    };
    until("the worker says that it lives", LIMIT, || async { (read("/healthz").await? == "ok\n").then_some(()) }).await;
    let id = system.enqueue(&["system.noop"]).await;
    system.until_state(&id, "completed").await;
    let figures = until("the job is counted", LIMIT, || async {
        let text = read("/metrics").await?;
        text.contains("leasehold_job_run_seconds_count").then_some(text)
    })
    .await;
    let started = figures.lines().find(|line| line.starts_with("leasehold_jobs_started_total{"));
    assert!(started.is_some_and(|line| line.contains("system.noop") && line.ends_with(" 1")), "{figures}");
    assert!(figures.contains("le=\"7200\""), "a job may run for hours: {figures}");
    assert_eq!(read("/v1/jobs").await, None, "the figures alone");

    let second = system.cli.run(&["worker", "--metrics-listen", &address]).await;
    assert_eq!(second.code, Some(1));
    assert!(second.err.contains(&address) && second.err.contains("worker.metrics_listen"), "{}", second.err);
}

#[tokio::test]
async fn an_address_in_use_is_told_at_once() {
    let database = Database::start().await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let cli = Cli::new().with("LEASEHOLD_DATABASE_URL", database.url());
    let ended = cli.run(&["api", "--listen", &address]).await;
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains(&address) && ended.err.contains("api.listen"), "{}", ended.err);
}
