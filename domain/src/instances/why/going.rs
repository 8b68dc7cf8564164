//! What goes on as it should, and what comes next.

use chrono::TimeDelta;

use super::{Facts, Move, MoveState, Phase, Reason, advice, open};
use crate::instances::Refusal;
use crate::instances::moves::policy;

/// How long a landing may take to delete its staging before somebody is told.
const STAGING_TAKES: TimeDelta = TimeDelta::seconds(60);

/// What happens now, in the phase that it is in; then what else is worth knowing.
pub(super) fn reasons(facts: &Facts, phase: &Phase) -> Vec<Reason> {
    let mut reasons = vec![match phase {
        Phase::Unplaced => unplaced(facts),
        Phase::Landing => landing(facts),
        Phase::Serving => serving(facts),
        Phase::Moving(state) => match (state.known(), open(facts)) {
            (Some(MoveState::Preparing), Some(open)) => preparing(facts, open),
            (Some(MoveState::Ready), Some(open)) => ready(facts, open),
            (Some(MoveState::Cutting), Some(open)) => cutting(facts, open),
            (Some(MoveState::Aborting), Some(open)) => aborting(open),
            (None, _) | (_, None) => Reason {
                todo: advice::of("state_unknown", facts),
                ..Reason::new("state_unknown", format!("This version does not know the state {:?}.", state.as_str()))
            },
        },
    }];
    reasons.extend(elsewhere(facts));
    reasons.extend(staging_left(facts, phase));
    if facts.record.parked == Some(true) && *phase != Phase::Serving {
        let message = "It is parked: when it is served again, no child runs until somebody wakes it.";
        reasons.push(Reason { todo: advice::of("parked", facts), ..Reason::new("parked", message) });
    }
    reasons
}

/// Where there is something to carry out and no job that does.
pub(super) fn without_job(facts: &Facts, phase: &Phase) -> Option<Reason> {
    let what = match phase {
        Phase::Serving => return None,
        Phase::Moving(_) => "move",
        Phase::Landing | Phase::Unplaced => "landing",
    };
    let message = format!("No job carries the {what} out: the next sweep of any live worker enqueues one.");
    Some(Reason { todo: advice::of("job_missing", facts), ..Reason::new("job_missing", message) })
}

fn unplaced(facts: &Facts) -> Reason {
    let since = facts.record.created_at;
    Reason { since, ..Reason::new("unplaced", format!("No box of {} has taken it yet.", facts.record.region)) }
}

fn landing(facts: &Facts) -> Reason {
    let region = &facts.record.region;
    let here = facts.seat.as_ref().filter(|seat| seat.region == *region);
    let Some(seat) = here else {
        let newest = facts.newest.as_ref();
        let (who, since) = match newest.and_then(|it| it.given_up_at) {
            Some(at) => ("An operator pointed it", Some(at)),
            None => ("The cut gave it", newest.and_then(|it| it.finished_at)),
        };
        let message = format!("{who} to {region}, and no box there has taken it yet.");
        return Reason { since, ..Reason::new("landing", message) };
    };
    let (what, since) = match facts.steps.first().filter(|step| step.ended_at.is_none()) {
        Some(step) => (format!(": {}", words(&step.step)), Some(step.started_at)),
        None => (String::new(), None),
    };
    Reason { since, ..Reason::new("landing", format!("Box {} in {region} is landing it{what}.", seat.identity)) }
}

fn serving(facts: &Facts) -> Reason {
    let by = facts.seat.as_ref().map_or_else(String::new, |seat| format!(" by box {}", seat.identity));
    let region = &facts.record.region;
    if facts.record.parked == Some(true) {
        let message = format!("It is placed in {region}{by} and parked: no child runs until somebody wakes it.");
        return Reason { todo: advice::of("parked", facts), ..Reason::new("parked", message) };
    }
    Reason::new("serving", format!("It is served in {region}{by}, and no move is in flight."))
}

fn preparing(facts: &Facts, open: &Move) -> Reason {
    if let Some(step) = facts.steps.first().filter(|step| step.step == "round" && step.ended_at.is_none()) {
        let message = format!("Round {} of the copy to {} runs.", step.round.unwrap_or(open.round), open.to);
        return Reason { since: Some(step.started_at), ..Reason::new("round_runs", message) };
    }
    let Some((round, last)) = open.status.last_round.zip(open.status.last) else {
        let message = format!("The move to {} waits for its first round.", open.to);
        return Reason { since: Some(open.requested_at), ..Reason::new("first_round", message) };
    };
    let message = format!(
        "Round {round} left {} to copy and {} to delete: the next one follows by itself, and the first that finds no \
         difference makes the move ready.",
        objects(last.differ_copies),
        objects(last.differ_deletes),
    );
    Reason::new("differs", message)
}

fn ready(facts: &Facts, open: &Move) -> Reason {
    let over = policy::gate_freeze(&open.to, open.freeze_budget, facts.predicted_freeze).err();
    // A budget that nothing can be held against guards nothing, and whoever set it should know.
    let unknown = match (open.freeze_budget, facts.predicted_freeze) {
        (Some(budget), None) => format!(
            " No cut between {} and {} predicts its freeze yet, so its budget of {} s refuses nothing.",
            open.from,
            open.to,
            budget.as_secs()
        ),
        (Some(_) | None, _) => String::new(),
    };
    if let Some(refusal) = &facts.no_landing {
        let unarmed = matches!(refusal, Refusal::RegionUnarmed(_));
        let code = if unarmed { "target_unarmed" } else { policy::TARGET_CANNOT_HOST };
        // Where its box told so already, the advice stands there.
        let told = open.status.obstacle.as_ref().is_some_and(|held| held.code == code);
        let todo = advice::of(code, facts).filter(|_| !told);
        let message = format!("It is ready, and its cut is refused for now: {refusal}.");
        return Reason { since: open.ready_at, todo, ..Reason::new("ready", message) };
    }
    if open.cut_auto {
        let message = match over {
            Some(_) => {
                "It is ready, and the platform cuts it as soon as its predicted freeze is within its budget; rounds \
                        go on meanwhile."
                    .to_owned()
            }
            None => {
                format!("It is ready, and the platform cuts it at its next pass: nobody has to do anything.{unknown}")
            }
        };
        return Reason { since: open.ready_at, ..Reason::new("cuts_by_itself", message) };
    }
    if let Some(over) = over {
        let message = format!("It is ready, and its cut is refused: {over}.");
        let todo = advice::of(policy::FREEZE_OVER_BUDGET, facts);
        return Reason { since: open.ready_at, todo, ..Reason::new(policy::FREEZE_OVER_BUDGET, message) };
    }
    let message = format!(
        "It is ready for its cut to {}: what is staged has equalled the source, and rounds go on keeping it so.{unknown}",
        open.to
    );
    Reason { since: open.ready_at, todo: advice::of("ready", facts), ..Reason::new("ready", message) }
}

fn cutting(facts: &Facts, open: &Move) -> Reason {
    let newest = facts.steps.first().filter(|step| open.cut_at.is_some_and(|cut| step.started_at >= cut));
    let (what, since) = match newest {
        None => ("its box is about to close the route".to_owned(), open.cut_at),
        Some(step) if step.ended_at.is_none() => (format!("under way: {}", words(&step.step)), Some(step.started_at)),
        Some(step) if step.outcome.as_deref() == Some("failed") => {
            (format!("tried again soon: {}", words(&step.step)), step.ended_at)
        }
        Some(step) => (format!("done: {}", words(&step.step)), step.ended_at),
    };
    let no_return = match open.purge_began_at {
        Some(_) => " It goes forward only: the source's own database may be gone.",
        None => "",
    };
    Reason { since, ..Reason::new("cutting", format!("It is being cut to {}; {what}.{no_return}", open.to)) }
}

fn aborting(open: &Move) -> Reason {
    let message = format!(
        "The move to {} is being given up: everything that is staged is deleted, twice, and then the record has no move. \
         It is served where it is.",
        open.to
    );
    Reason { since: open.aborted_at, ..Reason::new("aborting", message) }
}

/// Placed and observed region differ only around a cut (M-114).
fn elsewhere(facts: &Facts) -> Option<Reason> {
    let seat = facts.seat.as_ref().filter(|seat| seat.region != facts.record.region)?;
    let message = format!(
        "It is placed in {} and was last served in {}: the cut gave it to {0}, and box {} has not retired its route yet.",
        facts.record.region, seat.region, seat.identity
    );
    Some(Reason::new("regions_differ", message))
}

fn staging_left(facts: &Facts, phase: &Phase) -> Option<Reason> {
    let newest = facts.newest.as_ref()?;
    let since = newest.landed_at.filter(|_| newest.staging_deleted_at.is_none() && *phase == Phase::Serving)?;
    // The landing deletes it right after it serves: that takes a moment.
    if facts.now - since < STAGING_TAKES {
        return None;
    }
    let message = format!(
        "What the move staged in {} is not deleted yet; its box tries again by itself, and it is served all the while.",
        newest.to
    );
    let todo = advice::of("staging_left", facts);
    Some(Reason { since: Some(since), todo, ..Reason::new("staging_left", message) })
}

fn objects(count: u64) -> String {
    if count == 1 { "1 object".to_owned() } else { format!("{count} objects") }
}

/// A step of the journal in words; one of another version keeps its name. At most ten words, no period.
#[must_use]
pub fn words(step: &str) -> String {
    match step {
        "pin_target" => "the target's bucket is fixed",
        "round" => "a round copies what differs",
        "ready" => "the move became ready",
        "close_route" => "edges stop serving it",
        "stop_child" => "its process is stopped, and its end proven",
        "prove_tail" => "the replica is proven to hold every transaction",
        "final_delta" => "the last differences are copied",
        "purge" => "the source's own database is deleted",
        "flip" => "the record is given to the target",
        "mirror_in" => "the target copies the staging to its own prefix",
        "restore" => "the database is restored, and compared with the cut's",
        "check" => "the database on the box is read whole",
        "delete_staging" => "what was staged is deleted",
        "sweep_staging" => "everything that is staged is deleted",
        "clear" => "the record has no move any more",
        other => return other.replace('_', " "),
    }
    .to_owned()
}
