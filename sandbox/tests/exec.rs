//! Children die with their parent, however it dies.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use sandbox::exec::{ExecError, NOBODY, Signal, Spawn, set_launcher};

fn use_launcher() {
    set_launcher(PathBuf::from(env!("CARGO_BIN_EXE_sandbox-exec")));
}

/// Waits until `condition` holds; fails after half a minute.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether the process is there and not just waiting to be reaped.
fn is_alive(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    !matches!(stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0]), None | Some(b'Z' | b'X'))
}

/// The story: this test starts an intermediate process, which starts a server as our programs do;
/// then the intermediate is killed without a chance to clean up.
#[test]
#[allow(clippy::disallowed_methods, reason = "the intermediate must not itself be tied to this test")]
fn a_child_is_gone_when_its_parent_was_killed_with_sigkill() {
    let folder = tempfile::Builder::new().prefix("sandbox-kill-").tempdir_in("/var/tmp").expect("tempdir");
    open_to_all(folder.path());
    let (dir, out) = (folder.path().join("pg"), folder.path().join("out"));
    let mut parent = Command::new(env!("CARGO_BIN_EXE_sandbox-exec"))
        .args(["postgres", "--dir"])
        .arg(&dir)
        .stdin(std::process::Stdio::piped())
        .stdout(std::fs::File::create(&out).expect("create"))
        .spawn()
        .expect("start the intermediate");
    until("the server's start", || std::fs::read_to_string(&out).is_ok_and(|text| text.contains("postgres://")));
    let pid_file = std::fs::read_to_string(dir.join("data/postmaster.pid")).expect("pid file");
    let server: u32 = pid_file.lines().next().expect("a line").parse().expect("a pid");
    assert!(is_alive(server));
    parent.kill().expect("kill -9");
    parent.wait().expect("reap");
    until("the end of the server", || !is_alive(server));
}

fn open_to_all(folder: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).expect("chmod");
}

/// The kernel watches the thread that forked. The story: a thread starts a child and ends.
#[test]
fn a_child_outlives_the_thread_that_asked_for_it() {
    use_launcher();
    let child = std::thread::spawn(|| Spawn::new("sleep").arg("300").start().expect("start")).join().expect("join");
    // A second child through the same way: were the first killed by the thread's end, it would be by now.
    let answer = Spawn::new("echo").arg("alive").run_blocking(Duration::from_secs(30)).expect("run");
    assert_eq!(answer.stdout, "alive\n");
    assert!(child.status().is_none() && is_alive(child.pid()));
}

#[test]
fn a_dropped_child_is_killed_and_reaped() {
    use_launcher();
    let child = Spawn::new("sleep").arg("300").start().expect("start");
    let pid = child.pid();
    assert!(is_alive(pid));
    drop(child);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[tokio::test]
async fn a_child_that_ignores_the_polite_signal_is_killed_in_time() {
    use_launcher();
    let folder = tempfile::tempdir().expect("tempdir");
    let log = folder.path().join("log");
    let child = Spawn::new("sh").args(["-c", "trap '' TERM; echo set; while :; do sleep 0.05; done"]).log_file(&log);
    let child = child.start().expect("start");
    until("the trap", || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("set")));
    let stopped = child.stop(Signal::TERM, Duration::from_millis(200)).await;
    assert!(stopped.killed && !stopped.status.success());
    let polite = Spawn::new("sleep").arg("300").start().expect("start");
    assert!(!polite.stop(Signal::TERM, Duration::from_secs(30)).await.killed);
}

#[test]
fn a_childs_environment_is_an_allow_list() {
    use_launcher();
    // Cargo gives every test this variable; a child must not see it unless it is named.
    assert!(std::option_env!("CARGO_PKG_NAME").is_some());
    let run = |spawn: Spawn| spawn.run_blocking(Duration::from_secs(30)).expect("run").stdout;
    let seen = run(Spawn::new("env").env("NAMED", "yes"));
    assert!(seen.contains("NAMED=yes") && seen.contains("PATH="), "{seen}");
    assert!(!seen.contains("CARGO_"), "{seen}");
    let mut open = Spawn::new("env");
    open.inherit_env = true;
    assert!(run(open).contains("CARGO_PKG_NAME="));
}

#[test]
fn root_starts_children_as_another_uid_that_die_with_it_too() {
    use_launcher();
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // Field 5 of /proc/self/status lists the groups: none may be left of root's.
    let script = "id -u; id -g; id -G";
    let answer = Spawn::new("sh").args(["-c", script]).cwd("/").uid(Some(NOBODY));
    let answer = answer.run_blocking(Duration::from_secs(30)).expect("run");
    assert_eq!(answer.stdout, "65534\n65534\n65534\n", "{}", answer.stderr);
}

#[test]
fn a_command_that_takes_too_long_is_killed_and_one_that_fails_is_told() {
    use_launcher();
    let slow = Spawn::new("sh").args(["-c", "echo started >&2; exec sleep 300"]);
    match slow.run_blocking(Duration::from_millis(500)) {
        Err(ExecError::TimedOut { program, .. }) => assert_eq!(program, "sh"),
        other => panic!("{other:?}"),
    }
    let failing = Spawn::new("sh").args(["-c", "echo because >&2; exit 3"]);
    let error = failing.run_blocking(Duration::from_secs(30)).and_then(|finished| finished.success());
    assert!(error.expect_err("fails").to_string().contains("because"));
    let absent = Spawn::new("/does/not/exist").run_blocking(Duration::from_secs(30)).expect("the launcher runs");
    assert_eq!(absent.status.code(), Some(127));
}
