//! Why an instance is where it is: what holds its move, its cut or its landing up, as one answer for programs, the command
//! line and the pages. Facts in, reasons out. Pure; the facts are read by the store.
//!
//! The first reason is the one to act on first: a box that is silent stands before what it said last, what somebody must
//! help with before what passes by itself, and what goes on as it should comes last.
//!
//! # Extending
//! A new obstacle of a move or a landing needs nothing here: its code and its sentence are passed on. What to do about it
//! is a line of `advice`.

use std::time::Duration;

use serde_json::Value;

use super::RouteStatus;
use super::moves::{Move, MoveState, MoveStep, Obstacle, Outcome, StoredState};
use super::record::{Record, RecordHeld};
use crate::clock::Timestamp;
use crate::ids::{AppName, Host, JobId, RegionCode};
use crate::queue;

mod advice;
mod facts;
mod going;
#[cfg(test)]
mod tests;

pub use facts::{Facts, OBSTACLES, STEPS, Seat};
pub use going::words;

/// How far an instance is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// No box has taken it.
    Unplaced,
    /// It is being restored in its region, or waits for that.
    Landing,
    /// A box serves it.
    Serving,
    /// A move is in flight, in this state.
    Moving(StoredState),
}

impl Phase {
    /// As it stands on the wire.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Unplaced => "unplaced",
            Self::Landing => "landing",
            Self::Serving => "serving",
            Self::Moving(state) => state.as_str(),
        }
    }
}

/// The answer.
#[derive(Debug, Clone)]
pub struct Why {
    /// The record.
    pub record: Record,
    /// The box that has its route.
    pub seat: Option<Seat>,
    /// The moment of the answer, on the database's clock.
    pub now: Timestamp,
    /// How far it is.
    pub phase: Phase,
    /// Its newest move, in flight or over.
    pub newest: Option<Move>,
    /// The newest rows of that move's journal, newest first: at most [`STEPS`].
    pub steps: Vec<MoveStep>,
    /// The live job that carries out its move or its landing.
    pub job: Option<JobId>,
    /// How far the job is that runs for it, in its handler's words.
    pub progress: Option<Value>,
    /// Since when nobody serves it because of its move.
    pub frozen_since: Option<Timestamp>,
    /// How long the newest cuts between these regions took from the verb to the first answer, the median.
    pub predicted_freeze: Option<Duration>,
    /// At least one; the one to act on first stands first.
    pub reasons: Vec<Reason>,
}

/// A landing that something holds up, or what is wrong with an instance that has landed: its child does not start, or nothing
/// of what it writes is replicated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldLanding {
    /// The record's application.
    pub app: AppName,
    /// Its host.
    pub host: Host,
    /// Whether it has landed.
    pub landed: bool,
    /// Whether edges are told where it answers: it is served all the same.
    pub served: bool,
    /// Its region.
    pub region: RegionCode,
    /// What holds it up.
    pub held: RecordHeld,
}

/// One reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// Stable, for programs.
    pub code: String,
    /// A sentence for people.
    pub message: String,
    /// What to do about it; `None` where there is nothing to do.
    pub todo: Option<String>,
    /// Whether somebody must act before it goes on.
    pub permanent: bool,
    /// Since when.
    pub since: Option<Timestamp>,
    /// When it is looked at again by itself.
    pub until: Option<Timestamp>,
    /// The job that it is about.
    pub job: Option<JobId>,
}

impl Reason {
    fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
            todo: None,
            permanent: false,
            since: None,
            until: None,
            job: None,
        }
    }
}

/// The answer.
#[must_use]
pub fn decide(facts: Facts) -> Why {
    let phase = phase(&facts);
    let mut reasons: Vec<Reason> = silent(&facts, &phase).into_iter().collect();
    // A move may begin while its instance still lands: what holds that up is what nobody is served for.
    let held = landing_held(&facts).into_iter().chain(held_up(&facts, &phase));
    let (permanent, transient): (Vec<_>, Vec<_>) = held.partition(|it| it.permanent);
    reasons.extend(permanent);
    reasons.extend(of_job(&facts, &phase));
    reasons.extend(transient);
    reasons.extend(going::reasons(&facts, &phase));
    let served_at = facts.newest.as_ref().and_then(|it| it.landed_at);
    let frozen_since = match &phase {
        Phase::Moving(state) if state.known() == Some(MoveState::Cutting) => {
            facts.newest.as_ref().and_then(|it| it.cut_at)
        }
        Phase::Landing if served_at.is_none() => facts.newest.as_ref().and_then(|it| it.cut_at),
        Phase::Landing | Phase::Unplaced | Phase::Serving | Phase::Moving(_) => None,
    };
    let progress = facts.job.as_ref().filter(|(_, why)| why.state == queue::JobState::Running);
    Why {
        job: facts.job.as_ref().map(|(job, _)| job.id),
        progress: progress.and_then(|(job, _)| job.progress.clone()),
        record: facts.record,
        seat: facts.seat,
        now: facts.now,
        phase,
        newest: facts.newest,
        steps: facts.steps,
        frozen_since,
        predicted_freeze: facts.predicted_freeze,
        reasons,
    }
}

fn phase(facts: &Facts) -> Phase {
    if let Some(open) = open(facts) {
        return Phase::Moving(open.state.clone());
    }
    let here = facts.seat.as_ref().filter(|seat| seat.region == facts.record.region);
    match here.map(|seat| seat.status) {
        Some(RouteStatus::Serving) => Phase::Serving,
        Some(RouteStatus::Landing | RouteStatus::Moving) => Phase::Landing,
        None if facts.newest.as_ref().is_some_and(|it| it.outcome == Some(Outcome::Moved)) => Phase::Landing,
        None => Phase::Unplaced,
    }
}

fn open(facts: &Facts) -> Option<&Move> {
    facts.newest.as_ref().filter(|it| it.finished_at.is_none())
}

/// A box that is not heard carries nothing out, whatever it said last.
fn silent(facts: &Facts, phase: &Phase) -> Option<Reason> {
    let seat = facts.seat.as_ref()?;
    let unserved = facts.job.as_ref().is_some_and(|(_, why)| why.reasons.iter().any(|it| nobody(it.code)));
    if seat.live && !unserved {
        return None;
    }
    let since = seat.seen_at;
    let waits = match phase {
        Phase::Serving => "nothing that is asked of it is done meanwhile",
        Phase::Moving(_) | Phase::Landing | Phase::Unplaced => {
            "what it has begun waits for it, and nobody else goes on with that"
        }
    };
    let message =
        format!("Box {} in {} is not heard, the last time at {}: {waits}.", seat.identity, seat.region, told(since));
    Some(Reason {
        todo: Some(advice::of("box_silent", facts).unwrap_or_default()),
        permanent: true,
        since: Some(since),
        ..Reason::new("box_silent", message)
    })
}

/// What the box itself says.
fn held_up(facts: &Facts, phase: &Phase) -> Option<Reason> {
    let (obstacle, since) = match phase {
        Phase::Moving(_) => {
            let open = open(facts)?;
            let obstacle = open.status.obstacle.clone()?;
            let since = open.status.obstacle_since;
            if is_overcome(facts, open, since) {
                return None;
            }
            (obstacle, since)
        }
        Phase::Landing | Phase::Unplaced | Phase::Serving => return None,
    };
    Some(held_by(facts, obstacle, since))
}

/// What holds up the landing of the record, in whatever phase.
fn landing_held(facts: &Facts) -> Option<Reason> {
    let held = facts.record.held.clone()?;
    let obstacle = Obstacle { code: held.code, message: held.message, permanent: held.permanent };
    Some(held_by(facts, obstacle, Some(held.since)))
}

fn held_by(facts: &Facts, obstacle: Obstacle, since: Option<Timestamp>) -> Reason {
    let (job, until) = facts.job.as_ref().map_or((None, None), |(job, _)| {
        (Some(job.id), (job.run_at > facts.now && job.state == queue::JobState::Scheduled).then_some(job.run_at))
    });
    let todo = advice::of(&obstacle.code, facts);
    let (message, permanent) = (sentence(&obstacle.message), obstacle.permanent);
    Reason { code: obstacle.code, message, todo, permanent, since, until, job }
}

/// Whether an obstacle of a cut or an abort is past: what was noted before the verb, or before a step that went well, is
/// no longer so. Rounds clear theirs themselves.
fn is_overcome(facts: &Facts, open: &Move, since: Option<Timestamp>) -> bool {
    let began = match open.state.known() {
        Some(MoveState::Cutting) => open.cut_at,
        Some(MoveState::Aborting) => open.aborted_at,
        Some(MoveState::Preparing | MoveState::Ready) | None => None,
    };
    let Some(began) = began else { return false };
    let steps = || facts.steps.iter().filter(|step| step.started_at >= began);
    let outcome = |step: &MoveStep| step.outcome.as_deref().map(|outcome| matches!(outcome, "failed" | "left"));
    let failed = steps().find(|step| outcome(step) == Some(true));
    match failed {
        // The steps before it are made again with each try, and say nothing of it.
        Some(failed) => steps().any(|step| {
            step.step == failed.step && outcome(step) == Some(false) && step.started_at > failed.started_at
        }),
        None => since.is_none_or(|since| {
            since < began
                || steps().any(|step| outcome(step) == Some(false) && step.ended_at.is_some_and(|at| since <= at))
        }),
    }
}

/// Whether a job's reason says that nobody is there who would take it.
fn nobody(code: &str) -> bool {
    matches!(code, "unserved_queue" | "unserved_kind" | "workers_silent")
}

/// What keeps the job from running that would go on with it.
fn of_job(facts: &Facts, phase: &Phase) -> Vec<Reason> {
    let Some((job, why)) = &facts.job else {
        return going::without_job(facts, phase).into_iter().collect();
    };
    let mut reasons = Vec::new();
    for held in &why.reasons {
        if nobody(held.code) {
            if facts.seat.is_none() {
                let region = &facts.record.region;
                reasons.push(Reason {
                    todo: advice::of("no_box", facts),
                    permanent: true,
                    since: Some(job.run_at),
                    job: Some(job.id),
                    ..Reason::new("no_box", format!("No live box of {region} that can host takes it."))
                });
            }
            continue;
        }
        let holds = matches!(
            held.code,
            "lease_expired"
                | "cancel_requested"
                | "waits_for_retry"
                | "paused_queue"
                | "paused_kind"
                | "queue_limit"
                | "key_limit"
                | "rate_limit"
                | "workers_full"
                | "workers_draining"
                | "behind_others"
        );
        if holds {
            reasons.push(Reason {
                todo: advice::of(held.code, facts),
                permanent: matches!(held.code, "paused_queue" | "paused_kind"),
                since: held.since,
                until: held.until,
                job: Some(job.id),
                ..Reason::new(held.code, format!("Its job waits. {}", held.message))
            });
        }
    }
    reasons
}

/// A moment in a sentence.
fn told(at: Timestamp) -> String {
    at.format("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// A box's words as a sentence.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let Some(first) = chars.next() else { return "The box said nothing more.".to_owned() };
    let rest = chars.as_str();
    let end = if rest.ends_with(['.', '?', '!']) { "" } else { "." };
    // An identifier keeps its case: only a word begins a sentence with a capital.
    let word = text.split(' ').next().unwrap_or_default().chars().all(char::is_alphabetic);
    let first = if word { first.to_uppercase().to_string() } else { first.to_string() };
    format!("{first}{rest}{end}")
}
