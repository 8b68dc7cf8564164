//! When a worker polls: in turn with its peers, so that up to twelve workers look at the queue as often as one alone would
//! . More look more often, since none waits longer than the cap.
//!
//! Each poll brings back how many live workers serve some of the same queues and how many of them come first. On the
//! database's clock, worker `rank` of `live` polls at every moment that is `rank` turns into a round of `live` turns.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use domain::entropy;
use domain::queue::Look;

use super::config::{BEAT_INTERVAL, BLIND_LOOK, POLL_CAP, POLL_INTERVAL, UPKEEP_INTERVAL};

#[derive(Debug)]
struct State {
    live: u32,
    rank: u32,
    /// The database's clock at the last look.
    now_ms: u64,
    looked_at: Option<Instant>,
    beaten_at: Option<Instant>,
    upkept_at: Option<Instant>,
}

/// The pace of one worker's rare statements.
#[derive(Debug)]
pub(super) struct Rhythm {
    state: Mutex<State>,
}

impl Default for Rhythm {
    fn default() -> Self {
        Self {
            state: Mutex::new(State { live: 1, rank: 0, now_ms: 0, looked_at: None, beaten_at: None, upkept_at: None }),
        }
    }
}

impl Rhythm {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a poll at `now` should look: not more often than this worker's turn comes, however often it leases.
    pub(super) fn wants_look(&self, now: Instant) -> bool {
        let state = self.state();
        state.looked_at.is_none_or(|at| now.duration_since(at) >= round(state.live) / 2)
    }

    /// Whether it is time to say that the worker lives.
    pub(super) fn wants_beat(&self, now: Instant) -> bool {
        self.state().beaten_at.is_none_or(|at| now.duration_since(at) >= BEAT_INTERVAL)
    }

    /// Whether no poll said so in time.
    pub(super) fn misses_beat(&self, now: Instant) -> bool {
        self.state().beaten_at.is_none_or(|at| now.duration_since(at) >= BEAT_INTERVAL + BEAT_INTERVAL / 2)
    }

    /// The worker said so.
    pub(super) fn beaten(&self, now: Instant) {
        self.state().beaten_at = Some(now);
    }

    /// Whether a worker that polls for nothing, since its slots are taken, should look: its peers may be dead.
    pub(super) fn is_blind(&self, now: Instant) -> bool {
        self.state().looked_at.is_none_or(|at| now.duration_since(at) >= BLIND_LOOK)
    }

    /// What a look that was asked for at `now` said.
    pub(super) fn heard(&self, look: &Look, now: Instant) {
        let mut state = self.state();
        (state.live, state.rank, state.now_ms, state.looked_at) = (look.live, look.rank, look.now_ms, Some(now));
    }

    /// How many workers live, and how many come before this one, as it last heard.
    pub(super) fn standing(&self) -> (u32, u32) {
        let state = self.state();
        (state.live, state.rank)
    }

    /// The wait of an idle worker until its next turn, after a look whose answer just came; or until the sweeps have work
    /// that the look foresaw: whoever's turn it would be may be dead by then.
    pub(super) fn until_turn(&self, look: &Look) -> Duration {
        let turn = turn(look.live, look.rank, look.now_ms);
        let foreseen = look.next.filter(|next| !next.is_zero()).map(|next| next.max(POLL_INTERVAL));
        foreseen.map_or(turn, |next| turn.min(next)) + POLL_INTERVAL.mul_f64(entropy::fraction() / 10.0)
    }

    /// As [`Self::until_turn`], where no look told the time: by the last one that did, at `now`. A worker that has just
    /// leased goes back to its turn, or its peers' jobs would wait in the gap that it left.
    pub(super) fn a_round(&self, now: Instant) -> Duration {
        let state = self.state();
        let Some(looked_at) = state.looked_at else {
            return round(state.live).mul_f64(0.8 + entropy::fraction() * 0.4);
        };
        let since = u64::try_from(now.saturating_duration_since(looked_at).as_millis()).unwrap_or(u64::MAX);
        turn(state.live, state.rank, state.now_ms.saturating_add(since))
            + POLL_INTERVAL.mul_f64(entropy::fraction() / 10.0)
    }

    /// Whether the rarer upkeep is due: all workers together do it about once in its interval. Counted from the try.
    pub(super) fn takes_upkeep(&self, now: Instant) -> bool {
        let mut state = self.state();
        let due = state.upkept_at.is_none_or(|at| now.duration_since(at) >= UPKEEP_INTERVAL * state.live.clamp(1, 100));
        if due {
            state.upkept_at = Some(now);
        }
        due
    }
}

/// One turn for each live worker; no worker waits longer than the cap.
fn round(live: u32) -> Duration {
    POLL_INTERVAL.saturating_mul(live.max(1)).min(POLL_CAP)
}

/// The time until the turn of worker `rank` of `live`, at `now_ms` of the database's clock; never zero.
fn turn(live: u32, rank: u32, now_ms: u64) -> Duration {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let round = millis(round(live));
    let offset = u64::from(rank) * round / u64::from(live.max(1));
    let into = (now_ms + round - offset) % round;
    Duration::from_millis(round - into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_that_share_queues_poll_in_turn() {
        // Whatever the moment at which each asks, ten workers poll at ten moments of a round, evenly apart.
        let moments: Vec<u64> = (0..10_u32)
            .map(|rank| {
                let asked_at = 1_000_000_007 + u64::from(rank) * 777;
                let at = asked_at + u64::try_from(turn(10, rank, asked_at).as_millis()).expect("short");
                at % 2500
            })
            .collect();
        assert_eq!(moments, (0..10).map(|rank| rank * 250).collect::<Vec<_>>());
        // Beyond the cap they share the round as evenly.
        let waits: std::collections::BTreeSet<_> = (0..1000).map(|rank| turn(1000, rank, 0)).collect();
        assert_eq!(waits.len(), 1000);
    }

    #[test]
    fn a_turn_comes_within_a_round_and_is_never_at_once() {
        for now_ms in 0..5000 {
            for (live, rank) in [(1, 0), (2, 1), (10, 9), (1000, 999)] {
                let wait = turn(live, rank, now_ms);
                assert!(!wait.is_zero() && wait <= round(live), "{live} {rank} {now_ms}: {wait:?}");
            }
        }
        assert_eq!(round(0), POLL_INTERVAL);
        assert_eq!(round(1000), POLL_CAP);
    }

    #[test]
    fn an_idle_worker_does_not_sleep_past_what_the_sweeps_will_have_to_do() {
        let rhythm = Rhythm::default();
        let look = |next| Look { batches_due: false, due: false, next, live: 10, rank: 0, now_ms: 1 };
        let soon = Duration::from_millis(700);
        assert!(rhythm.until_turn(&look(None)) >= Duration::from_millis(2499));
        assert!((soon..soon + POLL_INTERVAL).contains(&rhythm.until_turn(&look(Some(soon)))));
        assert!(rhythm.until_turn(&look(Some(Duration::from_millis(1)))) >= POLL_INTERVAL, "not hot");
        assert!(rhythm.until_turn(&look(Some(Duration::ZERO))) >= Duration::from_millis(2499), "a sweep is under way");
    }

    #[test]
    fn a_busy_worker_looks_once_in_a_round_and_beats_rarely() {
        let (rhythm, start) = (Rhythm::default(), Instant::now());
        assert!(rhythm.wants_look(start) && rhythm.wants_beat(start) && rhythm.is_blind(start));
        let look = Look { batches_due: false, due: false, next: None, live: 4, rank: 1, now_ms: 0 };
        rhythm.heard(&look, start);
        rhythm.beaten(start);
        let soon = start + POLL_INTERVAL;
        assert!(!rhythm.wants_look(soon) && !rhythm.wants_beat(soon) && !rhythm.is_blind(soon));
        assert!(rhythm.wants_look(start + round(4)) && rhythm.is_blind(start + BLIND_LOOK));
        assert!(rhythm.wants_beat(start + BEAT_INTERVAL));
    }

    #[test]
    fn a_worker_that_leased_goes_back_to_its_turn() {
        let (rhythm, start) = (Rhythm::default(), Instant::now());
        assert!(rhythm.a_round(start) >= POLL_INTERVAL.mul_f64(0.8), "nothing is known yet");
        rhythm.heard(&Look { batches_due: false, due: false, next: None, live: 10, rank: 3, now_ms: 100_000 }, start);
        // Its turns are at 750 ms of each round of 2,500 ms; the clock stood at the beginning of one.
        for (after, wait) in [(0, 750), (100, 650), (749, 1), (800, 2450)] {
            let wait = Duration::from_millis(wait);
            let told = rhythm.a_round(start + Duration::from_millis(after));
            assert!((wait..=wait + POLL_INTERVAL / 10).contains(&told), "{after}: {told:?}");
        }
    }

    #[test]
    fn the_rarer_upkeep_is_shared() {
        let (rhythm, start) = (Rhythm::default(), Instant::now());
        assert!(rhythm.takes_upkeep(start), "a worker begins with it");
        rhythm.heard(&Look { batches_due: false, due: false, next: None, live: 10, rank: 3, now_ms: 0 }, start);
        assert!(!rhythm.takes_upkeep(start + UPKEEP_INTERVAL * 9));
        assert!(rhythm.takes_upkeep(start + UPKEEP_INTERVAL * 10));
    }
}
