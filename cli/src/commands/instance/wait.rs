//! Waiting for a move: a bar on a terminal, a line for each change elsewhere, one object at the end for programs.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use domain::instances::moves::policy::FREEZE_OVER_BUDGET;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use uuid::Uuid;
use wire::{InstanceReason, InstanceWhy, MoveView};

use super::receipt::seconds;
use super::{Context, Named, standing};
use crate::client::Api;
use crate::exit::{self, Ending, Exit};
use crate::interrupt;
use crate::output::size;

/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// How long the API may be away before the wait gives up: a restart is no reason to.
const AWAY: Duration = Duration::from_secs(60);

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// It may be cut.
    Ready,
    /// The target serves.
    Landed,
    /// It is given up, and the record has no move.
    Cleared,
}

/// Whether the wait is over.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Done,
    /// It ended in another way.
    Otherwise(String),
    NotYet,
}

impl Until {
    fn found(self, moved: &MoveView) -> Found {
        let done = match self {
            Self::Ready => moved.outcome.is_none() && matches!(moved.state.as_str(), "ready" | "cutting"),
            Self::Landed => moved.landed_at.is_some(),
            Self::Cleared => moved.outcome.as_deref() == Some("aborted"),
        };
        match moved.outcome.as_deref() {
            _ if done => Found::Done,
            Some("moved") if self == Self::Ready => Found::Done,
            // The record says `moved` and nothing of it will ever land.
            Some("moved") if self == Self::Landed && moved.given_up_at.is_some() => Found::Otherwise(format!(
                "an operator gave the landing in {} up and pointed the instance to another region: `leasehold instance \
                 why`",
                moved.to
            )),
            Some("moved") if self == Self::Landed => Found::NotYet,
            Some(outcome) => Found::Otherwise(format!("the move to {} ended otherwise: {outcome}", moved.to)),
            None => Found::NotYet,
        }
    }
}

/// Waits, and shows the move at the end.
///
/// # Errors
/// That it ended in another way, that somebody interrupted the wait (the move goes on), the API's.
pub(super) async fn until(context: &Context, api: &Api, of: &Named, id: Uuid, until: Until) -> anyhow::Result<Exit> {
    let interrupted = interrupt::first()?;
    let mut teller = Teller::new(context.output.is_json());
    let mut heard = Instant::now();
    loop {
        match api.call_about(&of.what(), |client| client.instance_why(&of.app, &of.host)).await {
            Ok(why) => {
                heard = Instant::now();
                let Some(moved) = why.moving.clone().filter(|moved| moved.id == id) else {
                    let message = format!("move {id} is over, and another one has begun: `leasehold instance moves`");
                    return Err(Ending { exit: Exit::Conflict, message }.into());
                };
                teller.tell(&why);
                match until.found(&moved) {
                    Found::Done => {
                        teller.rest();
                        context.output.show(&moved, |moved| end(&of.host, moved))?;
                        return Ok(Exit::Ok);
                    }
                    Found::Otherwise(message) => return Err(Ending { exit: Exit::Conflict, message }.into()),
                    Found::NotYet => {}
                }
            }
            Err(error) if exit::code_of(&error) == Exit::Unavailable && heard.elapsed() < AWAY => {
                teller.line("the API does not answer; asking again");
            }
            Err(error) => return Err(error),
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = interrupted.cancelled() => {
                teller.rest();
                let message = format!("no longer watched, and it goes on: `leasehold instance why {} {}`", of.app, of.host);
                return Err(Ending { exit: Exit::Interrupted, message }.into());
            }
        }
    }
}

fn end(host: &str, moved: &MoveView) -> String {
    let frozen = moved.landed_at.zip(moved.cut_at).map(|(landed, cut)| (landed - cut).num_milliseconds());
    match (moved.outcome.as_deref(), frozen) {
        (Some("aborted"), _) => format!("{host}: the move to {} is given up, and nothing of it is staged", moved.to),
        (Some(_), Some(frozen)) => {
            format!("{host}: served in {}; from the cut to there it was {}", moved.to, seconds(frozen))
        }
        _ => format!("{host}: {} to {}", moved.state, moved.to),
    }
}

/// Tells how far a move is.
struct Teller {
    started: Instant,
    quiet: bool,
    bar: Option<ProgressBar>,
    /// What the last line was about, so that one is written for a change alone.
    last: String,
}

impl Teller {
    /// Programs are told nothing but the end.
    fn new(json: bool) -> Self {
        let bar = (!json && io::stderr().is_terminal()).then(bar);
        Self { started: Instant::now(), quiet: json, bar, last: String::new() }
    }

    fn tell(&mut self, why: &InstanceWhy) {
        if let Some(bar) = &self.bar {
            bar.set_message(now(why));
            let total = why.progress.as_ref().and_then(|progress| progress.total).unwrap_or_default();
            bar.set_length(u64::try_from(total).unwrap_or_default());
            let done = why.progress.as_ref().map_or(0, |progress| progress.done);
            bar.set_position(u64::try_from(done).unwrap_or_default());
        }
        // Rounds go on for as long as the tenant likes: on a terminal the bar shows them, and lines are for what changed.
        let about = change(why, self.bar.is_none());
        if about != self.last {
            self.last = about;
            self.line(&now(why));
            // A budget is no fault, and yet nothing goes on before somebody forces the cut or newer ones were shorter.
            let holds = |it: &&InstanceReason| it.permanent || it.code == FREEZE_OVER_BUDGET;
            if let Some(held) = why.reasons.iter().find(holds) {
                self.line(&format!("held up: {}", standing::reason(held)));
            }
        }
    }

    fn line(&self, text: &str) {
        if self.quiet {
            return;
        }
        let line = format!("{:6.1} s  {text}", self.started.elapsed().as_secs_f64());
        // A reader that went away is no reason to stop: the exit code is still to come.
        let write = || drop(writeln!(io::stdout(), "{line}"));
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    fn rest(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.rest();
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("          {spinner} {bar:20} {wide_msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// What makes another line: the phase, the step or the round, and what holds it up.
fn change(why: &InstanceWhy, rounds: bool) -> String {
    let first = why.reasons.first().map_or("", |reason| reason.code.as_str());
    let step = why.steps.first().filter(|step| step.step != "round").map_or("", |step| step.step.as_str());
    let round = why.moving.as_ref().and_then(|moved| moved.last_round).filter(|_| rounds);
    format!("{} {step} {first} {round:?}", why.phase)
}

/// How far it is, on one line: phase, round, objects, bytes, lag, predicted freeze.
fn now(why: &InstanceWhy) -> String {
    let mut parts = vec![why.phase.clone()];
    let copies = matches!(why.phase.as_str(), "preparing" | "ready");
    if let Some(moved) = why.moving.as_ref().filter(|_| copies) {
        if let Some((round, last)) = moved.last_round.zip(moved.last) {
            let differ = last.differ_copies + last.differ_deletes;
            parts.push(format!(
                "round {round} copied {} objects ({}) of {}, {differ} differ ({})",
                last.copied,
                size(last.copied_bytes),
                last.source_keys,
                size(last.differ_bytes),
            ));
            if let Some(lag) = last.lag_ms {
                parts.push(format!("at most {} behind", seconds(i64::try_from(lag).unwrap_or(i64::MAX))));
            }
        }
        if let Some(progress) = why.progress.as_ref().filter(|progress| !progress.message.is_empty()) {
            parts.push(progress.message.clone());
        }
    } else if let Some(step) = why.steps.first() {
        let ended = step.outcome.as_ref().map_or_else(String::new, |outcome| format!(" {outcome}"));
        parts.push(format!("{}{ended}", step.step.replace('_', " ")));
    }
    match (why.frozen_since, why.predicted_freeze_ms) {
        (Some(since), _) => parts.push(format!("frozen for {}", seconds((why.now - since).num_milliseconds()))),
        (None, Some(ms)) if copies => parts.push(format!("a cut freezes for about {}", seconds(ms))),
        (None, _) => {}
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn moved(state: &str, outcome: Option<&str>) -> MoveView {
        serde_json::from_value(json!({
            "id": Uuid::nil(), "app": "acme", "host": "a.b", "from": "eu", "to": "uk", "state": state, "cut_auto": false,
            "requested_at": "2026-03-14T03:00:00Z", "outcome": outcome, "round": 3, "last_round": 3, "failures": 0,
            "last": {"iterations": 2, "source_keys": 90, "copied": 14, "copied_bytes": 2048, "deleted": 0, "lost": 0,
                "differ_copies": 2, "differ_bytes": 100, "differ_deletes": 1, "lag_ms": 8100, "newest_txid": 9,
                "requests": 5, "elapsed_ms": 70},
        }))
        .expect("a move")
    }

    fn asked(phase: &str) -> InstanceWhy {
        serde_json::from_value(json!({
            "app": "acme", "host": "a.b", "now": "2026-03-14T03:00:10Z", "phase": phase, "region": "eu", "parked": false,
            "steps": [], "predicted_freeze_ms": 9540, "reasons": [],
        }))
        .expect("an answer")
    }

    #[test]
    fn a_wait_ends_with_what_it_waits_for_and_with_another_end() {
        for (until, state, outcome, done) in [
            (Until::Ready, "preparing", None, false),
            (Until::Ready, "ready", None, true),
            (Until::Ready, "cutting", None, true),
            (Until::Ready, "cutting", Some("moved"), true),
            (Until::Landed, "cutting", Some("moved"), false),
            (Until::Cleared, "aborting", None, false),
            (Until::Cleared, "aborting", Some("aborted"), true),
        ] {
            let found = until.found(&moved(state, outcome));
            assert_eq!(found == Found::Done, done, "{until:?} {state} {outcome:?}");
            assert_eq!(found == Found::NotYet, !done, "{until:?} {state} {outcome:?}");
        }
        for (until, outcome) in [(Until::Ready, "aborted"), (Until::Landed, "aborted"), (Until::Cleared, "moved")] {
            assert!(matches!(until.found(&moved("x", Some(outcome))), Found::Otherwise(_)), "{until:?} {outcome}");
        }
        let landed = MoveView { landed_at: Some(asked("serving").now), ..moved("cutting", Some("moved")) };
        assert_eq!(Until::Landed.found(&landed), Found::Done);
        let given_up = MoveView { given_up_at: Some(asked("landing").now), ..moved("cutting", Some("moved")) };
        assert!(matches!(Until::Landed.found(&given_up), Found::Otherwise(_)), "it would wait for ever");
    }

    #[test]
    fn one_line_tells_phase_round_objects_bytes_lag_and_freeze() {
        let mut why = asked("preparing");
        why.moving = Some(moved("preparing", None));
        assert_eq!(
            now(&why),
            "preparing; round 3 copied 14 objects (2.0 KiB) of 90, 3 differ (100 B); at most 8.1 s behind; a cut freezes \
             for about 9.5 s"
        );
        why.phase = "cutting".to_owned();
        why.frozen_since = "2026-03-14T03:00:06.500Z".parse().ok();
        assert_eq!(now(&why), "cutting; frozen for 3.5 s");
        assert_ne!(change(&why, true), change(&asked("preparing"), true));
    }
}
