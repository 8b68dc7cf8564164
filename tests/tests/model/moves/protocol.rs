//! A move as stateright sees it: one instance, two regions, their boxes and stores, and everybody who acts on them. Each
//! write to PostgreSQL, each request to a store and each act on a box is one act, and anything may happen in between.
//!
//! What the product decides purely is asked of the product: the edges between states ([`MoveState::entered_from`]), in
//! which of them rounds run, and what a landing restores ([`domain::instances::source`]). What its statements check stands
//! here a second time. Assumed, not checked: a box's work on its own disk is that of one process, whose late acts come
//! before those of its successor; a request ends within the time that the second sweep waits; what is kept is purged at any later moment, or never.

use stateright::{Model, Property};

pub use super::guards::Guards;
use super::steps::Step;
use super::world::{
    A, Act, Ask, B, Budget, HOME, Job, LEFT_BEHIND, Machine, Objects, Prefix, Remains, Request, Route, Run, Seen,
    Status, World,
};

/// A move under its guards, within bounds.
#[derive(Debug, Clone)]
pub struct Moves {
    pub guards: Guards,
    pub budget: Budget,
    /// Two, or three: then B has two boxes.
    pub nodes: usize,
    /// B's own replica holds another lineage from a term that was given up.
    pub left_behind: bool,
}

pub const ONE_WRITER: &str = "at no instant two children may write";
pub const IN_SCOPE: &str = "a child runs only on the box that has the route, in the record's region";
pub const NOT_LOST: &str = "the newest acknowledged version is where the protocol takes it from";
pub const NOT_OLD: &str = "what a landing serves holds every acknowledged write";
pub const PROVEN: &str = "nothing is purged before its proof and its record";
pub const NO_LEFTOVER: &str = "an aborted move leaves no staging";
pub const CLEAN: &str = "a landed move leaves no staging";
pub const KEPT: &str = "an old replica is whole while its landing does not serve";
pub const NOT_NEEDED: &str = "nothing is purged that somebody may need";
pub const ONE_LINEAGE: &str = "the replica of what is served restores to nothing else";
pub const HAS_DATABASE: &str = "what serves has its database";

impl Moves {
    fn go(&self, world: &mut World, run: Run) -> Option<Run> {
        let step = match (run.step, run.job) {
            (Step::Begin, Job::Move) => self.begin_source(world, run).map(Step::Source),
            (Step::Begin, Job::Land) => self.begin_target(world, run).map(Step::Target),
            (Step::Begin, Job::Purge(..)) => self.begin_remains(world, run).map(Step::Remains),
            (Step::Source(step), _) => self.go_source(world, run, step).map(Step::Source),
            (Step::Target(step), _) => self.go_target(world, run, step).map(Step::Target),
            (Step::Remains(step), _) => self.go_remains(world, run, step).map(Step::Remains),
        };
        step.map(|step| Run { step, ..run })
    }

    /// The jobs that are due, each with the boxes that may lease it.
    fn due(&self, world: &World, acts: &mut Vec<Act>) {
        let is_free = |job: Job| world.runs[job.place()].is_none();
        let live = |node: &usize| !world.boxes[*node].is_away();
        let nodes_of = |region| (0..self.nodes).filter(move |node| HOME[*node] == region).filter(live);
        let route = world.route;
        if is_free(Job::Move) && world.open.is_some() {
            acts.extend(route.map(|route| route.node).filter(live).map(|node| Act::Lease(Job::Move, node)));
        }
        if is_free(Job::Land) {
            let here = route.filter(|route| HOME[route.node] == world.region);
            match here.map(|route| (route.status, route.node)) {
                None if world.open.is_none() => {
                    acts.extend(nodes_of(world.region).map(|node| Act::Lease(Job::Land, node)))
                }
                Some((Status::Landing, node)) => {
                    acts.extend(Some(node).filter(live).map(|node| Act::Lease(Job::Land, node)))
                }
                Some((Status::Serving, node)) if world.unclean[world.region].is_some() => {
                    acts.extend(Some(node).filter(live).map(|node| Act::Lease(Job::Land, node)));
                }
                None | Some(_) => {}
            }
        }
        for (region, prefix) in [(A, Prefix::Own), (A, Prefix::Staging), (B, Prefix::Own), (B, Prefix::Staging)] {
            let job = Job::Purge(region, prefix);
            let due = match world.remains[region][prefix as usize] {
                Remains::None => false,
                Remains::Kept => !self.guards.keeps_old,
                Remains::Due | Remains::Purging { .. } => true,
            };
            if due && is_free(job) {
                acts.extend(nodes_of(region).take(1).map(|node| Act::Lease(job, node)));
            }
        }
    }

    /// Whether the newest acknowledged version is where the protocol would take it from, by itself.
    fn holds(&self, world: &World) -> bool {
        let needed = world.needed;
        let is_whole = |node: usize| world.boxes[node].database.is_some_and(|held| held & needed == needed);
        if let Some(pending) = world.pending {
            return world.staging[pending.to].holds(needed);
        }
        match world.route {
            Some(Route { status: Status::Serving | Status::Moving, node, .. }) => {
                is_whole(node)
                    || world.open.is_some_and(|open| {
                        open.purge_began
                            && world.staging[open.to].holds(needed)
                            && world.own[world.region].holds(needed)
                    })
            }
            Some(Route { status: Status::Landing, .. }) | None => {
                world.pointed
                    || (0..self.nodes).any(|node| HOME[node] == world.region && is_whole(node))
                    || world.own[world.region].holds(needed)
                    || world.staging[world.region].holds(needed)
            }
        }
    }

    /// What must happen now and then within these bounds, or the rest says nothing.
    fn wished(&self) -> Vec<Property<Self>> {
        let Budget { moves, aborts, stops, late, .. } = self.budget;
        let mut wished = vec![Property::sometimes("a move completes", |_, world: &World| {
            world.seen.cleaned & 1 == 1 && world.open.is_none() && world.boxes[1..].iter().any(|machine| machine.child)
        })];
        if aborts > 0 {
            wished.push(Property::sometimes("an abort completes", |_, world: &World| world.seen.aborted != 0));
        }
        if moves > 1 {
            let back =
                |_: &Self, world: &World| world.seen.cleaned & 3 == 3 && world.region == A && world.boxes[0].child;
            wished.push(Property::sometimes("an instance comes back", back));
        }
        if stops > 0 {
            let refused = |_: &Self, world: &World| world.seen.refused;
            wished.push(Property::sometimes("a worker that was taken over wakes late and is refused", refused));
        }
        if late > 0 {
            let late = |_: &Self, world: &World| world.seen.late && world.seen.landed != 0;
            wished.push(Property::sometimes("a request arrives after its sender's end", late));
        }
        wished
    }

    fn is_in_scope(world: &World) -> bool {
        world.boxes.iter().enumerate().filter(|(_, machine)| machine.child).all(|(node, _)| {
            world.region == HOME[node] && world.route_of(node).is_some_and(|route| route.status != Status::Landing)
        })
    }

    fn has_one_lineage(world: &World) -> bool {
        let Some(Route { node, status: Status::Serving, .. }) = world.route else { return true };
        let Some(database) = world.boxes[node].database else { return true };
        let own = world.own[HOME[node]];
        own.tip.into_iter().chain(own.other).all(|tip| super::world::leads(tip, database))
    }
}

impl Model for Moves {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        let served = Machine { database: Some(0), child: true, litestream: true, ..Machine::default() };
        let there = if self.left_behind { Objects::of(LEFT_BEHIND) } else { Objects::default() };
        vec![World {
            region: A,
            pending: None,
            parked: false,
            route: Some(Route { node: 0, status: Status::Serving, told: true }),
            open: None,
            unclean: [None; 2],
            remains: [[Remains::None; 2]; 2],
            boxes: [served, Machine::default(), Machine::default()],
            own: [Objects::of(0), there],
            staging: [Objects::default(); 2],
            staged_by: [0; 2],
            runs: [None; 3],
            asleep: None,
            flying: None,
            left: self.budget,
            acknowledged: 0,
            needed: 0,
            pointed: false,
            moves: 0,
            seen: Seen::default(),
        }]
    }

    fn actions(&self, world: &World, acts: &mut Vec<Act>) {
        self.due(world, acts);
        for (place, run) in world.runs.iter().enumerate().filter_map(|(place, run)| Some((place, run.as_ref()?))) {
            if !(run.step.is_local() && world.boxes[run.node].permit) {
                acts.push(Act::Go(place));
            }
            if world.left.late > 0 && world.flying.is_none() && self.request(world, *run).is_some() {
                acts.push(Act::Late(place));
            }
            if world.left.stops > 0 && world.asleep.is_none() && run.step.is_fenced() {
                acts.push(Act::LoseLease(place));
            }
        }
        let sleeper = world.asleep.filter(|run| !(run.step.is_local() && world.boxes[run.node].permit));
        acts.extend(sleeper.map(|_| Act::Wake));
        acts.extend(world.flying.map(|_| Act::Arrive));
        for node in 0..self.nodes {
            if world.left.crashes > 0 && world.runs.iter().flatten().any(|run| run.node == node) {
                acts.push(Act::Crash(node));
            }
            if world.left.deaths > 0 && !world.boxes[node].is_away() {
                acts.push(Act::Ask(Ask::Die(node)));
            }
            if world.left.silences > 0 && !world.boxes[node].is_away() {
                acts.push(Act::Ask(Ask::FallSilent(node)));
            }
            if world.boxes[node].is_away() {
                acts.push(Act::Ask(Ask::Return(node)));
            }
            self.kept(world, node, acts);
        }
        if world.route.is_some_and(|route| HOME[route.node] != world.region) {
            acts.push(Act::Retire);
        }
        self.asked(world, acts);
    }

    fn next_state(&self, before: &World, act: Act) -> Option<World> {
        let mut world = before.clone();
        match act {
            Act::Lease(job, node) => {
                let id = world.open.filter(|_| job == Job::Move).map_or(0, |open| open.id);
                world.runs[job.place()] = Some(Run { job, node, id, step: Step::Begin });
            }
            Act::Go(place) => {
                let run = world.runs[place]?;
                world.runs[place] = self.go(&mut world, run);
            }
            Act::Late(place) => {
                let run = world.runs[place]?;
                world.left.late -= 1;
                world.flying = Some(self.request(&world, run)?);
                world.runs[place] = None;
            }
            Act::LoseLease(place) => {
                world.left.stops -= 1;
                world.asleep = world.runs[place].take();
            }
            Act::Wake => {
                let run = world.asleep.take()?;
                if run.step.is_fenced() && self.guards.fence {
                    world.seen.refused = true;
                } else {
                    world.asleep = self.go(&mut world, run);
                }
            }
            Act::Arrive => {
                let request: Request = world.flying.take()?;
                self.arrive(&mut world, request);
                world.seen.late = true;
            }
            Act::Crash(node) => {
                world.left.crashes -= 1;
                world.boxes[node].permit = false;
                world.forget_runs_on(node);
            }
            Act::Retire => world.route = None,
            Act::Keep(act) => self.keep(&mut world, act)?,
            Act::Ask(act) => self.ask(&mut world, act)?,
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(ONE_WRITER, |_, world: &World| {
                world.boxes.iter().filter(|machine| machine.child).count() <= 1
            }),
            Property::always(IN_SCOPE, |_, world: &World| Self::is_in_scope(world)),
            Property::always(NOT_LOST, |model: &Self, world| model.holds(world)),
            Property::always(NOT_OLD, |_, world: &World| !world.seen.served_old),
            Property::always(PROVEN, |_, world: &World| !world.seen.purged_unproven),
            Property::always(NO_LEFTOVER, |_, world: &World| {
                world.staged_by.iter().all(|by| by & world.seen.aborted == 0)
            }),
            Property::always(CLEAN, |_, world: &World| world.staged_by.iter().all(|by| by & world.seen.cleaned == 0)),
            Property::always(KEPT, |_, world: &World| {
                world.pending.is_none_or(|pending| world.own[1 - pending.to].holds(world.needed))
            }),
            Property::always(NOT_NEEDED, |_, world: &World| !world.seen.purged_needed),
            Property::always(ONE_LINEAGE, |_, world: &World| Self::has_one_lineage(world)),
            Property::always(HAS_DATABASE, |_, world: &World| {
                world
                    .route
                    .is_none_or(|route| route.status != Status::Serving || world.boxes[route.node].database.is_some())
            }),
        ];
        properties.extend(self.wished());
        properties
    }
}
