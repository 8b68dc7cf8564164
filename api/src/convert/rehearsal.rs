//! Of a move's dry run.

use domain::ids::{AppName, Host, JobId, RegionCode};
use domain::instances::freeze::Prediction;
use domain::instances::moves::policy::{Gate, Verdict};
use domain::instances::moves::rehearsal::{Amount, Look, Rehearsal, Report};
use domain::nodes::Node;

use super::{millis, whole_seconds};

/// The wire's form of a dry run.
#[must_use]
pub fn rehearsal(app: &AppName, host: &Host, told: Rehearsal) -> wire::MoveRehearsal {
    let boxes = told.boxes.iter().map(|node| landing_box(node, told.could_land(node))).collect();
    wire::MoveRehearsal {
        app: app.to_string(),
        host: host.to_string(),
        from: told.from.to_string(),
        would_begin: told.refusal().is_none(),
        within_budget: told.within_budget(),
        freeze_budget: told.freeze_budget.map(whole_seconds),
        look: told.look.map(|look| wire::MoveLook {
            job_id: look.job.0,
            to: told.to.clone(),
            state: "waiting".to_owned(),
            error: None,
            report: None,
        }),
        to: told.to,
        gates: told.gates.into_iter().map(gate).collect(),
        predicted_freeze: told.prediction.map(predicted),
        boxes,
    }
}

fn gate(gate: Gate) -> wire::MoveGate {
    let (verdict, refusal) = match gate.verdict {
        Verdict::Passed => ("passed", None),
        Verdict::Refused(refusal) => ("refused", Some(refusal)),
        Verdict::Unasked => ("unasked", None),
    };
    wire::MoveGate {
        gate: gate.name.to_owned(),
        verdict: verdict.to_owned(),
        code: refusal.as_ref().map(|refusal| refusal.code().to_owned()),
        message: refusal.map(|refusal| refusal.to_string()),
    }
}

fn predicted(prediction: Prediction) -> wire::PredictedFreeze {
    wire::PredictedFreeze {
        freeze_ms: millis(prediction.freeze),
        cuts: prediction.cuts,
        as_of: prediction.as_of.0,
        parts: prediction
            .parts
            .into_iter()
            .map(|part| wire::FreezePart { step: part.step, took_ms: millis(part.took) })
            .collect(),
    }
}

fn landing_box(node: &Node, could_land: bool) -> wire::LandingBox {
    wire::LandingBox {
        node_id: node.id.0,
        identity: node.identity.clone(),
        could_land,
        live: node.live,
        seen_at: node.seen_at,
        capabilities: node.capabilities.by_name(),
    }
}

/// The wire's form of how far a look is.
#[must_use]
pub fn look(id: JobId, to: RegionCode, look: Look) -> wire::MoveLook {
    let (state, error, report) = match look {
        Look::Waiting(_) => ("waiting", None, None),
        Look::Told(found) => ("told", None, Some(report(*found))),
        Look::Failed(why) => ("failed", Some(why), None),
    };
    wire::MoveLook { job_id: id.0, to: to.into(), state: state.to_owned(), error, report }
}

fn report(found: Report) -> wire::LookReport {
    wire::LookReport {
        node_id: found.node.0,
        identity: found.identity,
        source: found.source.map(amount),
        newest_txid: found.newest_txid,
        staged: found.staged.map(amount),
        first_round: found.first_round.map(|round| wire::FirstRound {
            copies: amount(round.copies),
            deletes: round.deletes,
            requests: round.requests,
        }),
        obstacle: found.obstacle.map(|obstacle| wire::Obstacle {
            code: obstacle.code,
            message: obstacle.message,
            permanent: obstacle.permanent,
            since: None,
        }),
        requests: found.requests,
        elapsed_ms: found.elapsed_ms,
    }
}

const fn amount(amount: Amount) -> wire::LookAmount {
    wire::LookAmount { keys: amount.keys, bytes: amount.bytes }
}
