//! The superuser's password: drawn for each cluster, and what the cluster keeps of it.
//!
//! Whoever reaches a PostgreSQL as its superuser runs programs as its user. Loopback keeps other machines out, and not
//! the other users of this one.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

/// Rounds of the password's derivation (RFC 5802). They slow down who guesses; nobody guesses 256 random bits, and tests
/// open many connections with code that is not optimised.
const ROUNDS: u32 = 1;

/// 256 random bits as text.
pub(super) fn draw() -> io::Result<String> {
    random::<32>().map(hex::encode)
}

/// What `alter user … password` accepts in the password's place, so that initdb never has the password itself.
pub(super) fn verifier(password: &str) -> io::Result<String> {
    Ok(verifier_with(password, &random::<16>()?))
}

fn verifier_with(password: &str, salt: &[u8]) -> String {
    // The first and only round of RFC 5802's Hi.
    let salted = keyed(password.as_bytes(), &[salt, &1_u32.to_be_bytes()].concat());
    let stored_key = Sha256::digest(keyed(&salted, b"Client Key"));
    let server_key = keyed(&salted, b"Server Key");
    let text = |bytes: &[u8]| STANDARD.encode(bytes);
    format!("SCRAM-SHA-256${ROUNDS}:{}${}:{}", text(salt), text(&stored_key), text(&server_key))
}

/// HMAC-SHA-256 (RFC 2104) under a key of at most one block, as all of ours are.
fn keyed(key: &[u8], text: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 64;
    let padded = |pad: u8| {
        let mut block = [pad; BLOCK];
        block.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
        block
    };
    let inner = Sha256::new().chain_update(padded(0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize().to_vec()
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Writes a file that only its owner can read, from its first byte on.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second case of RFC 4231.
    #[test]
    fn a_keyed_digest_is_that_of_the_standard() {
        let digest = hex::encode(keyed(b"Jefe", b"what do ya want for nothing?"));
        assert_eq!(digest, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    #[test]
    fn a_verifier_does_not_hold_its_password() {
        let password = draw().unwrap();
        let verifier = verifier(&password).unwrap();
        assert!(verifier.starts_with("SCRAM-SHA-256$1:") && !verifier.contains(&password));
        assert_ne!(draw().unwrap(), password);
    }
}
