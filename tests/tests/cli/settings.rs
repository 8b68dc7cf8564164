//! Settings: bounds, sources, secrets; the help.

use crate::support::Cli;

const SECRET_URL: &str = "postgres://ada:hunter2@127.0.0.1:1/fleet";

#[tokio::test]
async fn a_misspelt_setting_ends_with_2_and_names_the_right_one() {
    let ended = Cli::new().with("LEASEHOLD_WORKER_CONCURENCY", "4").run(&["config", "check"]).await;
    assert_eq!(ended.code, Some(2));
    assert!(ended.err.contains("did you mean LEASEHOLD_WORKER_CONCURRENCY?"), "{}", ended.err);

    let cli = Cli::new();
    std::fs::write(cli.folder().join("leasehold.toml"), "[api]\nlisten = \"127.0.0.1:1\"\nport = 7\n").unwrap();
    let ended = cli.run(&["config", "check"]).await;
    assert_eq!(ended.code, Some(2));
    assert!(ended.err.contains("api.port in leasehold.toml names no setting"), "{}", ended.err);
}

/// Each setting with bounds is tried just outside of them, from each source that it has.
#[tokio::test]
async fn a_value_out_of_its_bounds_ends_with_2_and_tells_the_bounds() {
    let cases = [
        ("LEASEHOLD_WORKER_CONCURRENCY", "0", "a whole number from 1 to 512"),
        ("LEASEHOLD_WORKER_CONCURRENCY", "513", "a whole number from 1 to 512"),
        ("LEASEHOLD_WORKER_DRAIN_SECONDS", "1.5", "a whole number from 1 to 3600"),
        ("LEASEHOLD_DATABASE_MAX_CONNECTIONS", "1", "a whole number from 2 to 500"),
        ("LEASEHOLD_LOG_FORMAT", "xml", "auto, human or json"),
        ("LEASEHOLD_API_LISTEN", "localhost", "an IP address with a port"),
        ("LEASEHOLD_API_METRICS_PUBLIC", "yes", "true or false"),
        ("LEASEHOLD_URL", "ftp://x", "a URL that begins with http:// or https://"),
    ];
    for (name, value, rule) in cases {
        let ended = Cli::new().with(name, value).run(&["config", "check"]).await;
        assert_eq!(ended.code, Some(2), "{name}={value}");
        assert!(ended.err.contains(name) && ended.err.contains(rule), "{name}={value}: {}", ended.err);
    }
    let cli = Cli::new().with("LEASEHOLD_DATABASE_URL", "postgres://127.0.0.1:1/x");
    let ended = cli.run(&["worker", "--concurrency", "0"]).await;
    assert_eq!(ended.code, Some(2));
    assert!(ended.err.contains("worker.concurrency (from --concurrency)"), "{}", ended.err);
    // What is in order in one source is still overruled by the next.
    std::fs::write(cli.folder().join("leasehold.toml"), "[worker]\nconcurrency = 900\n").unwrap();
    let ended = cli.with("LEASEHOLD_WORKER_CONCURRENCY", "4").run(&["config", "check"]).await;
    assert!(
        ended.err.contains("worker.concurrency (from leasehold.toml)"),
        "a wrong value is never ignored: {}",
        ended.err
    );
}

#[tokio::test]
async fn config_check_shows_every_value_with_its_source_and_no_secret() {
    let cli = Cli::new()
        .with("LEASEHOLD_DATABASE_URL", SECRET_URL)
        .with("LEASEHOLD_KEY", "lh_hunter2")
        .with("LEASEHOLD_S3_SECRET_ACCESS_KEY", "hunter2")
        .with("LEASEHOLD_LOG_FORMAT", "");
    std::fs::write(cli.folder().join("leasehold.toml"), "[worker]\nqueues = [\"a\", \"b\"]\n").unwrap();
    for args in [["config", "check"].as_slice(), &["config", "check", "--json"]] {
        let ended = cli.run(args).await;
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        assert!(!ended.said().contains("hunter2"), "{}", ended.said());
        assert!(ended.out.contains("(hidden)"));
    }
    let rows = cli.json(&["config", "check"]).await;
    let row = |name: &str| {
        let found = rows.as_array().unwrap().iter().find(|row| row["setting"] == name);
        found.unwrap_or_else(|| panic!("{name} is not shown")).clone()
    };
    assert_eq!(row("worker.queues")["value"], "a,b");
    assert_eq!(row("worker.queues")["source"], "leasehold.toml");
    assert_eq!(row("database.url")["source"], "LEASEHOLD_DATABASE_URL");
    assert_eq!(row("log.format")["source"], "default", "an empty variable is not set");
}

#[tokio::test]
async fn no_secret_is_printed_when_its_use_fails() {
    let cli = Cli::new().with("LEASEHOLD_DATABASE_URL", SECRET_URL);
    let ended = cli.run(&["migrate"]).await;
    assert_eq!(ended.code, Some(6), "{}", ended.err);
    assert!(ended.err.contains("Connection refused"), "{}", ended.err);
    assert!(ended.err.contains("\"fleet\" at 127.0.0.1:1"), "{}", ended.err);
    assert!(!ended.said().contains("hunter2"), "{}", ended.said());

    let ended = Cli::new().with("LEASEHOLD_DATABASE_URL", "mysql://ada:hunter2@h/d").run(&["migrate"]).await;
    assert_eq!(ended.code, Some(2));
    assert!(!ended.said().contains("hunter2"), "{}", ended.said());
}

#[tokio::test]
async fn every_flag_that_the_reference_names_is_one_of_a_role() {
    let cli = Cli::new();
    let mut helps = String::new();
    for role in ["api", "worker", "migrate", "dev"] {
        helps += &cli.run(&[role, "--help"]).await.out;
    }
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md")).expect("the page");
    let flags = page.split('`').filter(|word| word.starts_with("--") && !word.contains(' '));
    let flags: std::collections::BTreeSet<&str> = flags.collect();
    assert!(flags.len() > 8, "{flags:?}");
    for flag in flags {
        assert!(helps.split_whitespace().any(|word| word == flag), "{flag} is a flag of nothing");
    }
}

#[tokio::test]
async fn the_help_tells_the_exit_codes_and_each_verb_an_example() {
    let cli = Cli::new();
    let help = cli.run(&["--help"]).await;
    assert_eq!(help.code, Some(0));
    insta::assert_snapshot!(help.out);
    let verbs = [
        "api",
        "worker",
        "worker list",
        "migrate",
        "doctor",
        "prune",
        "dev",
        "demo",
        "job enqueue",
        "job list",
        "job show",
        "job cancel",
        "job retry",
        "job why",
        "job run-again",
        "queue list",
        "instance create",
        "instance seal",
        "instance list",
        "instance move",
        "region list",
        "region set",
        "key bootstrap",
        "key create",
        "key list",
        "key revoke",
        "config check",
        "completions",
    ];
    for verb in verbs {
        let args: Vec<&str> = verb.split(' ').chain(["--help"]).collect();
        let help = cli.run(&args).await;
        assert_eq!(help.code, Some(0), "{verb}: {}", help.err);
        assert!(help.out.contains("Example"), "{verb} has no example");
    }
}

#[tokio::test]
async fn a_wrong_command_line_ends_with_2() {
    let cli = Cli::new();
    for args in [
        ["jobs"].as_slice(),
        &[],
        &["job", "show", "not-a-uuid"],
        &["job", "list", "--state", "lost"],
        &["--key", "x", "job", "list"],
    ] {
        let ended = cli.run(args).await;
        assert_eq!(ended.code, Some(2), "{args:?}");
        assert!(ended.out.is_empty(), "{args:?}: complaints go to stderr");
    }
}

#[tokio::test]
async fn completions_are_made_for_each_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ended = Cli::new().run(&["completions", shell]).await;
        assert_eq!(ended.code, Some(0));
        assert!(ended.out.contains("leasehold"), "{shell}");
    }
}

#[tokio::test]
async fn a_reader_of_completions_that_went_away_is_no_panic() {
    const SCRIPT: &str = r#"
        { until [ -e gone ]; do sleep 0.02; done; "$0" completions bash; echo $? >code; } |
        { exec 0<&-; : >gone; until [ -s code ]; do sleep 0.02; done; }"#;
    let folder = tempfile::tempdir().unwrap();
    let program = crate::support::program();
    let finished = sandbox::exec::Spawn::new("/bin/sh")
        .args(["-c", SCRIPT, program.to_str().unwrap()])
        .cwd(folder.path())
        .run(std::time::Duration::from_secs(60))
        .await
        .unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    let code = std::fs::read_to_string(folder.path().join("code")).unwrap();
    assert_eq!(code.trim(), "0", "101 would be a panic");
}
