//! What the world of a move is: the rows of PostgreSQL, the boxes with their disks and children, the two stores, whoever
//! works, and what is on its way to a store.

use domain::instances::moves::MoveState;

use super::steps::Step;

/// A region's place: [`A`] or [`B`].
pub type Region = usize;
/// A box's place.
pub type Node = usize;
/// The acknowledged writes that a database, or a replica of one, holds: bit n is the n-th.
pub type Writes = u8;

pub const A: Region = 0;
pub const B: Region = 1;
/// The region of each box.
pub const HOME: [Region; 3] = [A, B, B];
/// What an earlier term left in B's own replica and nobody needs: no write of this story.
pub const LEFT_BEHIND: Writes = 1 << 7;

/// Whether a database that holds `earlier` may have become one that holds `later`.
pub fn leads(earlier: Writes, later: Writes) -> bool {
    let known = if earlier == 0 { 0 } else { Writes::MAX >> earlier.leading_zeros() };
    later & known == earlier
}

/// The objects below a prefix, by what they restore to. Of one lineage only the end counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Objects {
    pub tip: Option<Writes>,
    /// Another lineage beside it: which of the two is restored is chance, so the wrong one.
    pub other: Option<Writes>,
}

impl Objects {
    pub const fn of(tip: Writes) -> Self {
        Self { tip: Some(tip), other: None }
    }

    pub const fn is_empty(self) -> bool {
        self.tip.is_none()
    }

    /// Objects arrive; those that are there stay.
    pub fn put(&mut self, what: Writes) {
        let tip = *self.tip.get_or_insert(what);
        if leads(tip, what) {
            self.tip = Some(what);
        } else if !leads(what, tip) && self.other.is_none_or(|other| leads(other, what)) {
            self.other = Some(what);
        }
    }

    /// Deletes what a listing named.
    pub fn delete(&mut self, listed: Self) {
        let named = |tip: Writes| {
            let is = |one: Option<Writes>| one.is_some_and(|one| leads(one, tip) || leads(tip, one));
            is(listed.tip) || is(listed.other)
        };
        let left = [self.tip, self.other].map(|tip| tip.filter(|tip| !named(*tip)));
        *self = Self { tip: left[0].or(left[1]), other: left[0].and(left[1]) };
    }

    /// What a restore of the newest gives.
    pub fn restores(self, needed: Writes) -> Option<Writes> {
        let tip = self.tip?;
        Some(if tip & needed == needed { self.other.unwrap_or(tip) } else { tip })
    }

    pub fn holds(self, needed: Writes) -> bool {
        self.restores(needed).is_some_and(|restored| restored & needed == needed)
    }
}

/// A move in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Move {
    pub id: u8,
    pub to: Region,
    pub state: MoveState,
    pub tail: Option<Writes>,
    pub purge_began: bool,
    /// The staging was once found empty after the abort.
    pub swept: bool,
}

/// A landing that decides, and what it must restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pending {
    pub id: u8,
    pub to: Region,
    pub tail: Writes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    Landing,
    Serving,
    Moving,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Route {
    pub node: Node,
    pub status: Status,
    /// Edges know where its child answers.
    pub told: bool,
}

/// What a move left below a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Remains {
    None,
    /// Until its landing serves.
    Kept,
    /// Its time may come at any moment.
    Due,
    /// From the first delete to the proof that nothing is left.
    Purging {
        emptied: bool,
    },
}

/// Which prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Prefix {
    Own,
    Staging,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Machine {
    pub child: bool,
    pub litestream: bool,
    /// Its loop was told that the child may start, and holds the host's mutex.
    pub permit: bool,
    pub database: Option<Writes>,
    /// Gone, with everything that ran; the disk is kept.
    pub dead: bool,
    /// Its worker is gone, its child is not.
    pub silent: bool,
}

impl Machine {
    /// Not heard any more.
    pub const fn is_away(self) -> bool {
        self.dead || self.silent
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Job {
    Move,
    Land,
    Purge(Region, Prefix),
}

impl Job {
    /// Its place among the jobs that run.
    pub const fn place(self) -> usize {
        match self {
            Self::Move => 0,
            Self::Land => 1,
            Self::Purge(..) => 2,
        }
    }
}

/// A worker under a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Run {
    pub job: Job,
    pub node: Node,
    /// The move that the job names.
    pub id: u8,
    pub step: Step,
}

/// A request that a store will carry out, whatever became of its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Request {
    Stage { to: Region, what: Objects, id: u8 },
    CopyIn { to: Region, what: Objects },
    Delete { at: Region, prefix: Prefix, listed: Objects },
}

/// What may still happen that nobody wishes for, and what may still be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Budget {
    pub writes: u8,
    pub moves: u8,
    pub aborts: u8,
    pub crashes: u8,
    /// Leases that are lost by workers that live on.
    pub stops: u8,
    /// Requests that outlive their senders.
    pub late: u8,
    pub unsticks: u8,
    pub points: u8,
    pub parks: u8,
    pub deaths: u8,
    pub silences: u8,
}

/// What has happened that must not, or that must happen now and then for the model to say anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Seen {
    pub served_old: bool,
    pub purged_unproven: bool,
    pub purged_needed: bool,
    pub refused: bool,
    pub late: bool,
    pub landed: u8,
    pub aborted: u8,
    pub cleaned: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    // PostgreSQL.
    pub region: Region,
    pub pending: Option<Pending>,
    pub parked: bool,
    pub route: Option<Route>,
    pub open: Option<Move>,
    /// The move that landed in a region and whose staging is left there.
    pub unclean: [Option<u8>; 2],
    pub remains: [[Remains; 2]; 2],
    // The boxes and the stores.
    pub boxes: [Machine; 3],
    pub own: [Objects; 2],
    pub staging: [Objects; 2],
    /// The moves whose objects are staged.
    pub staged_by: [u8; 2],
    // Who works.
    pub runs: [Option<Run>; 3],
    /// It lost its lease and does not know.
    pub asleep: Option<Run>,
    pub flying: Option<Request>,
    // The story.
    pub left: Budget,
    pub acknowledged: u8,
    /// Acknowledged and not given up by an operator.
    pub needed: Writes,
    /// The record was pointed here by hand: what only other regions hold is given up once this one serves.
    pub pointed: bool,
    pub moves: u8,
    pub seen: Seen,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Lease(Job, Node),
    Go(usize),
    /// The request is sent, and its sender dies.
    Late(usize),
    /// The lease is lost; the worker sleeps before its next write.
    LoseLease(usize),
    /// The worker without a lease goes on.
    Wake,
    Arrive,
    /// A box's worker dies; what it started lives on.
    Crash(Node),
    /// A route whose record is elsewhere is retired.
    Retire,
    Keep(Keep),
    Ask(Ask),
}

/// What a box's loop, its child and its litestream do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    Permit(Node),
    Start(Node),
    Untell(Node),
    EndChild(Node),
    Replicate(Node),
    Write(Node),
}

/// What people ask for, and what boxes suffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    StartMove(Region),
    Cut,
    Abort,
    Unstick,
    SetRegion(Region),
    Park,
    Unpark,
    Die(Node),
    FallSilent(Node),
    Return(Node),
}

impl World {
    pub fn route_of(&self, node: Node) -> Option<Route> {
        self.route.filter(|route| route.node == node)
    }

    pub fn serves(&self, node: Node) -> bool {
        self.route_of(node).is_some_and(|route| route.status == Status::Serving)
    }

    pub fn is_purging(&self, region: Region) -> bool {
        self.remains[region].iter().any(|remains| matches!(remains, Remains::Purging { .. }))
    }

    pub const fn objects(&self, at: Region, prefix: Prefix) -> Objects {
        match prefix {
            Prefix::Own => self.own[at],
            Prefix::Staging => self.staging[at],
        }
    }

    pub fn delete(&mut self, at: Region, prefix: Prefix, listed: Objects) {
        match prefix {
            Prefix::Own => self.own[at].delete(listed),
            Prefix::Staging => self.staging[at].delete(listed),
        }
        if self.staging[at].is_empty() {
            self.staged_by[at] = 0;
        }
    }

    pub fn stage(&mut self, to: Region, what: Objects, id: u8) {
        let before = self.staging[to];
        what.tip.into_iter().chain(what.other).for_each(|tip| self.staging[to].put(tip));
        if self.staging[to] != before {
            self.staged_by[to] |= 1 << id;
        }
    }
}
