//! Workers as processes of their own: the program `peer` of this package.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use sandbox::exec::{Running, Spawn};

use crate::measure;

/// Longest time of a verb that ends by itself.
const VERB_LIMIT: Duration = Duration::from_secs(600);

/// How a worker is started.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner {
    pub(super) concurrency: u16,
    /// Each job takes so long, and says when it began; `None` for jobs that do nothing.
    pub(super) hold: Option<Duration>,
    /// Life of a lease; `None` is the default.
    pub(super) lease: Option<Duration>,
    /// Whether it counts what it did, which costs it fifty writes a second.
    pub(super) counts: bool,
}

/// One worker's process. Dropped, it is killed.
#[derive(Debug)]
pub(super) struct Peer {
    child: Running,
    log: PathBuf,
    count: PathBuf,
}

/// Where cargo puts it, beside this program.
fn program() -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe().context("find this program")?.with_file_name("peer");
    anyhow::ensure!(path.is_file(), "{} is missing: build the package's programs first", path.display());
    Ok(path)
}

/// Enqueues jobs that the workers of [`Peer::work`] run.
pub(super) async fn enqueue(url: &str, jobs: i64) -> anyhow::Result<()> {
    let verb = Spawn::new(program()?).args(["bulk", "--jobs", &jobs.to_string()]).env("DATABASE_URL", url);
    verb.run(VERB_LIMIT).await?.success().context("enqueue")?;
    Ok(())
}

impl Peer {
    /// Starts a worker, whose files lie in `folder` under `name`.
    pub(super) fn work(url: &str, folder: &Path, name: &str, manner: Manner) -> anyhow::Result<Self> {
        let (log, count) = (folder.join(format!("{name}.log")), folder.join(format!("{name}.count")));
        let mut worker = Spawn::new(program()?)
            .args(["work", "--concurrency", &manner.concurrency.to_string()])
            .env("DATABASE_URL", url)
            .env("BENCH_LOG_FILE", &log)
            .log_file(folder.join(format!("{name}.out")));
        if let Some(time) = manner.hold {
            worker = worker.env("BENCH_MODE", "hold").env("BENCH_HOLD_MS", time.as_millis().to_string());
        }
        if manner.counts {
            worker = worker.env("BENCH_COUNT_FILE", &count);
        }
        if let Some(life) = manner.lease {
            worker = worker.env("LEASEHOLD_LEASE_MS", life.as_millis().to_string());
        }
        let child = worker.start().context("start a worker")?;
        let count = count.with_extension(format!("count.{}", child.pid()));
        Ok(Self { child, log, count })
    }

    /// Jobs that it began, of those that say so.
    pub(super) fn began(&self) -> anyhow::Result<usize> {
        self.check()?;
        // The file is there when the worker is.
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        Ok(log.lines().filter(|line| line.starts_with("start ")).count())
    }

    /// Jobs whose handler ended, as of a fiftieth of a second ago; none where it does not count.
    pub(super) fn ended(&self) -> anyhow::Result<i64> {
        self.check()?;
        let counts = std::fs::read_to_string(&self.count).unwrap_or_default();
        Ok(counts.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0))
    }

    /// CPU time so far.
    pub(super) fn cpu(&self) -> anyhow::Result<Duration> {
        measure::cpu(self.child.pid())
    }

    /// Largest and present resident set, MiB.
    pub(super) fn memory_mib(&self) -> anyhow::Result<(f64, f64)> {
        measure::memory_mib(self.child.pid())
    }

    /// Kills it with SIGKILL.
    pub(super) fn kill9(&self) {
        self.child.kill9();
    }

    fn check(&self) -> anyhow::Result<()> {
        match self.child.status() {
            None => Ok(()),
            Some(status) => anyhow::bail!("a worker ended ({status}): {}", self.child.log_tail()),
        }
    }
}
