//! What a worker does next, by the kind of its job.

use super::world::{Pending, Writes};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Reads the state and begins what it calls for.
    Begin,
    Source(SourceStep),
    Target(TargetStep),
    Remains(RemainsStep),
}

/// The job of a move, on the source's box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SourceStep {
    // A round.
    Check,
    Copy,
    Compare,
    EndRound { in_sync: bool },
    // A cut.
    StopChild,
    BeginProof,
    Prove,
    BeginDelta(Writes),
    CopyDelta(Writes),
    CompareDelta(Writes),
    Record(Writes),
    BeginPurge,
    ResumePurge,
    Purge,
    Flip,
    // An abort.
    Sweep { settled: bool },
    EndSweep { settled: bool },
}

/// The job of a landing, on the target's box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TargetStep {
    Look(Option<Pending>),
    CopyIn(Option<Pending>),
    EmptyOwn(Option<Pending>),
    BeginRestore(Option<Pending>),
    Restore(Option<Pending>),
    Serve(Option<Pending>),
    Clean { settled: bool },
    EndClean { settled: bool },
}

/// The job that purges what a move left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RemainsStep {
    Delete { settled: bool },
    EndDelete { settled: bool },
}

impl Step {
    /// Whether it is a write to PostgreSQL, which the fence guards: all but requests to a store and acts on the box.
    pub const fn is_fenced(self) -> bool {
        use {RemainsStep as R, SourceStep as S, TargetStep as T};
        !matches!(
            self,
            Self::Source(
                S::Copy
                    | S::Compare
                    | S::StopChild
                    | S::Prove
                    | S::CopyDelta(_)
                    | S::CompareDelta(_)
                    | S::Purge
                    | S::Sweep { .. }
            ) | Self::Target(T::Look(_) | T::CopyIn(_) | T::EmptyOwn(_) | T::Restore(_) | T::Clean { .. })
                | Self::Remains(R::Delete { .. })
        )
    }

    /// Whether it works on the box's own processes and files, under the host's mutex.
    pub const fn is_local(self) -> bool {
        use {SourceStep as S, TargetStep as T};
        matches!(self, Self::Source(S::StopChild | S::Prove | S::Purge) | Self::Target(T::Restore(_)))
    }
}
