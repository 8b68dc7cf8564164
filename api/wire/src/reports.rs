//! What nodes report that they own, and what a rebuilt node is given.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// One thing that a node owns, or that is wanted on it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OwnedItem {
    /// What it is, in one word, e.g. `instance`.
    pub kind: String,
    /// Its name on the node, unique within its kind: of an instance, its host.
    pub id: String,
}

/// What became of what the node was to apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReportOutcome {
    /// All of it: the report replaces the record.
    Applied,
    /// Nothing of it: the record stays.
    Refused,
    /// Some of it: the record stays.
    Partial,
}

/// A node's report of all that it owns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewNodeReport {
    /// Which machine under the node's identity it is: the incarnation that its session told.
    pub incarnation: i64,
    /// Which of that machine's reports it is, from 1 on; each replaces those of lower numbers and of older incarnations.
    pub seq: i64,
    /// What became of what the node was to apply.
    pub outcome: ReportOutcome,
    /// All that the node owns, none of it twice; at most 10,000.
    pub items: Vec<OwnedItem>,
    /// When it was so, by the node's own clock: kept as its claim.
    pub reported_at: DateTime<Utc>,
}

/// What became of a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TakenNodeReport {
    /// Whether it is the record now: only where the node applied all of what it was to apply.
    pub replaced: bool,
    /// When it was received.
    pub received_at: DateTime<Utc>,
}

/// What a node reported last. A node that never reported is not one that reported nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum NodeReport {
    /// No report was ever taken as the record. Nobody knows what the node owns.
    NeverReported {
        /// How long ago the machine was heard in any way, in milliseconds; null for never.
        last_seen_age_ms: Option<i64>,
        /// How long ago it sent a report, which was refused or told of no success; null for never.
        last_sent_age_ms: Option<i64>,
    },
    /// The last report that told of success.
    Reported {
        /// Which machine sent it.
        incarnation: i64,
        /// Which machine is the node now: where it is another one, the record is of the machine before.
        current_incarnation: i64,
        /// Which of that machine's reports it is.
        seq: i64,
        /// All that the node owned; empty where it reported that it owns nothing.
        items: Vec<OwnedItem>,
        /// When it was so, by the node's own clock.
        reported_at: DateTime<Utc>,
        /// When it was received.
        received_at: DateTime<Utc>,
        /// How long ago that was, in milliseconds.
        age_ms: i64,
        /// How long ago the machine was heard in any way, in milliseconds.
        last_seen_age_ms: Option<i64>,
        /// How long ago it sent a report, in milliseconds: less than `age_ms` where a later one did not replace this one.
        last_sent_age_ms: Option<i64>,
    },
}

/// What a rebuilt node is given: what is wanted of it, and what it owned, of one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeRebuild {
    /// The node.
    pub node_id: Uuid,
    /// Which machine is the node now.
    pub incarnation: i64,
    /// All that is wanted on the node, of the kinds in `declared_kinds`; sorted.
    pub declaration: Vec<OwnedItem>,
    /// The kinds of which the declaration is whole. Of another kind it says nothing: what it does not name may be wanted.
    pub declared_kinds: Vec<String>,
    /// What the node reported last.
    pub record: NodeReport,
}
