//! `leasehold job`

use std::path::PathBuf;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use uuid::Uuid;
use wire::{Attempt, Job, JobFilter, JobState, LogLine, NewJob, Reason, Step};

use super::Context;
use crate::client::Api;
use crate::exit::{Ending, Exit};
use crate::input;
use crate::output::{details, moment, or_dash, short, table};
use crate::{pages, parse, runtime};

/// The largest arguments that are read from a file or stdin; the API takes less.
const MAX_ARGS_BYTES: u64 = 4 * 1024 * 1024;
/// Characters of arguments and errors in a table.
const CELL_CHARS: usize = 60;
/// Characters of a log line.
const LINE_CHARS: usize = 500;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Enqueue a job
    #[command(after_help = "Examples:\n  leasehold job enqueue system.sleep --args '{\"ms\": 500}'\n  \
        generate | leasehold job enqueue system.noop --args-file - --unique-key today")]
    Enqueue(Enqueue),
    /// List jobs, newest first
    #[command(after_help = "Example: leasehold job list --state running --queue default")]
    List(List),
    /// Show a job
    #[command(after_help = "Example: leasehold job show 01890a5d-ac96-774b-bcce-b302099a8057 --steps --attempts")]
    Show(Show),
    /// Ask a job to end
    #[command(after_help = "Example: leasehold job cancel 01890a5d-ac96-774b-bcce-b302099a8057 --reason 'wrong input'")]
    Cancel(Act),
    /// Bring a job back now: one that waits, or one that ended
    #[command(
        after_help = "Example: leasehold job retry 01890a5d-ac96-774b-bcce-b302099a8057 --reason 'fixed the bucket'"
    )]
    Retry(Act),
    /// Tell why a job does not run, and what to do about it
    #[command(after_help = "Example: leasehold job why 01890a5d-ac96-774b-bcce-b302099a8057")]
    Why(Why),
    /// Enqueue what a finished job was once more, as a new job
    #[command(
        after_help = "Example: leasehold job run-again 01890a5d-ac96-774b-bcce-b302099a8057 --reason 'the input is complete now'"
    )]
    RunAgain(RunAgain),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Enqueue {
    /// The kind, such as system.noop
    kind: String,
    /// The arguments as JSON [default: {}]
    #[arg(long, value_name = "JSON", conflicts_with = "args_file")]
    args: Option<String>,
    /// A file that holds the arguments as JSON; - is stdin
    #[arg(long, value_name = "PATH")]
    args_file: Option<PathBuf>,
    /// The queue [default: the kind's own]
    #[arg(long)]
    queue: Option<String>,
    /// -100 to 100, lower first
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i64>,
    /// Earliest start, such as 2026-01-31T08:00:00Z [default: now]
    #[arg(long, value_name = "TIME", value_parser = parse::time)]
    run_at: Option<DateTime<Utc>>,
    /// Failures that end the job
    #[arg(long, value_name = "N")]
    max_attempts: Option<i64>,
    /// Longest run of one lease, in milliseconds
    #[arg(long, value_name = "MS")]
    deadline_ms: Option<i64>,
    /// A free label; may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// At most one live job of the kind carries this key; where one does, it is shown instead
    #[arg(long, value_name = "KEY")]
    unique_key: Option<String>,
    /// Jobs of one key share their queue's limits for each key, and take turns with those of other keys
    #[arg(long, value_name = "KEY")]
    concurrency_key: Option<String>,
    /// A repeated call with this key is answered as the first was
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Enqueue although the API does not know the kind: for kinds that only newer workers know
    #[arg(long)]
    allow_unknown_kind: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// Only this state
    #[arg(long, value_parser = state)]
    state: Option<JobState>,
    /// Only this kind
    #[arg(long)]
    kind: Option<String>,
    /// Only this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only jobs with this tag
    #[arg(long)]
    tag: Option<String>,
    /// Jobs of one page, 1 to 200
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=200))]
    limit: Option<u16>,
    /// Where the page begins, as the page before said
    #[arg(long)]
    cursor: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    /// The job's id
    #[arg(value_parser = parse::id)]
    id: Uuid,
    /// Show the attempts that ended before its last one: failed, snoozed, interrupted or released
    #[arg(long)]
    attempts: bool,
    /// Show the steps that its handler recorded
    #[arg(long)]
    steps: bool,
    /// Show its log
    #[arg(long)]
    log: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Act {
    /// The job's id
    #[arg(value_parser = parse::id)]
    id: Uuid,
    /// Why, for the audit trail
    #[arg(long)]
    reason: Option<String>,
    /// Refuse where the job changed since this revision was read
    #[arg(long, value_name = "REVISION")]
    if_revision: Option<i64>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Why {
    /// The job's id
    #[arg(value_parser = parse::id)]
    id: Uuid,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunAgain {
    #[command(flatten)]
    act: Act,
    /// A repeated call with this key is answered as the first was
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

pub(crate) fn run(context: &Context, command: Command) -> anyhow::Result<Exit> {
    let api = context.api()?;
    runtime::run(async {
        match command {
            Command::Enqueue(args) => enqueue(context, &api, args).await,
            Command::List(args) => list(context, &api, args).await,
            Command::Show(args) => show(context, &api, &args).await,
            Command::Cancel(args) => {
                let reason = Reason { reason: args.reason };
                let job = api
                    .call_about(&job_of(args.id), |client| client.cancel(args.id, &reason, args.if_revision))
                    .await?;
                context.output.show(&job, told)
            }
            Command::Retry(args) => {
                let reason = Reason { reason: args.reason };
                let job =
                    api.call_about(&job_of(args.id), |client| client.retry(args.id, &reason, args.if_revision)).await?;
                context.output.show(&job, told)
            }
            Command::Why(args) => {
                let why = api.call_about(&job_of(args.id), |client| client.why(args.id)).await?;
                // Sentences alone, the one to act on first: what each is about stands in --json.
                context.output.show(&why, |why| {
                    why.reasons.iter().map(|reason| reason.message.as_str()).collect::<Vec<_>>().join("\n")
                })
            }
            Command::RunAgain(RunAgain { act, idempotency_key }) => {
                let reason = Reason { reason: act.reason };
                let key = idempotency_key.as_deref();
                let answer = api
                    .call_about(&job_of(act.id), |client| client.run_again(act.id, &reason, key, act.if_revision))
                    .await?;
                context.output.show(&answer.value, told)
            }
        }
    })?;
    Ok(Exit::Ok)
}

/// As a refusal names it.
fn job_of(id: Uuid) -> String {
    format!("job {id}")
}

async fn enqueue(context: &Context, api: &Api, args: Enqueue) -> anyhow::Result<()> {
    let job = NewJob {
        args: arguments(&args)?,
        kind: args.kind,
        queue: args.queue,
        priority: args.priority,
        run_at: args.run_at,
        max_attempts: args.max_attempts,
        deadline_ms: args.deadline_ms,
        tags: args.tags,
        unique_key: args.unique_key,
        concurrency_key: args.concurrency_key,
        allow_unknown_kind: args.allow_unknown_kind,
    };
    let answer = api.call(|client| client.enqueue(&job, args.idempotency_key.as_deref())).await?;
    context.output.show(&answer.value, |job| {
        let told = told(job);
        if answer.created || answer.replayed {
            told
        } else {
            format!("{told}\n(it existed already: its unique key is in use)")
        }
    })
}

fn arguments(args: &Enqueue) -> anyhow::Result<Value> {
    let text = match (&args.args, &args.args_file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => input::read(path, MAX_ARGS_BYTES)?,
        (None, None) => return Ok(json!({})),
    };
    serde_json::from_str(&text).map_err(|error| {
        let message = format!("the arguments are not JSON: {error}");
        Ending { exit: Exit::Usage, message }.into()
    })
}

async fn list(context: &Context, api: &Api, args: List) -> anyhow::Result<()> {
    let mut filter =
        JobFilter { state: args.state, kind: args.kind, queue: args.queue, tag: args.tag, limit: None, cursor: None };
    let page = pages::filled(args.limit, args.cursor, async |missing, cursor| {
        filter.limit = Some(missing);
        filter.cursor = cursor;
        api.call(|client| client.jobs(&filter)).await
    })
    .await?;
    context.output.page(&page, "no such jobs", |jobs| {
        table(
            &["id", "kind", "queue", "state", "attempt", "run at", "progress"],
            jobs.iter().map(|job| {
                [
                    job.id.to_string(),
                    job.kind.clone(),
                    job.queue.clone(),
                    job.state.to_string(),
                    format!("{}/{}", job.attempt, job.max_attempts),
                    moment(Some(job.run_at)),
                    short(&progress(job), CELL_CHARS),
                ]
            }),
        )
    })
}

async fn show(context: &Context, api: &Api, args: &Show) -> anyhow::Result<()> {
    let job = api.call_about(&job_of(args.id), |client| client.job(args.id)).await?;
    let attempts =
        if args.attempts { Some(api.call(|client| client.job_attempts(args.id)).await?.items) } else { None };
    let steps = if args.steps { Some(api.call(|client| client.job_steps(args.id)).await?.items) } else { None };
    let log = if args.log { Some(api.call(|client| client.job_log(args.id)).await?.items) } else { None };
    let mut answer = serde_json::to_value(&job)?;
    for (name, part) in [("attempts", json!(attempts)), ("steps", json!(steps)), ("log", json!(log))] {
        if !part.is_null() {
            answer[name] = part;
        }
    }
    context.output.show(&answer, |_| {
        let parts =
            [attempts.as_deref().map(attempts_told), steps.as_deref().map(steps_told), log.as_deref().map(log_told)];
        [details(&described(&job))].into_iter().chain(parts.into_iter().flatten()).collect::<Vec<_>>().join("\n\n")
    })
}

fn attempts_told(attempts: &[Attempt]) -> String {
    if attempts.is_empty() {
        return "No earlier attempts: what the last one came to is in the job's own lines.".to_owned();
    }
    let rows = attempts.iter().map(|it| {
        [
            it.attempt.to_string(),
            it.outcome.clone(),
            format!("{}-{}", it.first_fence, it.last_fence),
            moment(Some(it.started_at)),
            moment(Some(it.ended_at)),
            it.error.as_ref().map_or_else(String::new, |error| short(&error.to_string(), CELL_CHARS)),
        ]
    });
    format!("Earlier attempts\n{}", table(&["attempt", "outcome", "fences", "started", "ended", "error"], rows))
}

fn steps_told(steps: &[Step]) -> String {
    if steps.is_empty() {
        return "No steps were recorded.".to_owned();
    }
    let rows = steps.iter().map(|it| {
        let evidence = short(&it.evidence.to_string(), CELL_CHARS);
        [it.seq.to_string(), it.fence.to_string(), moment(Some(it.at)), it.name.clone(), evidence]
    });
    format!("Steps\n{}", table(&["seq", "fence", "at", "name", "evidence"], rows))
}

fn log_told(log: &[LogLine]) -> String {
    if log.is_empty() {
        return "The log is empty.".to_owned();
    }
    let line = |it: &LogLine| format!("{}  {:5} {}", moment(Some(it.at)), it.level, short(&it.line, LINE_CHARS));
    format!("Log\n{}", log.iter().map(line).collect::<Vec<_>>().join("\n"))
}

fn described(job: &Job) -> Vec<(&'static str, String)> {
    let lease = job.lease.as_ref().map_or_else(
        || "-".to_owned(),
        |lease| format!("fence {}, worker {}, until {}", lease.fence, lease.worker_id, moment(Some(lease.expires_at))),
    );
    let state = match (job.cancel_requested, job.unserved) {
        (true, _) => format!("{} (asked to end)", job.state),
        (false, true) => format!("{} (no live worker serves its kind on its queue)", job.state),
        (false, false) => job.state.to_string(),
    };
    let mut lines = vec![
        ("id", job.id.to_string()),
        ("kind", job.kind.clone()),
        ("queue", job.queue.clone()),
        ("state", state),
        ("attempt", format!("{} of {}", job.attempt, job.max_attempts)),
        ("interruptions", job.interruptions.to_string()),
        ("priority", job.priority.to_string()),
        ("created at", moment(Some(job.created_at))),
        ("run at", moment(Some(job.run_at))),
        ("finished at", moment(job.finished_at)),
        ("revision", job.revision.to_string()),
        ("lease", lease),
        ("progress", or_dash(&progress(job))),
        ("tags", or_dash(&job.tags.join(", "))),
        ("unique key", or_dash(job.unique_key.as_deref().unwrap_or_default())),
        ("args", job.args.to_string()),
    ];
    if let Some(result) = &job.result {
        lines.push(("result", result.to_string()));
    }
    if let Some(error) = &job.last_error {
        lines.push(("last error", error.to_string()));
    }
    lines
}

/// How far a job is, on one line.
pub(crate) fn progress(job: &Job) -> String {
    let Some(progress) = &job.progress else { return String::new() };
    let figures = match (progress.done, progress.total) {
        (done, Some(total)) => format!("{done}/{total} {}", progress.unit),
        (0, None) => String::new(),
        (done, None) => format!("{done} {}", progress.unit),
    };
    [figures.trim(), progress.message.as_str()]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(", ")
}

fn told(job: &Job) -> String {
    let asked = if job.cancel_requested { ", asked to end" } else { "" };
    format!("{}  {} on {}: {}{asked}", job.id, job.kind, job.queue, job.state)
}

fn state(text: &str) -> Result<JobState, String> {
    JobState::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
        let known: Vec<&str> = JobState::ALL.iter().map(|state| state.as_str()).collect();
        format!("one of {}", known.join(", "))
    })
}
