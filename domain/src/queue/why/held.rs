//! What an operator's will holds back: pauses and limits.

use super::{Facts, Limited, Places, Reason, count, told};
use crate::clock::Timestamp;
use crate::queue::Pause;

/// The pauses that hold the job, that of its queue first.
pub(super) fn paused(facts: &Facts) -> Vec<Reason> {
    facts.pauses.iter().map(pause).collect()
}

fn pause(pause: &Pause) -> Reason {
    let by = pause.paused_by_name.as_deref().unwrap_or("the program itself");
    let because = if pause.reason.is_empty() { String::new() } else { format!(": {}", pause.reason) };
    let (since, name) = (told(pause.paused_at), &pause.name);
    let (code, what, resume) = if pause.scope == "kind" {
        ("paused_kind", "kind", format!("--kind {name}"))
    } else {
        ("paused_queue", "queue", name.clone())
    };
    Reason {
        since: Some(pause.paused_at),
        by: pause.paused_by_name.clone(),
        reason: Some(pause.reason.clone()).filter(|reason| !reason.is_empty()),
        ..Reason::new(
            code,
            format!(
                "The {what} {name} is paused by {by} since {since}{because}. To let it go on: leasehold queue resume \
                 {resume} --reason …"
            ),
        )
    }
}

/// The limits under which no place is free.
pub(super) fn limited(facts: &Facts) -> Vec<Reason> {
    let full = facts.limits.iter().filter(|places| places.taken >= places.most);
    full.map(|places| limit(facts, places)).collect()
}

fn limit(facts: &Facts, places: &Places) -> Reason {
    let job = &facts.job;
    let (queue, key) = (&job.queue, job.concurrency_key.as_deref().unwrap_or_default());
    let many = format!("{} of {}", places.taken, places.most);
    let about = Reason {
        limit: Some(places.most),
        running: Some(places.taken),
        holders: places.holders.clone(),
        key: job.concurrency_key.clone(),
        ..Reason::new("", "")
    };
    match places.of {
        Limited::Queue => Reason {
            code: "queue_limit",
            message: format!(
                "{many} jobs that queue {queue} may run at once are running{}. Wait for one of them, or raise the limit: \
                 leasehold queue limit {queue} --running N --reason …",
                holders(places),
            ),
            key: None,
            ..about
        },
        Limited::Key => Reason {
            code: "key_limit",
            message: format!(
                "{many} jobs that concurrency key {key} may run at once on queue {queue} are running{}. Wait for one of \
                 them, or raise the limit: leasehold queue limit {queue} --running-per-key N --reason …",
                holders(places),
            ),
            ..about
        },
        Limited::Starts(span) => Reason {
            code: "rate_limit",
            message: format!(
                "{many} jobs that concurrency key {key} may start within {} on queue {queue} have started{}. Wait, or \
                 raise the rate: leasehold queue limit {queue} --starts-per-key N/SPAN --reason …",
                count(i64::try_from(span.as_secs()).unwrap_or(i64::MAX), "second", "seconds"),
                places.free_at.map_or_else(String::new, |at| format!(": the next may start at {}", exactly(at))),
            ),
            until: places.free_at,
            running: None,
            jobs: Some(places.taken),
            ..about
        },
    }
}

/// Who holds the places, as far as they are named.
fn holders(places: &Places) -> String {
    let named: Vec<String> =
        places.holders.iter().map(|held| format!("job {} on worker {}", held.job, held.worker)).collect();
    if named.is_empty() {
        return String::new();
    }
    let more = places.taken - i64::try_from(named.len()).unwrap_or(i64::MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(": {}{more}", named.join(", "))
}

/// To the microsecond: a second too early is no answer to "when?".
fn exactly(at: Timestamp) -> String {
    format!("{} UTC", at.format("%Y-%m-%d %H:%M:%S%.6f"))
}
