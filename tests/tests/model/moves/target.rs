//! The job of the target's box, a landing, and the job that purges what a move left.

use std::sync::LazyLock;

use domain::instances::moves::Tail;
use domain::instances::source::{Seen, Source, source};

use super::protocol::Moves;
use super::steps::{RemainsStep, TargetStep};
use super::world::{HOME, Job, Pending, Prefix, Remains, Request, Route, Run, Status, World};

/// The product's decision asks only whether a tail is there.
static TAIL: LazyLock<Tail> = LazyLock::new(|| Tail { txid: "1".repeat(16), sha256: "a".repeat(64), size: 1 });

impl Moves {
    /// One act of a landing; `None`: the run ends.
    pub fn go_target(&self, world: &mut World, run: Run, step: TargetStep) -> Option<TargetStep> {
        let home = HOME[run.node];
        match step {
            TargetStep::Look(landed) => self.look(world, run, landed),
            TargetStep::CopyIn(landed) => {
                let what = world.staging[home];
                what.tip.into_iter().chain(what.other).for_each(|tip| world.own[home].put(tip));
                Some(TargetStep::EmptyOwn(landed))
            }
            TargetStep::EmptyOwn(landed) => {
                let staged = world.staging[home];
                if self.guards.empties_own && !staged.is_empty() {
                    world.own[home] = staged;
                }
                let expected = landed.is_none_or(|landed| staged.tip == Some(landed.tail));
                expected.then_some(TargetStep::BeginRestore(landed))
            }
            TargetStep::BeginRestore(landed) => Some(TargetStep::Restore(landed)),
            TargetStep::Restore(landed) => {
                let machine = &mut world.boxes[run.node];
                if machine.child {
                    return None;
                }
                let own = world.own[home];
                let restored = match landed {
                    // Pinned: of two lineages the right one is taken, or nothing.
                    Some(landed) => [own.tip, own.other].contains(&Some(landed.tail)).then_some(landed.tail),
                    None => own.restores(world.needed),
                };
                machine.database = Some(restored?);
                if landed.is_some() && !self.guards.cleans_last {
                    world.delete(home, Prefix::Staging, world.staging[home]);
                }
                Some(TargetStep::Serve(landed))
            }
            TargetStep::Serve(landed) => self.serve(world, run, landed),
            TargetStep::Clean { settled } => {
                world.delete(home, Prefix::Staging, world.staging[home]);
                Some(TargetStep::EndClean { settled })
            }
            TargetStep::EndClean { settled } => {
                if (settled || !self.guards.cleans_settled)
                    && let Some(id) = world.unclean[home].take()
                {
                    world.seen.cleaned |= 1 << id;
                }
                None
            }
        }
    }

    /// Takes the record, unless it is another's.
    pub fn begin_target(&self, world: &mut World, run: Run) -> Option<TargetStep> {
        let home = HOME[run.node];
        if world.region != home {
            return None;
        }
        world.route = world.route.filter(|route| HOME[route.node] == home);
        match world.route {
            Some(route) if route.node != run.node => return None,
            Some(Route { status: Status::Serving, .. }) => {
                let _left = world.unclean[home]?;
                return Some(TargetStep::Clean { settled: world.flying.is_none() });
            }
            Some(Route { status: Status::Moving, .. }) => return None,
            Some(Route { status: Status::Landing, .. }) => {}
            None if world.open.is_some() => return None,
            None if world.is_purging(home) && self.guards.landings_wait => return None,
            None => world.route = Some(Route { node: run.node, status: Status::Landing, told: false }),
        }
        Some(TargetStep::Look(world.pending.filter(|pending| pending.to == home)))
    }

    fn look(&self, world: &mut World, run: Run, landed: Option<Pending>) -> Option<TargetStep> {
        let (home, machine) = (HOME[run.node], &world.boxes[run.node]);
        let stale = self.guards.local_is_last
            && machine.database.is_some_and(|local| {
                world.own[home].tip.is_some_and(|own| own != local && super::world::leads(local, own))
            });
        let seen = Seen {
            pending: landed.filter(|_| self.guards.pending_decides).map(|_| &*TAIL),
            local: machine.database.is_some() && !stale,
            own: !world.own[home].is_empty(),
            staged: !world.staging[home].is_empty(),
            served_before: true,
        };
        match source(seen) {
            Source::Pending(_) => Some(TargetStep::CopyIn(landed)),
            Source::Local => Some(TargetStep::Serve(landed)),
            Source::Own => {
                // Without the pending landing's word nobody pins the restore either.
                if !self.guards.pending_decides {
                    world.boxes[run.node].database = world.own[home].restores(world.needed);
                    return Some(TargetStep::Serve(landed));
                }
                Some(TargetStep::BeginRestore(None))
            }
            Source::Staging => Some(TargetStep::CopyIn(landed)),
            Source::Beginning | Source::Foreign | Source::Missing(_) => None,
        }
    }

    fn serve(&self, world: &mut World, run: Run, landed: Option<Pending>) -> Option<TargetStep> {
        let home = HOME[run.node];
        let lands = world.route_of(run.node).is_some_and(|route| route.status == Status::Landing);
        let pending = world.pending.filter(|pending| pending.to == world.region);
        if world.region != home || pending.map(|p| p.id) != landed.map(|l| l.id) || !lands {
            return None;
        }
        world.pending = None;
        world.route.as_mut()?.status = Status::Serving;
        if std::mem::take(&mut world.pointed) {
            world.needed &= Self::newest_at(world, run.node);
        }
        let served = world.boxes[run.node].database.unwrap_or_default();
        world.seen.served_old |= served & world.needed != world.needed;
        let landed = landed?;
        world.seen.landed |= 1 << landed.id;
        world.unclean[home] = Some(landed.id);
        let old = &mut world.remains[1 - home][0];
        if *old == Remains::Kept {
            *old = Remains::Due;
        }
        world.supersede(home);
        Some(TargetStep::Clean { settled: world.flying.is_none() })
    }

    /// Decides whether what a move left may be purged, and says so first.
    pub fn begin_remains(&self, world: &mut World, run: Run) -> Option<RemainsStep> {
        let Job::Purge(at, prefix) = run.job else { return None };
        let quiet = world.flying.is_none();
        match world.remains[at][prefix as usize] {
            Remains::None => None,
            Remains::Purging { emptied } => Some(RemainsStep::Delete { settled: emptied && quiet }),
            Remains::Kept if self.guards.keeps_old => None,
            Remains::Kept | Remains::Due => {
                if !self.may_be_purged(world, at) {
                    return None;
                }
                world.remains[at][prefix as usize] = Remains::Purging { emptied: false };
                Some(RemainsStep::Delete { settled: false })
            }
        }
    }

    /// One act of a purge of remains; `None`: the run ends.
    pub fn go_remains(&self, world: &mut World, run: Run, step: RemainsStep) -> Option<RemainsStep> {
        let Job::Purge(at, prefix) = run.job else { return None };
        match step {
            RemainsStep::Delete { settled } => {
                world.seen.purged_needed |= is_needed(world, at, prefix);
                world.delete(at, prefix, world.objects(at, prefix));
                Some(RemainsStep::EndDelete { settled })
            }
            RemainsStep::EndDelete { settled } => {
                if let Remains::Purging { .. } = world.remains[at][prefix as usize] {
                    let left = if settled { Remains::None } else { Remains::Purging { emptied: true } };
                    world.remains[at][prefix as usize] = left;
                }
                None
            }
        }
    }

    fn may_be_purged(&self, world: &World, at: usize) -> bool {
        let coming =
            world.pending.is_some_and(|pending| pending.to == at) || world.open.is_some_and(|open| open.to == at);
        let served = world.pending.is_none()
            && world.route.is_some_and(|route| route.status != Status::Landing && HOME[route.node] == world.region);
        world.region != at && !coming && (served || !self.guards.keeps_old)
    }

    /// A request arrives, whatever became of its sender.
    pub fn arrive(&self, world: &mut World, request: Request) {
        match request {
            Request::Stage { to, what, id } => world.stage(to, what, id),
            Request::CopyIn { to, what } => {
                what.tip.into_iter().chain(what.other).for_each(|tip| world.own[to].put(tip));
            }
            Request::Delete { at, prefix, listed } => world.delete(at, prefix, listed),
        }
    }
}

/// Whether somebody may still have to read what is deleted here.
fn is_needed(world: &World, at: usize, prefix: Prefix) -> bool {
    let coming = world.pending.is_some_and(|pending| pending.to == at) || world.open.is_some_and(|open| open.to == at);
    match prefix {
        Prefix::Own => world.region == at || world.pending.is_some(),
        Prefix::Staging => coming && !world.staging[at].is_empty(),
    }
}

impl World {
    /// Somebody takes the region over: what an earlier move left there is the record's own again, or is gone.
    pub fn supersede(&mut self, at: usize) {
        for remains in &mut self.remains[at] {
            if !matches!(remains, Remains::Purging { .. }) {
                *remains = Remains::None;
            }
        }
    }
}
