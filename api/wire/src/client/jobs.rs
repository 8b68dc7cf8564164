//! Calls about jobs.

use serde::Serialize;
use uuid::Uuid;

use super::{Answer, Client, Error};
use crate::{Attempt, Batch, Batched, Job, JobState, LogLine, NewJob, Page, Reason, Step, Why};

/// Which jobs to list.
#[derive(Debug, Clone, Default, Serialize)]
pub struct JobFilter {
    /// Only this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    /// Only this kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Only this queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Only jobs with this tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Items of one page, 1…200.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u16>,
    /// Where the page begins: the `next_cursor` of the one before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

impl Client {
    /// Enqueues a job; under an idempotency key a repeated call is answered as the first was.
    ///
    /// # Errors
    /// As every call here: see [`Error`].
    pub async fn enqueue(&self, job: &NewJob, idempotency_key: Option<&str>) -> Result<Answer<Job>, Error> {
        self.create(&["v1", "jobs"], job, idempotency_key).await
    }

    /// Enqueues many jobs, or none.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn enqueue_batch(&self, batch: &Batch, idempotency_key: Option<&str>) -> Result<Answer<Batched>, Error> {
        self.create(&["v1", "jobs", "batch"], batch, idempotency_key).await
    }

    /// Jobs that match, newest first.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn jobs(&self, filter: &JobFilter) -> Result<Page<Job>, Error> {
        self.get(&["v1", "jobs"], filter).await
    }

    /// One job.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn job(&self, id: Uuid) -> Result<Job, Error> {
        self.get(&["v1", "jobs", &id.to_string()], &()).await
    }

    /// Why a job does not run.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn why(&self, id: Uuid) -> Result<Why, Error> {
        self.get(&["v1", "jobs", &id.to_string(), "why"], &()).await
    }

    /// All of a job's ended attempts, newest first.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn job_attempts(&self, id: Uuid) -> Result<Page<Attempt>, Error> {
        self.every(&["v1", "jobs", &id.to_string(), "attempts"], &[]).await
    }

    /// All of a job's steps, from the first.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn job_steps(&self, id: Uuid) -> Result<Page<Step>, Error> {
        self.every(&["v1", "jobs", &id.to_string(), "steps"], &[]).await
    }

    /// All that is kept of a job's log, from the oldest line.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn job_log(&self, id: Uuid) -> Result<Page<LogLine>, Error> {
        self.every(&["v1", "jobs", &id.to_string(), "log"], &[]).await
    }

    /// Asks a job to end; `if_revision` refuses when it changed since it was read.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn cancel(&self, id: Uuid, reason: &Reason, if_revision: Option<i64>) -> Result<Job, Error> {
        self.act(&["v1", "jobs", &id.to_string(), "cancel"], reason, if_revision).await
    }

    /// Brings a job back now.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn retry(&self, id: Uuid, reason: &Reason, if_revision: Option<i64>) -> Result<Job, Error> {
        self.act(&["v1", "jobs", &id.to_string(), "retry"], reason, if_revision).await
    }

    /// Enqueues what a finished job was once more, as a new job; under an idempotency key a repeated call is answered as
    /// the first was. `if_revision` refuses when the finished job changed since it was read.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn run_again(
        &self,
        id: Uuid,
        reason: &Reason,
        idempotency_key: Option<&str>,
        if_revision: Option<i64>,
    ) -> Result<Answer<Job>, Error> {
        let id = id.to_string();
        self.create_if(&["v1", "jobs", &id, "run-again"], reason, idempotency_key, if_revision).await
    }
}
