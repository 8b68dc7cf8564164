//! The steps that a history takes, and how they are drawn.

use std::time::Duration;

use domain::queue::Outcome;
use proptest::prelude::*;
use serde_json::json;

pub const KINDS: [&str; 2] = ["test.a", "test.b"];
pub const QUEUES: [&str; 2] = ["one", "two"];
/// What each worker serves: queues, kinds.
pub const WORKERS: [(&[usize], &[usize]); 3] = [(&[0, 1], &[0, 1]), (&[0], &[0, 1]), (&[1], &[0])];
/// The clock jumps by whole ticks, far more than a history takes by itself.
pub const TICK_S: i64 = 30;

#[derive(Debug, Clone, PartialEq)]
pub struct NewRow {
    pub kind: usize,
    pub queue: usize,
    pub priority: i16,
    pub delay_s: i64,
    pub unique: Option<u8>,
    pub max_attempts: i32,
    pub max_interruptions: i32,
    pub protected: bool,
}

#[derive(Debug, Clone)]
pub enum Ending {
    Complete,
    Fail { after_s: i64 },
    Snooze { after_s: i64 },
    Discard,
    Cancel,
    Release,
}

impl Ending {
    pub const fn after_s(&self) -> i64 {
        match self {
            Self::Fail { after_s } | Self::Snooze { after_s } => *after_s,
            Self::Complete | Self::Discard | Self::Cancel | Self::Release => 0,
        }
    }

    pub fn outcome(&self) -> Outcome {
        let after = Duration::from_secs(self.after_s().unsigned_abs());
        match self {
            Self::Complete => Outcome::Completed { result: json!(1) },
            Self::Fail { .. } => Outcome::Failed { error: json!({"code": "x"}), after },
            Self::Snooze { .. } => Outcome::Snoozed { after },
            Self::Discard => Outcome::Discarded { error: json!({"code": "y"}) },
            Self::Cancel => Outcome::Cancelled { reason: "z".to_owned() },
            Self::Release => Outcome::Released,
        }
    }
}

/// What a holder writes. Leases are counted from the newest, modulo how many there ever were: so many are stale.
#[derive(Debug, Clone)]
pub enum Write {
    Renew { lease: usize },
    Record { lease: usize },
    Child { lease: usize, new: NewRow },
    Settle(Vec<(usize, Ending)>),
}

/// One step. Jobs are counted as leases are.
#[derive(Debug, Clone)]
pub enum Step {
    Enqueue(NewRow),
    Lease {
        worker: usize,
        limit: u16,
    },
    Write(Write),
    /// A holder is stopped with this write on its way.
    Stop(Write),
    /// The holder that was stopped first wakes, and its write arrives.
    Wake,
    /// The last call arrives once more.
    Again,
    /// A cancel of the lease's job, which waits for the outcome that is being recorded.
    CancelWhileSettling {
        lease: usize,
        ending: Ending,
    },
    Rescue {
        limit: u16,
    },
    Stage {
        limit: u16,
    },
    CancelIgnored,
    Cancel {
        job: usize,
    },
    Retry {
        job: usize,
    },
    Advance {
        ticks: i64,
    },
}

pub fn step() -> impl Strategy<Value = Step> {
    let wait = prop_oneof![Just(0), Just(TICK_S), Just(2 * TICK_S)];
    let delay = prop_oneof![4 => Just(0), 1 => Just(TICK_S), 1 => Just(3 * TICK_S)];
    let unique = prop_oneof![2 => Just(None), 1 => (0..2_u8).prop_map(Some)];
    let new = (0..2_usize, 0..2_usize, -1..2_i16, delay, unique, 1..4, 1..4, prop::bool::weighted(0.15)).prop_map(
        |(kind, queue, priority, delay_s, unique, max_attempts, max_interruptions, protected)| NewRow {
            kind,
            queue,
            priority,
            delay_s,
            unique,
            max_attempts,
            max_interruptions,
            protected,
        },
    );
    let lease = prop_oneof![3 => 0..4_usize, 1 => 0..64_usize];
    let ending = prop_oneof![
        1 => Just(Ending::Complete),
        3 => wait.clone().prop_map(|after_s| Ending::Fail { after_s }),
        1 => wait.prop_map(|after_s| Ending::Snooze { after_s }),
        1 => Just(Ending::Discard),
        1 => Just(Ending::Cancel),
        1 => Just(Ending::Release),
    ];
    let write = prop_oneof![
        2 => lease.clone().prop_map(|lease| Write::Renew { lease }),
        2 => lease.clone().prop_map(|lease| Write::Record { lease }),
        1 => (lease.clone(), new.clone()).prop_map(|(lease, new)| Write::Child { lease, new }),
        5 => prop::collection::vec((lease.clone(), ending.clone()), 1..4).prop_map(Write::Settle),
    ];
    prop_oneof![
        5 => new.prop_map(Step::Enqueue),
        6 => (0..WORKERS.len(), 1..4_u16).prop_map(|(worker, limit)| Step::Lease { worker, limit }),
        9 => write.clone().prop_map(Step::Write),
        2 => write.prop_map(Step::Stop),
        2 => Just(Step::Wake),
        2 => Just(Step::Again),
        1 => (lease, ending).prop_map(|(lease, ending)| Step::CancelWhileSettling { lease, ending }),
        3 => (1..5_u16).prop_map(|limit| Step::Rescue { limit }),
        3 => (1..5_u16).prop_map(|limit| Step::Stage { limit }),
        1 => Just(Step::CancelIgnored),
        3 => (0..8_usize).prop_map(|job| Step::Cancel { job }),
        2 => (0..8_usize).prop_map(|job| Step::Retry { job }),
        3 => (1..4_i64).prop_map(|ticks| Step::Advance { ticks }),
    ]
}
