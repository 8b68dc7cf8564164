//! Randomness: the one place that asks the operating system for it.

use uuid::Uuid;

/// `N` unpredictable bytes, fit for secrets.
///
/// # Panics
/// When the operating system gives no randomness: nothing secure can be done then.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this is the one file that asks for randomness")]
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut buffer = [0; N];
    getrandom::fill(&mut buffer).expect("the operating system gives randomness");
    buffer
}

/// A UUIDv7: its leading bits are the local wall clock, used for index locality only and never for a decision.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this is the one file that makes ids")]
pub fn uuid_v7() -> Uuid {
    Uuid::now_v7()
}

/// A fraction in 0.0..1.0 for jitter; not for secrets.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this is the one file that asks for randomness")]
pub fn fraction() -> f64 {
    fastrand::f64()
}

/// A number of any size, to deal turns out; not for secrets.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this is the one file that asks for randomness")]
pub fn turn() -> u32 {
    fastrand::u32(..)
}
