//! Who may do what: identities, their API keys, roles and permissions.
//!
//! A key is told once and kept as a SHA-256 only: a secret of 256 random bits needs no salt and no slow hash. What a
//! caller may do is what the roles and the kind of its identity give, narrowed by the key. What it may see is narrowed
//! by the key's scopes; whoever may not see a thing is answered as if it did not exist.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sqlx::PgConnection;

use crate::clock::Timestamp;
use crate::ids::{IdentityId, KeyId};

mod issuing;
mod key;
mod permission;
mod store;

pub use issuing::{
    administrator, bootstrap, create_identity, create_key, create_key_by, get_key, list_keys, revoke_key, revoke_key_by,
};
pub use key::{Presented, Secret};
pub use permission::{IdentityKind, Permission, Permissions, Role};

/// Longest name of an identity or a key, in characters.
pub const MAX_NAME_CHARS: usize = 200;
/// Most values in one dimension of a key's scopes.
pub const MAX_SCOPE_VALUES: usize = 1000;
/// The name of the identity that [`bootstrap`] makes; where it is taken, a number follows it.
pub const BOOTSTRAP_NAME: &str = "administrator";

/// Why a key was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It has not the form `lh_<id>_<secret>`.
    #[error("the key has not the form lh_<id>_<secret>")]
    Malformed,
    /// No such key, or another secret: the two are never told apart.
    #[error("the key is not known")]
    Unknown,
    /// It was revoked.
    #[error("the key was revoked")]
    Revoked,
    /// Its time is over.
    #[error("the key has expired")]
    Expired,
    /// Its identity was disabled.
    #[error("the key's identity is disabled")]
    Disabled,
}

/// Why the authority refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The presented key is not accepted.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// An administrator with a working key exists already.
    #[error("an administrator exists already: ask them for a key, or create one with theirs")]
    AdministratorExists,
    /// A field is out of its bounds.
    #[error("{field}: {rule}")]
    Invalid {
        /// The field's name.
        field: &'static str,
        /// The rule in words.
        rule: String,
    },
    /// Another identity has the name.
    #[error("an identity named {0:?} exists already")]
    NameTaken(String),
    /// Nobody gives, or takes away, what they do not have.
    #[error("a key can give, and take away, only what it gives itself; yours lacks {0}")]
    Exceeds(String),
    /// The key changed since the caller read it.
    #[error("key {key} is at revision {found}, not {expected}: read it again")]
    Stale {
        /// The key.
        key: KeyId,
        /// The revision that the caller expected.
        expected: i64,
        /// The present one.
        found: i64,
    },
    /// No such key.
    #[error("key {0} does not exist")]
    KeyNotFound(KeyId),
    /// No such identity.
    #[error("identity {0} does not exist")]
    IdentityNotFound(IdentityId),
    /// The database's.
    #[error("use the tables of identities and keys")]
    Store(#[from] sqlx::Error),
}

/// What a key may see. A dimension that is absent is not narrowed; an empty one shows nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scopes {
    /// Applications, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<BTreeSet<String>>,
    /// Nodes, by identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<BTreeSet<String>>,
}

impl Scopes {
    /// Whether everything that `self` shows is shown by `wider` too.
    #[must_use]
    pub fn within(&self, wider: &Self) -> bool {
        fn inside(narrow: Option<&BTreeSet<String>>, wide: Option<&BTreeSet<String>>) -> bool {
            match (narrow, wide) {
                (_, None) => true,
                (None, Some(_)) => false,
                (Some(narrow), Some(wide)) => narrow.is_subset(wide),
            }
        }
        inside(self.app.as_ref(), wider.app.as_ref()) && inside(self.node.as_ref(), wider.node.as_ref())
    }
}

/// An authenticated caller: whose key it is, and what it may do and see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The identity; of a node's session, the node's id.
    pub identity: IdentityId,
    /// The key that was presented, or the node's session: a rate and an act in the audit trail go by it.
    pub key: KeyId,
    /// The identity's name.
    pub name: String,
    /// What the identity is.
    pub kind: IdentityKind,
    /// What it may do with this key.
    pub permissions: Permissions,
    /// What it may see with this key.
    pub scopes: Scopes,
    /// When the key stops working.
    pub expires_at: Option<Timestamp>,
}

impl Caller {
    /// Whether it may do this.
    #[must_use]
    pub fn may(&self, permission: Permission) -> bool {
        self.permissions.has(permission)
    }

    /// Whether it may see an application. An application's key without an application in its scopes sees none.
    #[must_use]
    pub fn sees_app(&self, app: &str) -> bool {
        match (&self.scopes.app, self.kind) {
            (Some(apps), _) => apps.contains(app),
            (None, IdentityKind::Person | IdentityKind::Node) => true,
            (None, IdentityKind::App | IdentityKind::Instance) => false,
        }
    }

    /// Whether it may see a node. A node's key without a node in its scopes sees none.
    #[must_use]
    pub fn sees_node(&self, node: &str) -> bool {
        match (&self.scopes.node, self.kind) {
            (Some(nodes), _) => nodes.contains(node),
            (None, IdentityKind::Person) => true,
            (None, IdentityKind::App | IdentityKind::Instance | IdentityKind::Node) => false,
        }
    }

    /// As it is named in the audit trail.
    #[must_use]
    pub const fn actor(&self) -> crate::audit::Actor {
        crate::audit::Actor::Key { identity: self.identity, key: self.key }
    }
}

/// An identity to create.
#[derive(Debug, Clone)]
pub struct NewIdentity {
    /// Its name, unique.
    pub name: String,
    /// What it is.
    pub kind: IdentityKind,
    /// Its roles; only persons have any.
    pub roles: BTreeSet<Role>,
}

/// A key to create.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// Whose it is.
    pub identity: IdentityId,
    /// What it is for, in the words of its maker.
    pub name: String,
    /// Narrows what the identity may do; `None` leaves it.
    pub permissions: Option<BTreeSet<Permission>>,
    /// Narrows what the key may see.
    pub scopes: Scopes,
    /// When it stops working.
    pub expires_at: Option<Timestamp>,
}

/// A key just made. The secret is shown by its receiver once and kept nowhere.
#[derive(Debug)]
pub struct MadeKey {
    /// The key's id.
    pub id: KeyId,
    /// Whose it is.
    pub identity: IdentityId,
    /// The whole key, `lh_<id>_<secret>`.
    pub secret: Secret,
}

/// A key as its readers see it: never its secret.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyView {
    /// Its id.
    pub id: KeyId,
    /// Whose it is.
    pub identity: IdentityId,
    /// The identity's name.
    pub identity_name: String,
    /// What the identity is.
    pub identity_kind: IdentityKind,
    /// The identity's roles.
    pub roles: Vec<String>,
    /// What it is for.
    pub name: String,
    /// What it is narrowed to.
    pub permissions: Option<Vec<String>>,
    /// What it may see.
    pub scopes: serde_json::Value,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it stops working.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
    /// Counts every change of the key.
    pub revision: i64,
}

/// Who presents this key, in one query by the key's id; the secret is compared in constant time.
///
/// # Errors
/// [`Error::Refused`], or the database's.
pub async fn authenticate(conn: &mut PgConnection, presented: &Presented) -> Result<Caller, Error> {
    let row = store::find_key(conn, presented.id()).await?.ok_or(Refusal::Unknown)?;
    if !presented.matches(&row.secret_hash) {
        return Err(Refusal::Unknown.into());
    }
    caller(row)
}

/// Who owns a key, for a session that the key opened: revoking the key ends the session too.
///
/// # Errors
/// [`Error::Refused`], or the database's.
pub async fn caller_of_key(conn: &mut PgConnection, key: KeyId) -> Result<Caller, Error> {
    let row = store::find_key(conn, key).await?.ok_or(Refusal::Unknown)?;
    caller(row)
}

fn caller(row: store::KeyRow) -> Result<Caller, Error> {
    if row.revoked {
        return Err(Refusal::Revoked.into());
    }
    if row.expired {
        return Err(Refusal::Expired.into());
    }
    if row.disabled {
        return Err(Refusal::Disabled.into());
    }
    // What this program cannot read, it does not grant.
    let kind = IdentityKind::parse(&row.kind).ok_or(Refusal::Unknown)?;
    let scopes: Scopes = serde_json::from_value(row.scopes).map_err(|_| Refusal::Unknown)?;
    let permissions = effective(kind, &row.roles, row.permissions.as_deref());
    Ok(Caller {
        identity: row.identity,
        key: row.key,
        name: row.name,
        kind,
        permissions,
        scopes,
        expires_at: row.expires_at,
    })
}

/// What an identity's words give through a key's; what this program cannot read, it does not grant.
fn effective(kind: IdentityKind, roles: &[String], narrowed: Option<&[String]>) -> Permissions {
    let roles = roles.iter().filter_map(|role| Role::parse(role)).collect();
    let narrowed = narrowed.map(|names| names.iter().filter_map(|name| Permission::parse(name)).collect());
    Permissions::effective(kind, &roles, narrowed.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(apps: Option<&[&str]>) -> Scopes {
        Scopes { app: apps.map(|apps| apps.iter().map(|&app| app.to_owned()).collect()), node: None }
    }

    #[test]
    fn a_scope_never_grows() {
        assert!(scope(Some(&["acme"])).within(&scope(None)));
        assert!(scope(Some(&["acme"])).within(&scope(Some(&["acme", "beta"]))));
        assert!(!scope(None).within(&scope(Some(&["acme"]))));
        assert!(!scope(Some(&["other"])).within(&scope(Some(&["acme"]))));
        assert!(scope(Some(&[])).within(&scope(Some(&["acme"]))));
    }

    #[test]
    fn a_scope_in_an_unknown_dimension_is_not_read_as_no_scope() {
        assert!(serde_json::from_str::<Scopes>(r#"{"planet": ["mars"]}"#).is_err());
    }
}
