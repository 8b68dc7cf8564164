//! The list of queues, by name, and the pauses of kinds.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use domain::authority::Permission;
use domain::ids::QueueName;
use domain::queue::{self, Limits, Pause, QueueView};
use serde::Deserialize;

use super::address::Address;
use super::failure::Failure;
use super::page::{self, Ask, Meter, Shell, Visit};
use super::verdict::Verdict;
use super::words::{self, Age, Now};
use crate::App;

/// Rows of one page.
const ROWS: u16 = 50;

#[derive(Template)]
#[template(path = "queues.html")]
struct Page {
    shell: Shell,
    sentence: String,
    rows: Vec<QueueRow>,
    first: bool,
    next: Option<String>,
    paused: Vec<PausedKind>,
    /// Kinds that may be paused; none where the visitor may not.
    kinds: Vec<String>,
    form: Option<String>,
}

/// A queue as tables show it.
pub(super) struct QueueRow {
    pub(super) name: String,
    pub(super) state: &'static str,
    pub(super) tone: &'static str,
    pub(super) glyph: &'static str,
    pub(super) edge: &'static str,
    pub(super) due: String,
    pub(super) oldest: Option<Age>,
    pub(super) running: Meter,
    pub(super) waiting: String,
    pub(super) limits: String,
    pub(super) pause: Option<PauseWords>,
}

/// By whom, since when and why.
pub(super) struct PauseWords {
    pub(super) by: String,
    pub(super) age: Age,
    pub(super) reason: String,
}

impl PauseWords {
    pub(super) fn of(pause: &Pause, now: Now) -> Self {
        Self {
            by: pause.paused_by_name.clone().unwrap_or_else(|| "the program itself".to_owned()),
            age: now.lasting(pause.paused_at),
            reason: pause.reason.clone(),
        }
    }
}

struct PausedKind {
    name: String,
    pause: PauseWords,
}

impl QueueRow {
    pub(super) fn of(q: &QueueView, now: Now) -> Self {
        let late = q.oldest_due_at.map_or(0, |at| now.since(at));
        let (state, tone, glyph) = match (&q.pause, q.served, q.available > 0) {
            (Some(_), _, _) => ("paused", "warn", "pause"),
            (None, true, _) => ("open", "ok", "online"),
            (None, false, true) => ("unserved", "bad", "problem"),
            // Nothing is due: that nobody serves it hurts nobody.
            (None, false, false) => ("unserved", "idle", "pending"),
        };
        let edge = match (tone, late) {
            ("warn", _) => "warn",
            ("bad", _) | (_, 300..) => "bad",
            (_, 60..) => "warn",
            _ => "",
        };
        Self {
            name: q.name.clone(),
            state,
            tone,
            glyph,
            edge,
            due: words::bounded(q.available),
            oldest: q.oldest_due_at.map(|at| now.lasting(at)),
            running: running(q),
            waiting: if q.waiting_at_least {
                format!("{} or more", words::count(q.waiting))
            } else {
                words::count(q.waiting)
            },
            limits: limits_words(&q.limits),
            pause: q.pause.as_ref().map(|pause| PauseWords::of(pause, now)),
        }
    }
}

/// How many run, and of how many that may.
fn running(q: &QueueView) -> Meter {
    let Some(most) = q.limits.running else { return Meter::words(words::count(q.running)) };
    let hundredths = q.running.clamp(0, most.into()) * 10_000 / i64::from(most.max(1));
    Meter {
        width: Some(format!("{}.{:02}", hundredths / 100, hundredths % 100)),
        words: format!("{} of {}", words::count(q.running), words::count(most.into())),
    }
}

/// What limits a queue, on one line; empty where nothing does.
pub(super) fn limits_words(limits: &Limits) -> String {
    let at_once = limits.running.map(|n| format!("{} at once", words::count(n.into())));
    let per_key = limits.running_per_key.map(|n| format!("{} of a key at once", words::count(n.into())));
    let starts = limits.starts_per_key.map(|rate| {
        let span = i64::try_from(rate.span.as_secs()).unwrap_or(i64::MAX);
        format!("{} starts of a key in {}", words::count(rate.starts.into()), words::seconds(span))
    });
    [at_once, per_key, starts].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    #[serde(default)]
    after: String,
}

pub(super) async fn show(
    State(app): State<App>,
    ask: Ask,
    Address(Asked { after }): Address<Asked>,
) -> Result<Response, Failure> {
    let after = Some(after).filter(|after| !after.is_empty()).map(QueueName::new).transpose();
    let after = after.map_err(|_| Failure::Invalid("The place in the list is no queue's name.".to_owned()))?;
    let mut visit = Visit::begin(&app, ask).await?;
    let facts = visit.facts().await?;
    let mut found = queue::queues_after(visit.query(), after.as_ref().map(QueueName::as_str), ROWS + 1).await?;
    let more = found.len() > usize::from(ROWS);
    found.truncate(usize::from(ROWS));
    let now = page::now(&facts);
    let verdict = Verdict::of(&facts);
    let may = visit.caller.may(Permission::QueuesOperate);
    let paused: Vec<PausedKind> = facts
        .pauses
        .iter()
        .map(|pause| PausedKind { name: pause.name.clone(), pause: PauseWords::of(pause, now) })
        .collect();
    let page = Page {
        sentence: sentence(&facts.queues),
        rows: found.iter().map(|q| QueueRow::of(q, now)).collect(),
        first: after.is_none(),
        next: found.last().filter(|_| more).map(|q| format!("/queues?after={}", q.name)),
        kinds: app
            .catalogue()
            .iter()
            .map(|spec| spec.kind.to_string())
            .filter(|kind| !paused.iter().any(|paused| paused.name == *kind))
            .collect(),
        paused,
        form: visit.form_token(may),
        shell: visit.shell("queues", "Queues", facts.overview.now, &verdict),
    };
    visit.answer(&page, facts.overview.now).await
}

/// What the list says at a glance.
fn sentence(queues: &[QueueView]) -> String {
    let counted = |n: usize, words: &str| (n > 0).then(|| format!("{n}\u{a0}{words}"));
    let unserved = queues.iter().filter(|q| !q.served && q.available > 0).count();
    let paused = queues.iter().filter(|q| q.pause.is_some()).count();
    let limited = queues.iter().filter(|q| !q.limits.is_none()).count();
    let parts = [counted(unserved, "unserved"), counted(paused, "paused"), counted(limited, "limited")];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let all = words::things(i64::try_from(queues.len()).unwrap_or(i64::MAX), "queue", "queues");
    if parts.is_empty() { format!("{all}, all of them open.") } else { format!("{all}: {}.", parts.join(", ")) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use domain::clock::Timestamp;
    use domain::queue::Rate;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a valid time")
    }

    fn view(available: i64, oldest_due_at: Option<Timestamp>) -> QueueView {
        QueueView {
            name: "q".into(),
            available,
            waiting: 1,
            waiting_at_least: false,
            running: 3,
            oldest_due_at,
            served: false,
            pause: None,
            limits: Limits::default(),
        }
    }

    #[test]
    fn an_unserved_queue_is_loud_only_while_something_is_due() {
        let now = Now(at("2026-03-14T03:07:42Z"));
        assert_eq!(QueueRow::of(&view(0, None), now).edge, "");
        assert_eq!(QueueRow::of(&view(1, Some(at("2026-03-14T03:07:41Z"))), now).edge, "bad");
    }

    #[test]
    fn limits_are_told_in_words_and_what_runs_beside_them() {
        assert_eq!(limits_words(&Limits::default()), "");
        let rate = Rate { starts: 10, span: Duration::from_secs(60) };
        let limits = Limits { running: Some(8), running_per_key: Some(2), starts_per_key: Some(rate) };
        assert_eq!(
            limits_words(&limits).replace('\u{a0}', " "),
            "8 at once; 2 of a key at once; 10 starts of a key in 1 min 0 s"
        );
        let running = running(&QueueView { limits, ..view(0, None) });
        assert_eq!((running.width.as_deref(), running.words.as_str()), (Some("37.50"), "3 of 8"));
    }
}
