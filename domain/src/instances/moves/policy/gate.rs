//! Whether a verb may be carried out: the record, the region, what is in flight.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::ids::RegionCode;
use crate::instances::moves::{Move, MoveState, StoredState};
use crate::instances::record::{InstanceKind, Role};
use crate::instances::{Error, Refusal};
use crate::nodes::Region;

/// What the gate of the verbs looks at.
#[derive(Debug, Clone, PartialEq)]
pub struct Movable<'a> {
    /// What the record describes.
    pub kind: InstanceKind,
    /// What runs it.
    pub backing: &'a str,
    /// Whether it is written, or follows another.
    pub role: Role,
    /// How its boxes are chosen.
    pub placement: Option<&'a str>,
    /// The pool that it is bound to.
    pub pool: &'a str,
    /// Whether it may be parked.
    pub hibernate: bool,
    /// Where it is.
    pub region: &'a RegionCode,
    /// Whether its environment has sealed values.
    pub sealed: bool,
    /// The move in flight: where to, and how far.
    pub open: Option<(&'a RegionCode, &'a StoredState)>,
    /// Whether a box serves it.
    pub placed: bool,
    /// Whether what an earlier move left where it would go is being purged.
    pub purging: bool,
}

/// One gate of the door of a move, and what it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gate {
    /// Stable, e.g. `region_armed`.
    pub name: &'static str,
    /// What it says.
    pub verdict: Verdict,
}

/// What a gate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The move may pass.
    Passed,
    /// It may not.
    Refused(Refusal),
    /// Another gate must open before there is anything to ask.
    Unasked,
}

impl Gate {
    /// A gate that refuses for this reason, or opens.
    fn of(name: &'static str, refusal: Option<Refusal>) -> Self {
        Self { name, verdict: refusal.map_or(Verdict::Passed, Verdict::Refused) }
    }

    const fn unasked(name: &'static str) -> Self {
        Self { name, verdict: Verdict::Unasked }
    }
}

/// What the first gate says that refuses; `None` where all are open.
#[must_use]
pub fn refusal_of(gates: &[Gate]) -> Option<&Refusal> {
    gates.iter().find_map(|gate| match &gate.verdict {
        Verdict::Refused(refusal) => Some(refusal),
        Verdict::Passed | Verdict::Unasked => None,
    })
}

/// Passes the gates.
///
/// # Errors
/// The first that refuses.
pub fn enter(gates: &[Gate]) -> Result<(), Refusal> {
    refusal_of(gates).map_or(Ok(()), |refusal| Err(refusal.clone()))
}

/// Whether the instance may move at all: the same for every verb of the move (M-020…M-024, M-117).
///
/// # Errors
/// The first fault in the stated order.
pub fn gate_record(record: &Movable<'_>) -> Result<(), Refusal> {
    enter(&gates_of_record(record))
}

fn gates_of_record(record: &Movable<'_>) -> Vec<Gate> {
    let kind = match record.kind {
        InstanceKind::Instance => None,
        InstanceKind::Unit | InstanceKind::Addr | InstanceKind::Static | InstanceKind::Everywhere => {
            Some(Refusal::Kind(record.kind))
        }
    };
    let role = match record.role {
        Role::Original => None,
        Role::Replica => Some(Refusal::Replica),
    };
    vec![
        Gate::of("kind", kind),
        Gate::of("backing", (record.backing != "exec").then(|| Refusal::Backing(record.backing.to_owned()))),
        Gate::of("role", role),
        Gate::of("placement", record.placement.map(|placement| Refusal::Placement(placement.to_owned()))),
        Gate::of("pool", (!record.pool.is_empty()).then(|| Refusal::Pool(record.pool.to_owned()))),
        Gate::of("hibernate", (!record.hibernate).then_some(Refusal::NeverHibernates)),
    ]
}

/// Whether an instance, with sealed values or without, may be placed in this region (M-016, M-115): dormant plays no part.
///
/// # Errors
/// What is missing.
pub fn gate_region(asked: &str, region: Option<&Region>, sealed: bool) -> Result<(), Refusal> {
    enter(&gates_of_region(asked, region, sealed))
}

fn gates_of_region(asked: &str, region: Option<&Region>, sealed: bool) -> Vec<Gate> {
    let unknown = region.is_none().then(|| Refusal::RegionUnknown(asked.to_owned()));
    let known = Gate::of("region_known", unknown);
    let Some(region) = region else {
        return vec![known, Gate::unasked("region_armed"), Gate::unasked("region_hosts"), Gate::unasked("region_key")];
    };
    let no_key = sealed && region.config_key.is_empty();
    vec![
        known,
        Gate::of("region_armed", (!region.armed).then(|| Refusal::RegionUnarmed(region.code.clone()))),
        Gate::of("region_hosts", (!region.can_host).then(|| Refusal::RegionCannotHost(region.code.clone()))),
        Gate::of("region_key", no_key.then(|| Refusal::RegionHoldsNoKey(region.code.clone()))),
    ]
}

/// Every gate of a move to `asked`, in the order in which they are asked (M-015…M-024): record, region, what is in flight,
/// the box, what an earlier move left there.
#[must_use]
pub fn gates_of_move(record: &Movable<'_>, asked: &str, target: Option<&Region>) -> Vec<Gate> {
    let mut gates = gates_of_record(record);
    let same = (record.region.as_str() == asked).then(|| Refusal::SameRegion(record.region.clone()));
    gates.push(Gate::of("other_region", same));
    gates.extend(gates_of_region(asked, target, record.sealed));
    let in_flight = record.open.map(|(to, state)| Refusal::InFlight { to: to.clone(), state: state.clone() });
    gates.push(Gate::of("none_in_flight", in_flight));
    gates.push(Gate::of("served", (!record.placed).then_some(Refusal::NotPlaced)));
    gates.push(target.map_or(Gate::unasked("none_purging"), |target| {
        Gate::of("none_purging", record.purging.then(|| Refusal::Purging(target.code.clone())))
    }));
    gates
}

/// Whether a move in flight may enter `state` by a verb (M-026, M-029, M-030).
///
/// # Errors
/// [`Refusal::NotReady`] for a cut that comes too early; [`Refusal::InFlight`] for what is too late.
pub fn gate_verb(state: MoveState, open: &Move) -> Result<(), Refusal> {
    match open.state.known() {
        Some(now) if state.entered_from().contains(&now) => Ok(()),
        Some(MoveState::Preparing) => Err(Refusal::NotReady { to: open.to.clone() }),
        Some(MoveState::Ready | MoveState::Cutting | MoveState::Aborting) | None => {
            Err(Refusal::InFlight { to: open.to.clone(), state: open.state.clone() })
        }
    }
}

/// The bounds of a freeze's budget.
const FREEZE_BUDGET: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);

/// The code of a freeze that is predicted to be over its budget, as a refusal and as an obstacle.
pub const FREEZE_OVER_BUDGET: &str = "freeze_over_budget";
/// The code of a target where no box could land it, as an obstacle.
pub const TARGET_CANNOT_HOST: &str = "target_cannot_host";
/// What keeps a move from being cut by itself, while its rounds go on.
pub const NOT_CUT: [&str; 2] = [FREEZE_OVER_BUDGET, TARGET_CANNOT_HOST];

/// Whether a move may carry this budget.
///
/// # Errors
/// [`Error::Invalid`].
pub fn check_freeze_budget(budget: Option<Duration>) -> Result<(), Error> {
    match budget {
        Some(budget) if !FREEZE_BUDGET.contains(&budget) || budget.subsec_nanos() > 0 => {
            Err(Error::Invalid { field: "freeze_budget", rule: "must be 1 to 86400 whole seconds" })
        }
        Some(_) | None => Ok(()),
    }
}

/// Whether a freeze is predicted to be within its budget; `None` without a budget, or where nothing predicts it.
#[must_use]
pub fn within_budget(budget: Option<Duration>, predicted: Option<Duration>) -> Option<bool> {
    budget.zip(predicted).map(|(budget, predicted)| predicted <= budget)
}

/// Whether a cut is predicted to end within its move's budget. Where nothing predicts it, no budget is known to be broken.
///
/// # Errors
/// [`Refusal::FreezeOverBudget`].
pub fn gate_freeze(to: &RegionCode, budget: Option<Duration>, predicted: Option<Duration>) -> Result<(), Refusal> {
    match budget.zip(predicted).filter(|_| within_budget(budget, predicted) == Some(false)) {
        Some((budget, predicted)) => Err(Refusal::FreezeOverBudget { to: to.clone(), predicted, budget }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_is_refused_only_where_what_is_predicted_is_over_the_budget() {
        let uk = code("uk");
        let gate = |budget: Option<u64>, predicted: Option<u64>| {
            gate_freeze(&uk, budget.map(Duration::from_secs), predicted.map(Duration::from_millis))
        };
        for (budget, predicted) in [(None, None), (None, Some(90_000)), (Some(10), None), (Some(10), Some(10_000))] {
            assert_eq!(gate(budget, predicted), Ok(()), "{budget:?} {predicted:?}");
        }
        let (ten, longer) = (Some(Duration::from_secs(10)), Some(Duration::from_millis(10_001)));
        assert_eq!((within_budget(ten, ten), within_budget(ten, longer)), (Some(true), Some(false)));
        assert_eq!((within_budget(None, longer), within_budget(ten, None)), (None, None), "nothing to hold it against");
        let over = gate(Some(10), Some(10_001)).expect_err("a millisecond too long");
        assert_eq!(over.code(), FREEZE_OVER_BUDGET);
        let told = over.to_string();
        assert!(told.contains("10.001 s") && told.contains("budget of 10 s"), "{told}");
    }

    #[test]
    fn a_budget_is_a_second_to_a_day_in_whole_seconds() {
        let check = |ms| check_freeze_budget(Some(Duration::from_millis(ms)));
        assert!(check_freeze_budget(None).is_ok() && check(1_000).is_ok() && check(86_400_000).is_ok());
        for ms in [0, 999, 1_500, 86_401_000] {
            assert!(matches!(check(ms), Err(Error::Invalid { field: "freeze_budget", .. })), "{ms}");
        }
    }

    fn code(text: &str) -> RegionCode {
        RegionCode::new(text).unwrap()
    }

    fn region(text: &str, armed: bool, can_host: bool, dormant: bool) -> Region {
        Region {
            code: code(text),
            name: text.to_owned(),
            armed,
            dormant,
            home: false,
            is_default: false,
            data: None,
            serial: 0,
            can_host,
            config_key: Vec::new(),
        }
    }

    fn movable(eu: &RegionCode) -> Movable<'_> {
        Movable {
            kind: InstanceKind::Instance,
            backing: "exec",
            role: Role::Original,
            placement: None,
            pool: "",
            hibernate: true,
            region: eu,
            sealed: false,
            open: None,
            placed: true,
            purging: false,
        }
    }

    #[test]
    fn every_gate_that_refuses_is_told_and_none_that_had_nothing_to_look_at() {
        let (eu, uk) = (code("eu"), code("uk"));
        let ready = StoredState::from(MoveState::Ready);
        let open = Some((&uk, &ready));
        let record = Movable { pool: "gpu", hibernate: false, open, purging: true, ..movable(&eu) };
        let refused = |gates: &[Gate]| -> Vec<&'static str> {
            let refused = gates.iter().filter(|gate| matches!(gate.verdict, Verdict::Refused(_)));
            refused.map(|gate| gate.name).collect()
        };
        let all = gates_of_move(&record, "uk", Some(&region("uk", false, false, false)));
        assert_eq!(
            refused(&all),
            ["pool", "hibernate", "region_armed", "region_hosts", "none_in_flight", "none_purging"]
        );
        let names: std::collections::BTreeSet<&str> = all.iter().map(|gate| gate.name).collect();
        assert_eq!((names.len(), all.len()), (14, 14), "each has a name of its own");
        let unknown = gates_of_move(&movable(&eu), "mars", None);
        assert_eq!(refused(&unknown), ["region_known"]);
        assert_eq!(unknown.iter().filter(|gate| gate.verdict == Verdict::Unasked).count(), 4);
        let sealed = Movable { sealed: true, ..movable(&eu) };
        assert_eq!(refused(&gates_of_move(&sealed, "uk", Some(&region("uk", true, true, true)))), ["region_key"]);
        let open = gates_of_move(&movable(&eu), "uk", Some(&region("uk", true, true, true)));
        assert!(open.iter().all(|gate| gate.verdict == Verdict::Passed), "{open:?}");
    }

    #[test]
    fn of_several_faults_the_first_in_the_stated_order_is_told() {
        let (eu, uk) = (code("eu"), code("uk"));
        let preparing = StoredState::from(MoveState::Preparing);
        // Everything is wrong at once; each repair uncovers the next fault.
        let mut record = Movable {
            kind: InstanceKind::Unit,
            backing: "wasm",
            role: Role::Replica,
            placement: Some("fleet"),
            pool: "gpu",
            hibernate: false,
            sealed: true,
            open: Some((&uk, &preparing)),
            placed: false,
            purging: true,
            ..movable(&eu)
        };
        let mut told = Vec::new();
        let mut target = None;
        let mut asked = "eu";
        for repair in 0.. {
            match enter(&gates_of_move(&record, asked, target.as_ref())) {
                Ok(()) => break,
                Err(refusal) => told.push(refusal.code()),
            }
            match repair {
                0 => record.kind = InstanceKind::Instance,
                1 => record.backing = "exec",
                2 => record.role = Role::Original,
                3 => record.placement = None,
                4 => record.pool = "",
                5 => record.hibernate = true,
                6 => asked = "uk",
                7 => target = Some(region("uk", false, false, true)),
                8 => target = Some(region("uk", true, false, true)),
                9 => target = Some(region("uk", true, true, true)),
                10 => target.as_mut().unwrap().config_key.push("age1".to_owned()),
                11 => record.open = None,
                12 => record.placed = true,
                _ => record.purging = false,
            }
        }
        assert_eq!(
            told,
            [
                "kind_not_movable",
                "backing_not_movable",
                "replica",
                "fleet_not_movable",
                "pool_not_movable",
                "hibernate_required",
                "same_region",
                "region_unknown",
                "region_unarmed",
                "region_cannot_host",
                "region_cannot_host",
                "move_in_flight",
                "not_placed",
                "region_purging",
            ]
        );
    }
}
