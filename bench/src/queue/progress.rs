//! How many jobs are done, for whoever waits for so many: no look at the database, which would be charged to what is
//! measured.

use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

use tokio::sync::Notify;

/// A count that one task waits for.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicI64,
    wanted: AtomicI64,
    reached: Notify,
}

impl Progress {
    /// So many more are done.
    pub fn add(&self, jobs: usize) {
        let jobs = i64::try_from(jobs).unwrap_or(i64::MAX);
        if self.done.fetch_add(jobs, SeqCst) + jobs >= self.wanted.load(SeqCst) {
            self.reached.notify_one();
        }
    }

    /// How many are done.
    #[must_use]
    pub fn done(&self) -> i64 {
        self.done.load(SeqCst)
    }

    /// Waits until so many are done.
    pub async fn until(&self, wanted: i64) {
        // Before the look: whoever adds after it sees what is wanted.
        self.wanted.store(wanted, SeqCst);
        while self.done() < wanted {
            self.reached.notified().await;
        }
    }
}
