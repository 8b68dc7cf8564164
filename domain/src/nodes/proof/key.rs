//! A node's own key: Ed25519, made on its machine, and never sent.

use std::fmt;

use ring::signature::{Ed25519KeyPair, KeyPair as _};
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret as _, SecretString};

use super::{Nonce, message};
use crate::entropy;
use crate::ids::NodeId;
use crate::nodes::enrolment::PublicKey;

/// A key pair. Its secret half is told to a file of the machine alone.
pub struct SigningKey {
    seed: Zeroizing<[u8; 32]>,
    pair: Ed25519KeyPair,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("public", &self.public().to_string()).finish_non_exhaustive()
    }
}

impl SigningKey {
    /// A fresh one.
    ///
    /// # Panics
    /// Never: any 32 bytes are a seed.
    #[must_use]
    pub fn generate() -> Self {
        Self::of_seed(Zeroizing::new(entropy::bytes()))
    }

    /// Reads what [`SigningKey::reveal`] told; `None` for any other text.
    #[must_use]
    pub fn parse(text: &SecretString) -> Option<Self> {
        let mut seed = Zeroizing::new([0; 32]);
        hex::decode_to_slice(text.expose_secret(), seed.as_mut_slice()).ok()?;
        Some(Self::of_seed(seed))
    }

    fn of_seed(seed: Zeroizing<[u8; 32]>) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed.as_slice()).expect("any 32 bytes are a seed");
        Self { seed, pair }
    }

    /// Its secret half, for the machine's own file.
    #[must_use]
    pub fn reveal(&self) -> SecretString {
        SecretString::from(hex::encode(self.seed.as_slice()))
    }

    /// Its public half.
    ///
    /// # Panics
    /// Never: a public key of Ed25519 has 32 bytes.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(self.pair.public_key().as_ref().try_into().expect("a public key has 32 bytes"))
    }

    /// Signs a nonce as this node: 128 hexadecimal digits, as they are sent.
    #[must_use]
    pub fn prove(&self, node: NodeId, nonce: &Nonce) -> String {
        self.sign(&message(node, nonce))
    }

    /// Signs any bytes.
    #[must_use]
    pub fn sign(&self, bytes: &[u8]) -> String {
        hex::encode(self.pair.sign(bytes).as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_back_from_its_file_and_never_printed() {
        let key = SigningKey::generate();
        let text = key.reveal();
        assert_eq!(SigningKey::parse(&text).map(|again| again.public()), Some(key.public()));
        assert_ne!(SigningKey::generate().public(), key.public());
        assert!(!format!("{key:?}").contains(text.expose_secret()));
        assert!(SigningKey::parse(&SecretString::from("")).is_none());
    }

    #[test]
    fn ed25519_is_the_one_of_rfc_8032() {
        // Its first test vector.
        let seed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
        let key = SigningKey::parse(&SecretString::from(seed)).expect("a seed");
        assert_eq!(key.public().to_string(), "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
        let signature = "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd\
                         25bf5f0595bbe24655141438e7a100b";
        assert_eq!(key.sign(b""), signature);
    }
}
