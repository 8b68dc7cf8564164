//! `leasehold prune`, and the workers that prune by themselves.

use std::time::Duration;

use sandbox::exec::Signal;
use sqlx::Executor as _;
use tests::wait::until;

use crate::support::{Cli, LIMIT, System, end, start};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// One completed job whose time is over, and a discarded one whose is not.
async fn aged() -> (System, [String; 2]) {
    let system = System::start().await;
    let ids = {
        let worker = system.worker(&[]);
        let done = system.enqueue(&["system.noop"]).await;
        let failed = system.enqueue(&["system.noop"]).await;
        system.until_state(&done, "completed").await;
        system.until_state(&failed, "completed").await;
        assert!(end(&worker, Signal::TERM).await.success());
        [done, failed]
    };
    sqlx::query("update jobs_finished set state = 'discarded' where id = $1::uuid")
        .bind(&ids[1])
        .execute(system.database.pool())
        .await
        .expect("it is discarded");
    system.database.clock().advance(9 * DAY).await;
    (system, ids)
}

async fn code(system: &System, id: &str) -> Option<i32> {
    system.cli.run(&["job", "show", id]).await.code
}

#[tokio::test]
async fn prune_tells_what_would_go_and_removes_it_and_the_act_is_audited() {
    let (system, [done, failed]) = aged().await;
    let told = system.cli.json(&["prune", "--dry-run"]).await;
    let jobs = told["jobs"].as_array().expect("a list");
    assert_eq!(jobs.len(), 1, "{told}");
    assert_eq!((&jobs[0]["state"], &jobs[0]["kind"]), (&"completed".into(), &"system.noop".into()));
    assert_eq!((&jobs[0]["jobs"], &told["workers"]), (&1.into(), &1.into()), "{told}");
    let shown = system.cli.run(&["prune", "--dry-run"]).await;
    assert!(shown.out.starts_with("DAY ") && shown.out.contains("workers: 1"), "{}", shown.out);
    assert_eq!(code(&system, &done).await, Some(0), "a dry run changes nothing");

    let pruned = system.cli.json(&["prune", "--reason", "the disk is full"]).await;
    assert_eq!(pruned["jobs"].as_array(), Some(jobs), "{pruned}");
    assert_eq!((code(&system, &done).await, code(&system, &failed).await), (Some(4), Some(0)));
    let (reason, hours): (String, i64) = sqlx::query_as(
        "select reason, (detail ->> 'completed_hours')::bigint from audit_events where action = 'queue.prune'",
    )
    .fetch_one(system.database.pool())
    .await
    .expect("it is recorded once");
    assert_eq!((reason.as_str(), hours), ("the disk is full", 168));
    for unsaid in [&["prune"][..], &["prune", "--reason", " "], &["prune", "--reason", "\u{200b}"]] {
        assert_eq!(system.cli.run(unsaid).await.code, Some(2), "{unsaid:?}: what goes for good has a reason");
    }
    let nothing = system.cli.run(&["prune", "--dry-run"]).await;
    assert_eq!((nothing.code, nothing.out.as_str()), (Some(0), "nothing would go\n"));
}

#[tokio::test]
async fn a_retention_below_an_hour_is_refused_with_its_setting() {
    let cli = Cli::new().with("LEASEHOLD_DATABASE_URL", "postgres://127.0.0.1:1/x");
    let ended = cli.with("LEASEHOLD_PRUNE_COMPLETED_HOURS", "0").run(&["prune", "--dry-run"]).await;
    assert_eq!(ended.code, Some(2), "{}", ended.err);
    assert!(ended.err.contains("prune.completed_hours") && ended.err.contains("from 1 to 87600"), "{}", ended.err);
}

/// The same worker, told to leave it and then not to.
#[tokio::test]
async fn workers_prune_by_themselves_unless_told_not_to() {
    let (system, [done, failed]) = aged().await;
    let workers = async || {
        let workers: i64 = sqlx::query_scalar("select count(*) from workers")
            .fetch_one(system.database.pool())
            .await
            .expect("a count");
        workers
    };
    let idle = Cli::clone(&system.cli).with("LEASEHOLD_PRUNE_BY_WORKERS", "false");
    {
        let _worker = start(&idle, &["worker"], "idle.log");
        until("it is there, and did its first upkeep", LIMIT, || async {
            let day: bool = sqlx::query_scalar(
                "select to_regclass('jobs_finished_' || to_char(lh_now() + interval '7 days', 'YYYYMMDD')) is not null",
            )
            .fetch_one(system.database.pool())
            .await
            .expect("an answer");
            (day && workers().await == 2).then_some(())
        })
        .await;
        assert_eq!(code(&system, &done).await, Some(0));
    }
    let address = format!("127.0.0.1:{}", sandbox::ports::free_port().expect("a port"));
    let _worker = system.worker(&["--metrics-listen", &address]);
    until("it pruned", LIMIT, || async { (code(&system, &done).await == Some(4)).then_some(()) }).await;
    assert_eq!(code(&system, &failed).await, Some(0));
    // Whoever makes a client of the product first chooses how TLS is spoken; plain HTTP needs the choice too.
    let _chosen = wire::Client::new("http://127.0.0.1:1", None).expect("a client");
    until("it is counted", LIMIT, || async {
        let text = reqwest::get(format!("http://{address}/metrics")).await.ok()?.text().await.ok()?;
        let counted = |what: &str| text.lines().any(|it| it == format!("leasehold_pruned_total{{what=\"{what}\"}} 1"));
        (counted("jobs") && counted("workers")).then_some(())
    })
    .await;
}

/// Another session reads the history for as long as the command tries.
#[tokio::test]
async fn prune_that_a_reader_holds_up_ends_with_5_and_tells_what_went_so_far() {
    let (system, [done, _]) = aged().await;
    // Of the job's day nothing is kept: it would leave as a whole.
    sqlx::query("update jobs_finished set state = 'completed'").execute(system.database.pool()).await.expect("done");
    let mut reader = system.database.session().await;
    reader.execute("begin; select count(*) from jobs_finished").await.expect("a reader");
    let ended = system.cli.run(&["prune", "--reason", "the disk is full"]).await;
    assert_eq!(ended.code, Some(5), "{}", ended.said());
    assert!(ended.err.contains("leasehold doctor") && ended.err.contains("workers: 1"), "{}", ended.err);
    assert_eq!(code(&system, &done).await, Some(0));
    reader.execute("commit").await.expect("it ends");
    // Its day, and the one behind it, on which nothing ended.
    let ended = system.cli.run(&["prune", "--reason", "the disk is full"]).await;
    assert!(ended.code == Some(0) && ended.out.contains("days as a whole: 2"), "{}", ended.said());
}
