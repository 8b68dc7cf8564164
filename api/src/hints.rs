//! Telling idle workers that jobs are due, after the commit that made them so.
//!
//! # Consistency
//! Nothing here is relied on: a hint that is lost, with this process or with the database, costs the wait for a poll.
//! What is noted while one hint is on its way goes with the next, at most one in [`hints::COALESCE`].

use std::sync::{Mutex, PoisonError};

use domain::ids::QueueName;
use domain::queue::Paused;
use domain::queue::hints::{self, Hint};
use domain::{db, entropy, queue};
use sqlx::PgPool;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Stands for jobs that nobody counted.
const MANY: u32 = 1000;

/// What is to be told.
#[derive(Debug)]
pub struct Hints {
    told: bool,
    due: Mutex<Hint>,
    wanted: Notify,
}

impl Hints {
    /// Of a process that tells, or does not.
    pub(crate) fn new(told: bool) -> Self {
        Self { told, due: Mutex::default(), wanted: Notify::new() }
    }

    /// Notes jobs that are due, once their transaction has committed.
    pub fn add(&self, queue: &QueueName, jobs: u32) {
        if jobs > 0 {
            self.note(|due| due.add(queue, jobs));
        }
    }

    /// Notes that jobs may be due which a pause held back until now; nobody counts them.
    pub(crate) fn resumed(&self, what: &Paused) {
        match what {
            Paused::Queue(queue) => self.freed(queue),
            Paused::Kind(_) => self.note(|due| due.add_any(MANY)),
        }
    }

    /// Notes that jobs of this queue may be due which a pause or a limit held back until now; nobody counts them.
    pub(crate) fn freed(&self, queue: &QueueName) {
        self.note(|due| due.add(queue, MANY));
    }

    fn note(&self, change: impl FnOnce(&mut Hint)) {
        if self.told {
            change(&mut self.due.lock().unwrap_or_else(PoisonError::into_inner));
            self.wanted.notify_one();
        }
    }

    fn take(&self) -> Hint {
        std::mem::take(&mut *self.due.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Tells what was noted, until `shutdown`, on a connection of its own: a hint waits for no request.
pub(crate) async fn run(app: crate::App, shutdown: CancellationToken) {
    let pool = db::aside(app.pool().connect_options().as_ref().clone(), 1);
    while shutdown.run_until_cancelled(app.hints().wanted.notified()).await.is_some() {
        let hint = app.hints().take();
        // What was noted right before the last look is told already.
        if !hint.is_empty()
            && let Err(error) = tell(&pool, &hint).await
        {
            tracing::debug!(%error, "a hint is lost: the jobs wait for a poll");
        }
        tokio::time::sleep(hints::COALESCE).await;
    }
}

async fn tell(pool: &PgPool, hint: &Hint) -> Result<(), sqlx::Error> {
    let text = hint.text(entropy::turn());
    let once = async || {
        let mut conn = db::session(pool).await?;
        queue::tell(&mut conn, &text).await?;
        conn.done(()).await
    };
    match once().await {
        // The database was restarted since the last hint: once more, on a new connection.
        Err(error) if db::unavailable(&error) => once().await,
        told => told,
    }
}
