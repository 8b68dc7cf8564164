//! Moves on the command line: watched, steered, explained, and what they left (M-028, M-034).

use std::time::Duration;

use serde_json::json;
use tests::fleet::{APP, HOST, answer_look, five_objects, land_one, put_box_in, put_worker, region};
use tests::wait::until;

use crate::support::{Cli, Ended, LIMIT, System};

/// A system with two regions, a box in each, and an instance that the one in eu serves.
async fn served() -> System {
    let system = System::start().await;
    let pool = system.database.pool();
    for code in ["eu", "uk"] {
        let args = ["region", "set", code, "--name", code, "--armed", "--data-bucket", &region(code).data_bucket];
        let ended = system.cli.run(&[&args[..], &["--data-bucket-region", "us-east-1"]].concat()).await;
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        put_box_in(pool, code).await;
    }
    let eu = put_box_in(pool, "eu").await;
    assert_eq!(system.cli.run(&["instance", "create", APP, HOST, "--region", "eu"]).await.code, Some(0));
    land_one(pool, &eu).await;
    put_worker(pool, &eu).await;
    system
}

async fn sql(system: &System, sql: &'static str) {
    sqlx::raw_sql(sql).execute(system.database.pool()).await.expect("the test's statement");
}

/// Runs a command that waits, and lets the world change once it has seen the move.
async fn waiting(system: &System, args: &[&str], change: &'static str) -> Ended {
    let ready = async {
        until("the command's verb is accepted", LIMIT, || async {
            let open = "select count(*) from moves where finished_at is null";
            let moves: i64 = sqlx::query_scalar(open).fetch_one(system.database.pool()).await.expect("a number");
            (moves >= 1).then_some(())
        })
        .await;
        sql(system, change).await;
    };
    tokio::join!(system.cli.run(args), ready).0
}

async fn until_cutting(system: &System) {
    until("it is being cut", LIMIT, || async {
        let state: String =
            sqlx::query_scalar("select state from moves").fetch_one(system.database.pool()).await.expect("the state");
        (state == "cutting").then_some(())
    })
    .await;
}

const READY: &str = "update moves set state = 'ready', ready_at = lh_now()";
const LANDED: &str = "update moves set cut_at = '2026-03-14T03:00:00Z', tail_txid = '000000000000a3f1',
        tail_sha256 = repeat('ab', 32), tail_size = 4096, purge_began_at = '2026-03-14T03:00:02Z',
        finished_at = '2026-03-14T03:00:03Z', outcome = 'moved', landed_at = '2026-03-14T03:00:09.5Z',
        staging_deleted_at = '2026-03-14T03:00:10Z' where state = 'cutting';
    insert into remains (move_id, instance_id, host, region, bucket, bucket_region, prefix, keep_until)
    select id, instance_id, host, 'eu', 'data-eu', 'us-east-1', 'instances/x/', '2026-03-15T03:00:09Z' from moves
     where outcome = 'moved' on conflict do nothing;
    insert into move_steps (move_id, job_id, fence, step, started_at, ended_at, outcome)
    select id, gen_random_uuid(), 7, 'flip', '2026-03-14T03:00:03Z', '2026-03-14T03:00:03.2Z', 'flipped' from moves
     where outcome = 'moved'";

#[tokio::test]
async fn a_move_is_begun_watched_cut_and_its_receipt_shown() {
    let system = served().await;
    let cli = &system.cli;
    let moved = waiting(&system, &["instance", "move", APP, HOST, "uk", "--wait"], READY).await;
    assert_eq!(moved.code, Some(0), "{}", moved.err);
    assert!(moved.out.ends_with(&format!("{HOST}: ready to uk\n")), "{}", moved.out);
    assert!(moved.out.contains(" s  ready"), "a line for each change: {}", moved.out);
    let why = cli.run(&["instance", "why", APP, HOST]).await.out;
    assert!(
        why.contains("It is ready for its cut to uk") && why.contains("-> Freeze the application's writes"),
        "{why}"
    );
    let so_far = cli.run(&["instance", "receipt", APP, HOST]).await.out;
    assert!(so_far.contains("in flight: ready") && so_far.contains("cut at txid         -"), "{so_far}");

    // The wait begins when the verb was taken: what lands before is told all the same.
    let cut = async {
        until_cutting(&system).await;
        sql(&system, LANDED).await;
    };
    let (ended, ()) = tokio::join!(cli.run(&["instance", "cut", APP, HOST, "--wait", "--json"]), cut);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "programs are told the end alone");
    let told: serde_json::Value = serde_json::from_str(&ended.out).expect("one object");
    assert_eq!((&told["outcome"], &told["landed_at"]), (&json!("moved"), &json!("2026-03-14T03:00:09.500Z")));

    let receipt = cli.run(&["instance", "receipt", APP, HOST]).await.out;
    let words = [
        "000000000000a3f1",
        &"ab".repeat(32),
        "4096",
        "frozen              9.5 s",
        "2026-03-14 03:00:10",
        "kept until",
        "flip",
    ];
    for word in words {
        assert!(receipt.contains(word), "{word}: {receipt}");
    }
    let id = told["id"].as_str().expect("an id");
    let whole = cli.json(&["instance", "receipt", APP, HOST, "--move", id]).await;
    assert_eq!((&whole["frozen_ms"], &whole["old_replica"]["bucket"]), (&json!(9500), &json!("data-eu")));
    let other = cli.run(&["instance", "receipt", APP, HOST, "--move", "01890a5d-ac96-774b-bcce-b302099a8057"]).await;
    assert_eq!(other.code, Some(4), "{}", other.err);
}

#[tokio::test]
async fn a_cut_before_ready_and_an_abort_without_a_move_are_conflicts_that_say_what_to_do() {
    let system = served().await;
    let cli = &system.cli;
    for (verb, code) in [("cut", "no_move"), ("abort", "no_move")] {
        let ended = cli.run(&["instance", verb, APP, HOST, "--wait"]).await;
        assert_eq!(ended.code, Some(5), "{}", ended.err);
        assert!(ended.err.contains(code), "{}", ended.err);
    }
    assert_eq!(cli.run(&["instance", "receipt", APP, HOST]).await.code, Some(4), "it never moved");
    assert_eq!(cli.run(&["instance", "move", APP, HOST, "uk", "--cut", "auto"]).await.code, Some(0));
    let ended = cli.run(&["instance", "cut", APP, HOST]).await;
    assert_eq!(ended.code, Some(5), "{}", ended.err);
    assert!(ended.err.contains("move_not_ready"), "{}", ended.err);
    assert_eq!(cli.run(&["instance", "abort", APP, HOST]).await.code, Some(0));
    let again = cli.run(&["instance", "abort", APP, HOST]).await;
    assert!(again.code == Some(5) && again.err.contains("move_in_flight"), "{}", again.err);
    // Whoever waits learns the end, whoever gave it up.
    let log = cli.folder().join("abort.log");
    let waits = cli.spawn(&["instance", "abort", APP, HOST, "--wait"]).log_file(&log).start().expect("it starts");
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    until("the wait has begun", LIMIT, || async { said().contains(" s  aborting").then_some(()) }).await;
    sql(&system, "update moves set finished_at = lh_now(), outcome = 'aborted'").await;
    let ended = waits.wait_timeout(LIMIT).await.expect("it ends");
    assert_eq!(ended.code(), Some(0), "{}", said());
    assert!(said().contains("the move to uk is given up, and nothing of it is staged"), "{}", said());
    // Given up while somebody waits for it to be ready: that is another end.
    let moved = waiting(
        &system,
        &["instance", "move", APP, HOST, "uk", "--wait"],
        "update moves set state = 'aborting', finished_at = lh_now(), outcome = 'aborted' where finished_at is null",
    )
    .await;
    assert_eq!(moved.code, Some(5), "{}{}", moved.out, moved.err);
    assert!(moved.err.contains("ended otherwise: aborted"), "{}", moved.err);
}

#[tokio::test]
async fn why_tells_the_first_thing_to_act_on_first_and_park_and_wake_say_what_follows() {
    let system = served().await;
    let cli = &system.cli;
    for (verb, told, parked) in
        [("park", "parked: its box stops it", true), ("wake", "awake: its box starts it", false)]
    {
        let ended = cli.run(&["instance", verb, APP, HOST]).await;
        assert_eq!((ended.code, ended.out), (Some(0), format!("{HOST}: {told}\n")), "{}", ended.err);
        assert_eq!(cli.json(&["instance", "show", APP, HOST]).await["parked"], parked);
    }
    let nobody = cli.run(&["instance", "why", APP, "nobody.example"]).await;
    assert_eq!(nobody.code, Some(4), "{}", nobody.err);
    // A landing that is held up, on a box that is not heard.
    sql(
        &system,
        "update routes set status = 'landing', held_since = '2026-03-14T03:00:00Z',
                held = '{\"code\": \"cannot_restore\", \"message\": \"this box cannot restore\", \"permanent\": true}'",
    )
    .await;
    system.database.clock().advance(Duration::from_secs(90)).await;
    let why = cli.run(&["instance", "why", APP, HOST]).await.out;
    let (silent, held) = (why.find("Box box-eu in eu is not heard"), why.find("This box cannot restore."));
    assert!(silent.is_some() && held.is_some() && silent < held, "{why}");
    assert!(why.contains("  -> See whether the machine of box box-eu is up"), "{why}");
    let shown = cli.run(&["instance", "show", APP, HOST]).await.out;
    assert!(shown.contains("held up by") && shown.contains("cannot_restore"), "{shown}");
    let whole = cli.json(&["instance", "why", APP, HOST]).await;
    assert_eq!((&whole["phase"], &whole["reasons"][0]["permanent"]), (&json!("landing"), &json!(true)));
}

#[tokio::test]
async fn the_help_of_cut_says_that_the_tenant_freezes_and_what_the_freeze_must_cover() {
    // M-028.
    let help = Cli::new().run(&["instance", "cut", "--help"]).await;
    assert_eq!(help.code, Some(0));
    for words in [
        "Freeze the application's writes first: nobody checks that",
        "until the target serves",
        "docs/runbooks/moves.md",
    ] {
        assert!(help.out.contains(words), "{words}: {}", help.out);
    }
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/runbooks/moves.md")).unwrap();
    assert!(page.contains("## The frozen window"), "the section that the help names");
    for (text, figure) in [(&help.out, "Cover ten seconds"), (&page, "**Cover ten seconds**")] {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&format!("{figure} for a database below a hundred megabytes")), "{words}");
    }
}

#[tokio::test]
async fn the_operators_verbs_want_the_host_typed_again_and_tell_what_is_given_up() {
    let system = served().await;
    let cli = &system.cli;
    let begun = cli.run(&["instance", "move", APP, HOST, "uk"]).await;
    assert_eq!(begun.code, Some(0), "{}", begun.err);
    sql(&system, "update moves set state = 'cutting', ready_at = lh_now()").await;
    let wrong = cli.run(&["instance", "unstick", APP, HOST, "--confirm", "other", "--reason", "it hangs"]).await;
    assert_eq!(wrong.code, Some(2), "{}", wrong.err);
    assert!(wrong.err.contains(HOST), "it says what to type: {}", wrong.err);
    let back = cli.run(&["instance", "unstick", APP, HOST, "--confirm", HOST, "--reason", "it hangs"]).await;
    assert_eq!(back.code, Some(0), "{}", back.err);
    assert!(back.out.contains("aborting"), "{}", back.out);
    let backwards = cli.run(&["instance", "cut", APP, HOST, "--wait"]).await;
    assert!(backwards.code == Some(5) && backwards.err.contains("move_in_flight"), "{}", backwards.err);
    let late = cli.run(&["instance", "unstick", APP, HOST, "--confirm", HOST, "--reason", "again"]).await;
    assert_eq!(late.code, Some(5), "{}", late.err);

    flip(&system).await;
    point_back(&system).await;
}

/// The record says `moved` all the same.
#[tokio::test]
async fn a_wait_for_a_landing_ends_once_an_operator_gives_it_up() {
    let system = served().await;
    let cli = &system.cli;
    assert_eq!(cli.run(&["instance", "move", APP, HOST, "uk"]).await.code, Some(0));
    sql(&system, READY).await;
    sql(&system, "update moves set target_bucket = 'data-uk', target_bucket_region = 'us-east-1'").await;
    assert_eq!(cli.run(&["instance", "cut", APP, HOST]).await.code, Some(0));
    let again = cli.run(&["instance", "cut", APP, HOST]).await;
    assert!(again.code == Some(5) && again.err.contains("move_in_flight"), "{}", again.err);
    // Whoever waits learns the end, whoever let it be cut.
    let log = cli.folder().join("wait.log");
    let waits = cli.spawn(&["instance", "cut", APP, HOST, "--wait"]).log_file(&log).start().expect("it starts");
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    until("the wait has begun", LIMIT, || async { said().contains(" s  cutting").then_some(()) }).await;
    flip(&system).await;
    // And whoever comes when the cut is over, and the landing is not.
    let late = cli.folder().join("late.log");
    let waits_late = cli.spawn(&["instance", "cut", APP, HOST, "--wait"]).log_file(&late).start().expect("it starts");
    let said_late = || std::fs::read_to_string(&late).unwrap_or_default();
    until("the late wait has begun", LIMIT, || async { said_late().contains(" s  landing").then_some(()) }).await;
    point_back(&system).await;
    for (waits, said) in [(&waits, said()), (&waits_late, said_late())] {
        let ended = waits.wait_timeout(LIMIT).await.expect("it ends");
        assert_eq!(ended.code(), Some(5), "{said}");
    }
    for said in [said(), said_late()] {
        assert!(said.contains("an operator gave the landing in uk up"), "{said}");
    }
    let over = cli.run(&["instance", "cut", APP, HOST, "--wait"]).await;
    assert!(over.code == Some(5) && over.err.contains("no_move"), "nothing goes forward any more: {}", over.err);
    let receipt = cli.run(&["instance", "receipt", APP, HOST]).await.out;
    assert!(receipt.contains("moved, and the landing in uk was given up"), "{receipt}");
    assert!(receipt.contains("landing given up at"), "{receipt}");
    assert!(cli.run(&["instance", "moves", APP, HOST]).await.out.contains("given up"));
    let why = cli.run(&["instance", "why", APP, HOST]).await.out;
    assert!(why.contains("An operator pointed it to eu"), "{why}");
}

/// The cut is done, and no box of the target takes it.
async fn flip(system: &System) {
    sql(
        system,
        "update moves set finished_at = lh_now(), outcome = 'moved', state = 'cutting', purge_began_at = lh_now(),
                          tail_txid = '000000000000a3f1', tail_sha256 = repeat('ab', 32), tail_size = 1;
         update instances set region = 'uk', pending_landing_to = 'uk', pending_landing_move = (select id from moves);
         delete from routes",
    )
    .await;
}

/// An operator points the record back.
async fn point_back(system: &System) {
    let cli = &system.cli;
    let point = ["instance", "point", APP, HOST, "eu", "--confirm", HOST, "--reason", "uk is gone"];
    let pointed = cli.run(&point).await;
    assert_eq!(pointed.code, Some(0), "{}", pointed.err);
    assert!(pointed.out.contains("from uk to eu") && pointed.out.contains("000000000000a3f1"), "{}", pointed.out);
    let same = cli.run(&point).await;
    assert_eq!(same.code, Some(5), "{}", same.err);
}

#[tokio::test]
async fn a_budget_is_given_shown_a_cut_over_it_refused_with_what_to_do_and_forced_and_the_receipt_tells_all_three() {
    let system = served().await;
    let cli = &system.cli;
    for wrong in ["10", "1.5s", "2d"] {
        let ended = cli.run(&["instance", "move", APP, HOST, "uk", "--freeze-budget", wrong]).await;
        assert_eq!(ended.code, Some(2), "{}", ended.err);
        assert!(ended.err.contains("e.g. 10s, 2m or 1h"), "{}", ended.err);
    }
    // An earlier cut between the two took 9.5 seconds.
    assert_eq!(cli.run(&["instance", "move", APP, HOST, "uk"]).await.code, Some(0));
    sql(&system, "update moves set state = 'cutting', ready_at = lh_now()").await;
    sql(&system, LANDED).await;
    let ended = cli.run(&["instance", "move", APP, HOST, "uk", "--freeze-budget", "9s"]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    sql(&system, "update moves set state = 'ready', ready_at = lh_now() where finished_at is null").await;
    let shown = cli.run(&["instance", "show", APP, HOST]).await.out;
    assert!(shown.contains("freeze budget") && shown.contains("9 s"), "{shown}");
    let ended = cli.run(&["instance", "cut", APP, HOST]).await;
    assert_eq!(ended.code, Some(5), "{}", ended.err);
    for words in ["freeze_over_budget", "9.500 s", "budget of 9 s", "leasehold instance cut --force"] {
        assert!(ended.err.contains(words), "{words}: {}", ended.err);
    }
    let ended = cli.run(&["instance", "cut", APP, HOST, "--force"]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    sql(&system, LANDED).await;
    sql(&system, "update moves set landed_at = cut_at + interval '4 seconds' where cut_forced").await;
    let receipt = cli.run(&["instance", "receipt", APP, HOST]).await.out;
    for words in
        ["freeze budget       9 s", "predicted freeze    9.5 s, and it was forced", "frozen              4.0 s"]
    {
        assert!(receipt.contains(words), "{words}: {receipt}");
    }
}

#[tokio::test]
async fn a_dry_run_waits_for_the_box_shows_what_the_move_would_meet_and_ends_as_the_move_would() {
    let system = served().await;
    let (cli, pool) = (&system.cli, system.database.pool());
    let eu = put_box_in(pool, "eu").await;
    let answered = async || {
        until("the look is asked for", LIMIT, || async {
            let sql = "select count(*) from jobs where kind = 'instance.rehearse'";
            let looks: i64 = sqlx::query_scalar(sql).fetch_one(pool).await.expect("a number");
            (looks == 1).then_some(())
        })
        .await;
        answer_look(pool, &eu, five_objects(&eu)).await
    };
    let dry = ["instance", "move", APP, HOST, "uk", "--freeze-budget", "9s", "--dry-run"];
    let log = cli.folder().join("dry.log");
    let asks = cli.spawn(&dry).log_file(&log).start().expect("it starts");
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    let begin = "a move from eu to uk would begin; nothing was begun";
    until("the gates, while the box is silent", LIMIT, || async { said().contains(begin).then_some(()) }).await;
    answered().await;
    let ended = asks.wait_timeout(LIMIT).await.expect("it ends");
    assert_eq!(ended.code(), Some(0), "{}", said());
    for words in [
        "5 objects, 2.0 KiB, newest transaction 000000000000000e",
        "about 9 requests",
        "no cut between eu and uk predicts it yet",
        "9 s: nothing to hold it against",
        "box-uk",
    ] {
        assert!(said().contains(words), "{words}: {}", said());
    }
    sql(&system, "update regions set armed = false where code = 'uk'").await;
    let json = [&dry[..], &["--json"]].concat();
    let (ended, job) = tokio::join!(cli.run(&json), answered());
    assert_eq!(ended.code, Some(5), "as the move would end: {}", ended.err);
    let told: serde_json::Value = serde_json::from_str(&ended.out).expect("one object");
    assert_eq!((&told["would_begin"], &told["look"]["job_id"]), (&json!(false), &json!(job)));
    assert_eq!(told["look"]["report"]["source"]["keys"], 5);
    let moves: i64 = sqlx::query_scalar("select count(*) from moves").fetch_one(pool).await.expect("a number");
    assert_eq!(moves, 0, "nothing was begun");
    let both = cli.run(&[&dry[..], &["--wait"]].concat()).await;
    assert_eq!(both.code, Some(2), "{}", both.err);
}
