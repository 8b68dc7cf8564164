//! Requests per key: a token bucket each, in this process.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use domain::ids::KeyId;
use wire::Code;

use super::failure::Failure;

/// Most buckets that are kept; beyond it, those that are full again are forgotten.
const MAX_BUCKETS: usize = 10_000;

/// The buckets of every key that called lately.
#[derive(Debug)]
pub struct Rates {
    per_second: f64,
    burst: f64,
    buckets: Mutex<HashMap<KeyId, Bucket>>,
    /// Of all that show no key, or none that is accepted.
    nameless: Mutex<Option<Bucket>>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl Rates {
    /// Buckets of `burst` tokens that gain `per_second`.
    #[must_use]
    pub fn new(per_second: u32, burst: u32) -> Self {
        Self {
            per_second: f64::from(per_second.max(1)),
            burst: f64::from(burst.max(1)),
            buckets: Mutex::new(HashMap::new()),
            nameless: Mutex::new(None),
        }
    }

    /// Takes one token.
    ///
    /// # Errors
    /// `rate_limited` with the time until the next one.
    pub fn take(&self, key: KeyId) -> Result<(), Failure> {
        self.take_at(key, Instant::now())
    }

    /// Takes one token of the bucket that all requests without an accepted key share; it is as large as one key's.
    ///
    /// # Errors
    /// `rate_limited` with the time until the next one.
    pub fn take_nameless(&self) -> Result<(), Failure> {
        let now = Instant::now();
        let mut bucket = self.nameless.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = bucket.get_or_insert(Bucket { tokens: self.burst, filled: now });
        self.spend(bucket, now, "Requests without an accepted key, taken together, come at more than")
    }

    fn take_at(&self, key: KeyId, now: Instant) -> Result<(), Failure> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MAX_BUCKETS && !buckets.contains_key(&key) {
            buckets.retain(|_, bucket| self.level(bucket, now) < self.burst);
        }
        let bucket = buckets.entry(key).or_insert(Bucket { tokens: self.burst, filled: now });
        self.spend(bucket, now, "This key sends more than")
    }

    fn spend(&self, bucket: &mut Bucket, now: Instant, who: &str) -> Result<(), Failure> {
        *bucket = Bucket { tokens: self.level(bucket, now), filled: now };
        if bucket.tokens >= 1.0 {
            bucket.tokens -= 1.0;
            return Ok(());
        }
        let seconds = ((1.0 - bucket.tokens) / self.per_second).ceil();
        let detail = format!(
            "{who} {} requests a second: wait as long as Retry-After says, or ask for many things in \
             one call.",
            self.per_second
        );
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small positive number")]
        Err(Failure::new(Code::RateLimited, detail).retry_after(seconds.max(1.0) as u32))
    }

    fn level(&self, bucket: &Bucket, now: Instant) -> f64 {
        let gained = now.saturating_duration_since(bucket.filled).as_secs_f64() * self.per_second;
        (bucket.tokens + gained).min(self.burst)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_key_that_spent_its_burst_waits_and_others_do_not() {
        let rates = Rates::new(2, 3);
        let (one, other, now) = (KeyId::generate(), KeyId::generate(), Instant::now());
        for _ in 0..3 {
            assert!(rates.take_at(one, now).is_ok());
        }
        assert_eq!(rates.take_at(one, now).map_err(|failure| failure.code()), Err(Code::RateLimited));
        assert!(rates.take_at(other, now).is_ok());
        assert!(rates.take_at(one, now + Duration::from_millis(500)).is_ok());
        assert!(rates.take_at(one, now + Duration::from_millis(500)).is_err());
    }
}
