//! Making, listing and revoking keys: nobody gives, sees or takes more than they have.

use std::collections::BTreeSet;

use sqlx::PgConnection;

use super::{
    BOOTSTRAP_NAME, Caller, Error, IdentityKind, KeyView, MAX_NAME_CHARS, MAX_SCOPE_VALUES, MadeKey, NewIdentity,
    NewKey, Permissions, Role, Scopes, Secret, effective, store,
};
use crate::ids::{IdentityId, KeyId};

/// Most names that [`bootstrap`] tries.
const MAX_BOOTSTRAP_NAMES: u32 = 1000;

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
    refuse_expired(conn, new).await?;
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
    refuse_expired(conn, new).await?;
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
/// As [`revoke_key`], also where the key's scopes are beyond the caller's, [`Error::Exceeds`], and [`Error::Stale`] where
/// the key is not at `if_revision`.
pub async fn revoke_key_by(
    conn: &mut PgConnection,
    caller: &Caller,
    key: KeyId,
    if_revision: Option<i64>,
) -> Result<bool, Error> {
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
    if let Some(expected) = if_revision.filter(|expected| *expected != row.revision) {
        return Err(Error::Stale { key, expected, found: row.revision });
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

fn check_name(field: &'static str, name: &str) -> Result<(), Error> {
    let chars = name.chars().count();
    if (1..=MAX_NAME_CHARS).contains(&chars) && !name.chars().any(char::is_control) {
        return Ok(());
    }
    let rule = format!("must have 1 to {MAX_NAME_CHARS} characters, none of them a control character");
    Err(Error::Invalid { field, rule })
}

/// A key that never works would be given out in silence.
async fn refuse_expired(conn: &mut PgConnection, new: &NewKey) -> Result<(), Error> {
    let Some(end) = new.expires_at else { return Ok(()) };
    if end > crate::clock::now(conn).await? {
        return Ok(());
    }
    Err(Error::Invalid { field: "expires_at", rule: "must be in the future".to_owned() })
}

fn check_key(new: &NewKey, kind: Option<IdentityKind>) -> Result<(), Error> {
    check_name("name", &new.name)?;
    if new.expires_at.is_some_and(|moment| !crate::clock::is_plausible(moment)) {
        return Err(Error::Invalid { field: "expires_at", rule: "must be in the years 2000 to 9999".to_owned() });
    }
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
