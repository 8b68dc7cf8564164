//! What is wrong with an installation, found by looking at its database, and what to do about each of it.
//!
//! A check reads a few facts (`store`) and a pure function decides (`queue`, `instances`, `server`). Nothing is changed. Each check
//! runs in a read-only transaction of its own, each of whose statements may take ten seconds; it counts no further than a
//! bound and says so where it stopped there. One that could not be made is told as such, and is no clean bill.
//!
//! # Extending
//! Another check is a reading in `store`, a decision beside the others, and a line of [`examine`].

use std::time::Duration;

use serde_json::Value;
use sqlx::{PgConnection, PgPool};

use crate::db;
use crate::instances::held_landings;

mod instances;
mod queue;
mod server;
mod store;

/// Longest statement of one check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Most things of one kind that a finding names.
const NAMED: usize = 20;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// What is wrong, in a sentence.
    pub what: String,
    /// What to do about it.
    pub advice: String,
    /// The figures and names behind the sentence, for programs.
    pub facts: Value,
}

/// What a check came to.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// It found these; none where all is well.
    Checked(Vec<Finding>),
    /// It could not be made, for this reason: nothing is known.
    Unchecked(String),
}

/// A check that was made, or could not be.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// Stable, for programs.
    pub name: &'static str,
    /// What it came to.
    pub verdict: Verdict,
    /// What it did not look at, where it stopped at a bound or may not see everything.
    pub blind_spot: Option<String>,
}

/// All checks, in the order in which they were made.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// The checks.
    pub checks: Vec<Check>,
}

impl Report {
    /// Whether every check was made and found nothing.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.checks.iter().all(|check| match &check.verdict {
            Verdict::Checked(findings) => findings.is_empty(),
            Verdict::Unchecked(_) => false,
        })
    }

    fn add(&mut self, name: &'static str, looked: Result<Looked, sqlx::Error>) {
        let (verdict, blind_spot) = match looked {
            Ok(looked) => (Verdict::Checked(looked.findings), looked.blind_spot),
            Err(error) => (Verdict::Unchecked(error.to_string()), None),
        };
        self.checks.push(Check { name, verdict, blind_spot });
    }

    /// Says of a check that it was not made, since the schema that it would read is not there.
    fn leave_out(&mut self, name: &'static str) {
        let reason = "the schema is not this program's: see `schema`".to_owned();
        self.checks.push(Check { name, verdict: Verdict::Unchecked(reason), blind_spot: None });
    }
}

/// What one check saw.
#[derive(Debug, Default, PartialEq)]
struct Looked {
    findings: Vec<Finding>,
    blind_spot: Option<String>,
}

impl From<Vec<Finding>> for Looked {
    fn from(findings: Vec<Finding>) -> Self {
        Self { findings, blind_spot: None }
    }
}

impl From<Option<Finding>> for Looked {
    fn from(finding: Option<Finding>) -> Self {
        Vec::from_iter(finding).into()
    }
}

/// Makes every check. Those of the queue's tables are left out where the schema is not this program's, and those that
/// need its clock where there is no schema at all: they would read what is not there.
pub async fn examine(pool: &PgPool) -> Report {
    let mut report = Report::default();
    let known: Vec<server::Migration> = db::MIGRATOR
        .iter()
        .map(|it| server::Migration { version: it.version, succeeded: true, checksum: it.checksum.to_vec() })
        .collect();
    let mut has_clock = false;
    let schema = look(pool, async |conn| {
        let applied = store::migrations(conn).await?;
        has_clock = !applied.is_empty();
        Ok(server::schema(&applied, &known).into())
    })
    .await;
    let is_ours = schema.as_ref().is_ok_and(|looked| looked.findings.is_empty());
    report.add("schema", schema);
    examine_server(pool, &mut report).await;
    if has_clock {
        examine_open(pool, &mut report).await;
    } else {
        report.leave_out("long_transactions");
        report.leave_out("prepared_transactions");
    }
    if is_ours {
        examine_queue(pool, &mut report).await;
        examine_instances(pool, &mut report).await;
    } else {
        report.leave_out("queue");
        report.leave_out("held_instances");
    }
    report
}

async fn examine_open(pool: &PgPool, report: &mut Report) {
    let looked = look(pool, async |conn| {
        let (sessions, sees_all) = store::old_transactions(conn, server::OLD_TRANSACTION, NAMED).await?;
        let blind = "sessions of other roles: grant pg_read_all_stats to this one".to_owned();
        Ok(Looked { findings: server::transactions(&sessions), blind_spot: (!sees_all).then_some(blind) })
    })
    .await;
    report.add("long_transactions", looked);
    let looked = look(pool, async |conn| {
        Ok(server::prepared(&store::prepared(conn, server::OLD_TRANSACTION, NAMED).await?).into())
    })
    .await;
    report.add("prepared_transactions", looked);
}

async fn examine_server(pool: &PgPool, report: &mut Report) {
    let looked = look(pool, async |conn| Ok(server::durability(&store::durability(conn).await?).into())).await;
    report.add("durability", looked);
    let looked = look(pool, async |conn| Ok(server::slots(&store::slots(conn, NAMED).await?).into())).await;
    report.add("replication_slots", looked);
    let looked = look(pool, async |conn| Ok(server::indexes(&store::invalid_indexes(conn, NAMED).await?).into())).await;
    report.add("invalid_indexes", looked);
    let looked = look(pool, async |conn| Ok(server::bloat(&store::tables(conn).await?).into())).await;
    report.add("bloat", looked);
    let looked = look(pool, async |conn| {
        let mut findings = server::sequences(&store::sequences(conn).await?);
        findings.extend(server::transaction_ids(store::oldest_transaction_id(conn).await?));
        Ok(findings.into())
    })
    .await;
    report.add("ids", looked);
}

async fn examine_queue(pool: &PgPool, report: &mut Report) {
    let looked = look(pool, async |conn| {
        let (strays, all) = store::stray_jobs(conn, queue::STRAY_AFTER, queue::LOOK_AT, NAMED).await?;
        Ok(Looked { findings: Vec::from_iter(queue::strays(&strays)), blind_spot: queue::beyond(all, queue::LOOK_AT) })
    })
    .await;
    report.add("stray_jobs", looked);
    let looked = look(pool, async |conn| {
        let (twins, all) = store::twin_jobs(conn, queue::LOOK_UP, NAMED).await?;
        Ok(Looked { findings: Vec::from_iter(queue::twins(&twins)), blind_spot: queue::beyond(all, queue::LOOK_UP) })
    })
    .await;
    report.add("twin_jobs", looked);
    let looked = look(pool, async |conn| {
        let leases = store::leases_of_stopped(conn, queue::STOPPED_FOR, NAMED).await?;
        Ok(queue::leases_of_stopped(&leases).into())
    })
    .await;
    report.add("leases_of_stopped_workers", looked);
    let looked = look(pool, async |conn| Ok(queue::fences(&store::fences(conn, queue::LOOK_UP).await?).into())).await;
    report.add("fences", looked);
    let looked =
        look(pool, async |conn| Ok(queue::silent(&store::workers(conn, queue::SILENT_FOR_LESS_THAN).await?).into()))
            .await;
    report.add("silent_workers", looked);
    let looked =
        look(pool, async |conn| Ok(queue::skewed(&store::workers(conn, queue::SILENT_FOR_LESS_THAN).await?).into()))
            .await;
    report.add("clock_skew", looked);
    let looked = look(pool, async |conn| Ok(queue::unserved(&store::due_work(conn).await?).into())).await;
    report.add("unserved_queues", looked);
    let looked = look(pool, async |conn| Ok(queue::partitions(&store::partitions(conn).await?).into())).await;
    report.add("partitions", looked);
    let looked = look(pool, async |conn| Ok(queue::late(store::late_day(conn).await?.as_ref()).into())).await;
    report.add("pruning", looked);
}

async fn examine_instances(pool: &PgPool, report: &mut Report) {
    let looked = look(pool, async |conn| {
        let most = u16::try_from(NAMED + 1).unwrap_or(u16::MAX);
        Ok(instances::held(&held_landings(conn, instances::HELD_FOR, most).await?).into())
    })
    .await;
    report.add("held_instances", looked);
}

/// Makes one check on a snapshot of its own, bounded in time.
async fn look(
    pool: &PgPool,
    check: impl AsyncFnOnce(&mut PgConnection) -> Result<Looked, sqlx::Error>,
) -> Result<Looked, sqlx::Error> {
    let mut snapshot = db::begin_read(pool, CHECK_TIMEOUT).await?;
    let done = check(&mut snapshot).await;
    // Nothing was written: what matters is that the next check does not find this one's transaction open.
    snapshot.rollback().await?;
    done
}

/// The first of many, joined for a sentence.
fn listed<T>(items: &[T], name: impl Fn(&T) -> String) -> String {
    let names: Vec<String> = items.iter().take(NAMED).map(name).collect();
    let more = if items.len() > NAMED { " and more" } else { "" };
    names.join(", ") + more
}
