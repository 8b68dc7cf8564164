//! Of instances' moves, and of why an instance is where it is.

use domain::instances::{self, moves};

use super::{millis, whole_seconds};

/// The wire's form of a move.
#[must_use]
pub fn move_view(found: moves::Move) -> wire::MoveView {
    let since = found.status.obstacle_since;
    wire::MoveView {
        id: found.id.0,
        app: found.app.into(),
        host: found.host.into(),
        from: found.from.into(),
        to: found.to.into(),
        state: found.state.into(),
        requested_at: found.requested_at,
        ready_at: found.ready_at,
        finished_at: found.finished_at,
        outcome: found.outcome.map(|outcome| outcome.as_str().to_owned()),
        cut_auto: found.cut_auto,
        freeze_budget: found.freeze_budget.map(whole_seconds),
        cut_at: found.cut_at,
        predicted_freeze_ms: found.predicted_freeze.map(millis),
        cut_forced: found.cut_forced,
        aborted_at: found.aborted_at,
        tail: found.tail.map(|tail| wire::Tail { txid: tail.txid, sha256: tail.sha256, size: tail.size }),
        purge_began_at: found.purge_began_at,
        landed_at: found.landed_at,
        staging_deleted_at: found.staging_deleted_at,
        given_up_at: found.given_up_at,
        node_id: found.node.map(|node| node.0),
        job_id: found.job.map(|job| job.0),
        round: found.round,
        last_round: found.status.last_round,
        last: found.status.last.map(round_numbers),
        obstacle: found.status.obstacle.map(|obstacle| wire::Obstacle {
            code: obstacle.code,
            message: obstacle.message,
            permanent: obstacle.permanent,
            since,
        }),
        failures: found.status.failures,
    }
}

fn round_numbers(numbers: moves::RoundNumbers) -> wire::RoundNumbers {
    wire::RoundNumbers {
        iterations: numbers.iterations,
        source_keys: numbers.source_keys,
        copied: numbers.copied,
        copied_bytes: numbers.copied_bytes,
        deleted: numbers.deleted,
        lost: numbers.lost,
        differ_copies: numbers.differ_copies,
        differ_bytes: numbers.differ_bytes,
        differ_deletes: numbers.differ_deletes,
        lag_ms: numbers.lag_ms,
        newest_txid: numbers.newest_txid,
        requests: numbers.requests,
        elapsed_ms: numbers.elapsed_ms,
    }
}

/// The wire's form of a row of a move's journal.
#[must_use]
pub fn move_step(step: moves::MoveStep) -> wire::MoveStep {
    wire::MoveStep {
        id: step.id,
        step: step.step,
        round: step.round,
        iterations: step.iterations,
        started_at: step.started_at,
        ended_at: step.ended_at,
        outcome: step.outcome,
        evidence: step.evidence,
        job_id: step.job.0,
        fence: step.fence.0,
    }
}

/// The wire's form of what a move did and left.
#[must_use]
pub fn receipt(receipt: instances::Receipt) -> wire::MoveReceipt {
    let instances::Receipt { moved, old_replica, steps } = receipt;
    wire::MoveReceipt {
        frozen_ms: moved.landed_at.zip(moved.cut_at).map(|(landed, cut)| (landed - cut).num_milliseconds()),
        moved: move_view(moved),
        old_replica: old_replica.map(|old| wire::OldReplica {
            region: old.region.into(),
            bucket: old.bucket.name,
            prefix: old.prefix,
            keep_until: old.keep_until,
            purge_began_at: old.purge_began_at,
            deleted_keys: old.deleted.keys,
            deleted_versions: old.deleted.versions,
            purged_at: old.purged_at,
            receipt: old.receipt,
            superseded_at: old.superseded_at,
            superseded_by: old.superseded_by.map(|by| by.0),
        }),
        steps: steps.into_iter().map(move_step).collect(),
    }
}

/// The wire's form of why an instance is where it is.
#[must_use]
pub fn instance_why(why: instances::why::Why) -> wire::InstanceWhy {
    let reason = |reason: instances::why::Reason| wire::InstanceReason {
        code: reason.code,
        message: reason.message,
        todo: reason.todo,
        permanent: reason.permanent,
        since: reason.since,
        until: reason.until,
        job_id: reason.job.map(|job| job.0),
    };
    wire::InstanceWhy {
        app: why.record.app.into(),
        host: why.record.host.into(),
        now: why.now,
        phase: why.phase.as_str().to_owned(),
        region: why.record.region.into(),
        observed_region: why.record.observed_region.flatten().map(Into::into),
        seat: why.seat.map(|seat| wire::Seat {
            node_id: seat.node.0,
            identity: seat.identity,
            region: seat.region.into(),
            live: seat.live,
            seen_at: seat.seen_at,
        }),
        parked: why.record.parked.unwrap_or_default(),
        moving: why.newest.map(move_view),
        steps: why.steps.into_iter().map(move_step).collect(),
        job_id: why.job.map(|job| job.0),
        progress: why.progress.and_then(|value| serde_json::from_value(value).ok()),
        frozen_since: why.frozen_since,
        predicted_freeze_ms: why.predicted_freeze.map(millis),
        reasons: why.reasons.into_iter().map(reason).collect(),
    }
}
