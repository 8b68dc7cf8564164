//! What the world of the protocol is: the job's row, what the processes believe, and what is on its way.

use domain::queue::JobState;

/// A lease's number; 0 before the first.
pub type Fence = u8;
/// A worker's place among the workers: its name, which it keeps over a restart.
pub type Name = usize;

/// How a lease ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ending {
    Complete,
    Fail,
    Snooze,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    Renew,
    Step,
    End(Ending),
}

/// A write on its way to the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Write {
    pub from: Name,
    pub fence: Fence,
    pub attempt: u8,
    pub what: What,
}

/// What a process believes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Process {
    Idle,
    /// Its handler works; it has sent so many renewals and steps.
    Works {
        fence: Fence,
        attempt: u8,
        sent: u8,
    },
    /// It waits for the answer to its outcome.
    Ends {
        fence: Fence,
        attempt: u8,
        how: Ending,
    },
}

impl Process {
    pub const fn fence(self) -> Option<Fence> {
        match self {
            Self::Idle => None,
            Self::Works { fence, .. } | Self::Ends { fence, .. } => Some(fence),
        }
    }
}

/// The job's row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Row {
    pub state: JobState,
    pub fence: Fence,
    pub attempt: u8,
    pub max_attempts: u8,
    pub holder: Option<Name>,
    /// The lease has ended by the database's clock.
    pub expired: bool,
    pub cancel_asked: bool,
    /// Leases whose outcomes are recorded.
    pub settled: Vec<Fence>,
}

/// What has happened that must not, or that must happen now and then for the model to say anything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Seen {
    pub completions: u8,
    pub stale_effect: bool,
    pub robbed: bool,
    pub wronged: bool,
    pub off_the_edges: bool,
    pub refused_a_stale_write: bool,
    pub told_already: bool,
    pub rescued: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub row: Row,
    pub processes: [Process; 2],
    pub flying: Vec<Write>,
    /// A rescue has read that this lease had expired, and has not written yet.
    pub rescuing: Option<Fence>,
    pub faults: u8,
    pub endings: u8,
    pub operations: u8,
    pub seen: Seen,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    Lease(Name),
    Send(Name, What),
    /// Sends its outcome again, of which it has heard nothing.
    SendAgain(Name),
    Deliver(Write),
    /// It arrives and takes effect; the answer is lost.
    DeliverUnheard(Write),
    /// It arrives, and will arrive again.
    DeliverTwice(Write),
    /// It never arrives.
    Lose(Write),
    /// The process dies and starts again under its name.
    Crash(Name),
    Expire,
    RescueReads,
    RescueWrites,
    /// What waits for its time becomes due.
    Stage,
    Cancel,
    Retry,
}

impl World {
    pub fn enter(&mut self, to: JobState) {
        let row = &mut self.row;
        self.seen.off_the_edges |= !to.entered_from().contains(&row.state);
        row.state = to;
        if to != JobState::Running {
            row.expired = false;
            row.holder = None;
        }
    }

    /// Puts a write on its way; the order among them means nothing.
    pub fn send(&mut self, write: Write) {
        let place = self.flying.partition_point(|other| *other < write);
        self.flying.insert(place, write);
    }

    pub fn land(&mut self, write: Write) {
        let place = self.flying.iter().position(|other| *other == write).expect("it is on its way");
        self.flying.remove(place);
    }

    /// The sender hears what became of its write, if it is still the process that sent it.
    pub fn hear(&mut self, write: Write, lost: bool) {
        let process = &mut self.processes[write.from];
        if process.fence() != Some(write.fence) {
            return;
        }
        let ends = matches!(write.what, What::End(_));
        self.seen.wronged |= ends && lost && self.row.settled.contains(&write.fence);
        if lost || ends {
            *process = Process::Idle;
        }
    }
}
