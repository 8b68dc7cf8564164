//! `system.noop`: does nothing, to see that the queue moves and how fast.

use async_trait::async_trait;
use domain::queue::KindSpec;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{Done, Job, JobContext, JobError};

/// The kind's name.
pub const KIND: &str = "system.noop";

/// Nothing is asked.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {}

/// Completes at once.
#[derive(Debug, Clone, Copy)]
pub struct Noop;

#[async_trait]
impl Job for Noop {
    type Args = Args;

    fn spec() -> KindSpec {
        KindSpec::new::<Args>(KIND, "Does nothing and completes.")
    }

    async fn run(&self, _args: Args, _context: JobContext) -> Result<Done, JobError> {
        Ok(Done::Complete(Value::Null))
    }
}
