//! From what the domain knows to what the wire says.

use std::time::Duration;

use domain::nodes;
use domain::{audit, authority, queue};

mod enrolment;
mod moves;
mod rehearsal;
mod report;

pub use enrolment::{control_plane, node};
pub use moves::{instance_why, move_step, move_view, receipt};
pub use rehearsal::{look, rehearsal};
pub use report::{node_rebuild, node_report, report};

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

fn whole_seconds(span: Duration) -> u32 {
    u32::try_from(span.as_secs()).unwrap_or(u32::MAX)
}

/// The wire's form of a job.
#[must_use]
pub fn job(job: queue::Job) -> wire::Job {
    wire::Job {
        id: job.id.0,
        kind: job.kind.into(),
        queue: job.queue.into(),
        state: state(job.state),
        args: job.args,
        priority: job.priority,
        tags: job.tags,
        run_at: job.run_at,
        created_at: job.created_at,
        attempt: job.attempt,
        max_attempts: job.max_attempts,
        interruptions: job.interruptions,
        revision: job.revision,
        lease: job.lease.map(|lease| wire::Lease {
            fence: lease.fence.0,
            worker_id: lease.worker.0,
            expires_at: lease.expires_at,
        }),
        // What a handler of a newer version wrote in another shape is left out rather than failing the whole answer.
        progress: job.progress.and_then(|value| serde_json::from_value(value).ok()),
        unique_key: job.unique_key,
        concurrency_key: job.concurrency_key,
        last_error: job.last_error,
        finished_at: job.finished_at,
        result: job.result,
        cancel_requested: job.cancel_requested,
        unserved: job.unserved,
    }
}

const fn state(state: queue::JobState) -> wire::JobState {
    match state {
        queue::JobState::Scheduled => wire::JobState::Scheduled,
        queue::JobState::Available => wire::JobState::Available,
        queue::JobState::Running => wire::JobState::Running,
        queue::JobState::Retryable => wire::JobState::Retryable,
        queue::JobState::Completed => wire::JobState::Completed,
        queue::JobState::Cancelled => wire::JobState::Cancelled,
        queue::JobState::Discarded => wire::JobState::Discarded,
    }
}

/// The wire's form of why a job does not run.
#[must_use]
pub fn why(why: queue::why::Why) -> wire::Why {
    let reason = |reason: queue::why::Reason| wire::WhyReason {
        code: reason.code.to_owned(),
        message: reason.message,
        worker_id: reason.worker.map(|worker| worker.0),
        since: reason.since,
        until: reason.until,
        by: reason.by,
        reason: reason.reason,
        key: reason.key,
        limit: reason.limit,
        holders: reason
            .holders
            .into_iter()
            .map(|held| wire::WhyHolder { job_id: held.job.0, worker_id: held.worker.0 })
            .collect(),
        workers: reason.workers,
        running: reason.running,
        concurrency: reason.concurrency,
        jobs: reason.jobs,
        jobs_at_least: reason.jobs_at_least,
        error: reason.error,
    };
    wire::Why {
        job_id: why.job.0,
        state: state(why.state),
        now: why.now,
        reasons: why.reasons.into_iter().map(reason).collect(),
    }
}

/// The wire's form of an attempt.
#[must_use]
pub fn attempt(attempt: queue::Attempt) -> wire::Attempt {
    wire::Attempt {
        attempt: attempt.attempt,
        outcome: attempt.outcome,
        first_fence: attempt.first_fence.0,
        last_fence: attempt.last_fence.0,
        worker_id: attempt.worker.map(|worker| worker.0),
        started_at: attempt.started_at,
        ended_at: attempt.ended_at,
        passes: attempt.passes,
        error: attempt.error,
    }
}

/// The wire's form of a step.
#[must_use]
pub fn step(step: queue::Step) -> wire::Step {
    wire::Step {
        seq: step.seq,
        fence: step.fence.0,
        name: step.name,
        cursor: step.cursor,
        evidence: step.evidence,
        at: step.at,
    }
}

/// The wire's form of a log line.
#[must_use]
pub fn log_line(line: queue::LogLine) -> wire::LogLine {
    wire::LogLine { seq: line.seq, fence: line.fence.0, at: line.at, level: line.level, line: line.line }
}

/// The wire's form of a kind.
#[must_use]
pub fn kind(spec: &queue::KindSpec) -> wire::Kind {
    wire::Kind {
        kind: spec.kind.to_string(),
        summary: spec.summary.to_owned(),
        queue: spec.queue.to_string(),
        lease_seconds: spec.lease.as_secs_f64(),
        deadline_seconds: spec.deadline.as_ref().map(Duration::as_secs_f64),
        max_attempts: spec.max_attempts,
        protected: spec.protected,
        public: spec.public,
        schema: spec.schema.clone(),
    }
}

/// The wire's form of a queue.
#[must_use]
pub fn queue(queue: queue::QueueView) -> wire::Queue {
    wire::Queue {
        name: queue.name,
        available: queue.available,
        waiting: queue.waiting,
        waiting_at_least: queue.waiting_at_least,
        running: queue.running,
        oldest_due_at: queue.oldest_due_at,
        served: queue.served,
        paused: queue.pause.map(pause),
        limits: limits(queue.limits),
    }
}

/// The wire's form of a pause.
#[must_use]
pub fn pause(pause: queue::Pause) -> wire::Pause {
    wire::Pause {
        scope: pause.scope,
        name: pause.name,
        paused_by_id: pause.paused_by.map(|identity| identity.0),
        paused_by: pause.paused_by_name,
        reason: pause.reason,
        paused_at: pause.paused_at,
        already: false,
    }
}

/// The wire's form of what limits a queue.
#[must_use]
pub fn limits(limits: queue::Limits) -> wire::Limits {
    wire::Limits {
        running: limits.running.map(i64::from),
        running_per_key: limits.running_per_key.map(i64::from),
        starts_per_key: limits.starts_per_key.map(|rate| wire::Rate {
            starts: rate.starts.into(),
            span_seconds: i64::try_from(rate.span.as_secs()).unwrap_or(i64::MAX),
        }),
    }
}

/// The wire's form of a queue's limits, and of who set them.
#[must_use]
pub fn queue_limits(view: queue::LimitsView) -> wire::QueueLimits {
    let wire::Limits { running, running_per_key, starts_per_key } = limits(view.limits);
    wire::QueueLimits {
        queue: view.queue.into(),
        running,
        running_per_key,
        starts_per_key,
        revision: view.revision,
        set_by_id: view.set_by.map(|identity| identity.0),
        set_by: view.set_by_name,
        reason: view.reason,
        set_at: view.set_at,
    }
}

/// The wire's form of a worker.
#[must_use]
pub fn worker(worker: queue::WorkerView) -> wire::Worker {
    wire::Worker {
        id: worker.id.0,
        host: worker.host,
        pid: worker.pid,
        version: worker.version,
        node: worker.node,
        state: worker.state,
        queues: worker.queues,
        kinds: worker.kinds,
        concurrency: worker.concurrency,
        running: worker.running,
        started_at: worker.started_at,
        seen_at: worker.seen_at,
        clock_skew_ms: worker.clock_skew_ms,
    }
}

/// The wire's form of a refused write.
#[must_use]
pub fn fenced_write(write: queue::RefusedWrite) -> wire::FencedWrite {
    wire::FencedWrite {
        id: write.id,
        job_id: write.job.0,
        kind: write.kind,
        queue: write.queue,
        worker_id: write.worker.map(|worker| worker.0),
        operation: write.operation,
        fence_held: write.fence_held.0,
        fence_current: write.fence_current.map(|fence| fence.0),
        state_current: write.state_current,
        late_ms: write.late_ms,
        at: write.at,
    }
}

/// The wire's form of a minute's count.
#[must_use]
pub fn throughput(point: queue::ThroughputPoint) -> wire::ThroughputPoint {
    wire::ThroughputPoint {
        minute: point.minute,
        queue: point.queue,
        kind: point.kind,
        outcome: point.outcome,
        total: point.total,
    }
}

/// The wire's form of a recorded act.
#[must_use]
pub fn audit_event(event: audit::Recorded) -> wire::AuditEvent {
    wire::AuditEvent {
        id: event.id,
        at: event.at,
        identity_id: event.identity.map(|identity| identity.0),
        identity: event.identity_name,
        key_id: event.key.map(|key| key.0),
        action: event.action,
        subject_kind: event.subject_kind,
        subject: event.subject,
        reason: event.reason,
        detail: event.detail,
    }
}

/// The wire's form of a key.
#[must_use]
pub fn key(key: authority::KeyView) -> wire::Key {
    wire::Key {
        id: key.id.0,
        name: key.name,
        identity_id: key.identity.0,
        identity: key.identity_name,
        identity_kind: match key.identity_kind {
            authority::IdentityKind::Person => wire::IdentityKind::Person,
            authority::IdentityKind::App => wire::IdentityKind::App,
            authority::IdentityKind::Node => wire::IdentityKind::Node,
            authority::IdentityKind::Instance => wire::IdentityKind::Instance,
        },
        roles: key.roles,
        permissions: key.permissions,
        // Written by this program in this shape.
        scopes: serde_json::from_value(key.scopes).unwrap_or_default(),
        created_at: key.created_at,
        expires_at: key.expires_at,
        revoked_at: key.revoked_at,
        revision: key.revision,
    }
}

/// A region as applications see it (M-113).
#[must_use]
pub fn region(region: nodes::Region) -> wire::Region {
    wire::Region {
        code: region.code.into(),
        name: region.name,
        armed: region.armed,
        can_host: region.can_host,
        config_key: region.config_key,
        home: region.home,
        default: region.is_default,
        dormant: None,
        data_bucket: None,
        data_bucket_region: None,
        serial: None,
    }
}

/// A region as operators see it.
#[must_use]
pub fn whole_region(whole: nodes::Region) -> wire::Region {
    let (dormant, serial, data) = (whole.dormant, whole.serial, whole.data.clone());
    let (data_bucket, data_bucket_region) = data.map(|bucket| (bucket.name, bucket.region)).unzip();
    wire::Region { dormant: Some(dormant), data_bucket, data_bucket_region, serial: Some(serial), ..region(whole) }
}
