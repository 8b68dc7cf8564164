//! The answer of a dry run on an instance's page.

use domain::ids::{AppName, Host, JobId, RegionCode};
use domain::instances::freeze::{BETWEEN, Prediction};
use domain::instances::moves::Wish;
use domain::instances::moves::policy::{Gate, Verdict};
use domain::instances::moves::rehearsal::{self, Amount, Look, Rehearsal, Report};
use domain::instances::{Refusal, why};
use serde::Deserialize;

use super::face::span;
use super::forms::budget;
use super::story::Fact;
use super::words;
use crate::dashboard::failure::{Failure, form_urlencoded};
use crate::dashboard::page::Visit;

/// What the address of the page says of a dry run.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::dashboard) struct Asked {
    /// Where the move would go; empty where no dry run is shown.
    to: String,
    /// The job of the look.
    look: String,
    /// The budget, in seconds; empty: any.
    budget: String,
}

/// The part of an address that shows a dry run.
pub(super) fn query(told: &Rehearsal) -> String {
    let look = told.look.as_ref().map(|look| format!("&look={}", look.job)).unwrap_or_default();
    let budget = told.freeze_budget.map(|budget| format!("&budget={}", budget.as_secs())).unwrap_or_default();
    format!("?to={}{look}{budget}#rehearsal", form_urlencoded(&told.to))
}

/// The answer, as the page shows it.
pub(super) struct Face {
    pub(super) tone: &'static str,
    pub(super) title: String,
    pub(super) lead: String,
    pub(super) gates: Vec<Row>,
    pub(super) facts: Vec<Fact>,
}

/// A gate of the door.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) tone: &'static str,
    pub(super) says: &'static str,
    pub(super) why: String,
}

/// What the address asks for, as it is at this moment; `None` where it asks for nothing.
pub(super) async fn read(
    visit: &mut Visit,
    (app, host): (&AppName, &Host),
    asked: &Asked,
) -> Result<Option<Face>, Failure> {
    let to = asked.to.as_str();
    if to.is_empty() {
        return Ok(None);
    }
    let wish = Wish { freeze_budget: budget(&asked.budget)?, ..Wish::default() };
    // The record, the region, the open move and its row, the route, the purge, the boxes, the cut and its steps.
    let told = rehearsal::foresee(visit.queries(9), app, host, to, wish).await?;
    let id = asked.look.parse::<JobId>().ok();
    let found = match id {
        Some(id) => rehearsal::look(visit.queries(2), app, host, id).await?,
        None => None,
    };
    let seen = match found {
        // A look for another region says nothing of this one.
        Some((region, _)) if region.as_str() != to => Seen::Elsewhere(region),
        Some((_, look)) => Seen::Look(look),
        None if asked.look.is_empty() => Seen::Unasked,
        None => Seen::Unknown,
    };
    Ok(Some(face(told, seen)))
}

/// What the address knows of a look.
enum Seen {
    /// It names none.
    Unasked,
    /// It names none of this instance, or one that is kept no longer.
    Unknown,
    /// It names one for this region.
    Elsewhere(RegionCode),
    /// How far the named one is.
    Look(Look),
}

fn face(told: Rehearsal, seen: Seen) -> Face {
    let lead = match told.refusal() {
        None => "The door would take it now. Nothing was begun.".to_owned(),
        Some(refusal) => format!("It would be refused: {refusal}. Nothing was begun."),
    };
    let tone = match (&seen, told.refusal()) {
        (_, Some(_)) => "warn",
        (Seen::Look(Look::Waiting(_)), None) => "run",
        (Seen::Look(Look::Told(report)), None) if report.obstacle.is_some() => "warn",
        (Seen::Look(Look::Failed(_)) | Seen::Unknown | Seen::Elsewhere(_), None) => "warn",
        (Seen::Look(Look::Told(_)) | Seen::Unasked, None) => "ok",
    };
    let mut facts = stores(&told, seen);
    facts.push(Fact::plain(
        "Freeze of a cut",
        told.prediction
            .as_ref()
            .map_or_else(|| format!("no cut between {} and {} predicts it yet", told.from, told.to), predicted),
    ));
    if let Some(budget) = told.freeze_budget {
        let fits = match told.within_budget() {
            Some(true) => "it fits",
            Some(false) => "it does not fit: a cut would be refused, or wait",
            None => "nothing to hold it against",
        };
        facts.push(Fact::plain("Its budget", format!("{}: {fits}", span(budget))));
    }
    let boxes = told.boxes.iter().map(|node| {
        let could = if told.could_land(node) { "could land it" } else { "could not land it" };
        let heard = if node.live { "" } else { ", silent" };
        let all = node.capabilities.by_name().into_iter().map(|(name, value)| format!("{name} {value}"));
        format!("{} {could}{heard} ({})", node.identity, all.collect::<Vec<_>>().join(", "))
    });
    let boxes: Vec<String> = boxes.collect();
    facts.push(Fact::plain("Boxes there", if boxes.is_empty() { "none".to_owned() } else { boxes.join("; ") }));
    Face {
        tone,
        title: format!("Rehearsal: {} → {}", told.from, told.to),
        lead,
        gates: told.gates.into_iter().map(row).collect(),
        facts,
    }
}

/// What the look found in the stores, or why there is nothing to show.
fn stores(told: &Rehearsal, seen: Seen) -> Vec<Fact> {
    let unserved = |gate: &Gate| gate.verdict == Verdict::Refused(Refusal::NotPlaced);
    let text = match seen {
        Seen::Look(Look::Told(report)) => return found(&report),
        Seen::Look(Look::Waiting(_)) => "its box has not told yet".to_owned(),
        Seen::Look(Look::Failed(why)) => format!("failed: {why}"),
        Seen::Elsewhere(region) => format!("the one of this address was for {region}: rehearse it again"),
        Seen::Unknown => "the one of this address is not known, or kept no longer: rehearse it again".to_owned(),
        Seen::Unasked if told.gates.iter().any(unserved) => {
            "none: no box serves it that could list its replica".to_owned()
        }
        Seen::Unasked => "none was asked for".to_owned(),
    };
    vec![Fact::plain("Look into the stores", text)]
}

fn row(gate: Gate) -> Row {
    let (tone, says, why) = match gate.verdict {
        Verdict::Passed => ("ok", "passed", String::new()),
        Verdict::Refused(refusal) => ("bad", "refused", refusal.to_string()),
        Verdict::Unasked => ("", "unasked", "another gate must open first".to_owned()),
    };
    Row { name: gate.name.replace('_', " "), tone, says, why }
}

fn found(report: &Report) -> Vec<Fact> {
    let or_unknown = |it: Option<Amount>| it.map_or_else(|| "not known".to_owned(), amount);
    let txid = report.newest_txid.map_or_else(String::new, |txid| format!(", newest transaction {txid:016x}"));
    let mut facts = vec![
        Fact::plain("Replica", format!("{}{txid}", or_unknown(report.source))),
        Fact::plain("Staged already", or_unknown(report.staged)),
    ];
    if let Some(round) = &report.first_round {
        let requests = words::things(signed(round.requests), "request", "requests");
        let text = format!("copies {}, deletes {}, about {requests}", amount(round.copies), round.deletes);
        facts.push(Fact::plain("First round", text));
    }
    if let Some(obstacle) = &report.obstacle {
        facts.push(Fact::plain("Held up by", format!("{}: {}", obstacle.code, obstacle.message)));
    }
    let requests = words::things(signed(report.requests), "request", "requests");
    let took = words::millis(signed(report.elapsed_ms));
    facts.push(Fact::plain("Looked", format!("box {}, {requests} in {took}", report.identity)));
    facts
}

fn amount(amount: Amount) -> String {
    format!("{}, {}", words::things(signed(amount.keys), "object", "objects"), words::bytes(amount.bytes))
}

fn predicted(prediction: &Prediction) -> String {
    let parts = prediction.parts.iter().map(|part| {
        let what = if part.step == BETWEEN { "between the steps".to_owned() } else { why::words(&part.step) };
        format!("{what} {}", span(part.took))
    });
    let cuts = words::things(prediction.cuts.into(), "cut", "cuts");
    format!("{}, the median of {cuts}: {}", span(prediction.freeze), parts.collect::<Vec<_>>().join(", "))
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
