//! Operators' acts on queues and kinds, each with its audit on the caller's transaction (I11): for the API's routes and
//! for the dashboard's forms.

use std::time::Duration;

use domain::audit::{self, Event};
use domain::authority::Caller;
use domain::ids::QueueName;
use domain::queue::{self, Limits, LimitsView, Pause, Paused};
use serde_json::{Value, json};
use sqlx::PgConnection;

use crate::convert;

/// What is done about a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// None of its jobs begins any more.
    Pause,
    /// They begin again.
    Resume,
}

/// A reason within its bounds; `Err` has the rule that it breaks.
pub(crate) fn reason(text: Option<&str>) -> Result<&str, String> {
    let reason = audit::reason(text.unwrap_or_default()).map_err(|too_long| too_long.to_string())?;
    reason.ok_or_else(|| "must say why: whoever finds it later reads this".to_owned())
}

/// As they are asked for. A number that the domain's has no room for is as far out of bounds as one that it has.
pub(crate) fn limits(asked: &wire::LimitsRequest) -> Limits {
    let small = |n: i64| u16::try_from(n.max(0)).unwrap_or(u16::MAX);
    let span = |seconds: i64| Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    Limits {
        running: asked.running.map(small),
        running_per_key: asked.running_per_key.map(small),
        starts_per_key: asked
            .starts_per_key
            .map(|rate| queue::Rate { starts: small(rate.starts), span: span(rate.span_seconds) }),
    }
}

/// Pauses a queue or a kind, and says whether it did: paused already, it stays as it was, and nothing is recorded.
///
/// # Errors
/// Only the database's.
pub(crate) async fn pause(
    conn: &mut PgConnection,
    caller: &Caller,
    what: &Paused,
    reason: &str,
) -> Result<(Pause, bool), sqlx::Error> {
    let (pause, new) = queue::pause(conn, what, Some(caller.identity), reason).await?;
    if new {
        let action = match what {
            Paused::Queue(_) => "queue.pause",
            Paused::Kind(_) => "kind.pause",
        };
        record(conn, caller, action, what, reason, json!({ "before": null })).await?;
    }
    Ok((pause, new))
}

/// Ends a pause, and tells it. Where there was none, nothing is recorded.
///
/// # Errors
/// Only the database's.
pub(crate) async fn resume(
    conn: &mut PgConnection,
    caller: &Caller,
    what: &Paused,
    reason: &str,
) -> Result<Option<Pause>, sqlx::Error> {
    let ended = queue::resume(conn, what).await?;
    if let Some(ended) = &ended {
        let action = match what {
            Paused::Queue(_) => "queue.resume",
            Paused::Kind(_) => "kind.resume",
        };
        record(conn, caller, action, what, reason, json!({ "before": convert::pause(ended.clone()) })).await?;
    }
    Ok(ended)
}

/// Sets the limits of a queue in place of those that it had.
///
/// # Errors
/// As [`queue::change_limits`].
pub(crate) async fn limit(
    conn: &mut PgConnection,
    caller: &Caller,
    name: &QueueName,
    limits: &Limits,
    reason: &str,
    if_revision: Option<i64>,
) -> Result<LimitsView, queue::Error> {
    let (before, now) = queue::change_limits(conn, name, limits, Some(caller.identity), reason, if_revision).await?;
    let detail = json!({
        "before": convert::limits(before.limits),
        "after": convert::limits(now.limits),
        "revision": now.revision,
    });
    record(conn, caller, "queue.limit", &Paused::Queue(name.clone()), reason, detail).await?;
    Ok(now)
}

async fn record(
    conn: &mut PgConnection,
    caller: &Caller,
    action: &'static str,
    what: &Paused,
    reason: &str,
    detail: Value,
) -> Result<(), sqlx::Error> {
    let event = Event {
        actor: caller.actor(),
        action,
        subject_kind: what.scope(),
        subject: what.name().to_owned(),
        reason: Some(reason),
        detail,
    };
    audit::record(conn, &event).await
}
