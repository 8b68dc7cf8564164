//! The protocol as stateright sees it: one job, two workers, one operator, a rescuer, and writes that are on their way
//! while the world goes on. Every fault has its price out of a budget, so each story ends.
//!
//! Which changes of state there are is asked of the product's own table of edges ([`JobState::entered_from`]); what the
//! statements of the store check stands here a second time, since SQL cannot be called from here. The store's own tests,
//! the random histories and the mutants hold the statements to the same rules.

use domain::queue::JobState;
use stateright::{Model, Property};

use crate::world::{Act, Ending, Fence, Process, Row, What, World, Write};

/// By what a write proves that it is the holder's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// The number of the lease.
    Fence,
    /// The holder's name (a queue on apalis's own tables).
    WorkerName,
    /// The number of the attempt (pg-boss), which only an operator's retry sets back.
    Attempt,
}

/// What stands between a late write and its effect.
#[derive(Debug, Clone, Copy)]
pub struct Guards {
    pub identity: Identity,
    /// An outcome is recorded only while the job runs.
    pub settle_checks_state: bool,
    /// A renewal proves its lease.
    pub renew_checks_identity: bool,
    /// A rescue writes only if the lease that it read is still the job's and still expired.
    pub rescue_looks_again: bool,
    /// Whoever asks again for its own outcome is told that it is recorded.
    pub knows_own_work: bool,
    /// Anybody rescues.
    pub rescues: bool,
}

impl Guards {
    /// The product's.
    pub const ALL: Self = Self {
        identity: Identity::Fence,
        settle_checks_state: true,
        renew_checks_identity: true,
        rescue_looks_again: true,
        knows_own_work: true,
        rescues: true,
    };
}

/// The protocol under its guards, with as many faults, endings other than completion, and operator's acts as it may see.
#[derive(Debug, Clone)]
pub struct Protocol {
    pub guards: Guards,
    pub faults: u8,
    pub endings: u8,
    pub operations: u8,
}

/// Writes on their way at once.
const MOST_FLYING: usize = 3;
/// Renewals and steps of one lease.
const MOST_SENT: u8 = 1;

pub const FENCED: &str = "no write under a stale fence takes effect";
pub const ONCE: &str = "a job completes once";
pub const ONE_LEASE: &str = "there are never two live leases";
pub const NOT_ROBBED: &str = "a living lease is not taken over";
pub const NOT_WRONGED: &str = "whose outcome is recorded is never told that its lease was lost";
pub const EDGES: &str = "every change of state is an edge that the program names";
pub const NOT_STRANDED: &str = "no story ends before its job is over";
pub const AT_LAST: &str = "a job that can run is over at last";

impl Protocol {
    fn accepts(&self, row: &Row, write: Write) -> bool {
        let is_holder = match self.guards.identity {
            Identity::Fence => row.fence == write.fence,
            Identity::WorkerName => row.holder == Some(write.from),
            Identity::Attempt => row.attempt == write.attempt,
        };
        let runs = row.state == JobState::Running;
        match write.what {
            What::Renew => runs && (is_holder || !self.guards.renew_checks_identity),
            What::Step => runs && is_holder,
            What::End(_) => (runs || !self.guards.settle_checks_state) && is_holder,
        }
    }

    /// The write arrives; whether its sender is told that its lease is lost.
    fn arrive(&self, world: &mut World, write: Write) -> bool {
        let is_current = world.row.state == JobState::Running && world.row.fence == write.fence;
        if !self.accepts(&world.row, write) {
            let already = matches!(write.what, What::End(_)) && world.row.settled.contains(&write.fence);
            world.seen.refused_a_stale_write |= !is_current && !already;
            world.seen.told_already |= already && self.guards.knows_own_work;
            return !(already && self.guards.knows_own_work);
        }
        world.seen.stale_effect |= !is_current;
        match write.what {
            What::Renew => world.row.expired = false,
            What::Step => {}
            What::End(how) => self.settle(world, write, how),
        }
        false
    }

    fn settle(&self, world: &mut World, write: Write, how: Ending) {
        let row = &mut world.row;
        let to = match how {
            Ending::Complete => JobState::Completed,
            Ending::Fail | Ending::Snooze if row.cancel_asked => JobState::Cancelled,
            Ending::Fail if row.attempt >= row.max_attempts => JobState::Discarded,
            Ending::Fail => JobState::Retryable,
            Ending::Snooze => JobState::Scheduled,
        };
        if how == Ending::Snooze && self.guards.identity != Identity::Attempt {
            row.attempt = row.attempt.saturating_sub(1);
        }
        row.settled.push(write.fence);
        world.seen.completions += u8::from(to == JobState::Completed);
        world.enter(to);
    }

    fn rescue(&self, world: &mut World, read: Fence) {
        let row = &mut world.row;
        let still = row.state == JobState::Running && row.fence == read && row.expired;
        if !still && self.guards.rescue_looks_again {
            return;
        }
        world.seen.robbed |= !still;
        world.seen.rescued = true;
        if self.guards.identity != Identity::Attempt {
            row.attempt = row.attempt.saturating_sub(1);
        }
        let to = if row.cancel_asked { JobState::Cancelled } else { JobState::Available };
        world.enter(to);
    }

    /// Leases under which a renewal would be accepted just now.
    fn live_leases(&self, world: &World) -> usize {
        let held = world.processes.iter().enumerate().filter_map(|(from, process)| match *process {
            Process::Idle => None,
            Process::Works { fence, attempt, .. } | Process::Ends { fence, attempt, .. } => {
                Some(Write { from, fence, attempt, what: What::Renew })
            }
        });
        let on_their_way = world.flying.iter().map(|write| Write { what: What::Renew, ..*write });
        let mut live: Vec<Fence> =
            held.chain(on_their_way).filter(|w| self.accepts(&world.row, *w)).map(|w| w.fence).collect();
        live.sort_unstable();
        live.dedup();
        live.len()
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        let row = Row {
            state: JobState::Available,
            fence: 0,
            attempt: 0,
            max_attempts: 1,
            holder: None,
            expired: false,
            cancel_asked: false,
            settled: Vec::new(),
        };
        let Self { faults, endings, operations, .. } = *self;
        let processes = [Process::Idle; 2];
        let (flying, seen) = Default::default();
        vec![World { row, processes, flying, rescuing: None, faults, endings, operations, seen }]
    }

    fn actions(&self, world: &World, acts: &mut Vec<Act>) {
        let row = &world.row;
        let may_send = world.flying.len() < MOST_FLYING;
        for (name, process) in world.processes.iter().enumerate() {
            match *process {
                Process::Idle if row.state == JobState::Available => acts.push(Act::Lease(name)),
                Process::Idle => {}
                Process::Works { sent, .. } if may_send => {
                    if sent < MOST_SENT {
                        acts.extend([What::Renew, What::Step].map(|what| Act::Send(name, what)));
                    }
                    acts.push(Act::Send(name, What::End(Ending::Complete)));
                    if world.endings > 0 {
                        acts.extend([Ending::Fail, Ending::Snooze].map(|how| Act::Send(name, What::End(how))));
                    }
                }
                Process::Works { .. } => {}
                Process::Ends { fence, .. } => {
                    let on_its_way = |w: &Write| w.fence == fence && matches!(w.what, What::End(_));
                    if may_send && !world.flying.iter().any(on_its_way) {
                        acts.push(Act::SendAgain(name));
                    }
                }
            }
            if world.faults > 0 && *process != Process::Idle {
                acts.push(Act::Crash(name));
            }
        }
        let mut flying = world.flying.clone();
        flying.dedup();
        for write in flying {
            acts.push(Act::Deliver(write));
            if world.faults > 0 {
                acts.extend([Act::DeliverUnheard(write), Act::DeliverTwice(write), Act::Lose(write)]);
            }
        }
        // A holder that is there lets its lease expire only by a fault; one that is gone, in any case.
        let is_held = world.processes.iter().any(|process| process.fence() == Some(row.fence));
        if row.state == JobState::Running && !row.expired && (!is_held || world.faults > 0) {
            acts.push(Act::Expire);
        }
        if self.guards.rescues {
            match world.rescuing {
                None if row.state == JobState::Running && row.expired => acts.push(Act::RescueReads),
                None => {}
                Some(_) => acts.push(Act::RescueWrites),
            }
        }
        if matches!(row.state, JobState::Scheduled | JobState::Retryable) {
            acts.push(Act::Stage);
        }
        if world.operations > 0 {
            if !row.state.is_final() && !row.cancel_asked {
                acts.push(Act::Cancel);
            }
            let retries = match row.state {
                JobState::Scheduled | JobState::Retryable | JobState::Cancelled | JobState::Discarded => true,
                JobState::Available | JobState::Running | JobState::Completed => false,
            };
            if retries {
                acts.push(Act::Retry);
            }
        }
    }

    fn next_state(&self, before: &World, act: Act) -> Option<World> {
        let mut world = before.clone();
        match act {
            Act::Lease(name) => {
                world.enter(JobState::Running);
                world.row.fence += 1;
                world.row.attempt += 1;
                world.row.holder = Some(name);
                world.processes[name] = Process::Works { fence: world.row.fence, attempt: world.row.attempt, sent: 0 };
            }
            Act::Send(from, what) => {
                let Process::Works { fence, attempt, sent } = world.processes[from] else { return None };
                world.send(Write { from, fence, attempt, what });
                world.processes[from] = match what {
                    What::Renew | What::Step => Process::Works { fence, attempt, sent: sent + 1 },
                    What::End(how) => {
                        world.endings -= u8::from(how != Ending::Complete);
                        Process::Ends { fence, attempt, how }
                    }
                };
            }
            Act::SendAgain(from) => {
                let Process::Ends { fence, attempt, how } = world.processes[from] else { return None };
                world.send(Write { from, fence, attempt, what: What::End(how) });
            }
            Act::Deliver(write) => {
                world.land(write);
                let lost = self.arrive(&mut world, write);
                world.hear(write, lost);
            }
            Act::DeliverUnheard(write) => {
                world.faults -= 1;
                world.land(write);
                self.arrive(&mut world, write);
            }
            Act::DeliverTwice(write) => {
                world.faults -= 1;
                self.arrive(&mut world, write);
            }
            Act::Lose(write) => {
                world.faults -= 1;
                world.land(write);
            }
            Act::Crash(name) => {
                world.faults -= 1;
                world.processes[name] = Process::Idle;
            }
            Act::Expire => {
                let is_held = world.processes.iter().any(|process| process.fence() == Some(world.row.fence));
                world.faults -= u8::from(is_held);
                world.row.expired = true;
            }
            Act::RescueReads => world.rescuing = Some(world.row.fence),
            Act::RescueWrites => {
                let read = world.rescuing.take()?;
                self.rescue(&mut world, read);
            }
            Act::Stage => world.enter(JobState::Available),
            Act::Cancel => {
                world.operations -= 1;
                if world.row.state == JobState::Running {
                    world.row.cancel_asked = true;
                } else {
                    world.enter(JobState::Cancelled);
                }
            }
            Act::Retry => {
                world.operations -= 1;
                world.enter(JobState::Available);
                world.row.cancel_asked = false;
                if self.guards.identity == Identity::Attempt {
                    world.row.attempt = 0;
                }
                world.row.max_attempts = world.row.max_attempts.max(world.row.attempt + 1);
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(FENCED, |_, world: &World| !world.seen.stale_effect),
            Property::always(ONCE, |_, world: &World| world.seen.completions <= 1),
            Property::always(ONE_LEASE, |model: &Self, world| model.live_leases(world) <= 1),
            Property::always(NOT_ROBBED, |_, world: &World| !world.seen.robbed),
            Property::always(NOT_WRONGED, |_, world: &World| !world.seen.wronged),
            Property::always(EDGES, |_, world: &World| !world.seen.off_the_edges),
            // Every act has its price or its end, so each story ends: where nothing more can happen.
            Property::always(NOT_STRANDED, |model: &Self, world| {
                let mut acts = Vec::new();
                model.actions(world, &mut acts);
                !acts.is_empty() || world.row.state.is_final()
            }),
            // Stateright looks at one of the ways that lead to a state; the property before this one looks at all ends.
            Property::eventually(AT_LAST, |_, world: &World| world.row.state.is_final()),
            Property::sometimes("a stale write is refused", |_, world: &World| world.seen.refused_a_stale_write),
            Property::sometimes("somebody is told that it has done it", |_, world: &World| world.seen.told_already),
            Property::sometimes("a job is rescued and completed", |_, world: &World| {
                world.seen.rescued && world.seen.completions == 1
            }),
        ]
    }
}
