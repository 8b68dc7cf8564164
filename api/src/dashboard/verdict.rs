//! Is anything wrong, what, since when, and what to do: decided from the figures, worst first.

use std::cmp::Reverse;

use domain::clock::Timestamp;
use domain::instances::moves::Move;
use domain::instances::why::HeldLanding;
use domain::queue::{Overview, Pause, QueueView, WorkerView};

use super::words::{self, Age, Now};

mod moves;
mod pauses;

/// Rows of attention that a page shows; more are told as a number.
pub(super) const MAX_ROWS: usize = 20;
/// A due job that waits longer deserves a look.
const LATE_SECONDS: i64 = 60;
/// A due job that waits longer needs a person.
const STUCK_SECONDS: i64 = 300;
/// A queue without a worker for longer is no restart of its worker.
const UNSERVED_SECONDS: i64 = 30;

/// How loud a row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// Look soon.
    Warning,
    /// Act now.
    Problem,
}

impl Severity {
    /// The tone's class, without its `s-`.
    pub(super) const fn tone(self) -> &'static str {
        match self {
            Self::Warning => "warn",
            Self::Problem => "bad",
        }
    }

    /// The glyph's name.
    pub(super) const fn glyph(self) -> &'static str {
        match self {
            Self::Warning => "warn",
            Self::Problem => "problem",
        }
    }

    /// The word.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Warning => "Warning",
            Self::Problem => "Problem",
        }
    }
}

/// One thing that needs a person.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) severity: Severity,
    /// What is wrong.
    pub(super) title: String,
    /// What follows, and what to do.
    pub(super) text: String,
    /// Since when.
    pub(super) since: Option<Timestamp>,
    /// Where to look: address and label.
    pub(super) link: Option<(String, String)>,
}

/// What is wrong, worst first, then longest first.
#[derive(Debug, Clone, Default)]
pub(super) struct Verdict {
    pub(super) rows: Vec<Row>,
}

/// The figures from which a verdict is made.
#[derive(Debug)]
pub(super) struct Facts {
    /// The first page's figures.
    pub(super) overview: Overview,
    /// Every queue.
    pub(super) queues: Vec<QueueView>,
    /// Every worker of the last day.
    pub(super) workers: Vec<WorkerView>,
    /// Moves in flight that the visitor may see.
    pub(super) moves: Vec<Move>,
    /// Landings that something holds up.
    pub(super) held: Vec<HeldLanding>,
    /// Pauses of kinds.
    pub(super) pauses: Vec<Pause>,
}

impl Verdict {
    /// Judges the figures.
    pub(super) fn of(facts: &Facts) -> Self {
        let now = Now(facts.overview.now);
        let mut rows: Vec<Row> = facts.queues.iter().filter_map(|queue| queue_row(queue, now)).collect();
        rows.extend(facts.pauses.iter().map(pauses::kind));
        rows.extend(facts.workers.iter().filter(|w| w.state == "silent").map(worker_row));
        rows.extend(facts.moves.iter().filter_map(moves::row));
        rows.extend(facts.held.iter().map(moves::landing));
        if facts.overview.expired > 0 {
            rows.push(expired_row(&facts.overview, &facts.workers));
        }
        rows.sort_by_key(|row| (Reverse(row.severity), row.since));
        Self { rows }
    }

    pub(super) fn problems(&self) -> usize {
        self.rows.iter().filter(|row| row.severity == Severity::Problem).count()
    }

    pub(super) fn warnings(&self) -> usize {
        self.rows.len() - self.problems()
    }

    /// The worst of all; `None` where all is well.
    pub(super) fn worst(&self) -> Option<Severity> {
        self.rows.iter().map(|row| row.severity).max()
    }

    /// The tone's class of the whole.
    pub(super) fn tone(&self) -> &'static str {
        self.worst().map_or("ok", Severity::tone)
    }

    /// The glyph of the whole.
    pub(super) fn glyph(&self) -> &'static str {
        self.worst().map_or("ok", Severity::glyph)
    }

    /// The whole in words: the title of the first page.
    pub(super) fn title(&self) -> String {
        match (self.problem_words(), self.warning_words()) {
            (Some(problems), Some(warnings)) => format!("{problems}, {warnings}"),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => "All is well".to_owned(),
        }
    }

    /// "2 problems", where there are any.
    pub(super) fn problem_words(&self) -> Option<String> {
        match self.problems() {
            0 => None,
            n => Some(words::things(i64::try_from(n).unwrap_or(i64::MAX), "problem", "problems")),
        }
    }

    /// "1 warning", where there are any.
    pub(super) fn warning_words(&self) -> Option<String> {
        match self.warnings() {
            0 => None,
            n => Some(words::things(i64::try_from(n).unwrap_or(i64::MAX), "warning", "warnings")),
        }
    }

    /// The rows that a page shows, and how many more there are.
    pub(super) fn shown(&self) -> (&[Row], usize) {
        let shown = self.rows.len().min(MAX_ROWS);
        (&self.rows[..shown], self.rows.len() - shown)
    }
}

impl Row {
    /// Since when, as an age.
    pub(super) fn age(&self, now: Now) -> Option<Age> {
        self.since.map(|at| now.lasting(at))
    }
}

fn due(queue: &QueueView) -> String {
    if queue.available == 1 {
        "1\u{a0}job is due".to_owned()
    } else {
        format!("{}\u{a0}jobs are due", words::bounded(queue.available))
    }
}

fn queue_row(queue: &QueueView, now: Now) -> Option<Row> {
    if let Some(pause) = &queue.pause {
        return Some(pauses::queue(queue, pause));
    }
    let since = queue.oldest_due_at?;
    let name = &queue.name;
    let link =
        Some((format!("/jobs?state=available&queue={name}"), format!("{}\u{a0}due", words::bounded(queue.available))));
    if !queue.served {
        let severity = if now.since(since) >= UNSERVED_SECONDS { Severity::Problem } else { Severity::Warning };
        return Some(Row {
            severity,
            title: format!("No live worker serves queue {name}: {}.", due(queue)),
            text: format!("Start one that names it: leasehold worker --queues {name}"),
            since: Some(since),
            link,
        });
    }
    let (severity, text) = match now.since(since) {
        STUCK_SECONDS.. => (Severity::Problem, "Its workers are all busy, or none of them can run this kind."),
        LATE_SECONDS.. => {
            (Severity::Warning, "Work comes in faster than its workers take it, or none of them can run this kind.")
        }
        _ => return None,
    };
    Some(Row {
        severity,
        title: format!("Queue {name} is behind: {}.", due(queue)),
        text: format!("{text} {} of it run now.", words::count(queue.running)),
        since: Some(since),
        link,
    })
}

fn worker_row(worker: &WorkerView) -> Row {
    let (severity, text) = if worker.running > 0 {
        let held = words::things(worker.running, "job", "jobs");
        (Severity::Problem, format!("It holds {held}; they are given to others when their leases expire."))
    } else {
        (Severity::Warning, "It holds no job. It died without a goodbye, or does not reach the database.".to_owned())
    };
    Row {
        severity,
        title: format!("Worker {} on {} is silent.", words::tail(&worker.id.to_string()), worker.host),
        text: format!("Process {}, last heard when this began. {text}", worker.pid),
        since: Some(worker.seen_at),
        link: None,
    }
}

fn expired_row(overview: &Overview, workers: &[WorkerView]) -> Row {
    let anyone = workers.iter().any(|w| w.state == "live");
    Row {
        severity: if anyone { Severity::Warning } else { Severity::Problem },
        title: format!(
            "{} expired and not yet taken over.",
            words::things(overview.expired, "lease has", "leases have")
        ),
        text: if anyone {
            "Live workers take such leases over within a second or so; if this stays, look at their logs.".to_owned()
        } else {
            "No worker is live to take them over: start one.".to_owned()
        },
        since: None,
        link: Some(("/jobs?state=running".to_owned(), "Running jobs".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use domain::ids::WorkerId;
    use domain::queue::Limits;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a valid time")
    }

    const NOW: &str = "2026-03-14T03:07:42Z";

    fn calm() -> Facts {
        let overview = Overview {
            now: at(NOW),
            oldest_due_at: None,
            running: 0,
            expired: 0,
            refused_last_hour: 0,
            workers_live: 0,
            workers_silent: 0,
            day_late_since: None,
        };
        Facts {
            overview,
            queues: Vec::new(),
            workers: Vec::new(),
            moves: Vec::new(),
            held: Vec::new(),
            pauses: Vec::new(),
        }
    }

    fn queue(name: &str, oldest: &str, served: bool) -> QueueView {
        let oldest_due_at = Some(at(oldest));
        QueueView {
            name: name.into(),
            available: 14,
            waiting: 0,
            waiting_at_least: false,
            running: 2,
            oldest_due_at,
            served,
            pause: None,
            limits: Limits::default(),
        }
    }

    fn worker(state: &str, running: i64) -> WorkerView {
        WorkerView {
            id: WorkerId::generate(),
            host: "box-us-1".into(),
            pid: 7,
            version: "0.1.0".into(),
            node: None,
            queues: vec!["default".into()],
            kinds: Vec::new(),
            concurrency: 4,
            started_at: at(NOW),
            seen_at: at("2026-03-14T02:58:11Z"),
            state: state.into(),
            clock_skew_ms: None,
            running,
        }
    }

    #[test]
    fn nothing_wrong_is_said_in_three_words() {
        let verdict = Verdict::of(&calm());
        assert_eq!((verdict.title().as_str(), verdict.tone(), verdict.worst()), ("All is well", "ok", None));
    }

    #[test]
    fn a_queue_is_behind_by_minutes_and_stuck_by_five() {
        let verdict = |oldest: &str| {
            let mut facts = calm();
            facts.queues = vec![queue("mail", oldest, true)];
            Verdict::of(&facts).worst()
        };
        assert_eq!(verdict("2026-03-14T03:06:43Z"), None);
        assert_eq!(verdict("2026-03-14T03:06:42Z"), Some(Severity::Warning));
        assert_eq!(verdict("2026-03-14T03:02:42Z"), Some(Severity::Problem));
    }

    #[test]
    fn what_nobody_serves_is_a_problem_after_a_restarts_time_and_the_worst_comes_first() {
        let mut facts = calm();
        facts.queues =
            vec![queue("mail", "2026-03-14T03:05:00Z", true), queue("node.us", "2026-03-14T03:07:12Z", false)];
        facts.queues.push(queue("node.uk", "2026-03-14T03:07:13Z", false));
        facts.workers = vec![worker("silent", 0), worker("silent", 3), worker("live", 1), worker("stopped", 0)];
        facts.overview.expired = 3;
        let verdict = Verdict::of(&facts);
        assert_eq!(verdict.title(), "2\u{a0}problems, 4\u{a0}warnings");
        assert!(verdict.rows[0].title.contains("is silent"), "{:?}", verdict.rows);
        assert!(verdict.rows[1].title.starts_with("No live worker serves queue node.us: 14\u{a0}jobs are due"));
    }

    #[test]
    fn a_pause_is_a_warning_with_who_and_why_as_long_as_it_holds() {
        let pause = |scope: &str, name: &str| Pause {
            scope: scope.into(),
            name: name.into(),
            paused_by: None,
            paused_by_name: Some("ops".into()),
            reason: "relay maintenance".into(),
            paused_at: at("2026-03-14T02:26:40Z"),
        };
        let mut facts = calm();
        // It would be a problem: unserved, and due for hours.
        facts.queues = vec![queue("mail", "2026-03-14T01:00:00Z", false)];
        facts.queues[0].pause = Some(pause("queue", "mail"));
        facts.pauses = vec![pause("kind", "mail.send")];
        let verdict = Verdict::of(&facts);
        assert_eq!(verdict.title(), "2\u{a0}warnings");
        let row = verdict.rows.iter().find(|row| row.title.starts_with("Queue")).expect("the queue's row");
        assert_eq!(row.title, "Queue mail is paused by ops: 14\u{a0}jobs are due.");
        assert!(row.text.starts_with("relay maintenance. What runs"), "{}", row.text);
        assert!(verdict.rows.iter().any(|row| row.title == "Kind mail.send is paused by ops."), "{verdict:?}");
    }

    #[test]
    fn expired_leases_without_anyone_to_take_them_are_a_problem() {
        let mut facts = calm();
        facts.overview.expired = 1;
        assert_eq!(Verdict::of(&facts).worst(), Some(Severity::Problem));
        facts.workers = vec![worker("live", 0)];
        let verdict = Verdict::of(&facts);
        assert_eq!(verdict.worst(), Some(Severity::Warning));
        assert!(verdict.rows[0].title.starts_with("1\u{a0}lease has expired"));
    }

    #[test]
    fn a_page_shows_a_bounded_number_of_rows() {
        let mut facts = calm();
        facts.workers = (0..50).map(|_| worker("silent", 0)).collect();
        let verdict = Verdict::of(&facts);
        assert_eq!((verdict.shown().0.len(), verdict.shown().1), (MAX_ROWS, 30));
    }
}
