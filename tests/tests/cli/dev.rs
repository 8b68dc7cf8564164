//! `leasehold dev`: state is kept between runs, and nothing runs on after one.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use sandbox::exec::{Running, Signal};
use sandbox::ports;
use tests::wait::until;

use crate::support::{Cli, LIMIT, end, start};

/// How long a start may take beside other tests.
const START_LIMIT: Duration = Duration::from_secs(120);

struct Dev {
    cli: Cli,
    port: u16,
    dir: std::path::PathBuf,
}

impl Dev {
    fn new() -> Self {
        let cli = Cli::new().with("LEASEHOLD_TOOLS_DIR", sandbox::tools::tools_dir().as_os_str());
        // Passable for the uid under which root runs PostgreSQL.
        std::fs::set_permissions(cli.folder(), std::fs::Permissions::from_mode(0o711)).expect("chmod");
        let dir = cli.folder().join("state");
        let port = ports::free_port().expect("a port");
        let cli = cli
            .with("LEASEHOLD_URL", format!("http://127.0.0.1:{port}"))
            .with("LEASEHOLD_KEY_FILE", dir.join("dev-key").as_os_str());
        Self { cli, port, dir }
    }

    async fn start(&self, log: &str) -> Running {
        let dev = start(
            &self.cli,
            &["dev", "--dir", self.dir.to_str().expect("UTF-8"), "--port", &self.port.to_string()],
            log,
        );
        until("dev says that it runs", START_LIMIT, || async {
            let said = std::fs::read_to_string(self.cli.folder().join(log)).unwrap_or_default();
            assert!(dev.status().is_none(), "dev ended: {said}");
            said.contains("Leasehold is running").then_some(())
        })
        .await;
        dev
    }

    /// Processes that work in the folder or name it.
    fn processes(&self) -> Vec<String> {
        let of = |entry: std::fs::DirEntry| {
            let home = entry.path();
            let command = std::fs::read_to_string(home.join("cmdline")).ok()?.replace('\0', " ");
            let works_there = std::fs::read_link(home.join("cwd")).is_ok_and(|cwd| cwd.starts_with(&self.dir));
            let names_it = command.contains(self.dir.to_str()?);
            (works_there || names_it).then_some(command)
        };
        std::fs::read_dir("/proc").expect("Linux").filter_map(|entry| of(entry.ok()?)).collect()
    }

    /// The environment of each of its processes in this role.
    fn environments(&self, role: &str) -> Vec<Vec<u8>> {
        let of = |entry: std::fs::DirEntry| {
            let home = entry.path();
            let works_there = std::fs::read_link(home.join("cwd")).is_ok_and(|cwd| cwd == self.dir);
            let command = std::fs::read_to_string(home.join("cmdline")).ok()?;
            (works_there && command.ends_with(&format!("leasehold\0{role}\0"))).then_some(())?;
            std::fs::read(home.join("environ")).ok()
        };
        std::fs::read_dir("/proc").expect("Linux").filter_map(|entry| of(entry.ok()?)).collect()
    }

    async fn until_nothing_runs(&self) {
        until("nothing of it runs on", LIMIT, || async {
            let free = ports::is_free(self.port);
            (free && self.processes().is_empty()).then_some(())
        })
        .await;
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777
}

/// Neither found nor to be fetched: the rest runs, and it is said what is missing and how to get it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dev_without_litestream_says_how_to_get_it_and_runs_the_rest() {
    let mut here = Dev::new();
    let tools = here.cli.folder().join("no-tools");
    let postgres = sandbox::tools::find_postgres_bin().expect("PostgreSQL");
    here.cli = here.cli.with("LEASEHOLD_TOOLS_DIR", tools).with("PGBIN", postgres).with("PATH", "/nowhere");
    let dev = here.start("dev.log").await;
    let said = std::fs::read_to_string(here.cli.folder().join("dev.log")).unwrap();
    assert!(said.contains("no litestream, so the boxes run and land no instances"), "{said}");
    assert!(said.contains("or put litestream on PATH"), "{said}");
    let regions = here.cli.json(&["region", "list"]).await;
    let regions = regions["items"].as_array().unwrap();
    assert!(regions.len() == 2 && regions.iter().all(|region| region["can_host"] == false), "{regions:?}");
    assert!(end(&dev, Signal::TERM).await.success());
    here.until_nothing_runs().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dev_keeps_its_state_and_leaves_nothing_running() {
    let mut here = Dev::new();
    here.cli = here.cli.with("LEASEHOLD_NODE_ROUND_INTERVAL_SECONDS", "7");
    let dev = here.start("first.log").await;
    assert_eq!(here.environments("worker").len(), 2);
    assert!(here.processes().len() >= 4, "PostgreSQL, the API and two workers: {:?}", here.processes());
    let key = std::fs::read_to_string(here.dir.join("dev-key")).unwrap();
    assert_eq!(mode(&here.dir.join("dev-key")), 0o600);
    let said = std::fs::read_to_string(here.cli.folder().join("first.log")).unwrap();
    assert!(said.contains(key.trim()) && said.contains(&format!("http://127.0.0.1:{}/", here.port)), "{said}");

    // The password of its database stands in a file alone; the commands that go straight there are told of it.
    let kept = here.dir.join("dev-database-url");
    assert!(mode(&kept) == 0o600 && said.contains(&format!("$(cat {})", kept.display())), "{said}");
    let url = std::fs::read_to_string(&kept).unwrap().trim().to_owned();
    assert!(url.starts_with("postgres://postgres:") && !said.contains(&url), "{said}");
    let direct = here.cli.clone().with("LEASEHOLD_DATABASE_URL", &url);
    let told = direct.run(&["prune", "--dry-run"]).await;
    assert_eq!(told.code, Some(0), "{}", told.said());

    for worker in here.environments("worker") {
        let said = String::from_utf8_lossy(&worker);
        assert!(said.contains("LEASEHOLD_NODE_ROUND_INTERVAL_SECONDS=7\0"), "the setting reaches the boxes: {said}");
    }

    let job = here.cli.json(&["job", "enqueue", "system.noop"]).await;
    let id = job["id"].as_str().unwrap();
    until("a worker of dev runs it", LIMIT, || async {
        (here.cli.json(&["job", "show", id]).await["state"] == "completed").then_some(())
    })
    .await;
    let nodes: Vec<_> = here.cli.json(&["worker", "list"]).await["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|worker| worker["node"].as_str().unwrap_or_default().to_owned())
        .collect();
    assert!(nodes.contains(&"box-eu-1".to_owned()) && nodes.contains(&"box-uk-1".to_owned()), "{nodes:?}");

    let second = here.cli.run(&["dev", "--dir", here.dir.to_str().unwrap()]).await;
    assert_eq!(second.code, Some(1));
    assert!(second.err.contains("in use by another run"), "{}", second.err);

    assert!(end(&dev, Signal::INT).await.success(), "Ctrl-C is the ordinary end");
    assert_eq!(here.processes(), Vec::<String>::new(), "nothing runs once it has ended");
    assert!(ports::is_free(here.port));

    let dev = here.start("second.log").await;
    assert_eq!(std::fs::read_to_string(here.dir.join("dev-key")).unwrap(), key, "the key is kept");
    assert_eq!(here.cli.json(&["job", "show", id]).await["state"], "completed", "the database is kept");
    // As if the machine's memory had run out: nobody is left to clean up.
    dev.kill9();
    here.until_nothing_runs().await;

    // And a lost key is no lost sandbox.
    std::fs::remove_file(here.dir.join("dev-key")).unwrap();
    let dev = here.start("third.log").await;
    assert_eq!(here.cli.json(&["job", "show", id]).await["state"], "completed");
    assert!(end(&dev, Signal::TERM).await.success());
    here.until_nothing_runs().await;
}

/// Whoever listens there would be told the key of the new administrator.
#[tokio::test]
async fn a_port_that_a_stranger_has_is_refused_before_anything_is_started_or_sent() {
    let here = Dev::new();
    let stranger = std::net::TcpListener::bind(("127.0.0.1", here.port)).unwrap();
    stranger.set_nonblocking(true).unwrap();
    let ended = here.cli.run(&["dev", "--dir", here.dir.to_str().unwrap(), "--port", &here.port.to_string()]).await;
    assert_eq!(ended.code, Some(1), "{}", ended.said());
    assert!(ended.err.contains(&format!("port {} is taken", here.port)), "{}", ended.err);
    assert_eq!(ended.err.trim().lines().count(), 1, "{}", ended.err);
    assert!(!ended.out.contains("Leasehold is running"), "{}", ended.out);
    assert!(stranger.accept().is_err(), "nobody spoke to the stranger");
    assert!(!here.dir.join("postgres").exists() && !here.dir.join("dev-key").exists(), "nothing was started");
}

/// `leasehold dev 2>&1 | head -4`: the program's own code is kept.
#[tokio::test]
async fn a_reader_that_went_away_makes_nothing_panic() {
    const SCRIPT: &str = r#"
        { until [ -e gone ]; do sleep 0.02; done; "$0" "$@"; echo $? >code; } 2>&1 |
        { exec 0<&-; : >gone; until [ -s code ]; do sleep 0.02; done; }"#;
    let here = Dev::new();
    let _stranger = std::net::TcpListener::bind(("127.0.0.1", here.port)).unwrap();
    let (program, dir, port) = (crate::support::program(), here.dir.to_str().unwrap(), here.port.to_string());
    let finished = sandbox::exec::Spawn::new("/bin/sh")
        .args(["-c", SCRIPT, program.to_str().unwrap(), "dev", "--dir", dir, "--port", &port])
        .cwd(here.cli.folder())
        .run(LIMIT)
        .await
        .unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    let code = std::fs::read_to_string(here.cli.folder().join("code")).unwrap();
    assert_eq!(code.trim(), "1", "101 would be a panic");
}
