//! The demo as one scenario: it must prove a real move, and leave nothing behind.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use sandbox::exec::Signal;

use crate::support::{Cli, end, start, until_logged};

/// On a machine that runs other tests as well; alone it takes seconds.
const DEMO_LIMIT: Duration = Duration::from_secs(240);

/// From nothing: PostgreSQL, S3, API, an edge and two boxes start, a box runs an application, a client writes all the while,
/// the instance is moved there and back, and every acknowledged row is found. Then 20,000 jobs go through two
/// workers, one stopped and woken, one killed, over a restart of PostgreSQL, and each is done once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_demo_proves_a_real_move() {
    let temporary = tempfile::tempdir().unwrap();
    // Passable for the uid under which root runs PostgreSQL.
    std::fs::set_permissions(temporary.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let cli = Cli::new()
        .with("TMPDIR", temporary.path().as_os_str())
        .with("LEASEHOLD_TOOLS_DIR", sandbox::tools::tools_dir().as_os_str());
    let ended = cli.run_within(&["demo", "--json"], DEMO_LIMIT).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);

    let proof: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    let number = |name: &str| proof[name].as_u64().unwrap_or_else(|| panic!("{name} in {proof}"));
    let legs = proof["legs"].as_array().expect("two legs");
    let ways: Vec<_> = legs.iter().map(|leg| (&leg["from"], &leg["to"])).collect();
    assert_eq!(ways, [(&"eu".into(), &"uk".into()), (&"uk".into(), &"eu".into())], "{proof}");
    assert!(number("rows") >= number("acknowledged") && number("acknowledged") > 1_000, "{proof}");
    assert!(proof["rows_by_region"]["uk"].as_u64().is_some_and(|rows| rows > 0), "it served there: {proof}");
    for leg in legs {
        assert!(leg["frozen_ms"].as_u64().is_some_and(|ms| ms > 0), "{leg}");
        assert!(leg["copied_objects"].as_u64().is_some_and(|objects| objects > 0), "{leg}");
    }
    // The second act.
    let queue = &proof["queue"];
    assert_eq!(queue["jobs"], 20_000, "{queue}");
    assert!(queue["taken_over"].as_u64().is_some_and(|n| n > 0), "{queue}");
    let refused = queue["refused"].as_array().expect("a list");
    // A worker that sees by itself that its leases are over writes nothing late.
    assert!(refused.iter().all(|late| late["fence_held"].as_u64().is_some()), "{queue}");
    for told in ["SIGSTOP", "SIGKILL", "PostgreSQL was restarted under load"] {
        assert!(ended.err.contains(told), "{told}: {}", ended.err);
    }
    assert!(ended.err.contains("round 1: copied "), "each round has its line: {}", ended.err);
    assert!(ended.err.contains("the record says ready"), "{}", ended.err);
    let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "a demo that succeeded removes its folder: {left:?}");
}

#[tokio::test]
async fn a_demo_that_fails_says_what_and_keeps_its_logs() {
    let temporary = tempfile::tempdir().unwrap();
    std::fs::set_permissions(temporary.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let bin = temporary.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    // PostgreSQL that cannot make a cluster.
    for (name, script) in
        [("initdb", "#!/bin/sh\necho disk is full >&2\nexit 1\n"), ("postgres", "#!/bin/sh\nexit 1\n")]
    {
        let path = bin.join(name);
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    std::fs::set_permissions(&bin, std::fs::Permissions::from_mode(0o755)).unwrap();
    let cli = Cli::new()
        .with("TMPDIR", temporary.path().as_os_str())
        .with("LEASEHOLD_TOOLS_DIR", sandbox::tools::tools_dir().as_os_str())
        .with("PGBIN", bin.as_os_str());
    let ended = cli.run(&["demo"]).await;
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("disk is full"), "{}", ended.err);
    let logs = ended.err.split_once("logs are in ").expect("it says where the logs are").1;
    let logs = logs.split_once(',').expect("a path").0;
    assert!(std::path::Path::new(logs).join("leasehold.log").is_file(), "{logs}");
}

#[tokio::test]
async fn a_pgbin_without_a_server_is_told_and_no_other_server_taken() {
    let temporary = tempfile::tempdir().unwrap();
    let cli = Cli::new().with("PGBIN", "/nonexistent").with("TMPDIR", temporary.path().as_os_str());
    let ended = cli.run(&["demo"]).await;
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("PGBIN is /nonexistent"), "{}", ended.err);
}

#[tokio::test]
async fn an_interrupted_demo_says_so_and_leaves_nothing_behind() {
    let temporary = tempfile::tempdir().unwrap();
    std::fs::set_permissions(temporary.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let cli = Cli::new()
        .with("TMPDIR", temporary.path().as_os_str())
        .with("LEASEHOLD_TOOLS_DIR", sandbox::tools::tools_dir().as_os_str());
    for signal in [Signal::INT, Signal::TERM] {
        let demo = start(&cli, &["demo"], &format!("{signal:?}.log"));
        until_logged(&demo, "PostgreSQL on ").await;
        assert_eq!(end(&demo, signal).await.code(), Some(130), "{}", demo.log_tail());
        assert!(demo.log_tail().contains("leasehold: interrupted"), "{}", demo.log_tail());
        let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
