//! What one run cost.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use sqlx::PgConnection;

/// The figures of one run.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    /// Jobs handled.
    pub jobs: i64,
    /// Wall time.
    pub wall: Duration,
    /// CPU time of PostgreSQL.
    pub server: Duration,
    /// CPU time of this process.
    pub client: Duration,
    /// Write-ahead log written.
    pub wal_bytes: i64,
}

#[allow(clippy::cast_precision_loss)]
impl Figures {
    /// Jobs a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.jobs as f64 / self.wall.as_secs_f64()
    }

    /// Microseconds of PostgreSQL's CPU a job.
    #[must_use]
    pub fn server_us(&self) -> f64 {
        self.server.as_secs_f64() * 1e6 / self.jobs as f64
    }

    /// Microseconds of our CPU a job.
    #[must_use]
    pub fn client_us(&self) -> f64 {
        self.client.as_secs_f64() * 1e6 / self.jobs as f64
    }

    /// Bytes of write-ahead log a job.
    #[must_use]
    pub fn wal_bytes_each(&self) -> f64 {
        self.wal_bytes as f64 / self.jobs as f64
    }
}

/// The median of one figure; 0 for no runs.
pub fn median(runs: &[Figures], figure: impl Fn(&Figures) -> f64) -> f64 {
    middle(runs.iter().map(figure).collect())
}

/// The median of some values; 0 for none.
#[must_use]
pub fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// A running measurement.
pub struct Meter {
    postmaster: u32,
    started: Instant,
    server: Duration,
    client: Duration,
    wal: i64,
}

impl Meter {
    /// Begins.
    ///
    /// # Errors
    /// The database's, or an unreadable /proc.
    pub async fn start(conn: &mut PgConnection, postmaster: u32) -> anyhow::Result<Self> {
        Ok(Self {
            postmaster,
            wal: wal_position(conn).await?,
            server: family_cpu(postmaster)?,
            client: own_cpu()?,
            started: Instant::now(),
        })
    }

    /// Ends.
    ///
    /// # Errors
    /// The database's, or an unreadable /proc.
    pub async fn stop(mut self, conn: &mut PgConnection, jobs: i64) -> anyhow::Result<Figures> {
        self.lap(conn, jobs).await
    }

    /// Ends one lap of `jobs` and begins the next, by one reading for both: nothing is done between them.
    ///
    /// # Errors
    /// The database's, or an unreadable /proc.
    pub async fn lap(&mut self, conn: &mut PgConnection, jobs: i64) -> anyhow::Result<Figures> {
        // The time first: what is read after it takes some.
        let now = Self {
            started: Instant::now(),
            postmaster: self.postmaster,
            server: family_cpu(self.postmaster)?,
            client: own_cpu()?,
            wal: wal_position(conn).await?,
        };
        let figures = Figures {
            jobs,
            wall: now.started.duration_since(self.started),
            server: now.server.saturating_sub(self.server),
            client: now.client.saturating_sub(self.client),
            wal_bytes: now.wal - self.wal,
        };
        *self = now;
        Ok(figures)
    }
}

async fn wal_position(conn: &mut PgConnection) -> anyhow::Result<i64> {
    let sql = "select (pg_current_wal_insert_lsn() - '0/0')::bigint";
    sqlx::query_scalar(sql).fetch_one(conn).await.context("read the WAL position")
}

fn own_cpu() -> anyhow::Result<Duration> {
    cpu(std::process::id())
}

/// CPU time of a process that lives.
///
/// # Errors
/// An unreadable /proc.
pub fn cpu(pid: u32) -> anyhow::Result<Duration> {
    Ok(ticks(pid)?.0)
}

/// Memory of a process that lives, MiB: its largest resident set so far, and the present one.
///
/// # Errors
/// An unreadable /proc.
pub fn memory_mib(pid: u32) -> anyhow::Result<(f64, f64)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).context("read a process's status")?;
    let mib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.with_context(|| format!("no {name}"))?.trim().trim_end_matches(" kB").parse::<f64>();
        anyhow::Ok(kib.with_context(|| format!("read {name}"))? / 1024.0)
    };
    Ok((mib("VmHWM:")?, mib("VmRSS:")?))
}

/// CPU of the postmaster, of its children that live, and of those that ended.
///
/// # Errors
/// An unreadable /proc.
pub fn family_cpu(postmaster: u32) -> anyhow::Result<Duration> {
    let (own, ended) = ticks(postmaster)?;
    let mut sum = own + ended;
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        if parent(pid) == Some(postmaster)
            && let Ok((own, _)) = ticks(pid)
        {
            sum += own;
        }
    }
    Ok(sum)
}

fn fields(pid: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may hold spaces: the fields follow the last one.
    let (_, rest) = text.rsplit_once(") ")?;
    Some(rest.split(' ').map(str::to_owned).collect())
}

fn parent(pid: u32) -> Option<u32> {
    fields(pid)?.get(1)?.parse().ok()
}

/// CPU of a process, and of its children that ended and were waited for.
fn ticks(pid: u32) -> anyhow::Result<(Duration, Duration)> {
    let fields = fields(pid).with_context(|| format!("read /proc/{pid}/stat"))?;
    let number = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    // Clock ticks are a hundredth of a second on every Linux that we run on.
    let time = |a: u64, b: u64| Duration::from_millis((a + b) * 10);
    Ok((time(number(11), number(12)), time(number(13), number(14))))
}
