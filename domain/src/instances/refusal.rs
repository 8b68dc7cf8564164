//! Why a door of the instances refuses: a stable code, a sentence, and which of several faults comes first.

use std::time::Duration;

use super::moves::StoredState;
use super::moves::policy::FREEZE_OVER_BUDGET;
use super::record::InstanceKind;
use crate::ids::{NodeId, RegionCode};

/// Which answer a refusal gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalClass {
    /// 404: it does not exist, or may not be seen.
    Absent,
    /// 400: the request can never be carried out for this record, or names a wrong region.
    Invalid,
    /// 409: not in the present state.
    Conflict,
    /// 412: it changed since the caller read it.
    Stale,
}

/// Why a verb was refused. Where several hold, the first one in this order is told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such instance of this application.
    #[error("this application has no such instance")]
    NotFound,
    /// M-020, M-024.
    #[error("a record of kind {0} has no data that could follow: only kind instance moves")]
    Kind(InstanceKind),
    /// M-024.
    #[error("an instance backed by {0:?} has no child and database of its own: only backing exec moves")]
    Backing(String),
    /// M-117.
    #[error("this instance is a replica: move the original that it follows")]
    Replica,
    /// M-021.
    #[error("this instance is placed by a fleet ({0:?}), whose state does not follow")]
    Placement(String),
    /// M-022.
    #[error("this instance is bound to pool {0:?}, and pools do not span regions")]
    Pool(String),
    /// M-023.
    #[error("this instance never hibernates, so its box may not stop it (hibernate is false)")]
    NeverHibernates,
    /// M-017.
    #[error("the instance is in region {0} already")]
    SameRegion(RegionCode),
    /// M-016.
    #[error("region {0:?} does not exist")]
    RegionUnknown(String),
    /// M-016.
    #[error("region {0} is not armed: no instance may be placed there")]
    RegionUnarmed(RegionCode),
    /// M-016, M-115.
    #[error("region {0} has no live box that can host an instance (capability exec)")]
    RegionCannotHost(RegionCode),
    /// M-115: the instance has sealed values.
    #[error("region {0} has no live box that can host an instance and opens sealed values (capability config_key)")]
    RegionHoldsNoKey(RegionCode),
    /// M-018, M-033.
    #[error("a move to {to} is in flight and {state}")]
    InFlight {
        /// Where it goes.
        to: RegionCode,
        /// How far it is.
        state: StoredState,
    },
    /// There is nothing to cut or to abort.
    #[error("no move of this instance is in flight")]
    NoMove,
    /// M-026.
    #[error("the move to {to} is not ready yet: what is staged does not equal the source")]
    NotReady {
        /// Where it goes.
        to: RegionCode,
    },
    /// The tenant cannot bear what the cut is predicted to take.
    #[error(
        "a cut to {to} is predicted to freeze the instance for {:.3} s, over the move's budget of {} s: force it, or abort \
         the move and begin it with a larger budget",
        predicted.as_secs_f64(), budget.as_secs()
    )]
    FreezeOverBudget {
        /// Where it goes.
        to: RegionCode,
        /// How long the newest cuts between the two regions took.
        predicted: Duration,
        /// How long this one may be predicted to take.
        budget: Duration,
    },
    /// Only what is being cut can be taken back so.
    #[error("the move is {0}, not being cut: a move that prepares or is ready is given up by its abort")]
    NotCutting(StoredState),
    /// The source's own database may be gone.
    #[error("the cut has begun to delete the source's database: it goes forward only")]
    PastRecall,
    /// Two boxes would write.
    #[error("node {0} serves the instance and lives: move it instead, or end that box for good first")]
    Serves(NodeId),
    /// Half of it may be gone.
    #[error("what an earlier move left in region {0} is being purged: wait until that is over")]
    Purging(RegionCode),
    /// It changed since the caller read it.
    #[error("the record is at revision {found}, not {expected}: read it again")]
    Stale {
        /// The revision that the caller expected.
        expected: i64,
        /// The present one.
        found: i64,
    },
    /// No box serves it yet, so none could carry the move out.
    #[error("no box serves this instance yet: try again when one does")]
    NotPlaced,
    /// Another record carries the host.
    #[error("a record of this host exists already")]
    HostTaken,
}

impl Refusal {
    /// The machine's code: stable, one help page each.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotFound => "instance_not_found",
            Self::Kind(_) => "kind_not_movable",
            Self::Backing(_) => "backing_not_movable",
            Self::Replica => "replica",
            Self::Placement(_) => "fleet_not_movable",
            Self::Pool(_) => "pool_not_movable",
            Self::NeverHibernates => "hibernate_required",
            Self::SameRegion(_) => "same_region",
            Self::RegionUnknown(_) => "region_unknown",
            Self::RegionUnarmed(_) => "region_unarmed",
            Self::RegionCannotHost(_) | Self::RegionHoldsNoKey(_) => "region_cannot_host",
            Self::InFlight { .. } => "move_in_flight",
            Self::NoMove => "no_move",
            Self::NotReady { .. } => "move_not_ready",
            Self::FreezeOverBudget { .. } => FREEZE_OVER_BUDGET,
            Self::NotCutting(_) => "move_not_cutting",
            Self::PastRecall => "move_past_recall",
            Self::Serves(_) => "instance_served",
            Self::Purging(_) => "region_purging",
            Self::Stale { .. } => "stale_revision",
            Self::NotPlaced => "not_placed",
            Self::HostTaken => "host_taken",
        }
    }

    /// Which answer it gets.
    #[must_use]
    pub const fn class(&self) -> RefusalClass {
        match self {
            Self::NotFound => RefusalClass::Absent,
            Self::Kind(_)
            | Self::Backing(_)
            | Self::Replica
            | Self::Placement(_)
            | Self::Pool(_)
            | Self::NeverHibernates
            | Self::SameRegion(_)
            | Self::RegionUnknown(_)
            | Self::RegionUnarmed(_)
            | Self::RegionCannotHost(_)
            | Self::RegionHoldsNoKey(_) => RefusalClass::Invalid,
            Self::InFlight { .. }
            | Self::NoMove
            | Self::NotReady { .. }
            | Self::FreezeOverBudget { .. }
            | Self::NotCutting(_)
            | Self::PastRecall
            | Self::Serves(_)
            | Self::Purging(_)
            | Self::NotPlaced
            | Self::HostTaken => RefusalClass::Conflict,
            Self::Stale { .. } => RefusalClass::Stale,
        }
    }
}
