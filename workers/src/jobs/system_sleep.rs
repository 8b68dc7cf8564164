//! `system.sleep`: holds its lease for a while, to see drains, cancellations and take-overs.

use std::time::Duration;

use async_trait::async_trait;
use domain::queue::KindSpec;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{Done, Job, JobContext, JobError};

/// The kind's name.
pub const KIND: &str = "system.sleep";
/// Longest sleep.
const MAX_MS: u64 = 24 * 3600 * 1000;

/// How long to sleep.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// Milliseconds, at most one day.
    #[schemars(range(max = 86_400_000))]
    pub ms: u64,
}

/// Sleeps.
#[derive(Debug, Clone, Copy)]
pub struct Sleep;

#[async_trait]
impl Job for Sleep {
    type Args = Args;

    fn spec() -> KindSpec {
        KindSpec {
            // Short, so that whoever tries a take-over need not wait for it.
            lease: Duration::from_secs(5),
            // A day of sleep must not end as a deadline of an hour.
            deadline: Some(Duration::from_millis(MAX_MS) + Duration::from_secs(3600)),
            ..KindSpec::new::<Args>(KIND, "Sleeps for a while, then completes.")
        }
    }

    async fn run(&self, args: Args, context: JobContext) -> Result<Done, JobError> {
        if args.ms > MAX_MS {
            return Err(JobError::Discard(format!("a sleep takes at most {MAX_MS} ms")));
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(args.ms)) => Ok(Done::Complete(json!({"slept_ms": args.ms}))),
            () = context.cancel.cancelled() => Err(JobError::Cancel("asked to end".to_owned())),
        }
    }
}
