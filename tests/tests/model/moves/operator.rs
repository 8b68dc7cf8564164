//! What people ask for, and what the box's own loop does about children.

use domain::instances::moves::MoveState;

use super::protocol::Moves;
use super::world::{A, Act, Ask, B, HOME, Keep, Machine, Move, Node, Region, Remains, Status, World, Writes};

impl Moves {
    /// What operators, tenants and accidents may do now.
    pub fn asked(&self, world: &World, acts: &mut Vec<Act>) {
        let state = world.open.map(|open| open.state);
        let may_enter = |to: MoveState| state.is_some_and(|state| to.entered_from().contains(&state));
        let left = world.left;
        if left.moves > 0 && world.open.is_none() {
            let to = 1 - world.region;
            let placed =
                world.route.is_some_and(|route| !self.guards.starts_from_serving || route.status == Status::Serving);
            let purging = self.guards.moves_wait && world.is_purging(to);
            let hosts = (0..self.nodes).any(|node| HOME[node] == to && !world.boxes[node].is_away());
            if placed && !purging && hosts {
                acts.push(Act::Ask(Ask::StartMove(to)));
            }
        }
        if may_enter(MoveState::Cutting) {
            acts.push(Act::Ask(Ask::Cut));
        }
        if left.aborts > 0 && may_enter(MoveState::Aborting) {
            acts.push(Act::Ask(Ask::Abort));
        }
        let recalls =
            |open: Move| open.state == MoveState::Cutting && !(open.purge_began && self.guards.unsticks_in_time);
        if left.unsticks > 0 && world.open.is_some_and(recalls) {
            acts.push(Act::Ask(Ask::Unstick));
        }
        if left.points > 0 {
            acts.extend(
                [A, B].into_iter().filter(|to| self.may_point(world, *to)).map(|to| Act::Ask(Ask::SetRegion(to))),
            );
        }
        if left.parks > 0 && !world.parked && world.route.is_some() {
            acts.push(Act::Ask(Ask::Park));
        }
        if world.parked {
            acts.push(Act::Ask(Ask::Unpark));
        }
    }

    fn may_point(&self, world: &World, to: Region) -> bool {
        let serves = world.route.is_some_and(|route| {
            let down = match self.guards.parks_provenly {
                true => !world.boxes[route.node].child && !world.boxes[route.node].permit,
                false => !route.told,
            };
            route.status != Status::Landing && !(world.parked && down) && !world.boxes[route.node].is_away()
        });
        let refuses = serves && self.guards.points_away_from_the_dead;
        let purging = self.guards.landings_wait && world.is_purging(to);
        to != world.region && world.open.is_none() && !refuses && !purging
    }

    /// Carries out what was asked.
    pub fn ask(&self, world: &mut World, act: Ask) -> Option<()> {
        match act {
            Ask::StartMove(to) => {
                world.left.moves -= 1;
                let state = MoveState::Preparing;
                let id = world.moves;
                world.moves += 1;
                world.open = Some(Move { id, to, state, tail: None, purge_began: false, swept: false });
            }
            Ask::Cut => world.open.as_mut()?.state = MoveState::Cutting,
            Ask::Abort => {
                world.left.aborts -= 1;
                world.open.as_mut()?.state = MoveState::Aborting;
            }
            Ask::Unstick => {
                world.left.unsticks -= 1;
                world.open.as_mut()?.state = MoveState::Aborting;
                if let Some(route) = world.route.as_mut().filter(|route| route.status == Status::Moving) {
                    route.status = Status::Serving;
                }
            }
            Ask::SetRegion(to) => {
                world.left.points -= 1;
                world.region = to;
                if let Some(given_up) = world.pending.take() {
                    world.remains[given_up.to][1] = Remains::Due;
                }
                world.route = None;
                world.supersede(to);
                world.pointed = true;
            }
            Ask::Park => {
                world.left.parks -= 1;
                world.parked = true;
            }
            Ask::Unpark => world.parked = false,
            Ask::Die(node) => {
                world.left.deaths -= 1;
                let database = world.boxes[node].database;
                world.boxes[node] = Machine { database, dead: true, ..Machine::default() };
                world.forget_runs_on(node);
            }
            Ask::FallSilent(node) => {
                world.left.silences -= 1;
                (world.boxes[node].silent, world.boxes[node].permit) = (true, false);
                world.forget_runs_on(node);
            }
            Ask::Return(node) => (world.boxes[node].dead, world.boxes[node].silent) = (false, false),
        }
        Some(())
    }

    /// The most that a box can find in its region: on its own disk and in the store.
    pub fn newest_at(world: &World, node: Node) -> Writes {
        let region = HOME[node];
        let stored = [world.own[region], world.staging[region]].into_iter().filter_map(|objects| objects.tip);
        let found = world.boxes[node].database.into_iter().chain(stored);
        found.max_by_key(|held| held.count_ones()).unwrap_or_default()
    }

    /// What a box's loop may do now.
    pub fn kept(&self, world: &World, node: Node, acts: &mut Vec<Act>) {
        let machine = world.boxes[node];
        if machine.child && world.left.writes > 0 {
            acts.push(Act::Keep(Keep::Write(node)));
        }
        if machine.litestream
            && let Some(database) = machine.database
        {
            let mut own = world.own[HOME[node]];
            own.put(database);
            if own != world.own[HOME[node]] {
                acts.push(Act::Keep(Keep::Replicate(node)));
            }
        }
        if machine.is_away() {
            return;
        }
        let (serves, in_scope) = (world.serves(node), world.region == HOME[node]);
        if machine.permit {
            acts.push(Act::Keep(Keep::Start(node)));
        } else if serves
            && in_scope
            && !world.parked
            && world.pending.is_none()
            && !machine.child
            && machine.database.is_some()
        {
            acts.push(Act::Keep(Keep::Permit(node)));
        }
        let told = world.route_of(node).is_some_and(|route| route.told);
        if serves && in_scope && world.parked && told {
            acts.push(Act::Keep(Keep::Untell(node)));
        }
        let parks = serves && in_scope && world.parked && !told;
        let stray = world.route_of(node).is_none() || !in_scope;
        if machine.child && !machine.permit && (parks || stray) {
            acts.push(Act::Keep(Keep::EndChild(node)));
        }
    }

    /// One act of a box's loop, of its child or of its litestream.
    pub fn keep(&self, world: &mut World, act: Keep) -> Option<()> {
        match act {
            Keep::Permit(node) => world.boxes[node].permit = true,
            Keep::Start(node) => {
                let serves = world.serves(node);
                let machine = &mut world.boxes[node];
                machine.permit = false;
                if machine.database.is_some() {
                    (machine.child, machine.litestream) = (true, true);
                    world.route.as_mut().filter(|_| serves).into_iter().for_each(|route| route.told = true);
                }
            }
            Keep::Untell(node) => world.route.as_mut().filter(|route| route.node == node)?.told = false,
            Keep::EndChild(node) => {
                let machine = &mut world.boxes[node];
                (machine.child, machine.litestream) = (false, false);
            }
            Keep::Replicate(node) => {
                let database = world.boxes[node].database?;
                world.own[HOME[node]].put(database);
            }
            Keep::Write(node) => {
                let bit = 1 << world.acknowledged;
                world.left.writes -= 1;
                world.acknowledged += 1;
                world.needed |= bit;
                *world.boxes[node].database.as_mut()? |= bit;
            }
        }
        Some(())
    }
}

impl World {
    pub fn forget_runs_on(&mut self, node: Node) {
        for run in &mut self.runs {
            *run = run.filter(|run| run.node != node);
        }
        self.asleep = self.asleep.filter(|run| run.node != node);
    }
}
