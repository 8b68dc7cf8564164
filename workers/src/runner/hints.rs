//! Hints: what this worker hears of due jobs, and what it tells of those that it made due.
//!
//! # Consistency
//! Hints may be lost, doubled or wrong. Polls go on as if there were none; a worker that hears one only looks sooner.
//!
//! # Retries
//! A lost connection is made anew, after pauses that grow. What was told meanwhile is lost, so the worker looks once as
//! soon as it listens again. A hint that cannot be told is dropped.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::entropy;
use domain::ids::QueueName;
use domain::queue::hints::{self, Hint, Standing};
use futures::StreamExt as _;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::config::{ANSWER_LIMIT, LISTENER_LIFE};
use super::core::Core;
use super::outage::Outage;
use crate::seam::Hints;

/// What is to be told.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    due: Mutex<Hint>,
    wanted: Notify,
}

impl Outbox {
    /// Notes jobs of a queue that others may take now.
    pub(super) fn add(&self, queue: &QueueName, jobs: u32) {
        self.note(|due| due.add(queue, jobs));
    }

    /// Notes jobs of queues that nobody knows.
    pub(super) fn add_any(&self, jobs: u64) {
        self.note(|due| due.add_any(u32::try_from(jobs).unwrap_or(u32::MAX)));
    }

    fn note(&self, change: impl FnOnce(&mut Hint)) {
        change(&mut self.due.lock().unwrap_or_else(PoisonError::into_inner));
        self.wanted.notify_one();
    }

    fn take(&self) -> Hint {
        std::mem::take(&mut *self.due.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Tells what was noted, at most one hint in [`hints::COALESCE`].
pub(super) async fn tell(core: Arc<Core>) {
    loop {
        core.outbox.wanted.notified().await;
        let hint = core.outbox.take();
        if !hint.is_empty() {
            let told = timeout(ANSWER_LIMIT, core.store.tell(&hint)).await;
            if !matches!(told, Ok(Ok(()))) {
                tracing::debug!(?told, "a hint is lost: the jobs wait for a poll");
            }
        }
        sleep(hints::COALESCE).await;
    }
}

/// Wakes the worker on hints that name a queue of its own, while it has free slots.
pub(super) async fn listen(core: Arc<Core>) {
    let mut outage = Outage::new("listening");
    loop {
        match core.store.hints().await {
            Ok(None) => return std::future::pending().await,
            Ok(Some(hints)) => {
                outage.over();
                // What was told before we listened was told to nobody.
                wake(&core);
                let life = Instant::now() + LISTENER_LIFE.mul_f64(0.8 + entropy::fraction() * 0.4);
                if timeout_at(life, hear(&core, hints)).await.is_ok() {
                    tracing::info!("the connection that listens for hints ended: making another");
                    sleep(outage.failed_softly()).await;
                }
            }
            Err(error) => sleep(outage.failed(&error)).await,
        }
    }
}

/// Until the connection is lost.
async fn hear(core: &Core, mut hints: Hints) {
    let mut look_at: Option<Instant> = None;
    loop {
        let heard = tokio::select! {
            heard = hints.next() => heard,
            () = until(look_at) => {
                look_at = None;
                wake(core);
                continue;
            }
        };
        let Some((turn, hint)) = heard else { return };
        let jobs = hint.due_for(&core.registration.spec.queues);
        let free = u32::try_from(core.held.free()).unwrap_or(u32::MAX);
        let (live, rank) = core.rhythm.standing();
        if free > 0 && hint.is_for_this_node(&core.registration.spec.queues) {
            wake(core);
            continue;
        }
        match hints::wait(turn, jobs, Standing { free, live, rank }) {
            Some(Duration::ZERO) => wake(core),
            Some(wait) => {
                let at = Instant::now() + wait;
                look_at = Some(look_at.map_or(at, |sooner| sooner.min(at)));
            }
            None => {}
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// A worker whose slots are taken looks when one is free, without being told.
fn wake(core: &Core) {
    if core.held.free() > 0 {
        core.wake.notify_one();
    }
}
