//! Why a job does not run, as one answer: facts in, reasons out. Pure; the facts are read by the store.
//!
//! Each reason is told apart from the others: a job may wait for its time *and* have nobody who would take it then. The
//! first reason is the one that an operator would act on first.
//!
//! # Extending
//! Another thing that can hold a due job back is a field of [`Facts`], a code here, and a line of `holding`, which keeps
//! the order in which an operator would lift them. Whoever reads the answer takes a code that it does not know by its
//! sentence.

use serde_json::Value;

mod facts;
mod held;
#[cfg(test)]
mod tests;

pub use facts::{AHEAD_LIMIT, Facts, HOLDERS_LIMIT, Holder, Limited, Places, Standing, Workers};

use super::policy::CANCEL_GRACE;
use super::{Job, JobState};
use crate::clock::Timestamp;
use crate::ids::{JobId, WorkerId};

/// Why a job does not run, or what it does instead of waiting.
#[derive(Debug, Clone, PartialEq)]
pub struct Why {
    /// The job.
    pub job: JobId,
    /// Its state.
    pub state: JobState,
    /// The moment of the answer, on the database's clock.
    pub now: Timestamp,
    /// At least one; the one to act on first stands first.
    pub reasons: Vec<Reason>,
}

/// One reason. Facts that do not belong to it are absent.
#[derive(Debug, Clone, PartialEq)]
pub struct Reason {
    /// Stable, for programs.
    pub code: &'static str,
    /// A sentence for people, with what to do where something can be done.
    pub message: String,
    /// The worker that it is about.
    pub worker: Option<WorkerId>,
    /// Since when.
    pub since: Option<Timestamp>,
    /// Until when.
    pub until: Option<Timestamp>,
    /// Who paused it, by name.
    pub by: Option<String>,
    /// What they said why.
    pub reason: Option<String>,
    /// The concurrency key that is limited.
    pub key: Option<String>,
    /// Places that the limit has.
    pub limit: Option<i64>,
    /// Who holds places under the limit, the longest first: some of them.
    pub holders: Vec<Holder>,
    /// How many workers it is about.
    pub workers: Option<i64>,
    /// Leases that these workers hold, or that have a place under the limit.
    pub running: Option<i64>,
    /// Jobs that these workers run at once.
    pub concurrency: Option<i64>,
    /// How many jobs it is about.
    pub jobs: Option<i64>,
    /// Whether there may be more jobs than `jobs` says.
    pub jobs_at_least: bool,
    /// The error that led here.
    pub error: Option<Value>,
}

impl Reason {
    /// A reason of which nothing is known but its sentence, for answers that are made of this one.
    #[cfg(test)]
    pub(crate) fn of(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(code, message)
    }

    fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            worker: None,
            since: None,
            until: None,
            by: None,
            reason: None,
            key: None,
            limit: None,
            holders: Vec::new(),
            workers: None,
            running: None,
            concurrency: None,
            jobs: None,
            jobs_at_least: false,
            error: None,
        }
    }
}

/// Every code of a reason.
pub const CODES: [&str; 22] = [
    "running",
    "lease_expired",
    "cancel_requested",
    "scheduled",
    "snoozed",
    "waits_for_retry",
    "due_soon",
    "paused_queue",
    "paused_kind",
    "unserved_queue",
    "unserved_kind",
    "queue_limit",
    "key_limit",
    "rate_limit",
    "workers_full",
    "workers_draining",
    "workers_silent",
    "behind_others",
    "next",
    "completed",
    "cancelled",
    "discarded",
];

/// The answer.
#[must_use]
pub fn decide(facts: &Facts) -> Why {
    let job = &facts.job;
    let reasons = match job.state {
        JobState::Running => running(facts),
        JobState::Scheduled | JobState::Retryable => {
            let mut reasons = vec![waiting(facts)];
            // Who is busy now may be free then, and so may a place under a limit; a pause, and that nobody can run it at
            // all, are worth knowing before it is due.
            reasons.extend(held::paused(facts));
            reasons.extend(unserved(facts));
            reasons
        }
        JobState::Available => {
            let reasons = holding(facts);
            if reasons.is_empty() { vec![next(facts)] } else { reasons }
        }
        JobState::Completed | JobState::Cancelled | JobState::Discarded => vec![finished(job)],
    };
    Why { job: job.id, state: job.state, now: facts.now, reasons }
}

fn running(facts: &Facts) -> Vec<Reason> {
    let job = &facts.job;
    let (worker, since, until) = job
        .lease
        .as_ref()
        .map_or((job.worker, None, None), |lease| (Some(lease.worker), Some(lease.leased_at), Some(lease.expires_at)));
    let holder = worker.map_or_else(|| "a worker".to_owned(), |id| format!("worker {id}"));
    let lapsed = until.filter(|until| *until <= facts.now);
    let mut reasons = vec![match (lapsed, until) {
        (Some(at), _) => Reason {
            worker,
            since: lapsed,
            ..Reason::new(
                "lease_expired",
                format!(
                    "It ran on {holder}, whose lease ended at {}: the next sweep of any live worker makes it available.",
                    told(at)
                ),
            )
        },
        (None, Some(at)) => Reason {
            worker,
            since,
            until,
            ..Reason::new("running", format!("It runs on {holder}, under a lease until {} or longer.", told(at)))
        },
        (None, None) => Reason { worker, since, ..Reason::new("running", format!("It runs on {holder}.")) },
    }];
    if let Some((at, reason)) = &facts.cancel {
        let because = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
        let until = *at + CANCEL_GRACE;
        reasons.push(Reason {
            since: Some(*at),
            until: Some(until),
            ..Reason::new(
                "cancel_requested",
                format!("It is asked to end{because}; what ignores this is fenced off after {}.", told(until)),
            )
        });
    }
    reasons
}

/// What a job that is not due waits for.
fn waiting(facts: &Facts) -> Reason {
    let job = &facts.job;
    let (at, until) = (told(job.run_at), Some(job.run_at));
    if job.run_at <= facts.now {
        let message = format!("It is due since {at}: the next sweep of any live worker makes it available.");
        return Reason { since: until, ..Reason::new("due_soon", message) };
    }
    if job.state == JobState::Retryable {
        let after = job.last_error.as_ref().map_or_else(String::new, |error| format!(": {}", line(error)));
        let message =
            format!("Attempt {} of {} failed{after}. It is tried again at {at}.", job.attempt, job.max_attempts);
        return Reason { until, error: job.last_error.clone(), ..Reason::new("waits_for_retry", message) };
    }
    // A job comes back to this state by a snooze alone.
    if job.fence.0 > 0 {
        return Reason { until, ..Reason::new("snoozed", format!("Its handler put it off until {at}.")) };
    }
    Reason { until, ..Reason::new("scheduled", format!("It is to run at {at}, not before.")) }
}

/// What holds a due job back, in the order in which an operator would lift it; nothing where a worker is about to take
/// it.
fn holding(facts: &Facts) -> Vec<Reason> {
    let mut reasons = held::paused(facts);
    let unserved = unserved(facts);
    if unserved.is_empty() {
        reasons.extend(held::limited(facts));
        reasons.extend(busy(facts));
        reasons.extend(behind(facts));
    }
    reasons.extend(unserved);
    reasons
}

/// Where no worker that is heard takes such jobs.
fn unserved(facts: &Facts) -> Vec<Reason> {
    let (kind, queue) = (&facts.job.kind, &facts.job.queue);
    let heard = |group: &&Workers| group.standing != Standing::Silent;
    let naming: i64 = facts.workers.iter().filter(heard).map(|group| group.workers).sum();
    let able: Vec<&Workers> = facts.workers.iter().filter(|group| group.serve_kind).collect();
    if able.is_empty() {
        let start = format!("start one that can run this kind: leasehold worker --queues {queue}");
        return vec![if naming == 0 {
            let message = format!("No live worker serves {kind} on queue {queue}. None names the queue: {start}");
            Reason { workers: Some(0), ..Reason::new("unserved_queue", message) }
        } else {
            let message = format!(
                "No live worker serves {kind} on queue {queue}. {} the queue and cannot run the kind: {start}",
                count(naming, "worker names", "workers name"),
            );
            Reason { workers: Some(naming), ..Reason::new("unserved_kind", message) }
        }];
    }
    if able.iter().any(|group| matches!(group.standing, Standing::Free | Standing::Full)) {
        return Vec::new();
    }
    able.iter().map(|group| standing(group)).collect()
}

/// Where all who could take it have their hands full, each group with its reason.
fn busy(facts: &Facts) -> Vec<Reason> {
    let able = || facts.workers.iter().filter(|group| group.serve_kind);
    if able().any(|group| group.standing == Standing::Free) {
        return Vec::new();
    }
    let mut reasons: Vec<Reason> = able().map(standing).collect();
    // Those that will take it stand before those that will not.
    reasons.sort_by_key(|reason| reason.code != "workers_full");
    reasons
}

fn standing(group: &Workers) -> Reason {
    let (workers, n) = (Some(group.workers), group.workers);
    match group.standing {
        Standing::Silent => Reason {
            workers,
            worker: Some(group.heard),
            since: Some(group.heard_at),
            ..Reason::new(
                "workers_silent",
                format!(
                    "{} it and {} not heard, the last one ({}) since {}: see whether it lives and reaches the database.",
                    count(n, "worker serves", "workers serve"),
                    if n == 1 { "is" } else { "are" },
                    group.heard,
                    told(group.heard_at),
                ),
            )
        },
        Standing::Draining => Reason {
            workers,
            worker: Some(group.heard),
            ..Reason::new(
                "workers_draining",
                format!("{} it and {} no more work: stopping.", count(n, "worker serves", "workers serve"), takes(n)),
            )
        },
        Standing::Full | Standing::Free => Reason {
            workers,
            running: Some(group.running),
            concurrency: Some(group.concurrency),
            ..Reason::new(
                "workers_full",
                format!(
                    "{} it and {} all that fits: {} of {} at once. Start more workers, or wait.",
                    count(n, "worker serves", "workers serve"),
                    if n == 1 { "runs" } else { "run" },
                    group.running,
                    group.concurrency,
                ),
            )
        },
    }
}

/// Where others come first.
fn behind(facts: &Facts) -> Option<Reason> {
    if facts.ahead <= 0 {
        return None;
    }
    let at_least = facts.ahead >= AHEAD_LIMIT;
    let message = format!(
        "{}{} taken before it, by priority, then by when they were due.",
        if at_least { "At least " } else { "" },
        count(facts.ahead, "due job is", "due jobs are"),
    );
    Some(Reason { jobs: Some(facts.ahead), jobs_at_least: at_least, ..Reason::new("behind_others", message) })
}

fn next(facts: &Facts) -> Reason {
    let since = facts.job.run_at;
    let message = format!("It is due since {} and next: a worker takes it at its next poll.", told(since));
    Reason { since: Some(since), ..Reason::new("next", message) }
}

fn finished(job: &Job) -> Reason {
    let at = job.finished_at.map_or_else(String::new, |at| format!(" at {}", told(at)));
    let because = job.last_error.as_ref().map_or_else(|| ".".to_owned(), |error| format!(": {}.", line(error)));
    let (code, message) = match job.state {
        JobState::Cancelled => ("cancelled", format!("It was cancelled{at}{because}")),
        JobState::Discarded => (
            "discarded",
            format!(
                "It was discarded{at}{because} It runs no more unless an operator retries it: leasehold job retry {}",
                job.id
            ),
        ),
        JobState::Completed | JobState::Scheduled | JobState::Available | JobState::Running | JobState::Retryable => {
            ("completed", format!("It completed{at}."))
        }
    };
    // An error of an earlier attempt is no reason why a job completed.
    let error = job.last_error.clone().filter(|_| job.state != JobState::Completed);
    Reason { since: job.finished_at, error, ..Reason::new(code, message) }
}

const fn takes(n: i64) -> &'static str {
    if n == 1 { "takes" } else { "take" }
}

fn count(n: i64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

fn told(at: Timestamp) -> String {
    format!("{} UTC", at.format("%Y-%m-%d %H:%M:%S"))
}

/// The first line of an error, as a sentence's end without its full stop.
fn line(error: &Value) -> String {
    const MOST: usize = 200;
    let text = error.get("message").and_then(Value::as_str).or_else(|| error.as_str());
    let text = text.map_or_else(|| error.to_string(), str::to_owned);
    text.lines().next().unwrap_or_default().trim_end_matches('.').chars().take(MOST).collect()
}
