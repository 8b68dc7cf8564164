//! One job: what became of it, under which fence, who held it, what was refused, and why it does not run.

use askama::Template;
use axum::extract::{Path, State};
use axum::response::Response;
use domain::ids::JobId;
use domain::queue::{self, Attempt, Job, JobState, LogLine, RefusedWrite, Step};
use serde_json::Value;

use super::failure::Failure;
use super::jobs::{StateFace, error_line, since};
use super::page::{self, Ask, Id, Meter, Shell, Visit};
use super::verdict::Verdict;
use super::words::{self, Age, Now};
use crate::App;

mod timeline;

use timeline::Happening;

/// Refused writes that a job's page looks at.
const REFUSED: u16 = 50;
/// Lines of the log that the page shows: the newest.
const LOG_LINES: u16 = 50;
/// Steps that the page looks at: the newest.
const STEPS: u16 = 200;

#[derive(Template)]
#[template(path = "job.html")]
struct Page {
    shell: Shell,
    id: Id,
    kind: String,
    state: StateFace,
    standing: Standing,
    cli: String,
    curl: String,
    why: Option<Why>,
    timeline: Vec<Happening>,
    folded: String,
    log: Vec<String>,
    log_note: String,
    facts: Vec<Fact>,
    progress: Option<Meter>,
    args: String,
    result: Option<String>,
}

/// The words around the age in the verdict.
struct Standing {
    before: &'static str,
    age: Age,
    after: String,
}

/// Why it does not run, or why it ended badly.
struct Why {
    tone: &'static str,
    title: &'static str,
    lead: String,
    more: Vec<String>,
}

struct Fact {
    name: &'static str,
    value: String,
    mono: bool,
    age: Option<Age>,
}

/// Everything that is known of one job.
struct Story {
    job: Job,
    attempts: Vec<Attempt>,
    steps: Vec<Step>,
    refused: Vec<RefusedWrite>,
}

pub(super) async fn show(State(app): State<App>, ask: Ask, Path(id): Path<String>) -> Result<Response, Failure> {
    let mut visit = Visit::begin(&app, ask).await?;
    // What is no id is no job either.
    let id: JobId = id.parse().map_err(|_| Failure::NotFound("job"))?;
    let job = queue::get(visit.query(), id).await?.ok_or(Failure::NotFound("job"))?;
    let facts = visit.facts().await?;
    let attempts = queue::attempts(visit.query(), id).await?;
    let steps = queue::newest_steps(visit.query(), id, STEPS).await?;
    let logs = queue::newest_logs(visit.query(), id, LOG_LINES).await?;
    let refused = queue::recent_refused(visit.query(), Some(id), None, REFUSED).await?;
    let why = match job.state {
        JobState::Available | JobState::Scheduled | JobState::Retryable => {
            Some(waits(queue::why(visit.query(), job.clone()).await?))
        }
        JobState::Discarded => Some(discarded(&job)),
        JobState::Running | JobState::Completed | JobState::Cancelled => None,
    };
    let verdict = Verdict::of(&facts);
    let (now, moment) = (page::now(&facts), facts.overview.now);
    let story = Story { job, attempts, steps, refused };
    let (timeline, folded) = timeline::of(&story, now);
    let job = &story.job;
    let title = format!("{} {}", job.kind, words::tail(&id.to_string()));
    let page = Page {
        shell: visit.shell("jobs", &title, moment, &verdict),
        id: Id::of(id),
        kind: job.kind.to_string(),
        state: StateFace::of(job.state),
        standing: standing(job, now),
        cli: format!("leasehold job show {id}"),
        curl: format!("/v1/jobs/{id}"),
        why,
        timeline,
        folded,
        log: logs.iter().map(log_line).collect(),
        log_note: match logs.last() {
            // Lines are numbered from 1, and the oldest leave first.
            Some(last) if last.seq > i32::from(LOG_LINES) => format!("the newest {LOG_LINES} of {} written", last.seq),
            _ => String::new(),
        },
        facts: facts_of(job, now),
        progress: job.progress.as_ref().and_then(Meter::of),
        args: pretty(&job.args),
        result: job.result.as_ref().filter(|result| !result.is_null()).map(pretty),
    };
    visit.answer(&page, moment).await
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string())
}

fn log_line(line: &LogLine) -> String {
    format!("{} {:5} {}", words::clock(line.at), line.level, line.line)
}

fn standing(job: &Job, now: Now) -> Standing {
    let before = match job.state {
        JobState::Scheduled => "and due",
        JobState::Retryable => "and tried again",
        JobState::Available => "and due for",
        JobState::Running => "for",
        JobState::Completed | JobState::Cancelled | JobState::Discarded => "",
    };
    let attempt = match job.attempt {
        0 => "not begun yet".to_owned(),
        n => format!("attempt {n} of {}", job.max_attempts),
    };
    Standing { before, age: since(job, now), after: format!(", on queue {}, {attempt}.", job.queue) }
}

/// The same answer as the API's.
fn waits(why: queue::why::Why) -> Why {
    let nobody = why.reasons.iter().any(|reason| {
        matches!(reason.code, "unserved_queue" | "unserved_kind" | "workers_silent" | "workers_draining")
    });
    let held = |code: &str| why.reasons.iter().any(|reason| reason.code == code);
    let tone = match why.state {
        JobState::Available | JobState::Scheduled if held("paused_queue") || held("paused_kind") => "warn",
        JobState::Available if nobody => "bad",
        JobState::Scheduled if nobody => "warn",
        JobState::Retryable => "warn",
        JobState::Available
        | JobState::Scheduled
        | JobState::Running
        | JobState::Completed
        | JobState::Cancelled
        | JobState::Discarded => "idle",
    };
    let mut messages = why.reasons.into_iter().map(|reason| reason.message);
    Why { tone, title: "Why is it not running?", lead: messages.next().unwrap_or_default(), more: messages.collect() }
}

fn discarded(job: &Job) -> Why {
    Why {
        tone: "bad",
        title: "Why was it discarded?",
        lead: job.last_error.as_ref().map_or_else(|| "No error was recorded.".to_owned(), error_line),
        more: vec![format!("To try it again as it is: leasehold job retry {}", job.id)],
    }
}

fn facts_of(job: &Job, now: Now) -> Vec<Fact> {
    let plain = |name, value: String| Fact { name, value, mono: false, age: None };
    let mono = |name, value: String| Fact { name, value, mono: true, age: None };
    let timed = |name, at: domain::clock::Timestamp, age: Age| Fact {
        name,
        value: format!("{} UTC,", at.format("%Y-%m-%d %H:%M:%S")),
        mono: false,
        age: Some(age),
    };
    let ahead = matches!(job.state, JobState::Scheduled | JobState::Retryable);
    let mut facts = vec![
        plain("Queue", job.queue.to_string()),
        timed("Created", job.created_at, now.ago(job.created_at)),
        timed("Due", job.run_at, if ahead { now.until(job.run_at) } else { now.ago(job.run_at) }),
    ];
    facts.extend(job.finished_at.map(|at| timed("Ended", at, now.ago(at))));
    facts.push(plain("Attempt", format!("{} of {}", job.attempt, job.max_attempts)));
    facts.push(plain("Interruptions", job.interruptions.to_string()));
    facts.push(plain("Priority", job.priority.to_string().replace('-', "−")));
    if job.fence.0 != 0 {
        facts.push(mono("Last fence", job.fence.to_string()));
    }
    facts.extend(job.worker.map(|worker| mono("Worker", worker.to_string())));
    if let Some(lease) = &job.lease {
        facts.push(timed("Lease ends", lease.expires_at, now.until(lease.expires_at)));
    }
    facts.push(plain("Revision", job.revision.to_string()));
    facts.extend(job.unique_key.clone().map(|key| mono("Unique key", key)));
    facts.extend(job.concurrency_key.clone().map(|key| mono("Concurrency key", key)));
    if !job.tags.is_empty() {
        facts.push(plain("Tags", job.tags.join(", ")));
    }
    facts
}
