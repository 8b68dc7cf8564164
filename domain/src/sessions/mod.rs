//! Browser sessions: a cookie in place of an API key.
//!
//! # Consistency
//! A session is a row bound to one key. It says only which key it stands for; whether that key may still act is asked
//! of `authority` at every request, so a revoked key ends its sessions at once. The row holds a hash: whoever reads
//! the table cannot sign in with it.

use std::fmt;
use std::time::Duration;

use sqlx::PgConnection;
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::ids::KeyId;
use crate::{digest, entropy};

mod store;

/// How long a session lasts; it is not lengthened by use.
pub const LIFE: Duration = Duration::from_secs(12 * 3600);
/// Most sessions of one key; the oldest give way to a new one.
pub const MAX_PER_KEY: i64 = 20;
/// Expired rows that one sign-in sweeps away.
const SWEEP: i64 = 100;

/// The secret that a browser holds: 256 bits. Never printed, never stored.
pub struct Token([u8; 32]);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    fn generate() -> Self {
        Self(entropy::bytes())
    }

    /// Reads a cookie's value; `None` for what cannot be one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        digest::from_hex(text).map(Self)
    }

    /// The cookie's value.
    #[must_use]
    pub fn reveal(&self) -> String {
        hex::encode(self.0)
    }

    /// The token that every form of this session carries against forged requests.
    ///
    /// Derived, so that it needs no column; one way, so that a page that leaks it does not leak the session.
    #[must_use]
    pub fn form_token(&self) -> String {
        let mut text = b"leasehold form ".to_vec();
        text.extend_from_slice(&self.0);
        hex::encode(digest::sha256(&text))
    }

    fn hash(&self) -> [u8; 32] {
        digest::sha256(&self.0)
    }
}

/// A session that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// Its id, fit for logs.
    pub id: Uuid,
    /// The key for which it stands; the caller asks `authority` what that key may do now.
    pub key: KeyId,
    /// When it ends by itself.
    pub expires_at: Timestamp,
}

/// Begins a session of `key`, sweeps some expired ones and, beyond [`MAX_PER_KEY`], the key's oldest.
///
/// # Errors
/// Only the database's.
pub async fn begin(conn: &mut PgConnection, key: KeyId) -> Result<(Token, Session), sqlx::Error> {
    let token = Token::generate();
    store::sweep(conn, SWEEP).await?;
    store::end_oldest(conn, key, MAX_PER_KEY - 1).await?;
    let session = store::insert(conn, key, &token.hash(), LIFE).await?;
    Ok((token, session))
}

/// The session of a cookie; `None` where it never was or has ended.
///
/// # Errors
/// Only the database's.
pub async fn find(conn: &mut PgConnection, token: &Token) -> Result<Option<Session>, sqlx::Error> {
    store::find(conn, &token.hash()).await
}

/// Ends a session; ending it twice is no error.
///
/// # Errors
/// Only the database's.
pub async fn end(conn: &mut PgConnection, token: &Token) -> Result<(), sqlx::Error> {
    store::delete(conn, &token.hash()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_its_cookie_and_has_one_spelling() {
        let token = Token::generate();
        let text = token.reveal();
        assert_eq!(Token::parse(&text).map(|t| t.hash()), Some(token.hash()));
        for bad in ["", "00", &"g".repeat(64), &"A".repeat(64), &"0".repeat(63), &"é".repeat(32)] {
            assert!(Token::parse(bad).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn a_form_token_tells_nothing_of_its_session() {
        let token = Token::generate();
        assert_eq!(token.form_token().len(), 64);
        assert_ne!(token.form_token(), token.reveal());
        assert_ne!(token.form_token(), hex::encode(token.hash()), "the stored hash is no form token either");
        assert_ne!(token.form_token(), Token::generate().form_token());
    }

    #[test]
    fn a_token_is_never_printed() {
        let token = Token::generate();
        assert!(!format!("{token:?}").contains(&token.reveal()));
    }
}
