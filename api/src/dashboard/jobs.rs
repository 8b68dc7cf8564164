//! The list of jobs: which ones, in which state, since when. Filters stand in the address; pages follow by key.

use askama::Template;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse as _, Redirect, Response};
use domain::ids::{JobId, Kind, QueueName};
use domain::queue::{self, Filter, Job, JobState, QueueView};
use serde::Deserialize;

use super::failure::Failure;
use super::page::{self, Ask, Id, Meter, Shell, Visit};
use super::verdict::{Facts, Verdict};
use super::words::{self, Age, Now};
use crate::App;

/// Rows of one page.
const ROWS: u16 = 25;
/// A due job that waits longer is marked, in seconds.
const LATE_SECONDS: i64 = 60;
/// Characters of an error that a row shows.
const ERROR_CHARS: usize = 200;

/// The address's query. Empty fields are as good as absent: a form sends them.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Asked {
    state: String,
    kind: String,
    queue: String,
    tag: String,
    before: String,
    q: String,
}

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

/// What was asked for, understood.
#[derive(Default, Clone)]
struct Wanted {
    filter: Filter,
}

impl Wanted {
    fn read(asked: &Asked) -> Result<Self, Failure> {
        let given = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let state = match given(&asked.state) {
            Some(word) => {
                Some(JobState::parse(&word).ok_or_else(|| Failure::Invalid(format!("No job is ever {word}.")))?)
            }
            None => None,
        };
        let invalid = |error: domain::ids::InvalidName| Failure::Invalid(error.to_string());
        let before = given(&asked.before).map(|id| id.parse()).transpose();
        Ok(Self {
            filter: Filter {
                state,
                kind: given(&asked.kind).map(Kind::new).transpose().map_err(invalid)?,
                queue: given(&asked.queue).map(QueueName::new).transpose().map_err(invalid)?,
                tag: given(&asked.tag),
                before: before.map_err(|_| Failure::Invalid("The place in the list is no job's id.".to_owned()))?,
            },
        })
    }

    /// The address's query, e.g. `state=running&queue=mail`.
    fn query(&self) -> String {
        let mut pairs: Vec<(&str, String)> = Vec::new();
        let f = &self.filter;
        pairs.extend(f.state.map(|state| ("state", state.to_string())));
        pairs.extend(f.kind.as_ref().map(|kind| ("kind", kind.to_string())));
        pairs.extend(f.queue.as_ref().map(|queue| ("queue", queue.to_string())));
        pairs.extend(f.tag.clone().map(|tag| ("tag", tag)));
        pairs.extend(f.before.map(|id| ("before", id.to_string())));
        let pairs: Vec<String> = pairs
            .into_iter()
            .map(|(name, value)| format!("{name}={}", super::failure::form_urlencoded(&value)))
            .collect();
        pairs.join("&")
    }

    fn href(&self) -> String {
        match self.query() {
            query if query.is_empty() => "/jobs".to_owned(),
            query => format!("/jobs?{query}"),
        }
    }

    fn with(&self, change: impl FnOnce(&mut Filter)) -> Self {
        let mut wanted = self.clone();
        change(&mut wanted.filter);
        wanted
    }

    /// From the first page on.
    fn newest(&self) -> Self {
        self.with(|f| f.before = None)
    }
}

pub(super) async fn show(
    State(app): State<App>,
    ask: Ask,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(asked) = asked.map_err(|_| Failure::Invalid("The address names a filter twice.".to_owned()))?;
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
        rows: listed.items.iter().map(|job| row(job, page::now(&facts))).collect(),
        nothing: nothing(&wanted.filter),
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

fn nothing(filter: &Filter) -> String {
    if filter.before.is_some() {
        "Nothing older matches.".to_owned()
    } else if filter.state.is_some() || filter.kind.is_some() || filter.queue.is_some() || filter.tag.is_some() {
        "No job matches. Drop a filter, or look at all states.".to_owned()
    } else {
        "No job yet.".to_owned()
    }
}

/// The same filters as flags of the command line.
fn flags(filter: &Filter) -> String {
    let mut flags = String::new();
    let pairs = [
        ("state", filter.state.map(|state| state.to_string())),
        ("kind", filter.kind.as_ref().map(ToString::to_string)),
        ("queue", filter.queue.as_ref().map(ToString::to_string)),
        ("tag", filter.tag.as_ref().map(|tag| format!("'{}'", tag.replace('\'', r"'\''")))),
    ];
    for (name, value) in pairs {
        if let Some(value) = value {
            flags.push_str(&format!(" --{name} {value}"));
        }
    }
    flags
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

fn row(job: &Job, now: Now) -> Row {
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
        now: doing(job),
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
fn doing(job: &Job) -> Meter {
    match job.state {
        JobState::Running if job.cancel_requested => Meter::words("asked to end"),
        JobState::Running => {
            job.progress.as_ref().and_then(Meter::of).unwrap_or_else(|| Meter::words("reports no progress"))
        }
        JobState::Available | JobState::Scheduled | JobState::Retryable if job.unserved => {
            Meter::words("no live worker serves this kind on this queue")
        }
        JobState::Available => Meter::words("waits for a free worker"),
        JobState::Scheduled => Meter::words("waits for its time"),
        JobState::Retryable | JobState::Discarded => {
            Meter::words(job.last_error.as_ref().map_or_else(String::new, error_line))
        }
        JobState::Completed | JobState::Cancelled => Meter::words(""),
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

    fn asked(change: impl FnOnce(&mut Asked)) -> Asked {
        let mut asked = Asked::default();
        change(&mut asked);
        asked
    }

    #[test]
    fn filters_stand_in_the_address_and_survive_it() {
        let wanted = Wanted::read(&asked(|a| {
            a.state = "running".into();
            a.kind = " instance.move ".into();
            a.tag = "a&b=c".into();
        }));
        let wanted = wanted.ok().expect("a valid query");
        assert_eq!(wanted.href(), "/jobs?state=running&kind=instance.move&tag=a%26b%3Dc");
        assert_eq!(wanted.with(|f| f.kind = None).href(), "/jobs?state=running&tag=a%26b%3Dc");
        assert_eq!(flags(&wanted.filter), " --state running --kind instance.move --tag 'a&b=c'");
    }

    #[test]
    fn a_filter_that_is_none_is_refused_and_an_empty_one_ignored() {
        assert!(Wanted::read(&asked(|a| a.state = "lost".into())).is_err());
        assert!(Wanted::read(&asked(|a| a.kind = "A b".into())).is_err());
        assert!(Wanted::read(&asked(|a| a.before = "x".into())).is_err());
        assert_eq!(Wanted::read(&Asked::default()).ok().map(|w| w.href()), Some("/jobs".into()));
    }

    #[test]
    fn a_tag_cannot_end_its_quotes_on_the_command_line() {
        let filter = Filter { tag: Some("a'; rm -rf /".into()), ..Filter::default() };
        assert_eq!(flags(&filter), r" --tag 'a'\''; rm -rf /'");
    }

    #[test]
    fn an_error_is_told_in_one_bounded_line() {
        assert_eq!(error_line(&json!({"message": "gone\nmore", "code": 1})), "gone");
        assert_eq!(error_line(&json!("plain")), "plain");
        assert_eq!(error_line(&json!({"code": 1})), r#"{"code":1}"#);
        assert_eq!(error_line(&json!("x".repeat(900))).chars().count(), ERROR_CHARS + 1);
    }
}
