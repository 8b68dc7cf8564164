//! The row of figures: each a number with its unit, and one line that gives it a place.

use domain::queue::{QueueView, ThroughputPoint};

use super::chart;
use super::words::{self, Age};
use super::{Facts, IN, OUT, page};

/// One figure.
pub(super) struct Figure {
    pub(super) name: &'static str,
    /// Told instead of the value where there is one.
    pub(super) age: Option<Age>,
    pub(super) value: String,
    pub(super) unit: String,
    pub(super) sub: String,
    pub(super) tone: &'static str,
}

impl Figure {
    fn of(name: &'static str, value: String, unit: impl Into<String>, sub: impl Into<String>) -> Self {
        Self { name, age: None, value, unit: unit.into(), sub: sub.into(), tone: "" }
    }

    fn toned(mut self, when: bool, tone: &'static str) -> Self {
        if when {
            self.tone = tone;
        }
        self
    }
}

/// All figures, in the order in which they are read.
pub(super) fn all(facts: &Facts, points: &[ThroughputPoint]) -> Vec<Figure> {
    vec![
        oldest_due(facts),
        throughput(facts, points),
        due(&facts.queues),
        running(facts),
        waiting(&facts.queues),
        expired(facts, points),
        refused(facts),
        workers(facts),
    ]
}

fn oldest_due(facts: &Facts) -> Figure {
    const NAME: &str = "Oldest due job";
    let Some(at) = facts.overview.oldest_due_at else {
        return Figure::of(NAME, "–".to_owned(), "", "nothing is due");
    };
    let holder = facts.queues.iter().filter(|q| q.oldest_due_at.is_some()).min_by_key(|q| q.oldest_due_at);
    let seconds = page::now(facts).since(at);
    let mut figure = Figure::of(NAME, String::new(), "", holder.map_or_else(String::new, |q| format!("in {}", q.name)));
    figure.age = Some(page::now(facts).figure(at));
    figure.toned(seconds >= 60, "warn").toned(seconds >= 300, "bad")
}

fn throughput(facts: &Facts, points: &[ThroughputPoint]) -> Figure {
    let now = facts.overview.now;
    let (into, _) = chart::lately(points, now, &IN);
    let (out, seconds) = chart::lately(points, now, &OUT);
    let (value, per) = words::rate(out, seconds);
    let since = chart::lately_since(now).format("%H:%M");
    let sub = format!("{} in, {} out since {since}", words::count(into), words::count(out));
    Figure::of("Throughput", value, format!("{per} out"), sub)
}

/// A sum of counts each of which may have been stopped at its limit.
fn total(queues: &[QueueView], of: impl Fn(&QueueView) -> i64) -> String {
    let stopped = queues.iter().any(|q| of(q) >= QueueView::COUNT_LIMIT);
    at_least(queues.iter().map(&of).sum(), stopped)
}

fn at_least(sum: i64, stopped: bool) -> String {
    let sum = words::count(sum);
    if stopped { format!("{sum}+") } else { sum }
}

fn due(queues: &[QueueView]) -> Figure {
    let in_queues = queues.iter().filter(|q| q.available > 0).count();
    let sub = match in_queues {
        0 => "in no queue".to_owned(),
        n => format!("in {}", words::things(i64::try_from(n).unwrap_or(i64::MAX), "queue", "queues")),
    };
    Figure::of("Due now", total(queues, |q| q.available), "", sub)
}

fn running(facts: &Facts) -> Figure {
    let slots: i64 = facts.workers.iter().filter(|w| w.state == "live").map(|w| i64::from(w.concurrency)).sum();
    Figure::of(
        "Running",
        words::count(facts.overview.running),
        format!(" of {}", words::count(slots)),
        "slots of live workers",
    )
}

fn waiting(queues: &[QueueView]) -> Figure {
    let sum = at_least(queues.iter().map(|q| q.waiting).sum(), queues.iter().any(|q| q.waiting_at_least));
    Figure::of("Waiting", sum, "", "for their time or their next attempt")
}

fn expired(facts: &Facts, points: &[ThroughputPoint]) -> Figure {
    let now = facts.overview.now;
    let rescued: i64 = points
        .iter()
        .filter(|p| p.outcome == "rescued" && now - p.minute <= chrono::TimeDelta::hours(1))
        .map(|p| p.total)
        .sum();
    let sub = format!("{} rescued in 1\u{a0}h", words::count(rescued));
    Figure::of("Expired leases", words::count(facts.overview.expired), "", sub)
        .toned(facts.overview.expired > 0, "warn")
}

fn refused(facts: &Facts) -> Figure {
    let n = facts.overview.refused_last_hour;
    let sub = if n == 0 { "every write was in time" } else { "late writes changed nothing" };
    Figure::of("Fenced writes", words::bounded(n), " refused in 1\u{a0}h", sub).toned(n > 0, "warn")
}

fn workers(facts: &Facts) -> Figure {
    let of = |state: &str| i64::try_from(facts.workers.iter().filter(|w| w.state == state).count()).unwrap_or(i64::MAX);
    let (draining, silent) = (of("draining"), facts.overview.workers_silent);
    let sub = match (draining, silent) {
        (0, 0) => "none silent".to_owned(),
        (0, silent) => format!("{} silent", words::count(silent)),
        (draining, 0) => format!("{} draining", words::count(draining)),
        (draining, silent) => format!("{} draining, {} silent", words::count(draining), words::count(silent)),
    };
    Figure::of("Workers", words::count(facts.overview.workers_live), " live", sub).toned(silent > 0, "warn")
}
