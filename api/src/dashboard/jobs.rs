//! The list of jobs: which ones, in which state, since when. Filters stand in the address; pages follow by key.

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse as _, Redirect, Response};
use domain::ids::{JobId, Kind, QueueName};
use domain::queue::{self, Filter, Job, JobState, QueueView};

use super::address::Address;
use super::failure::Failure;
use super::page::{self, Ask, Id, Meter, Shell, Visit};
use super::verdict::{Facts, Verdict};
use super::words::{self, Age, Now};
use crate::App;

mod filter;

use filter::{Asked, Wanted, flags};

/// Rows of one page.
const ROWS: u16 = 25;
/// A due job that waits longer is marked, in seconds.
const LATE_SECONDS: i64 = 60;
/// Characters of an error that a row shows.
const ERROR_CHARS: usize = 200;

#[derive(Template)]
#[template(path = "jobs.html")]
struct Page {
    shell: Shell,
    sentence: String,
    cli: String,
    curl: String,
    tabs: Vec<Tab>,
    state: Option<&'static str>,
    kind: String,
    queue: String,
    tag: String,
    kinds: Vec<String>,
    queues: Vec<String>,
    chips: Vec<Chip>,
    rows: Vec<Row>,
    nothing: String,
    shown: String,
    first: Option<String>,
    next: Option<String>,
}

struct Tab {
    href: String,
    word: &'static str,
    tone: &'static str,
    glyph: &'static str,
    count: String,
    current: bool,
}

struct Chip {
    words: String,
    without: String,
}

struct Row {
    id: Id,
    kind: String,
    queue: String,
    state: StateFace,
    edge: &'static str,
    attempt: String,
    age: Age,
    now: Meter,
}

/// A state's shape, word and colour.
pub(super) struct StateFace {
    pub(super) tone: &'static str,
    pub(super) glyph: &'static str,
    pub(super) word: &'static str,
}

impl StateFace {
    pub(super) const fn of(state: JobState) -> Self {
        let (tone, glyph) = match state {
            JobState::Scheduled => ("idle", "sched"),
            JobState::Available => ("idle", "avail"),
            JobState::Running => ("run", "run"),
            JobState::Retryable => ("warn", "retry"),
            JobState::Completed => ("ok", "ok"),
            JobState::Cancelled => ("idle", "cancel"),
            JobState::Discarded => ("bad", "disc"),
        };
        Self { tone, glyph, word: state.as_str() }
    }
}

pub(super) async fn show(
    State(app): State<App>,
    ask: Ask,
    Address(asked): Address<Asked>,
) -> Result<Response, Failure> {
    if let Some(there) = jump(&app, asked.q.trim())? {
        return Ok(Redirect::to(&there).into_response());
    }
    let wanted = Wanted::read(&asked)?;
    let mut visit = Visit::begin(&app, ask).await?;
    let facts = visit.facts().await?;
    let listed = queue::list(visit.query(), &wanted.filter, ROWS).await?;
    let verdict = Verdict::of(&facts);
    let now = facts.overview.now;
    let newest = wanted.newest();
    let flags = flags(&newest.filter);
    let limit =
        if newest.query().is_empty() { format!("limit={ROWS}") } else { format!("{}&limit={ROWS}", newest.query()) };
    let page = Page {
        sentence: sentence(&wanted.filter),
        cli: format!("leasehold job list{flags}"),
        curl: format!("/v1/jobs?{limit}"),
        tabs: tabs(&newest, &facts),
        state: wanted.filter.state.map(JobState::as_str),
        kind: wanted.filter.kind.as_ref().map(ToString::to_string).unwrap_or_default(),
        queue: wanted.filter.queue.as_ref().map(ToString::to_string).unwrap_or_default(),
        tag: wanted.filter.tag.clone().unwrap_or_default(),
        kinds: app.catalogue().iter().map(|spec| spec.kind.to_string()).collect(),
        queues: facts.queues.iter().map(|q| q.name.clone()).collect(),
        chips: chips(&newest),
        rows: listed.items.iter().map(|job| row(job, &facts)).collect(),
        nothing: nothing(&wanted.filter, listed.next.is_some()),
        shown: match listed.items.len() {
            0 => String::new(),
            1 => "1 job".to_owned(),
            n => format!("{n} jobs"),
        },
        first: wanted.filter.before.map(|_| newest.href()),
        next: listed.next.map(|id| wanted.with(|f| f.before = Some(id)).href()),
        shell: visit.shell("jobs", "Jobs", now, &verdict),
    };
    visit.answer(&page, now).await
}

/// Where the top bar's field leads: a job by its id, or a kind, or a queue.
fn jump(app: &App, text: &str) -> Result<Option<String>, Failure> {
    if text.is_empty() {
        return Ok(None);
    }
    if let Ok(id) = text.parse::<JobId>() {
        return Ok(Some(format!("/jobs/{id}")));
    }
    let mut wanted = Wanted::default();
    if app.catalogue().iter().any(|spec| spec.kind.as_str() == text) {
        wanted.filter.kind = Kind::new(text).ok();
    } else {
        let queue = QueueName::new(text);
        wanted.filter.queue =
            Some(queue.map_err(|_| Failure::Invalid(format!("{text:?} is no job's id, no kind and no queue.")))?);
    }
    Ok(Some(wanted.href()))
}

fn sentence(filter: &Filter) -> String {
    match filter.state {
        None => "All states, newest first.".to_owned(),
        Some(state) => format!("Only {state} ones, newest first."),
    }
}

fn nothing(filter: &Filter, more: bool) -> String {
    if more {
        // A page looks at so many jobs and no more.
        "None of those that were looked at matches. Go on with older ones.".to_owned()
    } else if filter.before.is_some() {
        "Nothing older matches.".to_owned()
    } else if filter.state.is_some() || filter.kind.is_some() || filter.queue.is_some() || filter.tag.is_some() {
        "No job matches. Drop a filter, or look at all states.".to_owned()
    } else {
        "No job yet.".to_owned()
    }
}

/// The states. Only what the page knows anyway is counted: no tab costs a query.
fn tabs(newest: &Wanted, facts: &Facts) -> Vec<Tab> {
    let sum = |of: fn(&QueueView) -> i64| {
        let stopped = facts.queues.iter().any(|q| of(q) >= QueueView::COUNT_LIMIT);
        format!("{}{}", words::count(facts.queues.iter().map(of).sum()), if stopped { "+" } else { "" })
    };
    let current = newest.filter.state;
    let all = Tab {
        href: newest.with(|f| f.state = None).href(),
        word: "All",
        tone: "",
        glyph: "",
        count: String::new(),
        current: current.is_none(),
    };
    let states = JobState::ALL.into_iter().map(|state| {
        let face = StateFace::of(state);
        Tab {
            href: newest.with(|f| f.state = Some(state)).href(),
            word: face.word,
            tone: face.tone,
            glyph: face.glyph,
            count: match state {
                JobState::Available => sum(|q| q.available),
                JobState::Running => words::count(facts.overview.running),
                JobState::Scheduled
                | JobState::Retryable
                | JobState::Completed
                | JobState::Cancelled
                | JobState::Discarded => String::new(),
            },
            current: current == Some(state),
        }
    });
    std::iter::once(all).chain(states).collect()
}

fn chips(newest: &Wanted) -> Vec<Chip> {
    let f = &newest.filter;
    let mut chips = Vec::new();
    if let Some(kind) = &f.kind {
        chips.push(Chip { words: format!("kind {kind}"), without: newest.with(|f| f.kind = None).href() });
    }
    if let Some(queue) = &f.queue {
        chips.push(Chip { words: format!("queue {queue}"), without: newest.with(|f| f.queue = None).href() });
    }
    if let Some(tag) = &f.tag {
        chips.push(Chip { words: format!("tag {tag}"), without: newest.with(|f| f.tag = None).href() });
    }
    chips
}

fn row(job: &Job, facts: &Facts) -> Row {
    let now = page::now(facts);
    let late = job.state == JobState::Available && now.since(job.run_at) >= LATE_SECONDS;
    let edge = match job.state {
        JobState::Available if job.unserved => "bad",
        JobState::Available if late => "warn",
        JobState::Scheduled
        | JobState::Available
        | JobState::Running
        | JobState::Retryable
        | JobState::Completed
        | JobState::Cancelled
        | JobState::Discarded => "",
    };
    Row {
        id: Id::of(job.id),
        kind: job.kind.to_string(),
        queue: job.queue.to_string(),
        state: StateFace::of(job.state),
        edge,
        attempt: format!("{}/{}", job.attempt, job.max_attempts),
        age: since(job, now),
        now: doing(job, facts),
    }
}

/// Since when a job is in its state, or how soon it leaves it.
pub(super) fn since(job: &Job, now: Now) -> Age {
    match job.state {
        JobState::Scheduled | JobState::Retryable => now.until(job.run_at),
        JobState::Available => now.lasting(job.run_at),
        JobState::Running => now.lasting(job.lease.as_ref().map_or(job.run_at, |lease| lease.leased_at)),
        JobState::Completed | JobState::Cancelled | JobState::Discarded => {
            now.ago(job.finished_at.unwrap_or(job.run_at))
        }
    }
}

/// What a job does now, or why it does nothing.
fn doing(job: &Job, facts: &Facts) -> Meter {
    match job.state {
        JobState::Running if job.cancel_requested => Meter::words("asked to end"),
        JobState::Running => {
            job.progress.as_ref().and_then(Meter::of).unwrap_or_else(|| Meter::words("reports no progress"))
        }
        JobState::Available | JobState::Scheduled | JobState::Retryable if job.unserved => {
            Meter::words("no live worker serves this kind on this queue")
        }
        JobState::Available => Meter::words(paused(job, facts).unwrap_or("waits for a free worker")),
        JobState::Scheduled => Meter::words("waits for its time"),
        JobState::Retryable | JobState::Discarded => {
            Meter::words(job.last_error.as_ref().map_or_else(String::new, error_line))
        }
        JobState::Completed | JobState::Cancelled => Meter::words(""),
    }
}

/// What of a due job is paused, as far as the page knows it anyway.
fn paused(job: &Job, facts: &Facts) -> Option<&'static str> {
    let queue = facts.queues.iter().any(|q| q.pause.is_some() && q.name == job.queue.as_str());
    let kind = facts.pauses.iter().any(|pause| pause.name == job.kind.as_str());
    match (queue, kind) {
        (true, _) => Some("its queue is paused"),
        (false, true) => Some("its kind is paused"),
        (false, false) => None,
    }
}

/// An error in one line: its message where it has one.
pub(super) fn error_line(error: &serde_json::Value) -> String {
    let text = error
        .get("message")
        .and_then(|message| message.as_str())
        .or_else(|| error.as_str())
        .map_or_else(|| error.to_string(), str::to_owned);
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() > ERROR_CHARS {
        format!("{}…", line.chars().take(ERROR_CHARS).collect::<String>())
    } else {
        line.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_error_is_told_in_one_bounded_line() {
        assert_eq!(error_line(&json!({"message": "gone\nmore", "code": 1})), "gone");
        assert_eq!(error_line(&json!("plain")), "plain");
        assert_eq!(error_line(&json!({"code": 1})), r#"{"code":1}"#);
        assert_eq!(error_line(&json!("x".repeat(900))).chars().count(), ERROR_CHARS + 1);
    }
}
