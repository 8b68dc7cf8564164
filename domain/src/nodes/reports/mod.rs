//! What a node reports that it owns: the last report is kept, as a backup and never as a source.
//!
//! Nothing decides from a report (O02): no other module reads it, and a report changes no other row but the moment at which
//! its node was last heard. A node that disagrees with the record wins, by its next report (O03). What the record is for:
//! a machine that was rebuilt gets it beside what is wanted of the node, and so finds what it must remove.
//!
//! # Consistency
//! Reports of one node wait for each other at the node's row, where its incarnation and its session are asked about again:
//! a machine that was replaced meanwhile moves nothing. The order of reports is their incarnation, then their number; none
//! replaces a later one. A record is replaced whole, in one row, so that a reader sees one report and no mix of two.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sqlx::PgConnection;

use super::proof::Session;
use super::records;
use crate::clock::{self, Timestamp};
use crate::ids::NodeId;

mod store;

/// Most items of one report.
pub const MAX_ITEMS: usize = 10_000;
/// Longest kind of an item, in characters.
pub const MAX_KIND_CHARS: usize = 40;
/// Longest id of an item, in characters.
pub const MAX_ID_CHARS: usize = 253;
/// The kind of an instance; its id is its host, which names its folder on the box.
pub const INSTANCE: &str = "instance";
/// The kinds of which a declaration names all that is wanted. Of another kind it says nothing, and nobody may conclude from
/// its absence.
pub const DECLARED_KINDS: [&str; 1] = [INSTANCE];

/// One thing that a node owns, or that is wanted on it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Item {
    /// What it is, in one word.
    pub kind: String,
    /// Its name on the node; unique within its kind.
    pub id: String,
}

/// What became of what the node was to apply, in its own words (A19).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All of it: the report is what the node owns now.
    Applied,
    /// Nothing of it.
    Refused,
    /// Some of it.
    Partial,
}

/// The place of a report in the order of its node's reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// Which machine under the node's identity sent it.
    pub incarnation: i64,
    /// Which of its reports it is; from 1 on.
    pub seq: i64,
}

/// A report as a node sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Its place.
    pub mark: Mark,
    /// What became of what the node was to apply.
    pub outcome: Outcome,
    /// All that the node owns; none of it twice.
    pub items: Vec<Item>,
    /// When it was so, by the node's clock: kept as its claim.
    pub reported_at: Timestamp,
}

/// A value of a report that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{pointer}: {rule}")]
pub struct Invalid {
    /// Where it stands, as a JSON pointer.
    pub pointer: String,
    /// The rule in words.
    pub rule: &'static str,
}

impl Report {
    /// Checks every bound that needs no look into the database.
    ///
    /// # Errors
    /// The first value that is not allowed.
    pub fn check(&self) -> Result<(), Invalid> {
        let invalid = |pointer: String, rule| Err(Invalid { pointer, rule });
        if self.mark.incarnation < 1 {
            return invalid("/incarnation".to_owned(), "must be 1 or more: send the incarnation that the session told");
        }
        if self.mark.seq < 1 {
            return invalid("/seq".to_owned(), "must be 1 or more: count your reports from 1 on");
        }
        if !clock::is_plausible(self.reported_at) {
            return invalid("/reported_at".to_owned(), "must lie in the years 2000 to 9999");
        }
        if self.items.len() > MAX_ITEMS {
            return invalid("/items".to_owned(), "must have at most 10000 items");
        }
        let mut named = BTreeSet::new();
        for (index, item) in self.items.iter().enumerate() {
            if !is_kind(&item.kind) {
                let rule = "must have 1 to 40 characters: small letters, digits and underscores, a letter first";
                return invalid(format!("/items/{index}/kind"), rule);
            }
            if !(1..=MAX_ID_CHARS).contains(&item.id.chars().count()) || item.id.chars().any(char::is_control) {
                return invalid(
                    format!("/items/{index}/id"),
                    "must have 1 to 253 characters, none a control character",
                );
            }
            if !named.insert(item) {
                return invalid(format!("/items/{index}"), "must not be named twice: an item before it is the same");
            }
        }
        Ok(())
    }
}

fn is_kind(word: &str) -> bool {
    word.len() <= MAX_KIND_CHARS
        && word.starts_with(|c: char| c.is_ascii_lowercase())
        && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// How a node stands as its report comes, its row being held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Standing {
    /// The machine that is the node now.
    incarnation: i64,
    /// Whether the session works still.
    live: bool,
    /// The report that is kept.
    kept: Option<Mark>,
}

/// What is done with a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// It becomes the record.
    Replace,
    /// The node was heard, and the record stays.
    Keep,
    /// As [`Verdict::Keep`]: a report of this place, or of a later one, is the record.
    Late,
    /// As [`Verdict::Keep`]: it names an incarnation that the node has not reached.
    Ahead,
    /// Nothing moves: another machine is the node now.
    Replaced,
    /// Nothing moves: the session ended meanwhile.
    Ended,
}

fn decide(standing: Standing, mark: Mark, outcome: Outcome) -> Verdict {
    if mark.incarnation < standing.incarnation {
        return Verdict::Replaced;
    }
    if !standing.live {
        return Verdict::Ended;
    }
    if mark.incarnation > standing.incarnation {
        return Verdict::Ahead;
    }
    if standing.kept.is_some_and(|kept| mark <= kept) {
        return Verdict::Late;
    }
    match outcome {
        Outcome::Applied => Verdict::Replace,
        Outcome::Refused | Outcome::Partial => Verdict::Keep,
    }
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It is the record.
    Replaced {
        /// When it was received.
        at: Timestamp,
    },
    /// The node was heard; the record is as before, since the node did not apply all of what it was to apply.
    Kept {
        /// When it was received.
        at: Timestamp,
    },
    /// It is not later than what is known, and replaced nothing.
    Stale {
        /// Which machine is the node now.
        incarnation: i64,
        /// The place of the record.
        kept: Option<Mark>,
    },
    /// It names an incarnation that the node has not reached.
    Ahead {
        /// Which machine is the node now.
        incarnation: i64,
    },
    /// The session ended while the report waited: nothing was done.
    Ended,
}

/// Takes a checked report of the node whose session this is.
///
/// Call it inside a transaction, and commit whatever it says: also where the record stays, the node was heard.
///
/// # Errors
/// [`records::Error::Decommissioned`], [`records::Error::NotFound`], or the database's.
pub async fn put(conn: &mut PgConnection, session: &Session, report: &Report) -> Result<Taken, records::Error> {
    records::hold(conn, session.node).await?;
    let standing = store::standing(conn, session).await?;
    let Standing { incarnation, kept, .. } = standing;
    Ok(match decide(standing, report.mark, report.outcome) {
        Verdict::Replace => {
            let at = store::hear(conn, session.node).await?;
            store::replace(conn, session.node, report, at).await?;
            Taken::Replaced { at }
        }
        Verdict::Keep => Taken::Kept { at: store::hear(conn, session.node).await? },
        Verdict::Late => {
            store::hear(conn, session.node).await?;
            Taken::Stale { incarnation, kept }
        }
        Verdict::Ahead => {
            store::hear(conn, session.node).await?;
            Taken::Ahead { incarnation }
        }
        Verdict::Replaced => Taken::Stale { incarnation, kept },
        Verdict::Ended => Taken::Ended,
    })
}

/// Notes that the node was heard by something that is no report, and changes nothing else; `false` where its session ended
/// meanwhile, and nothing was noted.
///
/// # Errors
/// As [`put`].
pub async fn heard(conn: &mut PgConnection, session: &Session) -> Result<bool, records::Error> {
    records::hold(conn, session.node).await?;
    let live = store::standing(conn, session).await?.live;
    if live {
        store::hear(conn, session.node).await?;
    }
    Ok(live)
}

/// The last report that a node applied whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Its place.
    pub mark: Mark,
    /// All that the node owned then.
    pub items: Vec<Item>,
    /// When, by the node's clock.
    pub reported_at: Timestamp,
    /// When it was received.
    pub received_at: Timestamp,
    /// How long ago that was by the database's clock, in milliseconds; never negative.
    pub age_ms: i64,
}

/// What is known of a node and wanted of it, read in one statement: all of one moment (O04).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// The node's identity.
    pub identity: String,
    /// Which machine is the node now.
    pub incarnation: i64,
    /// How long ago the machine was heard in any way, in milliseconds; `None` for never.
    pub last_seen_age_ms: Option<i64>,
    /// How long ago it sent a report, whatever became of that; `None` for never.
    pub last_sent_age_ms: Option<i64>,
    /// What it reported; `None` where it never did, which is not the same as an empty list (O05).
    pub kept: Option<Kept>,
    /// All that is wanted on it, of the [`DECLARED_KINDS`]; sorted.
    pub declaration: Vec<Item>,
}

/// The record of a node and its declaration; `None` for an unknown node.
///
/// The declaration is whole, without a limit: who acts on it removes what it does not name.
///
/// # Errors
/// Only the database's.
pub async fn view(conn: &mut PgConnection, node: NodeId) -> Result<Option<View>, sqlx::Error> {
    store::view(conn, node).await
}

#[cfg(test)]
mod tests;
