//! `leasehold prune`: straight in the database, like `migrate`; its steps are those of the workers.

use std::time::Duration;

use domain::audit::{Actor, Event};
use domain::db;
use domain::queue::{self, FinishedJobs, Prunable, PruneStep, Pruned, Retention};
use serde_json::{Value, json};
use sqlx::PgPool;

use super::Context;
use crate::exit::{Ending, Exit};
use crate::output::table;
use crate::{database, retention, runtime};

/// Finished jobs that one step looks at.
const BATCH: u16 = 2000;
/// The wait before a step is tried again that others held up.
const HELD_PAUSE: Duration = Duration::from_millis(200);
/// How often in a row a step is tried that others hold up.
const MAX_HELD: u32 = 25;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  leasehold prune --dry-run\n  leasehold prune --reason 'the disk is full'\n\n\
    How long what is kept is set by prune.* of the configuration; docs/configuration.md lists it.")]
pub(crate) struct Args {
    /// Tell what would go, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Why, for the audit trail; whoever misses what went reads this
    #[arg(long, required_unless_present = "dry_run")]
    reason: Option<String>,
}

pub(crate) fn run(context: &Context, args: &Args) -> anyhow::Result<Exit> {
    let settings = context.settings(Vec::new())?;
    let kept = retention::of(&settings);
    let reason = match args.reason.as_deref().map(domain::audit::reason) {
        None => None,
        Some(Ok(Some(reason))) => Some(reason),
        Some(Ok(None) | Err(_)) => {
            let message = format!("--reason: say why, in at most {} characters", domain::audit::MAX_REASON_CHARS);
            return Err(Ending { exit: Exit::Usage, message }.into());
        }
    };
    runtime::run(async {
        let pool = database::connect(&settings).await?;
        db::check_schema(&pool).await?;
        if args.dry_run {
            let prunable = queue::prunable(&mut *db::session(&pool).await?, &kept).await?;
            return context.output.show(&prunable_for_programs(&prunable), |_| prunable_for_people(&prunable));
        }
        let pruned = prune(&pool, &kept, reason).await?;
        context.output.show(&pruned_for_programs(&pruned), |_| pruned_for_people(&pruned))
    })?;
    Ok(Exit::Ok)
}

/// Takes steps until nothing is left to do.
async fn prune(pool: &PgPool, kept: &Retention, reason: Option<&str>) -> anyhow::Result<Pruned> {
    let act = Event {
        // Whoever holds the database: no key was shown.
        actor: Actor::System,
        action: "queue.prune",
        subject_kind: "queue",
        subject: "*".to_owned(),
        reason,
        detail: retentions(kept),
    };
    let mut session = db::session(pool).await?;
    queue::begin_pruning(&mut session, kept, &act).await?;
    session.done(()).await?;
    let mut pruned = Pruned::default();
    let mut held = 0;
    loop {
        // Each step commits by itself, behind a pooler too.
        let mut session = db::session(pool).await?;
        let step = queue::prune_step(&mut session, kept, BATCH).await?;
        let PruneStep { pruned: step, more, held: step_held } = session.done(step).await?;
        pruned.add(step);
        if more {
            held = 0;
        } else if !step_held {
            return Ok(pruned);
        } else if held < MAX_HELD {
            held += 1;
            tokio::time::sleep(HELD_PAUSE).await;
        } else {
            let message = format!(
                "not everything could go: another session prunes, or holds a table of finished jobs open for long \
                 (`leasehold doctor` names it). What went so far:\n{}",
                pruned_for_people(&pruned)
            );
            return Err(Ending { exit: Exit::Conflict, message }.into());
        }
    }
}

fn retentions(kept: &Retention) -> Value {
    let hours = |time: Duration| time.as_secs() / 3600;
    json!({
        "completed_hours": hours(kept.completed),
        "cancelled_hours": hours(kept.cancelled),
        "discarded_hours": hours(kept.discarded),
        "workers_hours": hours(kept.workers),
        "throughput_hours": hours(kept.throughput),
        "refused_writes_hours": hours(kept.refused_writes),
    })
}

fn jobs_for_programs(jobs: &[FinishedJobs]) -> Vec<Value> {
    jobs.iter().map(|it| json!({"day": it.day, "state": it.state, "kind": it.kind, "jobs": it.rows})).collect()
}

fn prunable_for_programs(prunable: &Prunable) -> Value {
    json!({
        "jobs": jobs_for_programs(&prunable.jobs),
        "counted_in_part": prunable.beyond,
        "workers": prunable.workers,
        "throughput": prunable.throughput,
        "refused_writes": prunable.refused_writes,
    })
}

fn pruned_for_programs(pruned: &Pruned) -> Value {
    let sorts = pruned.by_sort().into_iter().map(|(sort, rows)| (sort.to_owned(), json!(rows)));
    let mut value = Value::Object(sorts.collect());
    value["jobs"] = json!(jobs_for_programs(&pruned.jobs));
    value
}

fn day(day: Option<chrono::NaiveDate>) -> String {
    day.map_or_else(|| "no partition".to_owned(), |day| day.to_string())
}

fn jobs_for_people(jobs: &[FinishedJobs], beyond: impl Fn(&FinishedJobs) -> bool) -> String {
    let at_least = |it: &FinishedJobs| if beyond(it) { format!("at least {}", it.rows) } else { it.rows.to_string() };
    let rows = jobs.iter().map(|it| [day(it.day), it.state.as_str().to_owned(), it.kind.clone(), at_least(it)]);
    table(&["day", "state", "kind", "jobs"], rows)
}

/// The sorts of which there is something, on one line.
fn sorts<'a>(all: impl IntoIterator<Item = (&'a str, i64)>) -> String {
    let told: Vec<String> = all
        .into_iter()
        .filter(|(_, rows)| *rows > 0)
        .map(|(sort, rows)| format!("{}: {rows}", sort.replace('_', " ")))
        .collect();
    told.join(", ")
}

fn prunable_for_people(prunable: &Prunable) -> String {
    let mut lines = Vec::new();
    if !prunable.jobs.is_empty() {
        lines.push(jobs_for_people(&prunable.jobs, |it| prunable.beyond.contains(&it.day)));
        lines.push("and their attempts, steps, log lines and refused writes".to_owned());
    }
    for day_in_part in prunable.beyond.iter().filter(|day| prunable.jobs.iter().all(|it| it.day != **day)) {
        lines.push(format!(
            "{}: none among the first {} that were looked at",
            day(*day_in_part),
            Prunable::COUNT_LIMIT
        ));
    }
    let rest = [
        ("workers", prunable.workers),
        ("counts_by_minute", prunable.throughput),
        ("old_refused_writes", prunable.refused_writes),
    ];
    lines.push(sorts(rest));
    lines.retain(|line| !line.is_empty());
    if lines.is_empty() { "nothing would go".to_owned() } else { lines.join("\n") }
}

fn pruned_for_people(pruned: &Pruned) -> String {
    let mut lines = Vec::new();
    if !pruned.jobs.is_empty() {
        lines.push(jobs_for_people(&pruned.jobs, |_| false));
    }
    let rest = pruned.by_sort().into_iter().filter(|(sort, _)| *sort != "jobs").map(|(sort, rows)| match sort {
        "throughput" => ("counts_by_minute", rows),
        "days" => ("days_as_a_whole", rows),
        _ => (sort, rows),
    });
    lines.push(sorts(rest));
    lines.retain(|line| !line.is_empty());
    if lines.is_empty() { "nothing was to go".to_owned() } else { lines.join("\n") }
}
