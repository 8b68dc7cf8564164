//! What was accepted lately: it is let through to be asked again, before others that nobody knows.
//!
//! Held as digests, in this process alone. Being here grants nothing: every request is asked who sent it all the same.

use std::collections::HashSet;
use std::mem;
use std::time::{Duration, Instant};

use domain::digest;
use http::HeaderMap;
use http::header::AUTHORIZATION;

use super::session;

/// How long something stays known after it was last accepted, at least; at most twice as long.
const LIFE: Duration = Duration::from_secs(60);
/// Most digests of one age; there are two ages.
const MAX: usize = 10_000;

/// The digests of the keys and of the session that a request shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown(Vec<[u8; 32]>);

impl Shown {
    /// Everything that a request shows.
    pub(crate) fn of(headers: &HeaderMap, secure: bool) -> Self {
        Self(Self::keys(headers).0.into_iter().chain(Self::session(headers, secure).0).collect())
    }

    /// Its keys.
    pub(crate) fn keys(headers: &HeaderMap) -> Self {
        Self(headers.get_all(AUTHORIZATION).iter().map(|value| digest::sha256(value.as_bytes())).collect())
    }

    /// Its session.
    pub(crate) fn session(headers: &HeaderMap, secure: bool) -> Self {
        Self(session::text(headers, secure).map(Self::digest_of_session).into_iter().collect())
    }

    /// The session with this token.
    pub(crate) fn session_of(token: &str) -> Self {
        Self(vec![Self::digest_of_session(token)])
    }

    fn digest_of_session(token: &str) -> [u8; 32] {
        digest::sha256(token.as_bytes())
    }

    /// Whether there is nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Two ages of digests: when the younger one is full or its time is over, the older one is forgotten.
#[derive(Debug, Default)]
pub(super) struct Lately {
    young: HashSet<[u8; 32]>,
    old: HashSet<[u8; 32]>,
    turned: Option<Instant>,
}

impl Lately {
    pub(super) fn note(&mut self, shown: &Shown, now: Instant) {
        self.turn(now);
        self.young.extend(&shown.0);
    }

    pub(super) fn knows_all(&mut self, shown: &Shown, now: Instant) -> bool {
        self.turn(now);
        shown.0.iter().all(|digest| self.young.contains(digest) || self.old.contains(digest))
    }

    pub(super) fn forget(&mut self, shown: &Shown) {
        for digest in &shown.0 {
            self.young.remove(digest);
            self.old.remove(digest);
        }
    }

    fn turn(&mut self, now: Instant) {
        let age = now.saturating_duration_since(*self.turned.get_or_insert(now));
        if age < LIFE && self.young.len() < MAX {
            return;
        }
        self.old = mem::take(&mut self.young);
        if age >= 2 * LIFE {
            self.old.clear();
        }
        self.turned = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_accepted_is_known_for_a_while_and_never_more_than_two_ages_of_it() {
        let (mut lately, now) = (Lately::default(), Instant::now());
        let shown = |n: usize| Shown::session_of(&n.to_string());
        lately.note(&shown(0), now);
        assert!(lately.knows_all(&shown(0), now) && !lately.knows_all(&shown(1), now));
        assert!(lately.knows_all(&shown(0), now + LIFE));
        assert!(!lately.knows_all(&shown(0), now + 2 * LIFE));
        lately.note(&shown(0), now + 2 * LIFE);
        assert!(!lately.knows_all(&shown(0), now + 9 * LIFE), "nor after a long silence");
        for n in 0..5 * MAX {
            lately.note(&shown(n), now + 9 * LIFE);
            assert!(lately.young.len() + lately.old.len() <= 2 * MAX);
        }
        assert!(lately.knows_all(&shown(5 * MAX - 1), now + 9 * LIFE));
        lately.forget(&shown(5 * MAX - 1));
        assert!(!lately.knows_all(&shown(5 * MAX - 1), now + 9 * LIFE));
    }
}
