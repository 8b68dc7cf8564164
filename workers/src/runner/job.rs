//! What a kind of job is to the runner, and the kinds that a worker can run.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::ids::Kind;
use domain::queue::KindSpec;
use schemars::JsonSchema;
use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::context::JobContext;
use crate::seam::StoreError;

/// How a handler ended well.
#[derive(Debug, Clone, PartialEq)]
pub enum Done {
    /// The job is done; the value is kept with it.
    Complete(Value),
    /// Not now: the job comes back, and no attempt is spent.
    Snooze {
        /// The wait.
        after: Duration,
    },
}

/// Why a handler gave up, in terms of what the runner must do: it never guesses.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// This attempt failed; another may succeed.
    #[error("failed")]
    Retry {
        /// The wait before the next attempt; `None` leaves it to the kind.
        after: Option<Duration>,
        /// What went wrong.
        source: anyhow::Error,
    },
    /// No attempt can succeed.
    #[error("gave up: {0}")]
    Discard(String),
    /// The handler ended because it was asked to, or wants the job ended.
    #[error("cancelled: {0}")]
    Cancel(String),
    /// Another worker owns the job: stop, write nothing, delete nothing.
    #[error("the lease is lost")]
    LeaseLost,
}

impl From<anyhow::Error> for JobError {
    fn from(source: anyhow::Error) -> Self {
        Self::Retry { after: None, source }
    }
}

impl From<StoreError> for JobError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::LeaseLost(_) => Self::LeaseLost,
            other @ (StoreError::Unavailable(_) | StoreError::Held(_) | StoreError::Refused(_)) => {
                Self::Retry { after: None, source: anyhow::Error::new(other) }
            }
        }
    }
}

impl From<domain::lease::LeaseLost> for JobError {
    fn from(_: domain::lease::LeaseLost) -> Self {
        Self::LeaseLost
    }
}

impl From<domain::queue::Error> for JobError {
    fn from(error: domain::queue::Error) -> Self {
        // Settled before is over too: whatever is not committed yet must not be.
        if matches!(error, domain::queue::Error::LeaseLost(_) | domain::queue::Error::SettledBefore(_)) {
            Self::LeaseLost
        } else {
            Self::Retry { after: None, source: anyhow::Error::new(error) }
        }
    }
}

/// One kind of job.
///
/// A handler may be cut at any `await` and started again, by another worker, from the beginning: run twice, or cut
/// anywhere, it must end in the same state (I4). It opens no transaction around an act on the world (I3).
#[async_trait]
pub trait Job: Send + Sync + 'static {
    /// The arguments; a payload that is none of these ends the job with the code `bad_args`.
    type Args: DeserializeOwned + JsonSchema + Send;

    /// Its name, limits and defaults.
    fn spec() -> KindSpec
    where
        Self: Sized;

    /// Does the work of one lease.
    ///
    /// A handler that may run long watches `context.cancel`; one that blocks its thread for long moves that into
    /// `tokio::task::spawn_blocking`, or neither a cancellation nor a lost lease can stop it.
    async fn run(&self, args: Self::Args, context: JobContext) -> Result<Done, JobError>;
}

/// Why a handler gave no result.
#[derive(Debug)]
pub(super) enum Failure {
    /// Its arguments could not be decoded.
    BadArgs(serde_json::Error),
    /// It said so itself.
    Job(JobError),
}

/// A job whose arguments are decoded inside, so that one undecodable payload fails one job and nothing else.
#[async_trait]
pub(super) trait Handler: Send + Sync + 'static {
    async fn run(&self, args: &Value, context: JobContext) -> Result<Done, Failure>;
}

struct Decoding<J>(J);

#[async_trait]
impl<J: Job> Handler for Decoding<J> {
    async fn run(&self, args: &Value, context: JobContext) -> Result<Done, Failure> {
        let args = J::Args::deserialize(args).map_err(Failure::BadArgs)?;
        self.0.run(args, context).await.map_err(Failure::Job)
    }
}

/// A kind with its handler.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) spec: KindSpec,
    pub(super) handler: Arc<dyn Handler>,
}

/// The kinds that a worker can run.
#[derive(Clone, Default)]
pub struct Registry {
    entries: HashMap<Kind, Entry>,
}

impl Registry {
    /// Adds a kind under its own specification; a kind that was there before is replaced.
    pub fn add<J: Job>(&mut self, job: J) -> &mut Self {
        self.add_as(J::spec(), job)
    }

    /// Adds a kind under another specification, e.g. with shorter leases.
    pub fn add_as<J: Job>(&mut self, spec: KindSpec, job: J) -> &mut Self {
        self.entries.insert(spec.kind.clone(), Entry { spec, handler: Arc::new(Decoding(job)) });
        self
    }

    /// Only the kinds that `keep` names.
    #[must_use]
    pub fn only(mut self, keep: &[Kind]) -> Self {
        self.entries.retain(|kind, _| keep.contains(kind));
        self
    }

    /// What is known of each kind, in the order of their names.
    #[must_use]
    pub fn specs(&self) -> Vec<&KindSpec> {
        let mut specs: Vec<&KindSpec> = self.entries.values().map(|entry| &entry.spec).collect();
        specs.sort_by(|a, b| a.kind.cmp(&b.kind));
        specs
    }

    pub(super) fn get(&self, kind: &Kind) -> Option<&Entry> {
        self.entries.get(kind)
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.specs().iter().map(|spec| spec.kind.as_str())).finish()
    }
}
