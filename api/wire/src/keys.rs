//! Keys and their identities.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;
use uuid::Uuid;

/// What an identity is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IdentityKind {
    /// A human being, or a program that acts for one.
    Person,
    /// An application: the bearer of its tenants' doors.
    App,
    /// A machine.
    Node,
    /// One instance of an application.
    Instance,
}

/// What a key may see. A dimension that is absent is not narrowed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyScopes {
    /// Applications, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<BTreeSet<String>>,
    /// Nodes, by identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<BTreeSet<String>>,
}

/// A key, never its secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Key {
    /// Its id.
    pub id: Uuid,
    /// What it is for.
    pub name: String,
    /// Whose it is.
    pub identity_id: Uuid,
    /// The identity's name.
    pub identity: String,
    /// What the identity is.
    pub identity_kind: IdentityKind,
    /// The identity's roles.
    pub roles: Vec<String>,
    /// What the key is narrowed to; null for all that the identity may do.
    pub permissions: Option<Vec<String>>,
    /// What the key may see.
    pub scopes: KeyScopes,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// When it stops working.
    pub expires_at: Option<DateTime<Utc>>,
    /// When it was revoked.
    pub revoked_at: Option<DateTime<Utc>>,
    /// Counts every change of the key.
    #[serde(default)]
    pub revision: i64,
}

/// An identity to create together with its first key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewIdentity {
    /// Its name, unique.
    pub name: String,
    /// What it is.
    pub kind: IdentityKind,
    /// `viewer`, `operator` or `admin`; only persons have roles.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub roles: BTreeSet<String>,
}

/// A key to create: for an identity that exists, or with a new one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewKey {
    /// What it is for.
    pub name: String,
    /// Whose it is; either this or `identity`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity_id: Option<Uuid>,
    /// An identity to create with it; either this or `identity_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<NewIdentity>,
    /// Narrows what the identity may do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<BTreeSet<String>>,
    /// Narrows what the key may see; an application's key must name its application.
    #[serde(default)]
    pub scopes: KeyScopes,
    /// When it stops working.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<DateTime<Utc>>,
}

/// A key just made.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct MadeKey {
    /// The key.
    #[serde(flatten)]
    pub key: Key,
    /// The whole key, told in this answer only; null when an idempotent call is answered again.
    #[serde(serialize_with = "tell")]
    #[schema(value_type = Option<String>)]
    pub secret: Option<SecretString>,
}

/// The one place where a secret leaves the process: the answer that makes it known.
fn tell<S: Serializer>(secret: &Option<SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    secret.as_ref().map(|secret| secret.expose_secret()).serialize(serializer)
}
