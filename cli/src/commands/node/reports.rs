//! `leasehold node report` and `leasehold node rebuild`

use std::collections::BTreeSet;

use uuid::Uuid;
use wire::{NodeRebuild, NodeReport, OwnedItem};

use crate::commands::Context;
use crate::output::{details, moment, table};
use crate::runtime;

pub(super) fn report(context: &Context, id: Uuid) -> anyhow::Result<()> {
    let api = context.api()?;
    let report = runtime::run(api.call_about(&format!("node {id}"), |client| client.node_report(id)))?;
    context.output.show(&report, |report| match report {
        NodeReport::NeverReported { .. } => told(report),
        NodeReport::Reported { items, .. } if items.is_empty() => told(report),
        NodeReport::Reported { items, .. } => {
            let rows = items.iter().map(|item| [item.kind.clone(), item.id.clone()]);
            format!("{}\n\n{}", told(report), table(&["kind", "id"], rows))
        }
    })
}

pub(super) fn rebuild(context: &Context, id: Uuid) -> anyhow::Result<()> {
    let api = context.api()?;
    let rebuild = runtime::run(api.call_about(&format!("node {id}"), |client| client.node_rebuild(id)))?;
    context.output.show(&rebuild, |rebuild| {
        let said = told(&rebuild.record);
        let rows = compared(rebuild);
        if rows.is_empty() {
            format!("{said}\n\nnothing is wanted, nothing was reported")
        } else {
            format!("{said}\n\n{}", table(&["kind", "id", "wanted", "reported", ""], rows))
        }
    })
}

/// What is known of the record, never reported and reported nothing being told apart, and what makes it doubtful.
fn told(report: &NodeReport) -> String {
    let (mut lines, last_seen, last_sent, record_age) = match report {
        NodeReport::NeverReported { last_seen_age_ms, last_sent_age_ms } => {
            let status = "never reported: nobody knows what this node owns".to_owned();
            (vec![("record", status)], last_seen_age_ms, last_sent_age_ms, None)
        }
        NodeReport::Reported {
            incarnation,
            current_incarnation,
            seq,
            items,
            reported_at,
            age_ms,
            last_seen_age_ms,
            last_sent_age_ms,
            received_at: _,
        } => {
            let status = match items.len() {
                0 => "reported nothing: the node said that it owns nothing".to_owned(),
                1 => "reported 1 item".to_owned(),
                count => format!("reported {count} items"),
            };
            let by = if incarnation == current_incarnation {
                format!("incarnation {incarnation}, report {seq}")
            } else {
                format!(
                    "stale: incarnation {incarnation}, report {seq}; the machine is incarnation {current_incarnation} now and \
                     has not reported"
                )
            };
            let lines = vec![
                ("record", status),
                ("by", by),
                ("age", age(*age_ms)),
                ("node's own clock", moment(Some(*reported_at))),
            ];
            (lines, last_seen_age_ms, last_sent_age_ms, Some(*age_ms))
        }
    };
    let ago = |age_ms: &Option<i64>| age_ms.map_or_else(|| "never".to_owned(), |ms| format!("{} ago", age(ms)));
    lines.push(("last heard", ago(last_seen)));
    let failed = last_sent.is_some_and(|sent| record_age.is_none_or(|age| sent < age));
    let sent = if failed {
        format!("{}, and did not replace the record: refused, or of no success", ago(last_sent))
    } else {
        ago(last_sent)
    };
    lines.push(("last report", sent));
    details(&lines)
}

/// Milliseconds as people read them.
fn age(ms: i64) -> String {
    match ms / 1000 {
        0..=119 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        seconds @ 120..=7199 => format!("{} min", seconds / 60),
        seconds @ 7200..=172_799 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// What is wanted beside what was reported, and what follows: only where there is a record does anything.
fn compared(rebuild: &NodeRebuild) -> Vec<[String; 5]> {
    let wanted: BTreeSet<&OwnedItem> = rebuild.declaration.iter().collect();
    let reported: Option<BTreeSet<&OwnedItem>> = match &rebuild.record {
        NodeReport::NeverReported { .. } => None,
        NodeReport::Reported { items, .. } => Some(items.iter().collect()),
    };
    let all: BTreeSet<&OwnedItem> = wanted.iter().chain(reported.iter().flatten()).copied().collect();
    all.into_iter()
        .map(|item| {
            let declared = rebuild.declared_kinds.contains(&item.kind);
            let is_wanted = wanted.contains(item);
            let was_reported = reported.as_ref().map(|reported| reported.contains(item));
            let wants = match (is_wanted, declared) {
                (true, _) => "yes",
                (false, true) => "no",
                (false, false) => "not told",
            };
            let had = match was_reported {
                Some(true) => "yes",
                Some(false) => "no",
                None => "never reported",
            };
            let follows = match (is_wanted, declared, was_reported) {
                (false, true, Some(true)) => "orphan: a rebuilt node removes it",
                (true, _, Some(false)) => "missing: the node did not report it",
                _ => "",
            };
            [item.kind.clone(), item.id.clone(), wants.to_owned(), had.to_owned(), follows.to_owned()]
        })
        .collect()
}
