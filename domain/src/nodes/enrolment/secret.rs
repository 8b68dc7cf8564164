//! The secret of an enrolment token: `lhe_` and 64 hexadecimal digits.

use secrecy::{ExposeSecret as _, SecretString};

const PREFIX: &str = "lhe_";
const DIGITS: usize = 64;

/// A secret just made, to be shown once. Neither printed nor serialized.
#[derive(Debug)]
pub struct Secret {
    whole: SecretString,
    hash: [u8; 32],
}

impl Secret {
    /// A fresh one of 256 bits (E03).
    pub(super) fn generate() -> Self {
        let whole = format!("{PREFIX}{}", hex::encode(crate::entropy::bytes::<32>()));
        let hash = crate::digest::sha256(whole.as_bytes());
        Self { whole: SecretString::from(whole), hash }
    }

    /// What is kept of it (E05).
    pub(super) const fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// The whole secret.
    #[must_use]
    pub const fn whole(&self) -> &SecretString {
        &self.whole
    }
}

/// A secret that somebody presents, not yet believed. Only its hash is kept.
#[derive(Debug, Clone)]
pub struct Presented {
    hash: [u8; 32],
    well_formed: bool,
}

impl Presented {
    /// Takes any text: what has not the form is looked up as everything else, so that nobody learns of it (E13).
    #[must_use]
    pub fn new(text: &SecretString) -> Self {
        let text = text.expose_secret();
        let digits = text.strip_prefix(PREFIX).unwrap_or_default();
        let well_formed = digits.len() == DIGITS && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        Self { hash: crate::digest::sha256(text.as_bytes()), well_formed }
    }

    /// Its SHA-256.
    pub(super) const fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// Whether it has the form of a secret: for the operators, never for the presenter.
    pub(super) const fn is_well_formed(&self) -> bool {
        self.well_formed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_secret_has_256_bits_and_none_comes_twice() {
        // E03.
        let mut seen = HashSet::new();
        for _ in 0..100_000 {
            let secret = Secret::generate();
            let digits = secret.whole().expose_secret().strip_prefix(PREFIX).expect("its prefix").to_owned();
            assert_eq!(hex::decode(&digits).map(|bytes| bytes.len()), Ok(32));
            assert!(seen.insert(digits));
        }
    }

    #[test]
    fn a_presented_secret_is_known_by_its_hash_and_any_other_text_has_another() {
        let secret = Secret::generate();
        let presented = Presented::new(secret.whole());
        assert!(presented.hash() == secret.hash() && presented.is_well_formed());
        let text = secret.whole().expose_secret();
        for bad in ["", &text[1..], &text.to_uppercase(), &format!("{text} "), &format!("{text}0"), "lhe_é"] {
            let presented = Presented::new(&SecretString::from(bad));
            assert!(presented.hash() != secret.hash() && !presented.is_well_formed(), "{bad:?}");
        }
    }

    #[test]
    fn a_secret_is_never_printed() {
        let secret = Secret::generate();
        let digits = &secret.whole().expose_secret()[4..];
        assert!(!format!("{secret:?}").contains(digits));
        assert!(!format!("{:?}", Presented::new(secret.whole())).contains(digits));
    }
}
