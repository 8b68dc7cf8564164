//! Nodes: their records, how a machine enrols as one, and how it proves itself.

use chrono::{DateTime, Utc};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;
use uuid::Uuid;

/// A record to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewNode {
    /// Who the machine is; unique, and the same after it was rebuilt.
    pub identity: String,
    /// The code of the region that it stands in.
    pub region: String,
    /// Its host name.
    pub hostname: String,
    /// Its name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
}

/// A node's record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// Its id.
    pub id: Uuid,
    /// Who the machine is.
    pub identity: String,
    /// The code of the region that it stands in.
    pub region: String,
    /// Its host name; null for a box that registered itself.
    pub hostname: Option<String>,
    /// Its name for people.
    pub display_name: Option<String>,
    /// `active`, or `decommissioned`: it does not come back then.
    pub lifecycle: String,
    /// Whether it is to be given work.
    pub enabled: bool,
    /// Rises with each change of the record or of its credentials; also the ETag.
    pub generation: i64,
    /// Rises with each enrolment; 0 before the first.
    pub incarnation: i64,
    /// When the record was made.
    pub created_at: DateTime<Utc>,
    /// When the machine was last heard, by its worker or by a report; null for never.
    pub seen_at: Option<DateTime<Utc>>,
    /// Whether it was heard lately.
    pub live: bool,
    /// Since when the machine of this incarnation is enrolled; null where none is.
    pub enrolled_at: Option<DateTime<Utc>>,
    /// Until when the outstanding enrolment token works; null where there is none.
    pub token_expires_at: Option<DateTime<Utc>>,
}

/// An enrolment token to issue.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnrolmentTokenRequest {
    /// How long it works, 60 to 604800 seconds; an hour where it is not named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<u32>,
}

/// What a machine must know of the control plane beside its secret. What is null is not configured, or does not exist: no
/// token stands for it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ControlPlane {
    /// Where the API is, from outside.
    pub api_url: Option<String>,
    /// SHA-256 of the certificate that the API presents, in hexadecimal digits.
    pub certificate_sha256: Option<String>,
    /// The key with which the control plane signs; null, since this version signs nothing.
    pub signing_key_id: Option<String>,
}

/// A token just issued.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EnrolmentToken {
    /// Its id.
    pub id: Uuid,
    /// The node that its presenter becomes.
    pub node_id: Uuid,
    /// When it was issued.
    pub issued_at: DateTime<Utc>,
    /// When it stops working.
    pub expires_at: DateTime<Utc>,
    /// The token that stopped working as this one was issued.
    pub superseded: Option<Uuid>,
    /// The secret, told in this answer only; null when an idempotent call is answered again.
    #[serde(serialize_with = "tell")]
    #[schema(value_type = Option<String>)]
    pub secret: Option<SecretString>,
    /// What the secret does not carry.
    pub control_plane: ControlPlane,
}

/// What became of a node's outstanding token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevokedToken {
    /// The token that was revoked; null where there was none.
    pub revoked: Option<Uuid>,
}

/// A machine that enrols. It names no node: the token does.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Enrolment {
    /// The token's secret.
    #[serde(serialize_with = "send")]
    #[schema(value_type = String)]
    pub secret: SecretString,
    /// The public half of a fresh Ed25519 key: 64 hexadecimal digits in lower case.
    pub public_key: String,
}

/// Who the machine is now. It holds no secret: an answer that is lost does no harm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Enrolled {
    /// The node.
    pub node_id: Uuid,
    /// Which machine under that node it is.
    pub incarnation: i64,
    /// What else it must know.
    #[serde(flatten)]
    pub control_plane: ControlPlane,
}

/// A nonce to sign.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeNonce {
    /// 64 hexadecimal digits.
    pub nonce: String,
    /// Until when it can be signed.
    pub expires_at: DateTime<Utc>,
    /// The text to sign, whole: it names the purpose, the node and the nonce.
    pub message: String,
}

/// A signed nonce.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeSessionRequest {
    /// The nonce.
    pub nonce: String,
    /// The Ed25519 signature of its message: 128 hexadecimal digits in lower case.
    pub signature: String,
}

/// A session of a node.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NodeSession {
    /// Whose it is.
    pub node_id: Uuid,
    /// Which machine under that node has it.
    pub incarnation: i64,
    /// The bearer, told in this answer only: send it as `Authorization: Bearer …`.
    #[serde(serialize_with = "send")]
    #[schema(value_type = String)]
    pub token: SecretString,
    /// When it ends. It ends sooner with the node's credential.
    pub expires_at: DateTime<Utc>,
}

/// The one place where an issued secret leaves the process: the answer that makes it known.
fn tell<S: Serializer>(secret: &Option<SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    secret.as_ref().map(|secret| secret.expose_secret()).serialize(serializer)
}

/// The one place where a secret that somebody must have leaves the process: the message that carries it there.
fn send<S: Serializer>(secret: &SecretString, serializer: S) -> Result<S::Ok, S::Error> {
    secret.expose_secret().serialize(serializer)
}
