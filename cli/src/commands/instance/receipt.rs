//! `leasehold instance receipt`

use uuid::Uuid;
use wire::{MoveReceipt, MoveStep, MoveView, OldReplica};

use super::{Context, Named, moves};
use crate::client::Api;
use crate::exit::{Ending, Exit};
use crate::output::{details, moment, table};
use crate::runtime;

/// Shows what a move proved, did and left: the newest, or the one that is named.
pub(super) fn show(context: &Context, api: &Api, of: &Named, id: Option<Uuid>) -> anyhow::Result<()> {
    let receipt = runtime::run(async {
        let id = match id {
            Some(id) => id,
            None => moves::newest(api, of).await?.id,
        };
        let receipt = api.call_about(&format!("move {id}"), |client| client.move_receipt(id)).await?;
        if (&receipt.moved.app, &receipt.moved.host) != (&of.app, &of.host) {
            let message = format!("move {id} is of instance {} of {}", receipt.moved.host, receipt.moved.app);
            return Err(Ending { exit: Exit::NotFound, message }.into());
        }
        anyhow::Ok(receipt)
    })?;
    context.output.show(&receipt, told)
}

fn told(receipt: &MoveReceipt) -> String {
    let it = &receipt.moved;
    let tail = |of: fn(&wire::Tail) -> String| it.tail.as_ref().map_or_else(|| "-".to_owned(), of);
    let mut lines = vec![
        ("move", it.id.to_string()),
        ("from, to", format!("{}, {}", it.from, it.to)),
        ("outcome", outcome(it)),
        ("requested at", moment(Some(it.requested_at))),
        ("ready at", moment(it.ready_at)),
        ("rounds", it.round.to_string()),
    ];
    if it.aborted_at.is_some() {
        lines.push(("aborted at", moment(it.aborted_at)));
        lines.push(("cleared at", moment(it.finished_at)));
    } else {
        lines.push(("cut at", moment(it.cut_at)));
        lines.push(("cut at txid", tail(|tail| tail.txid.clone())));
        lines.push(("database sha256", tail(|tail| tail.sha256.clone())));
        lines.push(("database bytes", tail(|tail| tail.size.to_string())));
        if let Some(why) = renewed(&receipt.steps) {
            lines.push(("replica renewed", why.to_owned()));
        }
        lines.push(("flipped at", moment(it.finished_at)));
        lines.push(("landed at", moment(it.landed_at)));
        if it.given_up_at.is_some() {
            lines.push(("landing given up at", moment(it.given_up_at)));
        }
        lines
            .push(("freeze budget", it.freeze_budget.map_or_else(|| "any".to_owned(), |budget| format!("{budget} s"))));
        lines.push(("predicted freeze", predicted(it)));
        lines.push(("frozen", receipt.frozen_ms.map_or_else(|| "-".to_owned(), seconds)));
        lines.push(("staging deleted at", moment(it.staging_deleted_at)));
        lines.push(("old replica", receipt.old_replica.as_ref().map_or_else(|| "-".to_owned(), old_replica)));
    }
    if receipt.steps.is_empty() {
        return details(&lines);
    }
    format!(
        "{}\n\n{}",
        details(&lines),
        table(&["step", "began", "took", "ended", "fence"], receipt.steps.iter().map(row))
    )
}

fn outcome(it: &MoveView) -> String {
    match it.outcome.as_deref() {
        None => format!("in flight: {}", it.state),
        Some(outcome) if it.given_up_at.is_some() => format!("{outcome}, and the landing in {} was given up", it.to),
        Some(outcome) => outcome.to_owned(),
    }
}

/// Why the cut uploaded the database anew.
fn renewed(steps: &[MoveStep]) -> Option<&str> {
    steps.iter().rev().find_map(|step| step.evidence["renewed"].as_str())
}

/// What was predicted when it was let be cut.
fn predicted(it: &MoveView) -> String {
    match (it.cut_at, it.predicted_freeze_ms) {
        (None, _) => "-".to_owned(),
        (Some(_), None) => "nothing predicted it".to_owned(),
        (Some(_), Some(ms)) if it.cut_forced => format!("{}, and it was forced", seconds(ms)),
        (Some(_), Some(ms)) => seconds(ms),
    }
}

fn old_replica(old: &OldReplica) -> String {
    let place = format!("{} in bucket {} ({})", old.prefix, old.bucket, old.region);
    if let Some(at) = old.superseded_at {
        return format!("{place}, the instance's own again since {}", moment(Some(at)));
    }
    let keys = old.deleted_keys;
    match (old.purged_at, old.purge_began_at, old.keep_until) {
        (Some(at), _, _) => format!("{place}, purged at {}: {keys} keys", moment(Some(at))),
        (None, Some(at), _) => format!("{place}, being purged since {}: {keys} keys so far", moment(Some(at))),
        (None, None, Some(until)) => format!("{place}, kept until {}", moment(Some(until))),
        (None, None, None) => format!("{place}, kept until the target serves and then for a while"),
    }
}

fn row(step: &MoveStep) -> [String; 5] {
    let took = step.ended_at.map(|at| (at - step.started_at).num_milliseconds());
    [
        step.step.clone(),
        moment(Some(step.started_at)),
        took.map_or_else(|| "-".to_owned(), seconds),
        step.outcome.clone().unwrap_or_else(|| "not ended".to_owned()),
        step.fence.to_string(),
    ]
}

/// Milliseconds as seconds, to the nearest tenth.
pub(super) fn seconds(ms: i64) -> String {
    let tenths = ms.max(0).saturating_add(50) / 100;
    format!("{}.{} s", tenths / 10, tenths % 10)
}
