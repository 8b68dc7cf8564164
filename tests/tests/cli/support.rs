//! The built program, and a system for it to speak to.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use sandbox::exec::{Running, Signal, Spawn};
use sandbox::ports;
use tests::db::Database;
use tests::wait::until;

/// How long one command may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The program, built beside the tests.
pub(crate) fn program() -> PathBuf {
    let here = std::env::current_exe().expect("a test knows its own file");
    let folder = here.ancestors().nth(2).expect("test binaries lie in <profile>/deps");
    let program = folder.join("leasehold");
    assert!(program.is_file(), "{} is not built: cargo build -p leasehold", program.display());
    program
}

/// The program with an environment of its own: nothing of the machine's settings reaches it.
#[derive(Debug, Clone)]
pub(crate) struct Cli {
    env: Vec<(OsString, OsString)>,
    folder: std::sync::Arc<tempfile::TempDir>,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Cli {
    /// Without any setting, in an empty folder.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { env: Vec::new(), folder: std::sync::Arc::new(folder) }
    }

    /// With one more variable.
    pub(crate) fn with(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.into(), value.into()));
        self
    }

    /// A variable of its environment.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let (_, value) = self.env.iter().find(|(known, _)| known == name)?;
        value.to_str().map(str::to_owned)
    }

    /// The folder in which it runs.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn spawn(&self, args: &[&str]) -> Spawn {
        let spawn = Spawn::new(program()).args(args.iter().copied()).cwd(self.folder());
        self.env.iter().fold(spawn, |spawn, (name, value)| spawn.env(name, value))
    }

    /// Runs a command to its end.
    pub(crate) async fn run(&self, args: &[&str]) -> Ended {
        self.run_within(args, LIMIT).await
    }

    pub(crate) async fn run_within(&self, args: &[&str], limit: Duration) -> Ended {
        let finished = self.spawn(args).run(limit).await.expect("the command ends in time");
        Ended { code: finished.status.code(), out: finished.stdout, err: finished.stderr }
    }

    /// Runs a command that must succeed, and reads its JSON.
    pub(crate) async fn json(&self, args: &[&str]) -> serde_json::Value {
        let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
        let ended = self.run(&args).await;
        assert_eq!(ended.code, Some(0), "{args:?}: {}", ended.err);
        serde_json::from_str(&ended.out)
            .unwrap_or_else(|error| panic!("{args:?} answered no JSON ({error}): {}", ended.out))
    }
}

impl Ended {
    /// Everything that was printed.
    pub(crate) fn said(&self) -> String {
        format!("{}{}", self.out, self.err)
    }
}

/// A database with the API over it, and an administrator's key in a file.
pub(crate) struct System {
    pub(crate) database: Database,
    /// With address, key file and database.
    pub(crate) cli: Cli,
    pub(crate) key: String,
    pub(crate) api: Running,
}

impl System {
    pub(crate) async fn start() -> Self {
        let database = Database::start().await;
        let cli = Cli::new().with("LEASEHOLD_DATABASE_URL", database.url());
        let made = cli.run(&["key", "bootstrap"]).await;
        assert_eq!(made.code, Some(0), "{}", made.err);
        let key_file = cli.folder().join("key");
        std::fs::write(&key_file, &made.out).expect("write the key");
        let port = ports::free_port().expect("a port");
        let url = format!("http://127.0.0.1:{port}");
        let cli = cli.with("LEASEHOLD_URL", &url).with("LEASEHOLD_KEY_FILE", key_file.as_os_str());
        let api = start(&cli, &["api", "--listen", &format!("127.0.0.1:{port}")], "api.log");
        until("the API answers", LIMIT, || async {
            assert!(api.status().is_none(), "the API ended: {}", api.log_tail());
            (cli.run(&["queue", "list"]).await.code == Some(0)).then_some(())
        })
        .await;
        Self { database, cli, key: made.out.trim().to_owned(), api }
    }

    /// A worker of these queues.
    pub(crate) fn worker(&self, args: &[&str]) -> Running {
        let args: Vec<&str> = ["worker"].into_iter().chain(args.iter().copied()).collect();
        // Without both a box hosts nothing. What it would run is never run: the object stores of these boxes are away.
        let litestream = sandbox::tools::find_litestream().expect("find litestream");
        let cli = self.cli.clone().with("LEASEHOLD_NODE_LITESTREAM", litestream).with("LEASEHOLD_NODE_EXEC", program());
        start(&cli, &args, "worker.log")
    }

    /// Enqueues a job and returns its id.
    pub(crate) async fn enqueue(&self, args: &[&str]) -> String {
        let args: Vec<&str> = ["job", "enqueue"].into_iter().chain(args.iter().copied()).collect();
        self.cli.json(&args).await["id"].as_str().expect("a job has an id").to_owned()
    }

    /// Waits until a job is in this state.
    pub(crate) async fn until_state(&self, id: &str, state: &str) -> serde_json::Value {
        until(&format!("job {id} is {state}"), LIMIT, || async {
            let job = self.cli.json(&["job", "show", id]).await;
            (job["state"] == state).then_some(job)
        })
        .await
    }
}

/// Starts a role whose output goes to a file in its folder.
pub(crate) fn start(cli: &Cli, args: &[&str], log: &str) -> Running {
    cli.spawn(args).log_file(cli.folder().join(log)).start().expect("the role starts")
}

/// Waits until a role's log says `words`.
pub(crate) async fn until_logged(child: &Running, words: &str) {
    let log = child.log_path().expect("it has a log").to_owned();
    until(&format!("{words:?} is logged"), LIMIT, || async {
        std::fs::read_to_string(&log).unwrap_or_default().contains(words).then_some(())
    })
    .await;
}

/// Sends a signal and waits for the end.
pub(crate) async fn end(child: &Running, signal: Signal) -> ExitStatus {
    child.signal(signal);
    child.wait_timeout(LIMIT).await.expect("it ends in time")
}
