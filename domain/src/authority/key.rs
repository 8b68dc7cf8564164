//! The form of a key: `lh_<id>_<secret>`, the id 32 and the secret 64 hexadecimal digits.

use secrecy::{ExposeSecret as _, SecretString};
use subtle::ConstantTimeEq as _;
use uuid::Uuid;

use super::Refusal;
use crate::ids::KeyId;

const PREFIX: &str = "lh_";
const ID_CHARS: usize = 32;
const SECRET_CHARS: usize = 64;

/// A whole key with its secret, known only at its making. Neither printed nor serialized.
#[derive(Debug)]
pub struct Secret {
    whole: SecretString,
    hash: [u8; 32],
}

impl Secret {
    /// A key for this id with a fresh secret of 256 bits.
    pub(super) fn generate(id: KeyId) -> Self {
        let secret = hex::encode(crate::entropy::bytes::<32>());
        let hash = crate::digest::sha256(secret.as_bytes());
        Self { whole: SecretString::from(format!("{PREFIX}{}_{secret}", id.0.simple())), hash }
    }

    /// What is kept of the secret.
    pub(super) const fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// The whole key, to be shown once.
    #[must_use]
    pub const fn whole(&self) -> &SecretString {
        &self.whole
    }
}

/// A key that somebody presents, not yet believed.
#[derive(Debug, Clone)]
pub struct Presented {
    id: KeyId,
    hash: [u8; 32],
}

impl Presented {
    /// Takes a presented key apart. Only the secret's hash is kept.
    ///
    /// # Errors
    /// [`Refusal::Malformed`].
    pub fn parse(text: &SecretString) -> Result<Self, Refusal> {
        let rest = text.expose_secret().strip_prefix(PREFIX).ok_or(Refusal::Malformed)?;
        let (id, secret) = rest.split_once('_').ok_or(Refusal::Malformed)?;
        let hexadecimal = |part: &str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if id.len() != ID_CHARS || secret.len() != SECRET_CHARS || !hexadecimal(id) || !hexadecimal(secret) {
            return Err(Refusal::Malformed);
        }
        let id = Uuid::try_parse(id).map_err(|_| Refusal::Malformed)?;
        Ok(Self { id: KeyId(id), hash: crate::digest::sha256(secret.as_bytes()) })
    }

    /// The id that it names.
    #[must_use]
    pub const fn id(&self) -> KeyId {
        self.id
    }

    /// Whether it carries the secret with this hash; takes equally long wherever the two differ.
    pub(super) fn matches(&self, hash: &[u8]) -> bool {
        self.hash.ct_eq(hash).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_made_key_is_read_back_and_matches_only_itself() {
        let id = KeyId::generate();
        let (one, two) = (Secret::generate(id), Secret::generate(id));
        let presented = Presented::parse(one.whole()).expect("of the right form");
        assert_eq!(presented.id(), id);
        assert!(presented.matches(one.hash()));
        assert!(!presented.matches(two.hash()));
        assert!(!presented.matches(b""));
    }

    #[test]
    fn what_has_not_the_form_is_refused() {
        let good = Secret::generate(KeyId::generate());
        let good = good.whole().expose_secret();
        for bad in ["", "lh_", "lh__", &good[1..], &good[..good.len() - 1], &good.to_uppercase(), &format!("{good}0")] {
            assert_eq!(Presented::parse(&SecretString::from(bad)).err(), Some(Refusal::Malformed), "{bad:?}");
        }
    }

    #[test]
    fn a_secret_is_never_printed() {
        let secret = Secret::generate(KeyId::generate());
        let tail = &secret.whole().expose_secret()[40..];
        assert!(!format!("{secret:?}").contains(tail));
    }
}
