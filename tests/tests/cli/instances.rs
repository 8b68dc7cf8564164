//! Regions and instances on the command line, with a box that serves them.

use sandbox::exec::{Running, Signal};
use tests::wait::until;

use crate::support::{Cli, LIMIT, System, end, program, start, until_logged};

async fn define(system: &System, code: &str, armed: bool) {
    let bucket = format!("data-{code}");
    let mut args = vec!["region", "set", code, "--name", code, "--data-bucket", &bucket, "--data-bucket-region", "x-1"];
    if armed {
        args.push("--armed");
    }
    let ended = system.cli.run(&args).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
}

/// What makes a worker the box of a region.
fn arguments(system: &System, code: &str) -> Vec<String> {
    let folder = system.cli.folder().join(format!("box-{code}"));
    let folder = folder.to_str().expect("UTF-8");
    let (identity, bucket) = (format!("box-{code}"), format!("data-{code}"));
    let named = ["--node", &identity, "--region", code, "--data-dir", folder, "--data-bucket", &bucket];
    let store = ["--data-bucket-region", "x-1", "--s3-endpoint", "http://127.0.0.1:1"];
    named.into_iter().chain(store).map(str::to_owned).collect()
}

/// The worker of a box. Its object store is away: what it lands stays held up.
async fn start_box(system: &System, code: &str) -> Running {
    let arguments = arguments(system, code);
    let worker = system.worker(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    until("its region can host", LIMIT, || async {
        assert!(worker.status().is_none(), "the box ended: {}", worker.log_tail());
        let regions = system.cli.json(&["region", "list"]).await;
        let found = regions["items"].as_array().expect("a list").iter().find(|region| region["code"] == code).cloned();
        (found?["can_host"] == true).then_some(())
    })
    .await;
    worker
}

#[tokio::test]
async fn an_instance_is_registered_shown_and_moved_once() {
    let system = System::start().await;
    let cli = &system.cli;
    for (code, armed) in [("eu", true), ("uk", true), ("xx", false)] {
        define(&system, code, armed).await;
    }
    let _boxes = (start_box(&system, "eu").await, start_box(&system, "uk").await);
    let host = "ledger.acme.example";
    std::fs::write(cli.folder().join("ledger.env"), "# of the ledger\nMODE=quiet\n").unwrap();
    let args = ["instance", "create", "acme", host, "--region", "eu", "--env-file", "ledger.env"];
    let created = cli.json(&args).await;
    assert_eq!((&created["region"], &created["env"]["MODE"]), (&"eu".into(), &"quiet".into()));
    assert!(created.get("move").is_none());
    let again = cli.run(&["instance", "create", "acme", host, "--region", "eu"]).await;
    assert_eq!(again.code, Some(5), "the host is taken: {}", again.err);
    until("a box has taken it", LIMIT, || async {
        (cli.json(&["instance", "show", "acme", host]).await["observed_region"] == "eu").then_some(())
    })
    .await;
    let held = cli.run(&["instance", "move", "acme", host, "uk"]).await;
    assert_eq!(held.code, Some(5), "its store is away, so it is not served yet: {}", held.err);
    assert!(held.err.contains("not_placed"), "{}", held.err);
    let serve = "update routes set status = 'serving', held = null, held_since = null";
    sqlx::raw_sql(serve).execute(system.database.pool()).await.expect("the test's statement");
    assert!(cli.run(&["instance", "list", "acme"]).await.out.contains(host));
    assert_eq!(cli.run(&["instance", "list", "other"]).await.out, "no instances\n");

    let cases = [
        (["instance", "move", "acme", "nobody.example", "uk"], 4, "not_found"),
        (["instance", "move", "other", host, "uk"], 4, "not_found"),
        (["instance", "move", "acme", host, "eu"], 5, "same_region"),
        (["instance", "move", "acme", host, "xx"], 5, "region_unarmed"),
        (["instance", "move", "acme", host, "nowhere"], 4, "Region \"nowhere\" does not exist. (region_unknown)"),
    ];
    for (args, code, words) in cases {
        let ended = cli.run(&args).await;
        assert_eq!(ended.code, Some(code), "{args:?}: {}", ended.err);
        assert!(ended.err.contains(words), "{args:?}: {}", ended.err);
    }
    let moved = cli.run(&["instance", "move", "acme", host, "uk"]).await;
    assert_eq!(moved.code, Some(0), "{}", moved.err);
    assert_eq!(moved.out, format!("{host}: preparing a move to uk\n"));
    let twice = cli.run(&["instance", "move", "acme", host, "uk"]).await;
    assert_eq!(twice.code, Some(5), "{}", twice.err);
    assert!(twice.err.contains("A move to uk is in flight and preparing. (move_in_flight)"), "{}", twice.err);

    let shown = cli.run(&["instance", "show", "acme", host]).await;
    assert!(shown.out.contains("preparing to uk") && shown.out.contains("region           eu"), "{}", shown.out);
    let message = until("the move says what holds it up", LIMIT, || async {
        let shown = cli.json(&["instance", "show", "acme", host]).await;
        shown["move"]["obstacle"]["message"].as_str().map(str::to_owned)
    })
    .await;
    let shown = cli.run(&["instance", "show", "acme", host]).await.out;
    for words in ["\nheld up by ", "\nheld up since ", "\nrounds ", &message] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert!(cli.run(&["instance", "moves", "acme", host]).await.out.contains("preparing"));
}

#[tokio::test]
async fn a_region_keeps_what_a_change_does_not_name() {
    let system = System::start().await;
    let cli = &system.cli;
    define(&system, "eu", true).await;
    let mut expected = cli.json(&["region", "list"]).await["items"][0].clone();
    for (flags, field, value) in [
        (&["--name", "Europe"][..], "name", serde_json::json!("Europe")),
        (&["--home", "--dormant"], "home", true.into()),
        (&["--armed=false", "--default"], "armed", false.into()),
        (&["--name", "Old World"], "name", "Old World".into()),
        (&["--home=false"], "home", false.into()),
    ] {
        let changed = cli.json(&[&["region", "set", "eu"], flags].concat()).await;
        expected[field] = value;
        for (flag, mark) in [("--dormant", "dormant"), ("--default", "default")] {
            if flags.contains(&flag) {
                expected[mark] = true.into();
            }
        }
        expected["serial"] = changed["serial"].clone();
        assert_eq!(changed, expected, "{flags:?}");
    }
    let absent = cli.run(&["region", "set", "uk", "--armed", "--name", "Kingdom"]).await;
    assert_eq!(absent.code, Some(2), "{}", absent.err);
    assert!(absent.err.contains("a new one needs --data-bucket"), "{}", absent.err);
}

#[tokio::test]
async fn a_region_that_somebody_else_changed_meanwhile_is_left_alone_and_the_command_may_be_repeated() {
    let system = System::start().await;
    let cli = &system.cli;
    define(&system, "eu", true).await;
    for as_json in [false, true] {
        // Reads go on beside the lock: the command has read the region when its write waits.
        let mut other = system.database.session().await;
        let mut tx = sqlx::Connection::begin(&mut other).await.unwrap();
        let locked = "select serial from regions where code = 'eu' for update";
        let serial: i64 = sqlx::query_scalar(locked).fetch_one(&mut *tx).await.unwrap();
        let between = async {
            system.database.until_blocked().await;
            let change = "update regions set name = 'Theirs', serial = $1 where code = 'eu'";
            sqlx::query(change).bind(serial + 1).execute(&mut *tx).await.unwrap();
            tx.commit().await.unwrap();
        };
        let args = ["region", "set", "eu", "--home", "--json"];
        let args = if as_json { &args[..] } else { &args[..4] };
        let (refused, ()) = tokio::join!(cli.run(args), between);
        assert_eq!(refused.code, Some(5), "{}", refused.err);
        assert!(
            refused.err.contains("stale_revision") && refused.err.contains("repeat the command"),
            "{}",
            refused.err
        );
        assert!(!refused.err.contains("--if-revision"), "no flag of this verb: {}", refused.err);
        let found = cli.json(&["region", "list"]).await["items"][0].clone();
        assert_eq!((&found["name"], &found["home"]), (&"Theirs".into(), &false.into()), "what they wrote stays");
    }
    let changed = cli.json(&["region", "set", "eu", "--home"]).await;
    assert_eq!((&changed["name"], &changed["home"]), (&"Theirs".into(), &true.into()));
}

/// M-115: whoever counts on it would wait for a landing that no box takes.
#[tokio::test]
async fn a_box_without_a_program_or_without_litestream_says_so_and_hosts_nothing() {
    let system = System::start().await;
    let bare = |litestream: std::path::PathBuf| system.cli.clone().with("LEASEHOLD_NODE_LITESTREAM", litestream);
    let without_program = bare(sandbox::tools::find_litestream().expect("find litestream"));
    let without_litestream = bare("/nowhere/litestream".into()).with("LEASEHOLD_NODE_EXEC", program());
    let cases: [(&str, &Cli, &str); 2] = [
        ("eu", &without_program, "this box has no program for its instances"),
        ("uk", &without_litestream, "no litestream is found"),
    ];
    for (code, cli, words) in cases {
        define(&system, code, true).await;
        let arguments = arguments(&system, code);
        let arguments: Vec<&str> = ["worker"].into_iter().chain(arguments.iter().map(String::as_str)).collect();
        let worker = start(cli, &arguments, "bare.log");
        until_logged(&worker, words).await;
        let node = format!("box-{code}");
        until("its worker is heard", LIMIT, || async {
            assert!(worker.status().is_none(), "the box ended: {}", worker.log_tail());
            let workers = system.cli.json(&["worker", "list"]).await;
            workers["items"].as_array()?.iter().any(|worker| worker["node"] == node.as_str()).then_some(())
        })
        .await;
        let regions = system.cli.json(&["region", "list"]).await;
        let region = regions["items"].as_array().expect("a list").iter().find(|region| region["code"] == code);
        assert_eq!(region.map(|region| &region["can_host"]), Some(&false.into()), "{regions}");
        let refused = system.cli.run(&["instance", "create", "acme", "a.acme.example", "--region", code]).await;
        assert!(refused.code != Some(0) && refused.err.contains("region_cannot_host"), "{}", refused.err);
        assert!(end(&worker, Signal::TERM).await.success(), "{}", worker.log_tail());
    }
}

#[tokio::test]
async fn one_worker_a_box() {
    let system = System::start().await;
    define(&system, "eu", true).await;
    let worker = start_box(&system, "eu").await;
    let folder = system.cli.folder().join("box-eu");
    let args = [
        "worker",
        "--node",
        "box-eu",
        "--region",
        "eu",
        "--data-dir",
        folder.to_str().unwrap(),
        "--data-bucket",
        "data-eu",
        "--data-bucket-region",
        "x-1",
    ];
    let second = system.cli.run(&args).await;
    assert_eq!(second.code, Some(5), "{}", second.err);
    assert!(second.err.contains("one worker a box"), "{}", second.err);

    // Nor one that keeps its replicas elsewhere than its region does.
    let other = system.cli.folder().join("other");
    let mut elsewhere = args;
    elsewhere[2] = "box-eu-2";
    elsewhere[6] = other.to_str().unwrap();
    elsewhere[8] = "data-elsewhere";
    let refused = system.cli.run(&elsewhere).await;
    assert_eq!(refused.code, Some(1), "{}", refused.err);
    assert!(refused.err.contains("keeps its replicas in bucket data-eu"), "{}", refused.err);
    assert!(end(&worker, Signal::TERM).await.success());
}

#[tokio::test]
async fn a_sealed_value_is_a_line_of_an_environment_file_and_needs_no_api() {
    let (first, second) = (tests::keys::BoxKey::generate(), tests::keys::BoxKey::generate());
    let cli = Cli::new();
    let seal = async |input: &str, args: &[&str]| {
        const SCRIPT: &str = r#"printf '%s' "$INPUT" | "$0" instance seal "$@""#;
        let program = crate::support::program();
        let spawn = sandbox::exec::Spawn::new("/bin/sh").args(["-c", SCRIPT, program.to_str().unwrap()]);
        let done = spawn.args(args.iter().copied()).env("INPUT", input).cwd(cli.folder());
        done.run(crate::support::LIMIT).await.unwrap()
    };
    let to = ["TENANT_KEY", "--to", &first.recipient, "--to", &second.recipient];
    let done = seal("hunter2 and more\n", &to).await;
    assert!(done.status.success(), "{}", done.stderr);
    let (name, value) = done.stdout.trim_end().split_once('=').expect("NAME=VALUE, on one line");
    assert!(name == "TENANT_KEY" && value.starts_with("age:") && !value.contains(char::is_whitespace), "{value}");
    let env = [(name.to_owned(), value.to_owned())].into();
    for key in [&first, &second] {
        let opened = domain::instances::sealed::open(&env, Some(&key.keys)).expect("each of them opens it");
        assert_eq!(secrecy::ExposeSecret::expose_secret(&opened[name]), "hunter2 and more", "without the last newline");
    }
    for nothing in ["", "\n"] {
        let refused = seal(nothing, &to).await;
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(refused.stderr.contains("no value came on stdin"), "{refused:?}");
    }
    let json = seal("hunter2", &[&to[..], &["--json"]].concat()).await;
    let json: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert!(json["name"] == "TENANT_KEY" && json["value"].as_str().is_some_and(|value| value.starts_with("age:")));
    let (to, long) = ("--to", "A".repeat(256));
    let names = ["A=B", "1A", "LEASEHOLD_X", &long].map(|name| [name, to, &first.recipient]);
    let missing = [&["TENANT_KEY"][..], &["TENANT_KEY", to, "age1nobody"]];
    for wrong in missing.into_iter().chain(names.iter().map(|args| &args[..])) {
        let done = seal("hunter2", wrong).await;
        assert_eq!(done.status.code(), Some(2), "{wrong:?}");
        assert!(!format!("{}{}", done.stdout, done.stderr).contains("hunter2"));
    }
}

#[tokio::test]
async fn the_list_of_regions_tells_to_whom_one_seals() {
    let system = System::start().await;
    define(&system, "eu", true).await;
    define(&system, "uk", true).await;
    let key = tests::keys::BoxKey::generate();
    for code in ["eu", "uk"] {
        let mut spec = tests::fleet::box_of(code);
        spec.data = None;
        spec.capabilities.config_key = if code == "eu" { vec![key.recipient.clone()] } else { Vec::new() };
        domain::nodes::register(&mut system.database.session().await, &spec).await.expect("registered");
    }
    for args in [&["region", "list"][..], &["region", "list", "--app", "acme"]] {
        let ended = system.cli.run(args).await;
        let line = |code: &str| ended.out.lines().find(|line| line.starts_with(code)).unwrap_or_default().to_owned();
        assert!(ended.out.contains("CONFIG KEY") && line("eu").ends_with(&key.recipient), "{}{}", ended.out, ended.err);
        assert!(line("uk").ends_with('-'), "{}", ended.out);
    }
    let file = system.cli.folder().join("ledger.env");
    std::fs::write(&file, format!("TENANT_KEY={}\n", tests::keys::seal("hunter2", &[&key]))).unwrap();
    let file = file.to_str().unwrap();
    let create = ["instance", "create", "acme", "ledger.acme.example", "--env-file", file, "--region"];
    let refused = system.cli.run(&[&create[..], &["uk"]].concat()).await;
    assert_eq!(refused.code, Some(5), "{}", refused.err);
    assert!(refused.err.contains("capability config_key"), "{}", refused.err);
    let made = system.cli.json(&[&create[..], &["eu"]].concat()).await;
    assert!(made["env"]["TENANT_KEY"].as_str().is_some_and(|value| value.starts_with("age:")), "{made}");
}

#[tokio::test]
async fn an_environment_is_set_from_a_file_and_told_by_its_names() {
    let system = System::start().await;
    define(&system, "eu", true).await;
    let spec = tests::fleet::box_of("eu");
    let spec = domain::nodes::NodeSpec { data: None, ..spec };
    domain::nodes::register(&mut system.database.session().await, &spec).await.expect("registered");
    let file = |name: &str, text: &str| {
        let path = system.cli.folder().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (first, second) =
        (file("first.env", "MODE=loud\nTOKEN=hunter2\n"), file("second.env", "# all of it\nMODE=quiet\n"));
    let place = ["acme", "ledger.acme.example"];
    let create = [&["instance", "create"][..], &place, &["--region", "eu", "--env-file", &first]].concat();
    let revision = system.cli.json(&create).await["revision"].as_i64().expect("a revision").to_string();
    let set = |more: &[&str]| {
        [&["instance", "env"][..], &place, more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let run = async |args: Vec<String>| system.cli.run(&args.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let done = run(set(&["--file", &second, "--if-revision", &revision])).await;
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert_eq!(done.out, "ledger.acme.example: 1 variable, from its next start on (leasehold instance restart)\n");
    let shown = system.cli.json(&[&["instance", "show"][..], &place].concat()).await;
    assert_eq!(shown["env"], serde_json::json!({"MODE": "quiet"}), "what the file does not name is gone");
    let (bad, none) = (file("bad.env", "CARLOS_REGION=hunter2\n"), file("none.env", "# nothing\n"));
    for (args, code, word) in [
        (set(&["--file", &second, "--if-revision", &revision]), 5, "stale_revision"),
        (set(&["--file", &bad]), 2, "set by the box alone"),
        (set(&["--file", &none]), 2, "--empty"),
        (set(&["--file", "nowhere.env"]), 2, "nowhere.env"),
        (set(&[]), 2, "--file"),
    ] {
        let refused = run(args).await;
        assert_eq!(refused.code, Some(code), "{}", refused.err);
        assert!(refused.err.contains(word) && !refused.err.contains("hunter2"), "{}", refused.err);
    }
    let cleared = run(set(&["--empty"])).await;
    assert_eq!(
        cleared.out, "ledger.acme.example: 0 variables, from its next start on (leasehold instance restart)\n",
        "{}",
        cleared.err
    );
}
