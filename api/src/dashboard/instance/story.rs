//! What was done: the cut and the landing step by step, the journal, and what a finished move left.

use domain::clock::Timestamp;
use domain::instances::Receipt;
use domain::instances::moves::{Move, MoveStep, RoundNumbers};
use domain::instances::why::{self, Why};

use super::face::span;
use super::words::{self, Age, Now};

/// The steps of a cut and its landing, in their order.
const ACTS: [&str; 9] = [
    "close_route",
    "stop_child",
    "prove_tail",
    "final_delta",
    "purge",
    "flip",
    "mirror_in",
    "restore",
    "delete_staging",
];
/// Characters of evidence that a row shows.
const EVIDENCE: usize = 200;

/// A step of the cut or of the landing.
pub(super) struct Act {
    pub(super) what: String,
    pub(super) tone: &'static str,
    pub(super) how: String,
    pub(super) age: Option<Age>,
}

/// Each step, and how far it is: to come, running, failed, or done and how long it took.
pub(super) fn acts(about: &Move, receipt: Option<&Receipt>, now: Now) -> Vec<Act> {
    let steps = receipt.map_or(&[][..], |receipt| receipt.steps.as_slice());
    let missing = if about.given_up_at.is_some() { "given up" } else { "to come" };
    let mut acts: Vec<Act> = ACTS
        .iter()
        .map(|name| match about.staging_deleted_at {
            // The purge of what a landing leaves writes no journal of the move.
            Some(at) if *name == "delete_staging" && about.given_up_at.is_some() => {
                Act { what: why::words(name), tone: "ok", how: "done".to_owned(), age: Some(now.clock(at)) }
            }
            _ => act(name, steps, missing, now),
        })
        .collect();
    // That it serves is no step of the journal but the end of all that come before the clean-up.
    let serves = Act {
        what: "the target serves it".to_owned(),
        tone: if about.landed_at.is_some() { "ok" } else { "" },
        how: match (about.landed_at, about.given_up_at) {
            (Some(_), _) => "done",
            (None, _) => missing,
        }
        .to_owned(),
        age: about.landed_at.or(about.given_up_at).map(|at| now.clock(at)),
    };
    acts.insert(ACTS.len() - 1, serves);
    acts
}

fn act(name: &str, steps: &[MoveStep], missing: &str, now: Now) -> Act {
    let what = why::words(name);
    let Some(step) = steps.iter().rev().find(|step| step.step == name) else {
        return Act { what, tone: "", how: missing.to_owned(), age: None };
    };
    match (step.ended_at, step.outcome.as_deref()) {
        (None, _) | (_, None) => {
            Act { what, tone: "run", how: "runs".to_owned(), age: Some(now.lasting(step.started_at)) }
        }
        (Some(at), Some("failed")) => {
            let how = format!("failed: {}", step.evidence["message"].as_str().unwrap_or("see the journal"));
            Act { what, tone: "bad", how, age: Some(now.clock(at)) }
        }
        (Some(at), Some(_)) => Act { what, tone: "ok", how: took(step.started_at, at), age: Some(now.clock(at)) },
    }
}

fn took(began: Timestamp, ended: Timestamp) -> String {
    format!("took {}", words::millis((ended - began).num_milliseconds()))
}

/// A row of the journal.
pub(super) struct Row {
    pub(super) at: Age,
    pub(super) step: String,
    pub(super) tone: &'static str,
    pub(super) outcome: String,
    pub(super) took: String,
    pub(super) evidence: String,
    pub(super) fence: String,
}

/// The newest rows of the journal, newest first.
pub(super) fn journal(steps: &[MoveStep], now: Now) -> Vec<Row> {
    let row = |step: &MoveStep| {
        let outcome = step.outcome.clone();
        Row {
            at: now.clock(step.started_at),
            step: step.round.map_or_else(|| step.step.replace('_', " "), |round| format!("{} {round}", step.step)),
            tone: match outcome.as_deref() {
                None => "run",
                Some("failed" | "left") => "bad",
                Some(_) => "",
            },
            outcome: outcome.unwrap_or_else(|| "not ended".to_owned()).replace('_', " "),
            took: step.ended_at.map_or_else(String::new, |at| words::millis((at - step.started_at).num_milliseconds())),
            evidence: evidence(step),
            fence: step.fence.to_string(),
        }
    };
    steps.iter().map(row).collect()
}

/// A round's numbers as words, anything else as it stands.
fn evidence(step: &MoveStep) -> String {
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    if let Ok(numbers) = serde_json::from_value::<RoundNumbers>(step.evidence["numbers"].clone()) {
        return format!(
            "copied {} ({}), deleted {}, {} differ, {}",
            words::things(signed(numbers.copied), "object", "objects"),
            words::bytes(numbers.copied_bytes),
            words::count(signed(numbers.deleted)),
            words::count(signed(numbers.differ_copies + numbers.differ_deletes)),
            words::things(signed(numbers.requests), "request", "requests"),
        );
    }
    if let Some(message) = step.evidence["message"].as_str() {
        return message.to_owned();
    }
    let fields = step.evidence.as_object().map(|fields| {
        let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        fields.iter().map(|(name, value)| format!("{} {}", name.replace('_', " "), text(value))).collect::<Vec<_>>()
    });
    fields.unwrap_or_default().join(", ").chars().take(EVIDENCE).collect()
}

/// A name and its value.
pub(super) struct Fact {
    pub(super) name: &'static str,
    pub(super) value: String,
    pub(super) mono: bool,
}

impl Fact {
    pub(super) fn plain(name: &'static str, value: impl Into<String>) -> Self {
        Self { name, value: value.into(), mono: false }
    }

    fn mono(name: &'static str, value: impl Into<String>) -> Self {
        Self { name, value: value.into(), mono: true }
    }
}

fn moment(at: Option<Timestamp>) -> String {
    at.map_or_else(|| "not yet".to_owned(), |at| format!("{} UTC", at.format("%Y-%m-%d %H:%M:%S")))
}

/// What a move that is over proved and left.
pub(super) fn receipt(receipt: &Receipt) -> Vec<Fact> {
    let it = &receipt.moved;
    let mut facts = vec![Fact::mono("Move", it.id.to_string())];
    if it.aborted_at.is_some() {
        facts.push(Fact::plain("Given up", moment(it.aborted_at)));
        facts.push(Fact::plain("Nothing staged", moment(it.finished_at)));
        return facts;
    }
    if let Some(tail) = &it.tail {
        facts.push(Fact::mono("Cut at txid", tail.txid.clone()));
        facts.push(Fact::mono("Database, SHA-256", tail.sha256.clone()));
        facts.push(Fact::plain("Its size", words::bytes(tail.size)));
    }
    facts.push(Fact::plain("Let be cut", moment(it.cut_at)));
    facts.push(Fact::plain("Given to the target", moment(it.finished_at)));
    facts.push(match it.given_up_at {
        Some(at) => Fact::plain("Landing given up", moment(Some(at))),
        None => Fact::plain("Landed", moment(it.landed_at)),
    });
    if let Some((landed, cut)) = it.landed_at.zip(it.cut_at) {
        facts.push(Fact::plain("Nobody was served for", words::millis((landed - cut).num_milliseconds())));
    }
    if let Some(predicted) = it.predicted_freeze {
        let forced = if it.cut_forced { ", and it was forced" } else { "" };
        facts.push(Fact::plain("As was predicted", format!("{}{forced}", span(predicted))));
    }
    if let Some(budget) = it.freeze_budget {
        facts.push(Fact::plain("Its budget", span(budget)));
    }
    facts.push(Fact::plain("Staging deleted", moment(it.staging_deleted_at)));
    if let Some(old) = &receipt.old_replica {
        let keys = old.deleted.keys;
        let what = match (old.superseded_at, old.purged_at, old.purge_began_at, old.keep_until) {
            (Some(at), ..) => format!("the instance's own again since {}", moment(Some(at))),
            (None, Some(at), ..) => format!("purged {}: {keys} keys", moment(Some(at))),
            (None, None, Some(at), _) => format!("being purged since {}: {keys} keys so far", moment(Some(at))),
            (None, None, None, Some(until)) => format!("kept until {}", moment(Some(until))),
            (None, None, None, None) => "kept until the target serves, and then for a while".to_owned(),
        };
        facts.push(Fact::plain(
            "Old replica",
            format!("{} of bucket {} ({}), {what}", old.prefix, old.bucket.name, old.region),
        ));
    }
    facts
}

/// What is known of the instance.
pub(super) fn facts(why: &Why) -> Vec<Fact> {
    let record = &why.record;
    let observed = record.observed_region.clone().flatten();
    let mut facts = vec![
        Fact::mono("Instance", record.host.to_string()),
        Fact::plain("Application", record.app.to_string()),
        Fact::plain("Placed in", record.region.to_string()),
        Fact::plain("Observed in", observed.map_or_else(|| "no region: no box has it".to_owned(), Into::into)),
    ];
    if let Some(seat) = &why.seat {
        let heard = if seat.live { "" } else { ", silent" };
        facts.push(Fact::plain("Box", format!("{}{heard}", seat.identity)));
    }
    if let Some(moved) = why.newest.as_ref().filter(|it| it.finished_at.is_none()) {
        facts.push(Fact::plain("Move", format!("{} → {}", moved.from, moved.to)));
        facts.push(Fact::plain("Requested", moment(Some(moved.requested_at))));
        facts.push(Fact::plain(
            "Cut by",
            if moved.cut_auto { "the platform, once it is ready" } else { "whoever asks" },
        ));
        if let Some(budget) = moved.freeze_budget {
            facts.push(Fact::plain("Freeze at most", span(budget)));
        }
        if let Some(target) = &moved.target {
            facts.push(Fact::mono("Staged in", format!("{}/moves/{}/", target.name, record.host)));
        }
    }
    facts.push(Fact::plain("Revision", record.revision.unwrap_or_default().to_string()));
    facts
}
