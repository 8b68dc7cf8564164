//! Requests per key, and per address of those who show none that is known: a token bucket each, in this process.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use domain::ids::KeyId;
use wire::Code;

use super::failure::Failure;
use super::known::{Lately, Shown};

/// Most buckets that are kept; beyond it, those that are full again are forgotten.
const MAX_BUCKETS: usize = 10_000;
/// How often the buckets of strangers are looked through for full ones.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Who is not known yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Stranger {
    /// Shows no key and no session.
    Nameless,
    /// Shows one that was not accepted lately.
    Unproven,
}

/// The buckets of every key that called lately.
#[derive(Debug)]
pub struct Rates {
    per_second: f64,
    burst: f64,
    buckets: Mutex<HashMap<KeyId, Bucket>>,
    strangers: Mutex<Strangers>,
    lately: Mutex<Lately>,
}

/// Whose bucket.
type Place = (Stranger, Option<IpAddr>);

/// A token, and the bucket that it is from.
#[derive(Debug)]
pub(super) struct Taken(Place);

#[derive(Debug, Default)]
struct Strangers {
    /// By address; that of nobody is for those whose address is not known, or one too many.
    buckets: HashMap<Place, Bucket>,
    swept: Option<Instant>,
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
            strangers: Mutex::default(),
            lately: Mutex::default(),
        }
    }

    /// Takes one token.
    ///
    /// # Errors
    /// `rate_limited` with the time until the next one.
    pub fn take(&self, key: KeyId) -> Result<(), Failure> {
        self.take_at(key, Instant::now())
    }

    /// Takes one token of the bucket that such strangers at this address share; it is as large as one key's.
    ///
    /// # Errors
    /// `rate_limited` with the time until the next one.
    pub(super) fn take_stranger(&self, stranger: Stranger, peer: Option<IpAddr>) -> Result<Taken, Failure> {
        self.take_stranger_at(stranger, peer, Instant::now())
    }

    /// Gives back what [`Rates::take_stranger`] took of somebody who turned out to be known.
    pub(super) fn give_back(&self, taken: &Taken) {
        let mut strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = strangers.buckets.get_mut(&taken.0) {
            bucket.tokens = (bucket.tokens + 1.0).min(self.burst);
        }
    }

    /// Notes that this was accepted just now.
    pub(crate) fn accepted(&self, shown: &Shown) {
        self.lately.lock().unwrap_or_else(PoisonError::into_inner).note(shown, Instant::now());
    }

    /// Whether all of this was accepted lately.
    pub(super) fn knows(&self, shown: &Shown) -> bool {
        self.lately.lock().unwrap_or_else(PoisonError::into_inner).knows_all(shown, Instant::now())
    }

    /// Notes that this is not accepted any more.
    pub(super) fn forget(&self, shown: &Shown) {
        self.lately.lock().unwrap_or_else(PoisonError::into_inner).forget(shown);
    }

    fn take_stranger_at(&self, stranger: Stranger, peer: Option<IpAddr>, now: Instant) -> Result<Taken, Failure> {
        let mut strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        let Strangers { buckets, swept } = &mut *strangers;
        let mut place = (stranger, peer.map(network));
        if buckets.len() >= MAX_BUCKETS && !buckets.contains_key(&place) {
            if swept.is_none_or(|swept| now.saturating_duration_since(swept) >= SWEEP_INTERVAL) {
                buckets.retain(|_, bucket| self.level(bucket, now) < self.burst);
                *swept = Some(now);
            }
            if buckets.len() >= MAX_BUCKETS {
                place.1 = None;
            }
        }
        let bucket = buckets.entry(place).or_insert(Bucket { tokens: self.burst, filled: now });
        let who = match stranger {
            Stranger::Nameless => "Without a key, this address sends more than",
            Stranger::Unproven => "With keys that were not accepted lately, this address sends more than",
        };
        self.spend(bucket, now, who).map(|()| Taken(place))
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

/// What one caller has of addresses: of version 6 a network of 64 bits, whose addresses cost nothing.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
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
    #[test]
    fn strangers_share_the_bucket_of_their_network_and_one_when_there_are_too_many() {
        let (rates, now) = (Rates::new(2, 3), Instant::now());
        let at = |text: &str| Some(text.parse::<IpAddr>().expect("an address"));
        let take = |peer| rates.take_stranger_at(Stranger::Unproven, peer, now).is_ok();
        let own = ["2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8::4"];
        assert_eq!(own.map(|text| take(at(text))), [true, true, true, false]);
        assert!(take(at("2001:db8:0:1::1")) && take(None) && take(at("192.0.2.1")) && take(at("::ffff:192.0.2.1")));
        assert!(take(at("192.0.2.1")) && !take(at("192.0.2.1")), "one address in two spellings");
        assert!(rates.take_stranger_at(Stranger::Nameless, at("192.0.2.1"), now).is_ok(), "a bucket of its own");
        rates.give_back(&Taken((Stranger::Unproven, at("192.0.2.1"))));
        assert!(take(at("192.0.2.1")) && !take(at("192.0.2.1")));
        let many = |n: u32| Some(IpAddr::V4((0x0a00_0000 + n).into()));
        let admitted = (0..3 * MAX_BUCKETS as u32).filter(|n| take(many(*n))).count();
        assert!(admitted <= MAX_BUCKETS, "{admitted}");
        assert!(rates.strangers.lock().expect("sound").buckets.len() <= MAX_BUCKETS + 2);
        let later = now + Duration::from_secs(10);
        assert!(rates.take_stranger_at(Stranger::Unproven, at("198.51.100.1"), later).is_ok());
        assert!(rates.strangers.lock().expect("sound").buckets.len() < 10, "those that are full again are forgotten");
    }
}
