use domain::nodes::reports::{self, DECLARED_KINDS, Invalid, Item, Kept, Mark, Outcome, Report};
use wire::{NewNodeReport, NodeRebuild, NodeReport, OwnedItem, ReportOutcome};

/// A report as it came, within its bounds.
///
/// # Errors
/// The first value that is not allowed.
pub fn report(sent: NewNodeReport) -> Result<Report, Invalid> {
    let report = Report {
        mark: Mark { incarnation: sent.incarnation, seq: sent.seq },
        outcome: match sent.outcome {
            ReportOutcome::Applied => Outcome::Applied,
            ReportOutcome::Refused => Outcome::Refused,
            ReportOutcome::Partial => Outcome::Partial,
        },
        items: sent.items.into_iter().map(|OwnedItem { kind, id }| Item { kind, id }).collect(),
        reported_at: sent.reported_at,
    };
    report.check().map(|()| report)
}

/// The wire's form of what a node reported last.
#[must_use]
pub fn node_report(view: reports::View) -> NodeReport {
    let (last_seen_age_ms, last_sent_age_ms) = (view.last_seen_age_ms, view.last_sent_age_ms);
    match view.kept {
        None => NodeReport::NeverReported { last_seen_age_ms, last_sent_age_ms },
        Some(Kept { mark, items, reported_at, received_at, age_ms }) => NodeReport::Reported {
            incarnation: mark.incarnation,
            current_incarnation: view.incarnation,
            seq: mark.seq,
            items: owned(items),
            reported_at,
            received_at,
            age_ms,
            last_seen_age_ms,
            last_sent_age_ms,
        },
    }
}

/// The wire's form of what a rebuilt node is given.
#[must_use]
pub fn node_rebuild(node: domain::ids::NodeId, mut view: reports::View) -> NodeRebuild {
    NodeRebuild {
        node_id: node.0,
        incarnation: view.incarnation,
        declaration: owned(std::mem::take(&mut view.declaration)),
        declared_kinds: DECLARED_KINDS.map(str::to_owned).to_vec(),
        record: node_report(view),
    }
}

fn owned(items: Vec<Item>) -> Vec<OwnedItem> {
    items.into_iter().map(|Item { kind, id }| OwnedItem { kind, id }).collect()
}
