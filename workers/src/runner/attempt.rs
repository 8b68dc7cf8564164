//! One lease, from its handler's first step to the verdict; whatever drives it, this is what is driven.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::entropy;
use domain::queue::{Backoff, KindSpec, Outcome};
use futures::FutureExt as _;
use serde_json::{Value, json};
use tracing::Instrument as _;

use super::config::MAX_ERROR_BYTES;
use super::context::JobContext;
use super::core::Core;
use super::job::{Done, Failure, JobError};
use super::lease::{HeldLease, Stop};

/// What is left to do when a handler has ended.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Record this.
    Settle(Outcome),
    /// Record this once: the lease may have ended, and then nobody is helped by further tries.
    SettleOnce(Outcome),
    /// The lease is somebody else's: record nothing.
    Lost,
    /// The lease was handed back before the handler began.
    HandedBack,
}

/// Runs the handler of one lease until it ends, or until it must.
///
/// When this returns, the handler's future has been dropped: nothing of it runs on, unless the handler spawned it.
pub(super) async fn run(core: &Arc<Core>, held: &Arc<HeldLease>) -> Verdict {
    if !held.begin() {
        return Verdict::HandedBack;
    }
    let began = Instant::now();
    held.meter.started.increment(1);
    held.meter.running.increment(1.0);
    let wait = (held.leased.leased_at - held.leased.run_at).to_std().unwrap_or_default();
    held.meter.wait_seconds.record(wait.as_secs_f64());
    let verdict = judged(core, held).instrument(held.span.clone()).await;
    held.meter.running.decrement(1.0);
    held.meter.run_seconds.record(began.elapsed().as_secs_f64());
    verdict
}

async fn judged(core: &Arc<Core>, held: &Arc<HeldLease>) -> Verdict {
    let Some(entry) = core.registry.get(&held.leased.kind) else {
        // Only kinds of the registry are leased, so this is a store that answers what was not asked.
        return Verdict::Settle(Outcome::Released);
    };
    let spec = &entry.spec;
    if let Some(reason) = held.asked_to_end() {
        return Verdict::Settle(Outcome::Cancelled { reason: reason.to_owned() });
    }
    tracing::debug!("job began");
    let context = JobContext::of(core, held);
    let handler = AssertUnwindSafe(entry.handler.run(&held.leased.args, context)).catch_unwind();
    tokio::pin!(handler);

    tokio::select! {
        biased;
        () = held.stopped.cancelled() => return stopped(held),
        ended = &mut handler => return concluded(spec, held, ended),
        () = after(held.leased.deadline) => return deadline_exceeded(spec, held),
        () = core.drained.cancelled() => return snoozed_by_drain(),
        () = held.cancel.cancelled() => {}
    }
    // Asked to end. It gets a grace; what does not end by itself in time is dropped.
    tokio::select! {
        biased;
        () = held.stopped.cancelled() => stopped(held),
        ended = &mut handler => concluded(spec, held, ended),
        () = tokio::time::sleep(held.life / 3) => {
            tracing::warn!("the handler did not end when asked to: dropped");
            cancelled(held)
        }
        () = core.drained.cancelled() => cancelled(held),
    }
}

async fn after(limit: Option<Duration>) {
    match limit {
        Some(limit) => tokio::time::sleep(limit).await,
        None => std::future::pending().await,
    }
}

fn stopped(held: &HeldLease) -> Verdict {
    match held.why_stopped() {
        Some(Stop::Lost) => lost(held),
        // No fault of the job: no attempt is spent. The fence decides whether this is still ours to say.
        Some(Stop::Expiring) | None => Verdict::SettleOnce(Outcome::Snoozed { after: Duration::ZERO }),
    }
}

/// The lease is no longer the job's. Where the handler settled inside a transaction, that may be because it committed:
/// the database knows, and an outcome that would do no harm asks it.
fn lost(held: &HeldLease) -> Verdict {
    match held.inside() {
        Some(_) => Verdict::SettleOnce(Outcome::Snoozed { after: Duration::ZERO }),
        None => Verdict::Lost,
    }
}

fn cancelled(held: &HeldLease) -> Verdict {
    let reason = held.asked_to_end().unwrap_or("asked to end").to_owned();
    Verdict::Settle(Outcome::Cancelled { reason })
}

fn snoozed_by_drain() -> Verdict {
    tracing::info!("the worker stops: the job goes to another");
    Verdict::Settle(Outcome::Snoozed { after: Duration::ZERO })
}

fn deadline_exceeded(spec: &KindSpec, held: &HeldLease) -> Verdict {
    let limit_ms = held.leased.deadline.unwrap_or_default().as_millis();
    let message = format!("the handler ran longer than its deadline of {limit_ms} ms");
    Verdict::Settle(failed(spec, held, "deadline_exceeded", &message, None))
}

type Ended = Result<Result<Done, Failure>, Box<dyn Any + Send>>;

fn concluded(spec: &KindSpec, held: &HeldLease, ended: Ended) -> Verdict {
    let outcome = match ended {
        Ok(Ok(Done::Complete(result))) => return Verdict::Settle(Outcome::Completed { result }),
        Ok(Err(Failure::Job(JobError::LeaseLost))) => return lost(held),
        // Whatever else it says, it was asked to end and did.
        _ if held.asked_to_end().is_some() => return cancelled(held),
        Ok(Ok(Done::Snooze { after })) => Outcome::Snoozed { after },
        Ok(Err(Failure::Job(JobError::Retry { after, source }))) => {
            failed(spec, held, "failed", &format!("{source:#}"), after)
        }
        Ok(Err(Failure::Job(JobError::Discard(reason)))) => Outcome::Discarded { error: error("discarded", &reason) },
        Ok(Err(Failure::Job(JobError::Cancel(reason)))) => Outcome::Cancelled { reason },
        Ok(Err(Failure::BadArgs(source))) => {
            let message = format!("the arguments are not those of {}: {source}", spec.kind);
            if spec.protected {
                failed(spec, held, "bad_args", &message, None)
            } else {
                // No later attempt decodes what this one could not.
                Outcome::Discarded { error: error("bad_args", &message) }
            }
        }
        Err(panic) => failed(spec, held, "panic", &panic_message(&*panic), None),
    };
    Verdict::Settle(outcome)
}

/// A failure with the kind's wait, or the handler's own.
pub(super) fn failed(spec: &KindSpec, held: &HeldLease, code: &str, message: &str, after: Option<Duration>) -> Outcome {
    let after = after.unwrap_or_else(|| wait(&spec.backoff, held.leased.attempt));
    Outcome::Failed { error: error(code, message), after }
}

fn wait(backoff: &Backoff, attempt: i32) -> Duration {
    backoff.wait(attempt, entropy::fraction())
}

/// An error as it is kept with the job: a code for programs, a bounded sentence for people.
pub(super) fn error(code: &str, message: &str) -> Value {
    json!({"code": code, "message": bounded(message)})
}

/// At most [`MAX_ERROR_BYTES`], cut between characters, and without NUL, which the database cannot keep.
fn bounded(message: &str) -> String {
    let message = message.replace('\0', "\u{fffd}");
    if message.len() <= MAX_ERROR_BYTES {
        return message;
    }
    let mut end = MAX_ERROR_BYTES - '…'.len_utf8();
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &message[..end])
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_message_is_bounded_and_cut_between_characters() {
        let kept = bounded(&"é".repeat(5000));
        assert!(kept.len() <= MAX_ERROR_BYTES && kept.ends_with('…'));
        assert_eq!(bounded("a\0b"), "a\u{fffd}b");
        assert_eq!(bounded("short"), "short");
    }

    #[test]
    fn a_panic_tells_its_message() {
        let literal = std::panic::catch_unwind(|| panic!("no")).expect_err("it panics");
        assert_eq!(panic_message(&*literal), "no");
        let formatted = std::panic::catch_unwind(|| panic!("no {}", 1)).expect_err("it panics");
        assert_eq!(panic_message(&*formatted), "no 1");
        assert_eq!(panic_message(&5_u8), "a panic without a message");
    }
}
