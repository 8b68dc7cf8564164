//! What is read before the answer is decided.

use std::time::Duration;

use serde::Deserialize;

use crate::clock::Timestamp;
use crate::ids::{JobId, WorkerId};
use crate::queue::{Job, Pause};

/// Jobs ahead of one that are counted; what is more is told as this number and "at least".
pub const AHEAD_LIMIT: i64 = 1000;

/// What is known of a job that is asked why it does not run.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The moment of the facts, on the database's clock.
    pub now: Timestamp,
    /// The job.
    pub job: Job,
    /// When somebody asked it to end, and why, where it runs.
    pub cancel: Option<(Timestamp, String)>,
    /// The workers that name its queue and were heard within the last day, by what they could do for it.
    pub workers: Vec<Workers>,
    /// Due jobs that those who serve it take before it, up to [`AHEAD_LIMIT`]: as the worker sees it that has the fewest.
    pub ahead: i64,
    /// The pauses of its queue and of its kind.
    pub pauses: Vec<Pause>,
    /// The limits that it falls under, with their places.
    pub limits: Vec<Places>,
}

/// The places under one limit, as a lease counts them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// Which limit.
    pub of: Limited,
    /// How many there are.
    pub most: i64,
    /// How many are taken; more than there are where the limit was lowered.
    pub taken: i64,
    /// Who holds them, the longest first: at most [`HOLDERS_LIMIT`]. None for starts.
    pub holders: Vec<Holder>,
    /// When the next one is free, where time alone frees it.
    pub free_at: Option<Timestamp>,
}

/// Holders of places that are named.
pub const HOLDERS_LIMIT: i64 = 5;

/// What a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limited {
    /// Jobs of the queue that run.
    Queue,
    /// Jobs of the job's concurrency key that run.
    Key,
    /// Jobs of its key that started within this span.
    Starts(Duration),
}

/// A job that holds a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Holder {
    /// The job.
    pub job: JobId,
    /// The worker that runs it.
    pub worker: WorkerId,
}

/// Workers that name the job's queue and are alike in what they could do for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workers {
    /// Whether they can run its kind.
    pub serve_kind: bool,
    /// What they do now.
    pub standing: Standing,
    /// How many they are.
    pub workers: i64,
    /// Leases that they hold.
    pub running: i64,
    /// Jobs that they run at once, all together.
    pub concurrency: i64,
    /// When one of them was heard last.
    pub heard_at: Timestamp,
    /// The one that was heard last.
    pub heard: WorkerId,
}

/// What a worker does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::Type)]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum Standing {
    /// Takes work.
    Free,
    /// Runs as many jobs as it can at once.
    Full,
    /// Takes no more work: it stops.
    Draining,
    /// Was not heard lately.
    Silent,
}
