//! Operators limit, pause and resume queues on the command line.

use crate::support::System;

#[tokio::test]
async fn a_queue_is_limited_paused_and_resumed_and_the_list_shows_it() {
    let system = System::start().await;
    let run = async |args: &[&str]| {
        let ended = system.cli.run(args).await;
        assert_eq!(ended.code, Some(0), "{args:?}: {}", ended.err);
        ended.out
    };
    let told = run(&["queue", "limit", "mail"]).await;
    assert!(told.contains("running          no limit") && told.contains("revision         0"), "{told}");
    let quota = ["queue", "limit", "mail", "--running", "50", "--starts-per-key", "10/1m", "--reason", "a quota"];
    let told = run(&quota).await;
    assert!(told.contains("starts per key   10/1m") && told.contains("reason           a quota"), "{told}");
    // What is not named is kept.
    run(&["queue", "limit", "mail", "--running-per-key", "2", "--running", "none", "--reason", "per tenant"]).await;
    let shown = system.cli.json(&["queue", "limit", "mail"]).await;
    assert_eq!((&shown["running"], &shown["running_per_key"]), (&serde_json::Value::Null, &2.into()), "{shown}");
    assert_eq!((&shown["starts_per_key"]["starts"], &shown["revision"]), (&10.into(), &2.into()));

    let told = run(&["queue", "pause", "mail", "--reason", "relay maintenance"]).await;
    assert!(told.starts_with("queue mail is paused by administrator since"), "{told}");
    let told = run(&["queue", "pause", "mail", "--reason", "another"]).await;
    assert!(told.starts_with("queue mail is paused already, by administrator since"), "{told}");
    assert!(told.contains("relay maintenance\n(that reason stays") && !told.contains("another\n"), "{told}");
    run(&["queue", "pause", "--kind", "system.noop", "--reason", "a bad release"]).await;
    let listed = run(&["queue", "list"]).await;
    let row = listed.lines().find(|line| line.starts_with("mail")).expect("the queue");
    assert!(row.contains("relay maintenance") && row.contains("2 a key at once, 10/1m starts a key"), "{row}");
    let pauses = run(&["queue", "pauses"]).await;
    assert!(pauses.contains("system.noop") && pauses.contains("relay maintenance"), "{pauses}");
    let id = system.enqueue(&["system.noop", "--queue", "mail", "--concurrency-key", "acme"]).await;
    let why = system.cli.json(&["job", "show", &id]).await;
    assert_eq!(why["concurrency_key"], "acme");

    let told = run(&["queue", "resume", "mail", "--reason", "the relay is back"]).await;
    assert!(told.contains("it was paused by administrator"), "{told}");
    run(&["queue", "resume", "--kind", "system.noop", "--reason", "fixed"]).await;
    let told = run(&["queue", "resume", "mail", "--reason", "again"]).await;
    assert_eq!(told, "queue mail was not paused\n");
    system.cli.run(&["queue", "pause", "--kind", "system.sleep", "--reason", "too long"]).await;
    let cases: [(&[&str], &str); 4] = [
        (&["system.sleep"], "too long\n(`leasehold queue resume --kind system.sleep --reason …` resumes it)"),
        (&["mial"], "queue mial was not paused, and there is no queue mial"),
        (&["--kind", "system.slep"], "kind system.slep was not paused, and the API knows no kind system.slep"),
        (&["--kind", "system.noop"], "kind system.noop was not paused\n"),
    ];
    for (args, words) in cases {
        let args: Vec<&str> = ["queue", "resume", "--reason", "x"].into_iter().chain(args.iter().copied()).collect();
        let told = run(&args).await;
        assert!(told.contains(words), "{told}");
    }
    run(&["queue", "resume", "--kind", "system.sleep", "--reason", "short enough"]).await;
    assert_eq!(run(&["queue", "pauses"]).await, "nothing is paused\n");
    run(&["queue", "limit", "mail", "--none", "--reason", "the quota is gone"]).await;
    assert_eq!(system.cli.json(&["queue", "limit", "mail"]).await["starts_per_key"], serde_json::Value::Null);
}

#[tokio::test]
async fn what_cannot_be_limited_or_paused_is_told_with_what_to_say_instead() {
    let system = System::start().await;
    let cases: [(&[&str], i32, &str); 11] = [
        (&["queue", "limit", "Bad Queue"], 2, "name is not allowed: letters, digits, dots"),
        (&["queue", "pause", "Bad Queue", "--reason", "x"], 2, "name is not allowed: letters, digits, dots"),
        (&["queue", "limit", "mail", "--running", "5"], 2, "--reason"),
        (&["queue", "limit", "mail", "--reason", "x"], 2, "name a limit"),
        (&["queue", "limit", "mail", "--running", "many", "--reason", "x"], 2, "or none"),
        (&["queue", "limit", "mail", "--running", "0", "--reason", "x"], 2, "pause the queue"),
        (&["queue", "limit", "mail", "--starts-per-key", "10", "--reason", "x"], 2, "10/60s"),
        (&["queue", "limit", "mail", "--none", "--running", "5", "--reason", "x"], 2, "cannot be used with"),
        (&["queue", "pause", "mail"], 2, "--reason"),
        (&["queue", "pause", "--reason", "x"], 2, "--kind"),
        (&["queue", "pause", "--kind", "no.such", "--reason", "x"], 4, "--allow-unknown-kind"),
    ];
    for (args, code, words) in cases {
        let ended = system.cli.run(args).await;
        assert_eq!(ended.code, Some(code), "{args:?}: {}", ended.err);
        assert!(ended.err.contains(words), "{args:?}: {}", ended.err);
        assert!(!ended.err.contains("allow_unknown_kind"), "{}", ended.err);
        assert!(!ended.err.contains("\n  kind:") && !ended.err.contains("\n  name:"), "told once: {}", ended.err);
    }
    let unknown = ["queue", "pause", "--kind", "no.such", "--allow-unknown-kind", "--reason", "newer workers know it"];
    assert_eq!(system.cli.run(&unknown).await.code, Some(0));
}
