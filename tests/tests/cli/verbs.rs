//! The operators' verbs against a real API and a real worker.

use crate::support::{Cli, System};

#[tokio::test]
async fn a_job_is_enqueued_run_listed_and_shown() {
    let system = System::start().await;
    let empty = system.cli.run(&["job", "list"]).await;
    assert_eq!(empty.out, "no such jobs\n");
    let _worker = system.worker(&[]);
    let id = system.enqueue(&["system.noop", "--tag", "spring", "--priority", "-5"]).await;
    let job = system.until_state(&id, "completed").await;
    assert_eq!((&job["attempt"], &job["priority"]), (&1.into(), &(-5).into()));

    let list = system.cli.run(&["job", "list", "--tag", "spring", "--state", "completed"]).await;
    let lines: Vec<&str> = list.out.lines().collect();
    assert_eq!(lines.len(), 2, "a heading and the job: {}", list.out);
    assert!(lines[0].starts_with("ID ") && lines[1].starts_with(&id), "{}", list.out);
    assert!(lines[1].contains("system.noop") && lines[1].contains("completed"));
    assert_eq!(system.cli.json(&["job", "list", "--tag", "autumn"]).await["items"], serde_json::json!([]));

    let shown = system.cli.run(&["job", "show", &id, "--attempts", "--steps", "--log"]).await;
    for words in ["state          completed", "attempt        1 of", "tags           spring", "No steps were recorded."]
    {
        assert!(shown.out.contains(words), "{words}: {}", shown.out);
    }
    let whole = system.cli.json(&["job", "show", &id, "--attempts", "--steps", "--log"]).await;
    assert_eq!(whole["id"], id.as_str());
    assert!(whole["attempts"].is_array() && whole["steps"].is_array() && whole["log"].is_array());

    let workers = system.cli.json(&["worker", "list"]).await;
    assert_eq!(workers["items"][0]["state"], "live");
    assert!(system.cli.run(&["worker", "list"]).await.out.contains("live"));
    let queues = system.cli.json(&["queue", "list"]).await;
    assert_eq!(queues["items"][0]["name"], "default");
}

#[tokio::test]
async fn a_proxy_of_the_environment_does_not_come_between_a_verb_and_this_machine() {
    let system = System::start().await;
    for variable in ["http_proxy", "HTTP_PROXY", "ALL_PROXY"] {
        // Nobody listens there.
        let behind = system.cli.clone().with(variable, "http://127.0.0.1:1");
        let ended = behind.run(&["queue", "list"]).await;
        assert_eq!(ended.code, Some(0), "{variable}: {}", ended.err);
    }
}

#[tokio::test]
async fn an_empty_variable_names_no_file_of_settings() {
    let ended = Cli::new().with("LEASEHOLD_CONFIG", "").run(&["config", "check"]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
}

#[tokio::test]
async fn a_running_job_is_cancelled_and_a_cancelled_one_retried() {
    let system = System::start().await;
    let _worker = system.worker(&[]);
    let id = system.enqueue(&["system.sleep", "--args", "{\"ms\": 60000}"]).await;
    let running = system.until_state(&id, "running").await;
    let revision = running["revision"].to_string();
    let ended = system.cli.run(&["job", "cancel", &id, "--reason", "a mistake"]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    system.until_state(&id, "cancelled").await;

    let stale = system.cli.run(&["job", "retry", &id, "--if-revision", &revision]).await;
    assert_eq!(stale.code, Some(5), "it changed meanwhile: {}", stale.err);
    let retried = system.cli.run(&["job", "retry", &id, "--reason", "no mistake"]).await;
    assert_eq!(retried.code, Some(0), "{}", retried.err);
    system.until_state(&id, "running").await;
}

/// A job for the queue that nobody serves, then one that is over: each tells what it waits for or came to.
#[tokio::test]
async fn why_tells_its_reasons_as_sentences_the_one_to_act_on_first() {
    let system = System::start().await;
    let id = system.enqueue(&["system.noop", "--run-at", "2099-01-01T00:00:00Z", "--queue", "nobodys"]).await;
    let answer = system.cli.json(&["job", "why", &id]).await;
    let codes: Vec<&str> =
        answer["reasons"].as_array().unwrap().iter().map(|it| it["code"].as_str().unwrap()).collect();
    assert_eq!((&answer["job_id"], codes.as_slice()), (&id.as_str().into(), &["scheduled", "unserved_queue"][..]));

    let told = system.cli.run(&["job", "why", &id]).await;
    let lines: Vec<&str> = told.out.lines().collect();
    let sentences: Vec<&str> =
        answer["reasons"].as_array().unwrap().iter().map(|it| it["message"].as_str().unwrap()).collect();
    assert_eq!(lines, sentences, "{}", told.out);
    assert!(lines[0].contains("2099") && lines[1].contains("nobodys"), "{}", told.out);

    let absent = system.cli.run(&["job", "why", "01890a5d-ac96-774b-bcce-b302099a8057"]).await;
    assert_eq!(absent.code, Some(4), "{}", absent.err);
}

#[tokio::test]
async fn a_finished_job_is_run_again_as_a_new_one_unless_it_changed_or_is_not_over() {
    let system = System::start().await;
    let _worker = system.worker(&[]);
    let old = system.enqueue(&["system.sleep", "--args", "{\"ms\": 1}", "--tag", "spring"]).await;
    let finished = system.until_state(&old, "completed").await;
    let revision = finished["revision"].to_string();
    let stale = (finished["revision"].as_i64().unwrap() - 1).to_string();

    let refused = system.cli.run(&["job", "run-again", &old, "--if-revision", &stale]).await;
    assert_eq!(refused.code, Some(5), "{}", refused.err);
    let again = ["job", "run-again", &old, "--reason", "once more", "--if-revision", &revision];
    let keyed: Vec<&str> = again.into_iter().chain(["--idempotency-key", "a"]).collect();
    let new = system.cli.json(&keyed).await;
    assert_ne!(new["id"], old.as_str());
    assert_eq!((&new["args"], &new["tags"]), (&finished["args"], &finished["tags"]));
    assert_eq!(system.cli.json(&keyed).await["id"], new["id"], "a repeated call makes no other");
    system.until_state(new["id"].as_str().unwrap(), "completed").await;
    let other = system.cli.run(&again).await;
    assert!(other.code == Some(0) && other.out.contains("system.sleep on default"), "{}", other.said());

    let refused = system.cli.run(&["job", "retry", &old]).await;
    assert!(refused.code == Some(5) && refused.err.contains("run-again"), "{}", refused.said());

    let live = system.enqueue(&["system.noop", "--run-at", "2099-01-01T00:00:00Z"]).await;
    let refused = system.cli.run(&["job", "run-again", &live]).await;
    assert_eq!(refused.code, Some(5), "{}", refused.err);
}

#[tokio::test]
async fn a_unique_key_and_an_idempotency_key_make_one_job_of_two_calls() {
    let system = System::start().await;
    let first = system.enqueue(&["system.noop", "--unique-key", "today"]).await;
    let second = system.cli.run(&["job", "enqueue", "system.noop", "--unique-key", "today"]).await;
    assert!(second.out.contains(&first) && second.out.contains("existed already"), "{}", second.out);

    let first = system.enqueue(&["system.noop", "--idempotency-key", "a"]).await;
    assert_eq!(system.enqueue(&["system.noop", "--idempotency-key", "a"]).await, first);
    assert_ne!(system.enqueue(&["system.noop", "--idempotency-key", "b"]).await, first);
}

#[tokio::test]
async fn bad_input_is_told_with_its_place_and_an_exit_code_of_its_kind() {
    let system = System::start().await;
    let absent = "01890a5d-ac96-774b-bcce-b302099a8057";
    let cases: [(&[&str], i32, &str); 11] = [
        (&["job", "enqueue", "no.such"], 4, "--allow-unknown-kind"),
        (&["job", "enqueue", "system.sleep", "--args", "{\"sm\": 1}"], 2, "/args/sm"),
        (&["job", "enqueue", "system.noop", "--args", "{"], 2, "not JSON"),
        (&["job", "enqueue", "system.noop", "--priority", "101"], 2, "priority"),
        (&["job", "show", absent], 4, "leasehold: there is no job 01890a5d-ac96-774b-bcce-b302099a8057, or"),
        (&["job", "show", "ledger"], 2, "<ID>': an id has the form 01890a5d-"),
        (&["job", "enqueue", "system.noop", "--run-at", "noon"], 2, "--run-at <TIME>': a time has a date"),
        (&["job", "cancel", absent], 4, "there is no job 01890a5d-"),
        (&["job", "why", absent], 4, "there is no job 01890a5d-"),
        (&["key", "revoke", absent], 4, "there is no key 01890a5d-"),
        (&["instance", "show", "acme", "ledger.acme.example"], 4, "there is no instance ledger.acme.example of acme"),
    ];
    for (args, code, words) in cases {
        let ended = system.cli.run(args).await;
        assert_eq!(ended.code, Some(code), "{args:?}: {}", ended.err);
        assert!(ended.err.contains(words), "{args:?}: {}", ended.err);
        assert!(ended.out.is_empty(), "{args:?}");
    }
    let file = system.cli.folder().join("args.json");
    std::fs::write(&file, format!("{{\"note\": \"{}\"}}", "x".repeat(300_000))).unwrap();
    let ended = system.cli.run(&["job", "enqueue", "system.noop", "--args-file", file.to_str().unwrap()]).await;
    assert_eq!(ended.code, Some(2));
    assert!(ended.err.contains("payload_too_large") || ended.err.contains("/args/note"), "{}", ended.err);
}

#[tokio::test]
async fn with_json_a_failure_is_one_problem_on_stderr() {
    let system = System::start().await;
    let cases: [(&[&str], i32, &str); 3] = [
        (&["job", "enqueue", "system.sleep", "--args", "{\"sm\": 1}", "--json"], 2, "validation_failed"),
        (&["job", "enqueue", "system.noop", "--args-file", "absent.json", "--json"], 2, "usage"),
        (&["job", "no-such-verb", "--json"], 2, "usage"),
    ];
    for (args, exit, code) in cases {
        let ended = system.cli.run(args).await;
        let told: serde_json::Value = serde_json::from_str(&ended.err).expect(&ended.err);
        assert_eq!((ended.code, &told["code"]), (Some(exit), &code.into()), "{args:?}: {told}");
        assert_eq!(told["exit_code"], exit, "{told}");
        assert!(ended.out.is_empty() && told["title"].is_string() && told["errors"].is_array(), "{told}");
    }
}

#[tokio::test]
async fn an_api_that_is_away_ends_with_6_and_says_where_it_was_looked_for() {
    let cli = Cli::new().with("LEASEHOLD_KEY", "lh_x").with("LEASEHOLD_URL", "http://127.0.0.1:1");
    let ended = cli.run(&["job", "list"]).await;
    assert_eq!(ended.code, Some(6));
    assert!(ended.err.contains("http://127.0.0.1:1/"), "{}", ended.err);
    let next = ended.err.split_once("\n  next: ").expect("a next step").1;
    assert!(next.contains("LEASEHOLD_URL") && next.contains("leasehold dev"), "{next}");
    let told = cli.run(&["job", "list", "--json"]).await;
    let told: serde_json::Value = serde_json::from_str(&told.err).expect(&told.err);
    assert_eq!(told["hint"].as_str(), Some(next.trim_end()), "{told}");
}
