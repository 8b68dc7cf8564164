//! What stands above: the phase, the way, why it is so, and the figures.

use std::time::Duration;

use domain::instances::RouteStatus;
use domain::instances::moves::{Move, MoveState};
use domain::instances::why::{Phase, Reason, Why};

use super::words::{self, Age, Now};

/// The word of a phase, its tone and its glyph.
pub(super) fn of_phase(why: &Why) -> (String, &'static str, &'static str) {
    let stuck = why.reasons.first().is_some_and(|first| first.permanent);
    let (tone, glyph) = match &why.phase {
        Phase::Unplaced => ("warn", "pending"),
        Phase::Landing => ("run", "land"),
        Phase::Serving if why.record.parked == Some(true) => ("idle", "pause"),
        Phase::Serving => ("ok", "online"),
        Phase::Moving(state) => match state.known() {
            Some(MoveState::Preparing) => ("run", "prep"),
            Some(MoveState::Ready) => ("ok", "ready"),
            Some(MoveState::Cutting) => ("warn", "cut"),
            Some(MoveState::Aborting) => ("idle", "abort"),
            None => ("idle", "pending"),
        },
    };
    let parked = why.phase == Phase::Serving && why.record.parked == Some(true);
    let word = if parked { "parked" } else { why.phase.as_str() };
    (word.to_owned(), if stuck { "bad" } else { tone }, glyph)
}

/// One sentence beside it: whether anybody is served, and where.
pub(super) fn sentence(why: &Why) -> String {
    let region = &why.record.region;
    let by = why.seat.as_ref().map_or_else(|| "no box".to_owned(), |seat| format!("box {}", seat.identity));
    let parked = why.record.parked == Some(true);
    match &why.phase {
        Phase::Unplaced => format!("in {region}. Nobody serves it yet."),
        Phase::Landing => {
            format!("in {region}. Nobody is served until that is done: edges answer 503 with Retry-After.")
        }
        Phase::Serving if parked => format!("in {region}, on {by}. No process runs for it."),
        Phase::Serving => format!("in {region}, by {by}."),
        Phase::Moving(state) => {
            let to = why.newest.as_ref().map(|it| it.to.to_string()).unwrap_or_default();
            match state.known() {
                Some(MoveState::Cutting) => {
                    format!("to {to}. Nobody is served until it has landed: edges answer 503 with Retry-After.")
                }
                _ if why.seat.as_ref().is_some_and(|seat| seat.status == RouteStatus::Landing) => {
                    format!("to {to}. Nobody is served: it is still landing in {region}, on {by}.")
                }
                _ if parked => format!("to {to}. It is parked in {region}, on {by}, and nobody wakes it for the move."),
                _ => format!("to {to}. It is served in {region} by {by} as ever; nothing is frozen."),
            }
        }
    }
}

/// One of the four stations of a move's way.
pub(super) struct Stage {
    pub(super) name: &'static str,
    pub(super) glyph: &'static str,
    /// `done`, `now` or empty.
    pub(super) class: &'static str,
    pub(super) text: &'static str,
    pub(super) age: Option<Age>,
}

/// The way of a move; none of one that is given up.
pub(super) fn stages(about: &Move, now: Now) -> Vec<Stage> {
    if about.aborted_at.or(about.given_up_at).is_some() {
        return Vec::new();
    }
    let moved = about.finished_at.is_some();
    let at = match (about.landed_at, about.cut_at, about.ready_at) {
        (Some(_), _, _) => 4,
        (None, _, _) if moved => 3,
        (None, Some(_), _) => 2,
        (None, None, Some(_)) => 1,
        (None, None, None) => 0,
    };
    let all = [
        ("1 Preparing", "prep", "the replica is copied while it is served", Some(about.requested_at)),
        ("2 Ready", "ready", "a round with no difference makes it so", about.ready_at),
        ("3 Cutting", "cut", "writes are frozen, then it is cut", about.cut_at),
        ("4 Landed", "land", "the target restores it and serves it", about.landed_at),
    ];
    let stage = |(i, (name, glyph, text, since))| Stage {
        name,
        glyph,
        class: match i {
            i if i < at => "done",
            i if i == at => "now",
            _ => "",
        },
        text,
        age: Option::map(since, |since| now.clock(since)),
    };
    all.into_iter().enumerate().map(stage).collect()
}

/// Why it is where it is.
pub(super) struct WhyFace {
    pub(super) tone: &'static str,
    pub(super) title: &'static str,
    pub(super) lead: Line,
    pub(super) more: Vec<Line>,
    pub(super) todo: Vec<String>,
}

/// One reason.
pub(super) struct Line {
    pub(super) message: String,
    pub(super) code: String,
    pub(super) since: Option<Age>,
    pub(super) until: Option<Age>,
}

/// The same answer as the API's.
pub(super) fn why(why: &Why, now: Now) -> WhyFace {
    let goes_on = |code: &str| {
        matches!(
            code,
            "serving"
                | "parked"
                | "cuts_by_itself"
                | "round_runs"
                | "first_round"
                | "differs"
                | "cutting"
                | "aborting"
                | "landing"
                | "unplaced"
                | "regions_differ"
        )
    };
    let first = why.reasons.first();
    let tone = match first {
        Some(first) if first.permanent => "bad",
        Some(first) if first.code == "ready" => "ok",
        Some(first) if goes_on(&first.code) => "idle",
        Some(_) => "warn",
        None => "idle",
    };
    let held = matches!(tone, "bad" | "warn");
    let title = match &why.phase {
        Phase::Unplaced => "Why does nobody serve it?",
        Phase::Landing if held => "What holds the landing up?",
        Phase::Serving if held => "What is wrong?",
        Phase::Moving(state) => match state.known() {
            Some(MoveState::Preparing) => "Why is it not ready?",
            Some(MoveState::Cutting) if held => "What holds the cut up?",
            Some(MoveState::Aborting) if held => "What holds the abort up?",
            Some(MoveState::Ready | MoveState::Cutting | MoveState::Aborting) | None => "What happens now",
        },
        Phase::Landing | Phase::Serving => "What happens now",
    };
    let line = |reason: &Reason| Line {
        message: reason.message.clone(),
        code: reason.code.clone(),
        since: reason.since.map(|at| now.lasting(at)),
        until: reason.until.map(|at| now.until(at)),
    };
    let nothing = || Line { message: String::new(), code: String::new(), since: None, until: None };
    WhyFace {
        tone,
        title,
        lead: first.map_or_else(nothing, line),
        more: why.reasons.iter().skip(1).map(line).collect(),
        todo: why.reasons.iter().filter_map(|reason| reason.todo.clone()).collect(),
    }
}

/// One figure.
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) value: String,
    pub(super) sub: String,
    pub(super) age: Option<Age>,
    pub(super) tone: &'static str,
}

/// What the newest round came to, and how long nobody is or would be served.
pub(super) fn figures(why: &Why, now: Now) -> Vec<Figure> {
    let plain = |name, value: String, sub: String| Figure { name, value, sub, age: None, tone: "" };
    let mut figures = Vec::new();
    let copies = matches!(&why.phase, Phase::Moving(state) if state.known().is_some_and(MoveState::mirrors));
    let newest = why.newest.as_ref().filter(|_| copies);
    if let Some((round, last)) = newest.and_then(|it| it.status.last_round.zip(it.status.last)) {
        let differ = last.differ_copies + last.differ_deletes;
        figures.push(plain("Round", words::count(round.into()), format!("took {}", span(ms(last.elapsed_ms)))));
        figures.push(plain(
            "Copied",
            words::count(signed(last.copied)),
            format!("{} of {} objects", words::bytes(last.copied_bytes), words::count(signed(last.source_keys))),
        ));
        let tone = if differ > 0 { "warn" } else { "" };
        let sub = format!("{} to copy", words::bytes(last.differ_bytes));
        figures.push(Figure { tone, ..plain("Differ", words::count(signed(differ)), sub) });
        if let Some(lag) = last.lag_ms {
            figures.push(plain("Staging is behind", span(ms(lag)), "at most, at the end of the round".to_owned()));
        }
    }
    match (why.frozen_since, why.predicted_freeze) {
        (Some(since), _) => figures.push(Figure {
            age: Some(now.figure(since)),
            tone: "warn",
            ..plain("Nobody is served for", String::new(), "since it was let be cut".to_owned())
        }),
        (None, Some(freeze)) if copies => {
            figures.push(plain("Freeze if cut now", span(freeze), "as the newest cuts between the two".to_owned()));
        }
        (None, _) => {}
    }
    figures
}

/// A span with a decimal where it is short.
pub(super) fn span(span: Duration) -> String {
    words::millis(i64::try_from(span.as_millis()).unwrap_or(i64::MAX))
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
