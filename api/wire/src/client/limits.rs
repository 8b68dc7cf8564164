//! Calls about limits and pauses.

use reqwest::Method;

use super::{Answer, Client, Error};
use crate::{KindPause, LimitsRequest, Page, Pause, QueueLimits, Reason, Resumed};

impl Client {
    /// The limits of a queue; without any where nobody set them.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn limits(&self, queue: &str) -> Result<QueueLimits, Error> {
        self.get(&["v1", "queues", queue, "limits"], &()).await
    }

    /// Sets the limits of a queue in place of those that it has; `if_revision` refuses when they changed since they were
    /// read.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn set_limits(
        &self,
        queue: &str,
        limits: &LimitsRequest,
        if_revision: Option<i64>,
    ) -> Result<QueueLimits, Error> {
        let mut request = self.request(Method::PUT, &["v1", "queues", queue, "limits"]).json(limits);
        if let Some(revision) = if_revision {
            request = request.header("if-match", format!("\"{revision}\""));
        }
        Ok(self.send(request).await?.value)
    }

    /// Pauses a queue; one that is paused already stays as it is.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn pause_queue(
        &self,
        queue: &str,
        reason: &Reason,
        idempotency_key: Option<&str>,
    ) -> Result<Answer<Pause>, Error> {
        self.create(&["v1", "queues", queue, "pause"], reason, idempotency_key).await
    }

    /// Resumes a queue, paused or not.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn resume_queue(
        &self,
        queue: &str,
        reason: &Reason,
        idempotency_key: Option<&str>,
    ) -> Result<Answer<Resumed>, Error> {
        self.create(&["v1", "queues", queue, "resume"], reason, idempotency_key).await
    }

    /// Pauses a kind on all queues; one that is paused already stays as it is.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn pause_kind(
        &self,
        kind: &str,
        pause: &KindPause,
        idempotency_key: Option<&str>,
    ) -> Result<Answer<Pause>, Error> {
        self.create(&["v1", "kinds", kind, "pause"], pause, idempotency_key).await
    }

    /// Resumes a kind, paused or not.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn resume_kind(
        &self,
        kind: &str,
        reason: &Reason,
        idempotency_key: Option<&str>,
    ) -> Result<Answer<Resumed>, Error> {
        self.create(&["v1", "kinds", kind, "resume"], reason, idempotency_key).await
    }

    /// All pauses, of kinds and then of queues, by name.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn pauses(&self) -> Result<Page<Pause>, Error> {
        self.every(&["v1", "pauses"], &[]).await
    }
}
