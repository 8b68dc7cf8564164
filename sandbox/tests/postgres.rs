//! The private PostgreSQL: as root and not, again on the same folder, after crashes.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandbox::exec::{NOBODY, Spawn, set_launcher};
use sandbox::postgres::{Options, Postgres, StartError};

fn use_launcher() {
    set_launcher(PathBuf::from(env!("CARGO_BIN_EXE_sandbox-exec")));
}

/// A folder that another uid can reach.
fn reachable_folder() -> tempfile::TempDir {
    let folder = tempfile::Builder::new().prefix("sandbox-pg-").tempdir_in("/var/tmp").expect("tempdir");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    folder
}

async fn start(dir: &Path) -> Postgres {
    let options = Options { dir: dir.to_owned(), durable: false, keep: true };
    Postgres::start(options).await.expect("start")
}

/// What psql prints for a statement, or what it says when it fails.
async fn ask(server: &Postgres, sql: &str) -> Result<String, String> {
    let url = server.url();
    let run = Spawn::new(server.bin().join("psql")).args(["-X", "-A", "-t", "-q", &url, "-c", sql]);
    let finished = run.run(Duration::from_secs(60)).await.map_err(|error| error.to_string())?;
    if finished.status.success() { Ok(finished.stdout.trim().to_owned()) } else { Err(finished.stderr) }
}

#[tokio::test]
async fn a_server_answers_on_loopback_from_its_own_closed_folder() {
    use_launcher();
    let folder = reachable_folder();
    let dir = folder.path().join("pg");
    let server = start(&dir).await;
    assert_eq!(ask(&server, "select 40 + 2").await.as_deref(), Ok("42"));
    assert_eq!(ask(&server, "show listen_addresses").await.as_deref(), Ok("127.0.0.1"));
    assert_eq!(ask(&server, "show server_encoding").await.as_deref(), Ok("UTF8"));
    let about = std::fs::metadata(&dir).expect("stat");
    assert_eq!(about.mode() & 0o777, 0o700);
    if rustix::process::geteuid().is_root() {
        assert_eq!(about.uid(), NOBODY);
    }
    assert!(server.logs().is_file());
}

#[tokio::test]
async fn a_folder_is_used_again_with_its_data_and_its_port() {
    use_launcher();
    let folder = reachable_folder();
    let dir = folder.path().join("pg");
    let first = start(&dir).await;
    ask(&first, "create table t as select 7 as n").await.expect("create");
    let port = first.port();
    first.stop().await;
    assert!(!first.is_running());
    drop(first);
    let second = start(&dir).await;
    assert_eq!(second.port(), port);
    assert_eq!(ask(&second, "select n from t").await.as_deref(), Ok("7"));
}

/// Without the password, or with another one, no user of this machine becomes the superuser.
#[tokio::test]
async fn only_who_knows_the_password_gets_in() {
    use_launcher();
    let folder = reachable_folder();
    let server = start(&folder.path().join("pg")).await;
    let stored = std::fs::metadata(server.dir().join("password")).expect("stat");
    assert_eq!(stored.mode() & 0o777, 0o600);
    let url = server.url();
    let password = url.split([':', '@']).nth(2).expect("the URL carries it").to_owned();
    assert_eq!(password.len(), 64);
    assert!(!format!("{server:?}").contains(&password));
    for wrong in ["", &password.replace(|c: char| c != '0', "0")] {
        let url = url.replace(&password, wrong);
        let run = Spawn::new(server.bin().join("psql")).args(["-X", "-w", &url, "-c", "select 1"]);
        let finished = run.run(Duration::from_secs(60)).await.expect("psql runs");
        assert!(!finished.status.success() && finished.stderr.contains("password"), "{finished:?}");
    }
}

#[tokio::test]
async fn a_cluster_that_lets_everybody_in_is_refused() {
    use_launcher();
    let folder = reachable_folder();
    let dir = folder.path().join("pg");
    let server = start(&dir).await;
    let password = server.dir().join("password");
    server.stop().await;
    drop(server);
    std::fs::remove_file(password).expect("as before there was one");
    let refused = Postgres::start(Options { dir, durable: false, keep: true }).await.expect_err("refused");
    assert!(matches!(refused, StartError::Open(_)), "{refused}");
    assert!(refused.to_string().contains("Remove the folder"), "{refused}");
}

#[tokio::test]
async fn a_taken_port_is_left_to_its_owner() {
    use_launcher();
    let folder = reachable_folder();
    let dir = folder.path().join("pg");
    let port = start(&dir).await.port();
    let _owner = std::net::TcpListener::bind(("127.0.0.1", port)).expect("the port is free again");
    let second = start(&dir).await;
    assert_ne!(second.port(), port);
    assert_eq!(ask(&second, "select 1").await.as_deref(), Ok("1"));
}

#[tokio::test]
async fn what_was_committed_survives_a_crash_and_a_kill() {
    use_launcher();
    let folder = reachable_folder();
    let server = start(&folder.path().join("pg")).await;
    ask(&server, "create table t (n int)").await.expect("create");
    ask(&server, "insert into t values (1)").await.expect("insert");
    server.crash().await;
    assert!(ask(&server, "select 1").await.is_err());
    server.restart().await.expect("restart");
    ask(&server, "insert into t values (2)").await.expect("insert");
    let before = server.pid();
    server.kill9();
    server.restart().await.expect("restart after a kill");
    assert_ne!(server.pid(), before);
    assert_eq!(ask(&server, "select string_agg(n::text, ',' order by n) from t").await.as_deref(), Ok("1,2"));
}

/// The story: the machine went down with the server, and its pid now belongs to something else.
#[tokio::test]
async fn a_stale_pid_file_does_not_stop_a_start() {
    use_launcher();
    let folder = reachable_folder();
    let dir = folder.path().join("pg");
    let server = start(&dir).await;
    server.kill9();
    drop(server);
    // A process of the same uid as the server's, as PostgreSQL's own check looks for.
    let uid = rustix::process::geteuid().is_root().then_some(NOBODY);
    let other = Spawn::new("sleep").arg("300").cwd("/").uid(uid).start().expect("sleep");
    let pid_file = dir.join("data/postmaster.pid");
    let text = std::fs::read_to_string(&pid_file).expect("pid file");
    let rest = text.split_once('\n').expect("lines").1;
    std::fs::write(&pid_file, format!("{}\n{rest}", other.pid())).expect("write");
    let server = start(&dir).await;
    assert_eq!(ask(&server, "select 1").await.as_deref(), Ok("1"));
    assert!(other.status().is_none());
}

#[tokio::test]
async fn a_second_server_on_one_folder_is_refused() {
    use_launcher();
    let folder = reachable_folder();
    let dir = folder.path().join("pg");
    let first = start(&dir).await;
    let second = Postgres::start(Options { dir, durable: false, keep: true }).await;
    let error = second.expect_err("refused");
    assert!(matches!(error, StartError::InUse { pid, .. } if pid == first.pid()), "{error}");
    assert_eq!(ask(&first, "select 1").await.as_deref(), Ok("1"));
}

#[tokio::test]
async fn a_folder_that_is_not_kept_is_removed() {
    use_launcher();
    let folder = reachable_folder();
    let dir = folder.path().join("pg");
    let server = Postgres::start(Options { dir: dir.clone(), durable: false, keep: false }).await.expect("start");
    let (pid, at) = (server.pid(), server.dir().to_owned());
    drop(server);
    assert!(!at.exists() && !dir.exists());
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[tokio::test]
async fn a_server_that_cannot_start_says_why() {
    use_launcher();
    let folder = reachable_folder();
    let dir = folder.path().join("pg");
    drop(start(&dir).await);
    std::fs::write(dir.join("data/postgresql.conf"), "no_such_setting = 1\n").expect("write");
    let error = Postgres::start(Options { dir, durable: false, keep: true }).await.expect_err("refused");
    assert!(error.to_string().contains("no_such_setting"), "{error}");
}

/// Where root cannot let the server's uid into the folder asked for, it says which one it took.
#[tokio::test]
async fn root_uses_a_stand_in_for_a_folder_that_the_server_cannot_reach() {
    use_launcher();
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let closed = tempfile::tempdir().expect("tempdir");
    std::fs::set_permissions(closed.path(), std::fs::Permissions::from_mode(0o700)).expect("chmod");
    let dir = closed.path().join("pg");
    let server = Postgres::start(Options { dir: dir.clone(), durable: false, keep: false }).await.expect("start");
    assert!(server.dir().starts_with("/var/tmp/") && !dir.exists());
    let note = server.note().expect("a note");
    assert!(note.contains(&*dir.to_string_lossy()) && note.contains(&*server.dir().to_string_lossy()), "{note}");
    assert_eq!(ask(&server, "select 1").await.as_deref(), Ok("1"));
}

/// The whole of it without root: the tool itself runs as an ordinary uid.
#[tokio::test]
async fn an_ordinary_user_starts_a_server_as_itself() {
    use_launcher();
    if !rustix::process::geteuid().is_root() {
        // Then every other test here has shown it.
        return;
    }
    let folder = reachable_folder();
    let home = folder.path().join("home");
    std::fs::create_dir(&home).expect("mkdir");
    std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY)).expect("chown");
    // A copy, since the build's folder is often one that only root can search.
    let tool = folder.path().join("sandbox-exec");
    std::fs::copy(env!("CARGO_BIN_EXE_sandbox-exec"), &tool).expect("copy");
    let log = home.join("out");
    let dir = home.join("pg");
    // Its stdin is empty, so it ends right after it was ready.
    let run = Spawn::new(&tool).args(["postgres", "--dir"]).arg(&dir).cwd(&home).uid(Some(NOBODY)).env("HOME", &home);
    let finished = run.run(Duration::from_secs(120)).await.expect("run").success().expect("success");
    assert!(finished.stdout.starts_with("postgres://postgres:"), "{finished:?} {}", log.display());
    assert_eq!(std::fs::metadata(dir.join("data")).expect("stat").uid(), NOBODY);
    let server_log = std::fs::read_to_string(dir.join("postgres.log")).expect("log");
    assert!(server_log.contains("database system is shut down"), "{server_log}");
}
