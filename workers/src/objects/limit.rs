//! How many copies run at once on a box, and how fast one bucket is asked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Bounds for copies. All moves of a box share one [`CopyLimits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitSettings {
    /// Copies (or parts of one) at once on this box.
    pub per_box: usize,
    /// Copies at once into one target bucket.
    pub per_bucket: usize,
    /// Copies begun per second into one target bucket; a burst of one second's worth is allowed. S3 takes 3,500
    /// writes a second and prefix before it throttles, and several boxes may write to one bucket.
    pub per_bucket_rate: u32,
}

impl Default for LimitSettings {
    fn default() -> Self {
        Self { per_box: 16, per_bucket: 16, per_bucket_rate: 3_000 }
    }
}

/// The gate that every copy passes.
#[derive(Debug)]
pub struct CopyLimits {
    settings: LimitSettings,
    per_box: Arc<Semaphore>,
    buckets: Mutex<HashMap<String, Arc<Bucket>>>,
}

#[derive(Debug)]
struct Bucket {
    permits: Arc<Semaphore>,
    /// When the next copy may begin if nothing had been saved up.
    due: Mutex<Instant>,
}

/// The right to run one copy, until dropped.
#[derive(Debug)]
pub(super) struct CopyPermit {
    _bucket: OwnedSemaphorePermit,
    _box: OwnedSemaphorePermit,
}

impl CopyLimits {
    /// Limits for one box. A setting of 0 counts as 1.
    #[must_use]
    pub fn new(settings: LimitSettings) -> Arc<Self> {
        let per_box = Arc::new(Semaphore::new(settings.per_box.max(1)));
        Arc::new(Self { settings, per_box, buckets: Mutex::default() })
    }

    /// Waits for a turn. The bucket's place comes first, so that a slow bucket never holds the whole box.
    pub(super) async fn enter(&self, bucket: &str) -> CopyPermit {
        let gate = self.bucket(bucket);
        let in_bucket = Arc::clone(&gate.permits).acquire_owned().await.expect("the semaphore is never closed");
        tokio::time::sleep_until(gate.reserve(Instant::now(), self.settings.per_bucket_rate)).await;
        let in_box = Arc::clone(&self.per_box).acquire_owned().await.expect("the semaphore is never closed");
        CopyPermit { _bucket: in_bucket, _box: in_box }
    }

    fn bucket(&self, name: &str) -> Arc<Bucket> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gate) = buckets.get(name) {
            return Arc::clone(gate);
        }
        let permits = Arc::new(Semaphore::new(self.settings.per_bucket.max(1)));
        let gate = Arc::new(Bucket { permits, due: Mutex::new(Instant::now()) });
        buckets.insert(name.to_owned(), Arc::clone(&gate));
        gate
    }
}

impl Bucket {
    /// A token bucket kept as one instant: each copy moves it on by its share of a second, and at most one second
    /// is saved up. Gives the instant at which the caller may begin.
    fn reserve(&self, now: Instant, rate: u32) -> Instant {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = (*due).max(now.checked_sub(Duration::from_secs(1)).unwrap_or(now));
        *due = begin + Duration::from_secs(1) / rate.max(1);
        begin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_takes_one_second_of_burst_and_then_its_rate() {
        let began = Instant::now();
        let bucket = Bucket { permits: Arc::new(Semaphore::new(1)), due: Mutex::new(began) };
        // Idle for a minute, of which one second counts.
        let now = began + Duration::from_secs(60);
        let waits: Vec<u128> =
            (0..16).map(|_| bucket.reserve(now, 10).saturating_duration_since(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 100, 200, 300, 400, 500]);
    }

    #[tokio::test]
    async fn a_full_bucket_leaves_the_box_to_others() {
        let limits = CopyLimits::new(LimitSettings { per_box: 3, per_bucket: 2, per_bucket_rate: 1_000 });
        let held = (limits.enter("slow").await, limits.enter("slow").await);
        let third = limits.enter("slow");
        tokio::pin!(third);
        assert!(futures::poll!(third.as_mut()).is_pending());
        drop(limits.enter("other").await);
        drop(held);
        drop(third.await);
    }
}
