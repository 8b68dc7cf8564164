//! How a machine becomes a node: a token is issued for a record, and whoever presents its secret becomes that node.
//!
//! What the machine becomes is settled when the token is issued, so it need not know whether it joins or returns (E02).
//! The secret is told once and kept as a SHA-256 only: it has 256 random bits, a slow hash would buy nothing (E05).
//!
//! # Consistency
//! Whoever writes a node's tokens or credentials holds the node's row first; redemption finds and spends the token in one
//! statement that takes the row, too. So a node has at most one live token and at most one live credential, and a redemption
//! that waited sees what was done meanwhile, by the database's clock after its wait.
//!
//! # Crash consistency
//! The token is spent, the credential recorded, the incarnation raised, older credentials revoked and the act audited in one
//! transaction (E17). An answer that is lost tells no secret: the machine tries to prove itself with the key that it made, and
//! where it cannot, an operator issues another token (A16).

use std::time::Duration;

use sqlx::PgConnection;

use super::records::{self, Error};
use crate::audit::{self, Actor};
use crate::clock::Timestamp;
use crate::digest;
use crate::ids::{CredentialId, EnrolmentTokenId, IdentityId, NodeId};

mod secret;
mod store;

pub use secret::{Presented, Secret};

/// How long a token works where nobody says.
pub const DEFAULT_LIFE: Duration = Duration::from_secs(3600);
/// The shortest life of a token.
pub const MIN_LIFE: Duration = Duration::from_secs(60);
/// The longest life of a token: a week.
pub const MAX_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);

/// A token just issued. Its secret is shown by its receiver once and kept nowhere.
#[derive(Debug)]
pub struct Issued {
    /// Its id, fit for logs.
    pub id: EnrolmentTokenId,
    /// The node that its presenter becomes.
    pub node: NodeId,
    /// The secret.
    pub secret: Secret,
    /// When it was issued.
    pub issued_at: Timestamp,
    /// When it stops working.
    pub expires_at: Timestamp,
    /// The token that it took the place of.
    pub superseded: Option<EnrolmentTokenId>,
}

/// Issues a token for a node; the outstanding one stops working in the same transaction (E08).
///
/// Call it inside a transaction: callers at the same time wait for each other at the node's row (E09).
///
/// # Errors
/// [`Error::NotFound`], [`Error::Decommissioned`], [`Error::Invalid`] for a life out of its bounds, or the database's.
pub async fn issue(
    conn: &mut PgConnection,
    node: NodeId,
    life: Duration,
    by: IdentityId,
    actor: Actor,
) -> Result<Issued, Error> {
    if !(MIN_LIFE..=MAX_LIFE).contains(&life) {
        return Err(Error::Invalid { field: "expires_in_seconds", rule: "must be between 60 and 604800" });
    }
    records::hold(conn, node).await?;
    let superseded = store::supersede(conn, node).await?;
    let (id, secret) = (EnrolmentTokenId::generate(), Secret::generate());
    let (issued_at, expires_at) = store::insert(conn, id, node, secret.hash(), by, life).await?;
    let event = audit::Event {
        actor,
        action: "node.enrolment_token.issue",
        subject_kind: "node",
        subject: node.to_string(),
        reason: None,
        detail: serde_json::json!({ "token": id, "expires_at": expires_at, "superseded": superseded }),
    };
    audit::record(conn, &event).await?;
    Ok(Issued { id, node, secret, issued_at, expires_at, superseded })
}

/// Revokes the node's outstanding token, also one whose time is over; `None` where there is none.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Decommissioned`], or the database's.
pub async fn revoke(
    conn: &mut PgConnection,
    node: NodeId,
    reason: Option<&str>,
    actor: Actor,
) -> Result<Option<EnrolmentTokenId>, Error> {
    records::hold(conn, node).await?;
    let Some(revoked) = store::revoke(conn, node).await? else { return Ok(None) };
    let event = audit::Event {
        actor,
        action: "node.enrolment_token.revoke",
        subject_kind: "node",
        subject: node.to_string(),
        reason,
        detail: serde_json::json!({ "token": revoked }),
    };
    audit::record(conn, &event).await?;
    Ok(Some(revoked))
}

/// The public half of a machine's Ed25519 key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(pub(super) [u8; 32]);

impl PublicKey {
    /// Reads 64 hexadecimal digits in lower case; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        digest::from_hex(text).map(Self)
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Display for PublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// What a redemption made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enrolled {
    /// Who the machine is now.
    pub node: NodeId,
    /// The node's identity.
    pub identity: String,
    /// Which machine under that identity it is: one more than the last (A21).
    pub incarnation: i64,
    /// Its credential.
    pub credential: CredentialId,
    /// The token that was spent.
    pub token: EnrolmentTokenId,
    /// The credential of the machine before it, which stopped working.
    pub revoked: Option<CredentialId>,
}

/// Spends the token with this secret, and makes whoever holds the key's other half its node; `None` for every refusal.
///
/// One statement finds and spends (E10). Call it inside a transaction, and roll that back where it refuses; whatever keeps
/// the transaction from its end leaves the token live.
///
/// # Errors
/// Only the database's.
pub async fn redeem(
    conn: &mut PgConnection,
    presented: &Presented,
    key: &PublicKey,
    source: Option<&str>,
) -> Result<Option<Enrolled>, sqlx::Error> {
    let Some(enrolled) = store::redeem(conn, presented.hash(), CredentialId::generate(), key.bytes()).await? else {
        return Ok(None);
    };
    let event = audit::Event {
        actor: Actor::System,
        action: "node.enrol",
        subject_kind: "node",
        subject: enrolled.node.to_string(),
        reason: None,
        detail: serde_json::json!({ "token": enrolled.token, "credential": enrolled.credential,
                                    "incarnation": enrolled.incarnation, "revoked": enrolled.revoked,
                                    "source": source }),
    };
    audit::record(conn, &event).await?;
    Ok(Some(enrolled))
}

/// Why a redemption was refused: for operators, in the audit trail, never for the presenter (E19).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It has not the form of a secret.
    Malformed,
    /// No token has it.
    Unknown,
    /// The node is a tombstone.
    Decommissioned,
    /// It worked already.
    Spent,
    /// An operator revoked it.
    Revoked,
    /// Another token was issued for the node.
    Superseded,
    /// Its time was over.
    Expired,
    /// The token would have worked, but the public key was used before.
    KeyReused,
    /// What kept it from working is gone.
    Passed,
}

impl Refusal {
    /// As it stands in the audit trail.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Unknown => "unknown",
            Self::Decommissioned => "decommissioned",
            Self::Spent => "spent",
            Self::Revoked => "revoked",
            Self::Superseded => "superseded",
            Self::Expired => "expired",
            Self::KeyReused => "key_reused",
            Self::Passed => "passed",
        }
    }
}

/// What the tables say of a presented secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Standing {
    node: Option<NodeId>,
    decommissioned: bool,
    spent: bool,
    revoked: bool,
    superseded: bool,
    expired: bool,
    key_known: bool,
}

/// The first that applies, in the order in which they are worst: a tombstone before what became of the token.
fn class(standing: Standing, well_formed: bool) -> Refusal {
    match standing {
        _ if !well_formed => Refusal::Malformed,
        Standing { node: None, .. } => Refusal::Unknown,
        Standing { decommissioned: true, .. } => Refusal::Decommissioned,
        Standing { spent: true, .. } => Refusal::Spent,
        Standing { revoked: true, .. } => Refusal::Revoked,
        Standing { superseded: true, .. } => Refusal::Superseded,
        Standing { expired: true, .. } => Refusal::Expired,
        Standing { key_known: true, .. } => Refusal::KeyReused,
        Standing { .. } => Refusal::Passed,
    }
}

/// Records why a redemption was refused. Call it after the refusal was answered, for each of them alike (A17).
///
/// # Errors
/// Only the database's.
pub async fn note_refusal(
    conn: &mut PgConnection,
    presented: &Presented,
    key: &PublicKey,
    source: Option<&str>,
) -> Result<Refusal, sqlx::Error> {
    let standing = store::standing(conn, presented.hash(), key.bytes()).await?;
    let class = class(standing, presented.is_well_formed());
    let event = audit::Event {
        actor: Actor::System,
        action: "node.enrol_refused",
        subject_kind: "node",
        subject: standing.node.map_or_else(|| "unknown".to_owned(), |node| node.to_string()),
        reason: None,
        detail: serde_json::json!({ "class": class.as_str(), "source": source }),
    };
    audit::record(conn, &event).await?;
    Ok(class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_of_the_worst_class_that_applies() {
        let known = Standing { node: Some(NodeId::generate()), ..Standing::default() };
        let all = Standing {
            decommissioned: true,
            spent: true,
            revoked: true,
            superseded: true,
            expired: true,
            key_known: true,
            ..known
        };
        assert_eq!(class(all, false), Refusal::Malformed);
        assert_eq!(class(Standing { node: None, ..all }, true), Refusal::Unknown);
        assert_eq!(class(all, true), Refusal::Decommissioned);
        assert_eq!(class(Standing { decommissioned: false, ..all }, true), Refusal::Spent);
        assert_eq!(class(Standing { revoked: true, expired: true, ..known }, true), Refusal::Revoked);
        assert_eq!(class(Standing { superseded: true, expired: true, ..known }, true), Refusal::Superseded);
        assert_eq!(class(Standing { expired: true, key_known: true, ..known }, true), Refusal::Expired);
        assert_eq!(class(Standing { key_known: true, ..known }, true), Refusal::KeyReused);
        assert_eq!(class(known, true), Refusal::Passed);
    }

    #[test]
    fn a_public_key_has_one_spelling() {
        let text = "0123456789abcdef".repeat(4);
        assert_eq!(PublicKey::parse(&text).map(|key| hex::encode(key.bytes())), Some(text.clone()));
        for bad in ["", &text[2..], &text.to_uppercase(), &format!("{text}00"), &"é".repeat(32)] {
            assert_eq!(PublicKey::parse(bad), None, "{bad:?}");
        }
    }
}
