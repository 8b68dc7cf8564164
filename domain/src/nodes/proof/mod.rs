//! How a node proves itself: it signs a nonce of the server's with the key that it enrolled, and gets a bearer for a quarter of
//! an hour.
//!
//! # Consistency
//! A bearer grants nothing by itself: at every request it is asked whether its credential is still the node's live one, of
//! the node's incarnation, and whether the node is active. So a machine that was replaced is out at its next request, also
//! on a connection that it keeps open. Only the database's clock counts; the machine's plays no part.

use std::fmt;
use std::time::Duration;

use ring::signature::{ED25519, UnparsedPublicKey};
use secrecy::{ExposeSecret as _, SecretString};
use sqlx::PgConnection;

use crate::clock::Timestamp;
use crate::ids::{CredentialId, NodeId, NodeSessionId};
use crate::{digest, entropy};

mod key;
mod store;

pub use key::SigningKey;

/// How long a nonce can be signed.
pub const NONCE_LIFE: Duration = Duration::from_secs(60);
/// How long a bearer works; it is not lengthened by use.
pub const SESSION_LIFE: Duration = Duration::from_secs(15 * 60);
/// Most sessions of one node; the oldest give way to a new one.
pub const MAX_PER_NODE: i64 = 20;
/// Expired rows that one call sweeps away.
const SWEEP: i64 = 100;
/// What every bearer begins with: no API key does.
pub const PREFIX: &str = "lhn_";

/// A nonce to sign, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nonce([u8; 32]);

impl Nonce {
    /// Reads 64 hexadecimal digits in lower case; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        digest::from_hex(text).map(Self)
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// What a node signs to prove itself: said for this purpose and this node, so that a signature serves nothing else.
#[must_use]
pub fn message(node: NodeId, nonce: &Nonce) -> Vec<u8> {
    format!("leasehold node session v1\n{node}\n{nonce}").into_bytes()
}

/// A nonce for whoever says that it is this node. Nobody is told whether there is such a node.
///
/// # Errors
/// Only the database's.
pub async fn challenge(conn: &mut PgConnection, node: NodeId) -> Result<(Nonce, Timestamp), sqlx::Error> {
    store::sweep_nonces(conn, SWEEP).await?;
    let nonce = Nonce(entropy::bytes());
    let expires_at = store::insert_nonce(conn, &nonce.0, node, NONCE_LIFE).await?;
    Ok((nonce, expires_at))
}

/// A bearer: 256 bits. Never printed, never stored.
pub struct Bearer([u8; 32]);

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bearer(..)")
    }
}

impl Bearer {
    /// Takes a presented bearer; `None` for what cannot be one.
    #[must_use]
    pub fn parse(text: &SecretString) -> Option<Self> {
        digest::from_hex(text.expose_secret().strip_prefix(PREFIX)?).map(Self)
    }

    /// The whole bearer, to be told once.
    #[must_use]
    pub fn reveal(&self) -> SecretString {
        SecretString::from(format!("{PREFIX}{}", hex::encode(self.0)))
    }

    fn hash(&self) -> [u8; 32] {
        digest::sha256(&self.0)
    }
}

/// A session that works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Its id, fit for logs.
    pub id: NodeSessionId,
    /// Whose it is.
    pub node: NodeId,
    /// The node's identity.
    pub identity: String,
    /// Which machine under that identity has it.
    pub incarnation: i64,
    /// When it ends by itself.
    pub expires_at: Timestamp,
}

/// Opens a session for whoever signed this nonce with the node's live key; `None` for every refusal.
///
/// The nonce is spent in any case: commit also where it refuses.
///
/// # Errors
/// Only the database's.
pub async fn open(
    conn: &mut PgConnection,
    node: NodeId,
    nonce: &Nonce,
    signature: &[u8; 64],
) -> Result<Option<(Bearer, Session)>, sqlx::Error> {
    store::sweep_sessions(conn, SWEEP).await?;
    let fresh = store::take_nonce(conn, &nonce.0, node).await?;
    let Some((credential, key)) = store::live_key(conn, node).await? else { return Ok(None) };
    let signed = UnparsedPublicKey::new(&ED25519, key).verify(&message(node, nonce), signature).is_ok();
    if !fresh || !signed {
        return Ok(None);
    }
    begin(conn, node, credential).await
}

async fn begin(
    conn: &mut PgConnection,
    node: NodeId,
    credential: CredentialId,
) -> Result<Option<(Bearer, Session)>, sqlx::Error> {
    store::end_oldest(conn, node, MAX_PER_NODE - 1).await?;
    let bearer = Bearer(entropy::bytes());
    store::insert_session(conn, NodeSessionId::generate(), credential, &bearer.hash(), SESSION_LIFE).await?;
    // As at every request: a credential that was revoked meanwhile opens nothing.
    Ok(find(conn, &bearer).await?.map(|session| (bearer, session)))
}

/// The session of a bearer; `None` where it never was, has ended, or its credential is not the node's live one any more.
///
/// # Errors
/// Only the database's.
pub async fn find(conn: &mut PgConnection, bearer: &Bearer) -> Result<Option<Session>, sqlx::Error> {
    store::find(conn, &bearer.hash()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_survives_its_telling_has_one_spelling_and_is_never_printed() {
        let bearer = Bearer(entropy::bytes());
        let text = bearer.reveal().expose_secret().to_owned();
        assert_eq!(Bearer::parse(&bearer.reveal()).map(|it| it.hash()), Some(bearer.hash()));
        for bad in ["", PREFIX, &text[1..], &text[4..], &text.to_uppercase(), &format!("{text}00")] {
            assert!(Bearer::parse(&SecretString::from(bad)).is_none(), "{bad:?}");
        }
        assert!(!format!("{bearer:?}").contains(&text[4..]));
    }

    #[test]
    fn what_is_signed_names_the_node_and_the_nonce() {
        let (one, two) = (NodeId::generate(), NodeId::generate());
        let nonce = Nonce(entropy::bytes());
        assert_eq!(Nonce::parse(&nonce.to_string()), Some(nonce));
        assert_ne!(message(one, &nonce), message(two, &nonce));
        assert_ne!(message(one, &nonce), message(one, &Nonce(entropy::bytes())));
    }
}
