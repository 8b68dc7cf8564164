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

mod key;
mod permission;
mod store;

pub use key::{Presented, Secret};
pub use permission::{IdentityKind, Permission, Permissions, Role};

/// Longest name of an identity or a key, in characters.
pub const MAX_NAME_CHARS: usize = 200;
/// Most values in one dimension of a key's scopes.
pub const MAX_SCOPE_VALUES: usize = 1000;
/// The name of the identity that [`bootstrap`] makes; where it is taken, a number follows it.
pub const BOOTSTRAP_NAME: &str = "administrator";
/// Most names that [`bootstrap`] tries.
const MAX_BOOTSTRAP_NAMES: u32 = 1000;

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
    /// The identity.
    pub identity: IdentityId,
    /// The key that was presented.
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

/// An administrator who can act, if there is one.
///
/// # Errors
/// Only the database's.
pub async fn administrator(conn: &mut PgConnection) -> Result<Option<IdentityId>, Error> {
    Ok(store::administrator(conn).await?)
}

/// Makes an administrator and its key, only while no administrator has a working key.
///
/// The identity is always a new one: an identity that was disabled keeps its end, and one that has the name by chance
/// does not rise. Call it inside a transaction: callers at the same time wait for each other, and only the first
/// succeeds.
///
/// # Errors
/// [`Error::AdministratorExists`], [`Error::NameTaken`] when a thousand names are, or the database's.
pub async fn bootstrap(conn: &mut PgConnection) -> Result<MadeKey, Error> {
    store::lock_bootstrap(conn).await?;
    if store::administrator(conn).await?.is_some() {
        return Err(Error::AdministratorExists);
    }
    let identity = new_administrator(conn).await?;
    let new = NewKey {
        identity,
        name: "bootstrap".to_owned(),
        permissions: None,
        scopes: Scopes::default(),
        expires_at: None,
    };
    let made = insert_key(conn, &new).await?;
    let event = crate::audit::Event {
        actor: crate::audit::Actor::System,
        action: "key.bootstrap",
        subject_kind: "key",
        subject: made.id.to_string(),
        reason: None,
        detail: serde_json::json!({ "identity": identity }),
    };
    crate::audit::record(conn, &event).await?;
    Ok(made)
}

async fn new_administrator(conn: &mut PgConnection) -> Result<IdentityId, Error> {
    let (id, person, admin) = (IdentityId::generate(), IdentityKind::Person.as_str(), [Role::Admin.as_str()]);
    for number in 1..=MAX_BOOTSTRAP_NAMES {
        let name = if number == 1 { BOOTSTRAP_NAME.to_owned() } else { format!("{BOOTSTRAP_NAME}-{number}") };
        if store::insert_identity(conn, id, &name, person, &admin).await? {
            return Ok(id);
        }
    }
    Err(Error::NameTaken(BOOTSTRAP_NAME.to_owned()))
}

/// Creates an identity.
///
/// # Errors
/// [`Error::Invalid`], [`Error::NameTaken`], or the database's.
pub async fn create_identity(conn: &mut PgConnection, new: &NewIdentity) -> Result<IdentityId, Error> {
    check_name("name", &new.name)?;
    if !new.roles.is_empty() && new.kind != IdentityKind::Person {
        let rule = "only persons have roles; the kind of the others says what they may do".to_owned();
        return Err(Error::Invalid { field: "roles", rule });
    }
    let id = IdentityId::generate();
    let roles: Vec<&str> = new.roles.iter().map(|role| role.as_str()).collect();
    if store::insert_identity(conn, id, &new.name, new.kind.as_str(), &roles).await? {
        Ok(id)
    } else {
        Err(Error::NameTaken(new.name.clone()))
    }
}

/// Creates a key without asking who creates it: for the first keys of a machine of one's own.
///
/// # Errors
/// [`Error::Invalid`], [`Error::IdentityNotFound`], or the database's.
pub async fn create_key(conn: &mut PgConnection, new: &NewKey) -> Result<MadeKey, Error> {
    let Some(owner) = store::find_identity(conn, new.identity).await? else {
        return Err(Error::IdentityNotFound(new.identity));
    };
    check_key(new, IdentityKind::parse(&owner.kind))?;
    insert_key(conn, new).await
}

/// Creates a key on behalf of `creator`, who can give only what it may do and see itself, and for no longer.
///
/// # Errors
/// As [`create_key`], and [`Error::Exceeds`]. An end after the creator's own, or none where the creator has one, is
/// [`Error::Invalid`].
pub async fn create_key_by(conn: &mut PgConnection, creator: &Caller, new: &NewKey) -> Result<MadeKey, Error> {
    let Some(owner) = store::find_identity(conn, new.identity).await? else {
        return Err(Error::IdentityNotFound(new.identity));
    };
    let kind = IdentityKind::parse(&owner.kind);
    check_key(new, kind)?;
    if let Some(kind) = kind {
        let roles = owner.roles.iter().filter_map(|role| Role::parse(role)).collect();
        let given = Permissions::effective(kind, &roles, new.permissions.as_ref());
        if let Some(lacking) = given.first_beyond(&creator.permissions) {
            return Err(Error::Exceeds(format!("the permission {lacking}")));
        }
    }
    if !new.scopes.within(&creator.scopes) {
        return Err(Error::Exceeds("a part of these scopes".to_owned()));
    }
    if let Some(end) = creator.expires_at
        && new.expires_at.is_none_or(|asked| asked > end)
    {
        let end = end.to_rfc3339_opts(chrono::SecondsFormat::Micros, true);
        let rule = format!("must not be after {end}, when the key that creates this one expires");
        return Err(Error::Invalid { field: "expires_at", rule });
    }
    insert_key(conn, new).await
}

async fn insert_key(conn: &mut PgConnection, new: &NewKey) -> Result<MadeKey, Error> {
    let id = KeyId::generate();
    let secret = Secret::generate(id);
    let permissions: Option<Vec<&str>> =
        new.permissions.as_ref().map(|set| set.iter().map(|permission| permission.as_str()).collect());
    let scopes = serde_json::json!(new.scopes);
    let row = store::NewKeyRow {
        id,
        identity: new.identity,
        name: &new.name,
        secret_hash: secret.hash(),
        permissions: permissions.as_deref(),
        scopes: &scopes,
        expires_at: new.expires_at,
    };
    store::insert_key(conn, row).await?;
    Ok(MadeKey { id, identity: new.identity, secret })
}

/// Revokes a key without asking who does; revoking it again changes nothing. Returns whether it worked until now.
///
/// # Errors
/// [`Error::KeyNotFound`], or the database's.
pub async fn revoke_key(conn: &mut PgConnection, key: KeyId) -> Result<bool, Error> {
    store::revoke_key(conn, key).await?.ok_or(Error::KeyNotFound(key))
}

/// Revokes a key on behalf of `caller`, within the bounds of [`create_key_by`]: whoever could not give what the key
/// gives cannot take it away. Call it inside a transaction.
///
/// # Errors
/// As [`revoke_key`], also where the key's scopes are beyond the caller's, and [`Error::Exceeds`].
pub async fn revoke_key_by(conn: &mut PgConnection, caller: &Caller, key: KeyId) -> Result<bool, Error> {
    let row = store::find_bounds(conn, key).await?.ok_or(Error::KeyNotFound(key))?;
    // Scopes that cannot be read narrow nothing that is known: only who sees everything sees them.
    let scopes: Scopes = serde_json::from_value(row.scopes).unwrap_or_default();
    if !scopes.within(&caller.scopes) {
        return Err(Error::KeyNotFound(key));
    }
    if let Some(kind) = IdentityKind::parse(&row.kind) {
        let given = effective(kind, &row.roles, row.permissions.as_deref());
        if let Some(lacking) = given.first_beyond(&caller.permissions) {
            return Err(Error::Exceeds(format!("the permission {lacking}")));
        }
    }
    revoke_key(conn, key).await
}

/// Keys whose scopes lie within `seen`, newest first, at most `limit`, with ids below `before`.
///
/// # Errors
/// Only the database's.
pub async fn list_keys(
    conn: &mut PgConnection,
    seen: &Scopes,
    before: Option<KeyId>,
    limit: u16,
) -> Result<Vec<KeyView>, Error> {
    store::list_keys(conn, None, seen, before, limit).await
}

/// One key, whoever asks.
///
/// # Errors
/// [`Error::KeyNotFound`], or the database's.
pub async fn get_key(conn: &mut PgConnection, key: KeyId) -> Result<KeyView, Error> {
    store::list_keys(conn, Some(key), &Scopes::default(), None, 1).await?.pop().ok_or(Error::KeyNotFound(key))
}

/// What an identity's words give through a key's; what this program cannot read, it does not grant.
fn effective(kind: IdentityKind, roles: &[String], narrowed: Option<&[String]>) -> Permissions {
    let roles = roles.iter().filter_map(|role| Role::parse(role)).collect();
    let narrowed = narrowed.map(|names| names.iter().filter_map(|name| Permission::parse(name)).collect());
    Permissions::effective(kind, &roles, narrowed.as_ref())
}

fn check_name(field: &'static str, name: &str) -> Result<(), Error> {
    let chars = name.chars().count();
    if (1..=MAX_NAME_CHARS).contains(&chars) && !name.chars().any(char::is_control) {
        return Ok(());
    }
    let rule = format!("must have 1 to {MAX_NAME_CHARS} characters, none of them a control character");
    Err(Error::Invalid { field, rule })
}

fn check_key(new: &NewKey, kind: Option<IdentityKind>) -> Result<(), Error> {
    check_name("name", &new.name)?;
    let sizes = [&new.scopes.app, &new.scopes.node].map(|scope| scope.as_ref().map_or(0, BTreeSet::len));
    if sizes.iter().any(|&size| size > MAX_SCOPE_VALUES) {
        let rule = format!("at most {MAX_SCOPE_VALUES} values in a dimension");
        return Err(Error::Invalid { field: "scopes", rule });
    }
    let missing = |dimension: &str, scope: &Option<BTreeSet<String>>| {
        let rule = format!("a key of this kind must name at least one {dimension} in scopes.{dimension}");
        if scope.as_ref().is_none_or(BTreeSet::is_empty) {
            Err(Error::Invalid { field: "scopes", rule })
        } else {
            Ok(())
        }
    };
    match kind {
        Some(IdentityKind::App | IdentityKind::Instance) => missing("app", &new.scopes.app),
        Some(IdentityKind::Node) => missing("node", &new.scopes.node),
        Some(IdentityKind::Person) | None => Ok(()),
    }
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
