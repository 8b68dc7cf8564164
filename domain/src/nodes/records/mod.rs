//! The record of a node, as operators keep it: who it is, where it stands, and how often it changed.
//!
//! A record is made by an operator before its machine exists, or by a box that registers itself. It is never deleted.

use sqlx::PgConnection;

use crate::audit::Actor;
use crate::clock::Timestamp;
use crate::ids::{NodeId, RegionCode};

mod store;

/// Longest identity and display name, in characters.
pub const MAX_NAME_CHARS: usize = 200;
/// Longest host name, in characters (RFC 1035).
pub const MAX_HOSTNAME_CHARS: usize = 253;

/// Where a node stands in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifecycle {
    /// It may enrol, prove itself and host.
    Active,
    /// A tombstone: it keeps its row and never comes back.
    Decommissioned,
}

impl Lifecycle {
    /// Every one.
    pub const ALL: [Self; 2] = [Self::Active, Self::Decommissioned];

    /// As it stands in the database and on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Decommissioned => "decommissioned",
        }
    }

    /// Reads one; `None` for a word that is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|lifecycle| lifecycle.as_str() == text)
    }
}

/// A record to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRecord {
    /// Who the machine is; unique, and the same after it was rebuilt.
    pub identity: String,
    /// Where it stands; never changes.
    pub region: RegionCode,
    /// Its host name.
    pub hostname: String,
    /// Its name for people.
    pub display_name: Option<String>,
}

impl NewRecord {
    /// Checks every bound.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn check(&self) -> Result<(), Error> {
        let named = |name: &str| {
            (1..=MAX_NAME_CHARS).contains(&name.chars().count())
                && !name.chars().any(char::is_control)
                && name.trim() == name
        };
        let rule = "must have 1 to 200 characters, no control characters, and no white space around it";
        if !named(&self.identity) {
            return Err(Error::Invalid { field: "identity", rule });
        }
        if self.display_name.as_deref().is_some_and(|name| !named(name)) {
            return Err(Error::Invalid { field: "display_name", rule });
        }
        let letter = |c: char| !c.is_control() && !c.is_whitespace();
        if !(1..=MAX_HOSTNAME_CHARS).contains(&self.hostname.chars().count()) || !self.hostname.chars().all(letter) {
            let rule = "must have 1 to 253 characters, without control characters and white space";
            return Err(Error::Invalid { field: "hostname", rule });
        }
        Ok(())
    }
}

/// A record as it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Its id.
    pub id: NodeId,
    /// Who the machine is.
    pub identity: String,
    /// Where it stands.
    pub region: RegionCode,
    /// Its host name; `None` for a box that registered itself.
    pub hostname: Option<String>,
    /// Its name for people.
    pub display_name: Option<String>,
    /// Where it stands in its life, in the database's word.
    pub lifecycle: String,
    /// Whether it is to be given work.
    pub enabled: bool,
    /// Rises with each change of the record or its credentials (A05).
    pub generation: i64,
    /// Rises with each redemption; 0 before the first (A21).
    pub incarnation: i64,
    /// When the record was made.
    pub created_at: Timestamp,
    /// When the machine was last heard, by its worker or by a report; `None` for never.
    pub seen_at: Option<Timestamp>,
    /// Whether it was heard lately: within [`super::SILENT_AFTER`]. Nothing is placed by this: [`super::Node`] is what hosts.
    pub live: bool,
    /// Since when the machine that holds the live credential has it.
    pub enrolled_at: Option<Timestamp>,
    /// Until when the live enrolment token works, where there is one.
    pub token_expires_at: Option<Timestamp>,
}

/// Why a record was refused, or what is done with one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such node.
    #[error("node {0} does not exist")]
    NotFound(NodeId),
    /// The node is a tombstone.
    #[error("node {identity} was decommissioned and does not come back: make a record of another identity")]
    Decommissioned {
        /// The node.
        identity: String,
    },
    /// Another record has the identity.
    #[error("a node of identity {0:?} exists already: issue a token for that one, or choose another identity")]
    IdentityTaken(String),
    /// No such region.
    #[error("region {0} does not exist: declare it first")]
    RegionUnknown(RegionCode),
    /// A field is out of its bounds.
    #[error("{field}: {rule}")]
    Invalid {
        /// The field's name.
        field: &'static str,
        /// The rule in words.
        rule: &'static str,
    },
    /// The database's.
    #[error("use the table of nodes")]
    Store(#[from] sqlx::Error),
}

/// Makes a record, in the transaction of the caller, with its audit (I11).
///
/// # Errors
/// [`Error::Invalid`], [`Error::RegionUnknown`], [`Error::IdentityTaken`], or the database's.
pub async fn create(conn: &mut PgConnection, new: &NewRecord, actor: Actor) -> Result<Record, Error> {
    new.check()?;
    if super::region(conn, &new.region).await?.is_none() {
        return Err(Error::RegionUnknown(new.region.clone()));
    }
    let id = NodeId::generate();
    if !store::insert(conn, id, new).await? {
        return Err(Error::IdentityTaken(new.identity.clone()));
    }
    let event = crate::audit::Event {
        actor,
        action: "node.create",
        subject_kind: "node",
        subject: id.to_string(),
        reason: None,
        detail: serde_json::json!({ "identity": new.identity, "region": new.region, "hostname": new.hostname,
                                    "display_name": new.display_name }),
    };
    crate::audit::record(conn, &event).await?;
    get(conn, id).await?.ok_or(Error::NotFound(id))
}

/// One record; `None` where there is none.
///
/// # Errors
/// Only the database's.
pub async fn get(conn: &mut PgConnection, id: NodeId) -> Result<Option<Record>, sqlx::Error> {
    Ok(store::select(conn, &Wanted { id: Some(id), ..Wanted::default() }, 1).await?.pop())
}

/// Which records to list.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Only this one.
    pub id: Option<NodeId>,
    /// Only those of this region.
    pub region: Option<RegionCode>,
    /// Only those of these identities.
    pub identities: Option<Vec<String>>,
    /// Only those behind this identity.
    pub after: Option<String>,
}

/// Records by identity, at most `limit`.
///
/// # Errors
/// Only the database's.
pub async fn list(conn: &mut PgConnection, wanted: &Wanted, limit: u16) -> Result<Vec<Record>, sqlx::Error> {
    store::select(conn, wanted, limit).await
}

/// Takes a node's row until the transaction ends, so that whoever changes its tokens or credentials does so alone.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Decommissioned`], or the database's.
pub(super) async fn hold(conn: &mut PgConnection, id: NodeId) -> Result<String, Error> {
    let (identity, lifecycle) = store::lock(conn, id).await?.ok_or(Error::NotFound(id))?;
    // A word that this program does not know is not `active`: nothing is begun for it.
    match Lifecycle::parse(&lifecycle) {
        Some(Lifecycle::Active) => Ok(identity),
        Some(Lifecycle::Decommissioned) | None => Err(Error::Decommissioned { identity }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(identity: &str, hostname: &str, display_name: Option<&str>) -> NewRecord {
        NewRecord {
            identity: identity.to_owned(),
            region: "eu".parse().expect("a code"),
            hostname: hostname.to_owned(),
            display_name: display_name.map(str::to_owned),
        }
    }

    #[test]
    fn names_have_bounds_and_are_what_somebody_can_type() {
        let longest = "é".repeat(MAX_NAME_CHARS);
        assert!(record("box-1", "box-1.example", None).check().is_ok());
        assert!(record(&longest, &"h".repeat(MAX_HOSTNAME_CHARS), Some(&longest)).check().is_ok());
        let over = format!("{longest}é");
        for bad in ["", " box", "box ", "b\u{7}x", over.as_str()] {
            assert!(matches!(record(bad, "h", None).check(), Err(Error::Invalid { field: "identity", .. })), "{bad:?}");
            let named = record("box", "h", Some(bad)).check();
            assert!(matches!(named, Err(Error::Invalid { field: "display_name", .. })), "{bad:?}");
        }
        for bad in ["", "a b", "a\n", &"h".repeat(MAX_HOSTNAME_CHARS + 1)] {
            let refused = record("box", bad, None).check();
            assert!(matches!(refused, Err(Error::Invalid { field: "hostname", .. })), "{bad:?}");
        }
    }

    #[test]
    fn every_lifecycle_is_read_back() {
        for lifecycle in Lifecycle::ALL {
            assert_eq!(Lifecycle::parse(lifecycle.as_str()), Some(lifecycle));
        }
        assert_eq!(Lifecycle::parse(""), None);
    }
}
