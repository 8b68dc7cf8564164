//! The job of the source's box: rounds, the cut, the abort. Each arm is one act; anything may happen between two of them.

use domain::instances::moves::MoveState;

use super::protocol::Moves;
use super::steps::{RemainsStep, SourceStep, Step, TargetStep};
use super::world::{HOME, Job, Move, Objects, Pending, Prefix, Region, Remains, Request, Run, Status, World, Writes};

impl Moves {
    /// One act of the move's job; `None`: the run ends.
    pub fn go_source(&self, world: &mut World, run: Run, step: SourceStep) -> Option<SourceStep> {
        let home = HOME[run.node];
        let open = world.open.filter(|open| open.id == run.id);
        let in_state = |state| open.filter(|open| open.state == state);
        let cutting = in_state(MoveState::Cutting);
        match step {
            SourceStep::Check => Some(SourceStep::Copy),
            SourceStep::Copy => {
                let Some(Request::Stage { to, what, id }) = self.request(world, run) else { return None };
                world.stage(to, what, id);
                Some(SourceStep::Compare)
            }
            SourceStep::Compare => Some(SourceStep::EndRound { in_sync: self.compare(world, run)? }),
            SourceStep::EndRound { in_sync } => {
                if in_sync && open.is_some_and(|open| MoveState::Ready.entered_from().contains(&open.state)) {
                    world.open.as_mut()?.state = MoveState::Ready;
                }
                None
            }
            SourceStep::StopChild => {
                if self.guards.proves_the_end {
                    world.boxes[run.node].child = false;
                }
                Some(if open.is_some_and(|open| open.purge_began) {
                    SourceStep::ResumePurge
                } else {
                    SourceStep::BeginProof
                })
            }
            SourceStep::BeginProof => cutting.map(|_| SourceStep::Prove),
            SourceStep::Prove => self.prove(world, run).map(SourceStep::BeginDelta),
            SourceStep::BeginDelta(tail) => cutting.map(|_| match self.guards.final_delta {
                true => SourceStep::CopyDelta(tail),
                false => SourceStep::Record(tail),
            }),
            SourceStep::CopyDelta(tail) => {
                let Some(Request::Stage { to, what, id }) = self.request(world, run) else { return None };
                world.stage(to, what, id);
                Some(SourceStep::CompareDelta(tail))
            }
            SourceStep::CompareDelta(tail) => {
                let equal = self.compare(world, run)?;
                let staged = world.staging[self.target(world, run)?];
                (equal && staged == Objects::of(tail)).then(|| self.after_delta(tail))
            }
            SourceStep::Record(tail) => {
                let _legal = cutting.filter(|open| !open.purge_began)?;
                world.open.as_mut()?.tail = Some(tail);
                Some(SourceStep::BeginPurge)
            }
            SourceStep::BeginPurge => {
                let _legal = cutting.filter(|open| open.tail.is_some())?;
                world.open.as_mut()?.purge_began = true;
                Some(if self.guards.begins_the_purge { SourceStep::Purge } else { SourceStep::Flip })
            }
            SourceStep::ResumePurge => cutting.map(|_| SourceStep::Purge),
            SourceStep::Purge => {
                let machine = &mut world.boxes[run.node];
                if machine.child && self.guards.proves_the_end {
                    return None;
                }
                machine.child = false;
                let had = machine.database.take();
                let needed = world.needed;
                let proven = open.is_some_and(|open| {
                    (open.purge_began || !self.guards.begins_the_purge)
                        && world.own[home].holds(needed)
                        && world.staging[open.to].holds(needed)
                });
                let over = world.open.is_none() && !self.guards.flips_last;
                world.seen.purged_unproven |= had.is_some() && !proven && !over;
                let resumed = open.is_some_and(|open| open.purge_began);
                match (self.guards.begins_the_purge || resumed, self.guards.flips_last) {
                    (_, false) => None,
                    (true, true) => Some(SourceStep::Flip),
                    (false, true) => Some(SourceStep::Record(had.or(open?.tail)?)),
                }
            }
            SourceStep::Flip => {
                let open = open?;
                if self.guards.flips_last {
                    let _legal = cutting.filter(|open| open.purge_began && home == world.region)?;
                }
                flip(world, open, world.staging[open.to].tip?);
                (!self.guards.flips_last).then_some(SourceStep::Purge)
            }
            SourceStep::Sweep { settled } => {
                let to = self.target(world, run)?;
                world.delete(to, Prefix::Staging, world.staging[to]);
                Some(SourceStep::EndSweep { settled })
            }
            SourceStep::EndSweep { settled } => {
                let aborting = in_state(MoveState::Aborting)?;
                let settled = if self.guards.settles_before_sweeping { settled } else { world.flying.is_none() };
                if !self.guards.sweeps_twice || (aborting.swept && settled) {
                    world.open = None;
                    world.seen.aborted |= 1 << run.id;
                } else {
                    world.open.as_mut()?.swept = true;
                }
                None
            }
        }
    }

    /// Reads the move's state and begins what it calls for.
    pub fn begin_source(&self, world: &mut World, run: Run) -> Option<SourceStep> {
        let home = HOME[run.node];
        let open = world.open.filter(|open| open.id == run.id)?;
        let route = world.route_of(run.node)?;
        if world.region != home {
            return None;
        }
        match open.state {
            state if state.mirrors() => Some(SourceStep::Check),
            MoveState::Cutting => {
                if self.guards.closes_first && route.status == Status::Serving {
                    world.route.as_mut()?.status = Status::Moving;
                }
                Some(SourceStep::StopChild)
            }
            MoveState::Aborting => Some(SourceStep::Sweep { settled: open.swept && world.flying.is_none() }),
            MoveState::Preparing | MoveState::Ready => None,
        }
    }

    const fn after_delta(&self, tail: Writes) -> SourceStep {
        match (self.guards.flips_last, self.guards.begins_the_purge) {
            (false, _) => SourceStep::Flip,
            (true, true) => SourceStep::Record(tail),
            (true, false) => SourceStep::Purge,
        }
    }

    /// Where the job's move stages: a worker knows that from its own reading.
    fn target(&self, _world: &World, run: Run) -> Option<usize> {
        Some(1 - HOME[run.node])
    }

    /// What a worker sends to a store at this step.
    pub fn request(&self, world: &World, run: Run) -> Option<Request> {
        let home = HOME[run.node];
        let delete = |at: Region, prefix, listed| Some(Request::Delete { at, prefix, listed });
        match run.step {
            Step::Source(SourceStep::Copy | SourceStep::CopyDelta(_)) => {
                let what = world.own[home];
                (!what.is_empty()).then_some(Request::Stage { to: 1 - home, what, id: run.id })
            }
            Step::Source(SourceStep::Sweep { .. }) => delete(1 - home, Prefix::Staging, world.staging[1 - home]),
            Step::Target(TargetStep::CopyIn(_)) => Some(Request::CopyIn { to: home, what: world.staging[home] }),
            Step::Target(TargetStep::Clean { .. }) => delete(home, Prefix::Staging, world.staging[home]),
            Step::Remains(RemainsStep::Delete { .. }) => {
                let Job::Purge(at, prefix) = run.job else { return None };
                delete(at, prefix, world.objects(at, prefix))
            }
            Step::Begin | Step::Source(_) | Step::Target(_) | Step::Remains(_) => None,
        }
    }

    /// Deletes what the source does not have, lists both sides anew, and says whether they are equal.
    fn compare(&self, world: &mut World, run: Run) -> Option<bool> {
        let (own, to) = (world.own[HOME[run.node]], self.target(world, run)?);
        let staged = &mut world.staging[to];
        let strange = |tip: Writes| own.tip.is_none_or(|own| !leads_either(own, tip));
        if staged.tip.is_some_and(strange) || staged.other.is_some_and(strange) {
            let left = [staged.tip, staged.other].map(|tip| tip.filter(|tip| !strange(*tip)));
            *staged = Objects { tip: left[0].or(left[1]), other: left[0].and(left[1]) };
        }
        let equal = !own.is_empty() && *staged == own;
        if equal {
            world.staged_by[to] = 1 << run.id;
        }
        Some(equal)
    }

    fn prove(&self, world: &mut World, run: Run) -> Option<Writes> {
        let machine = &mut world.boxes[run.node];
        if machine.child && self.guards.proves_the_end {
            return None;
        }
        let own = &mut world.own[HOME[run.node]];
        machine.litestream = false;
        match machine.database {
            Some(database) if self.guards.proves_the_tail => {
                own.put(database);
                (*own == Objects::of(database)).then_some(database)
            }
            Some(_) | None => own.tip.filter(|_| own.other.is_none()),
        }
    }
}

fn leads_either(one: Writes, other: Writes) -> bool {
    super::world::leads(one, other) || super::world::leads(other, one)
}

fn flip(world: &mut World, open: Move, staged: Writes) {
    let from = world.region;
    let tail = open.tail.unwrap_or(staged);
    world.region = open.to;
    world.pending = Some(Pending { id: open.id, to: open.to, tail });
    world.remains[from][0] = Remains::Kept;
    world.open = None;
}
