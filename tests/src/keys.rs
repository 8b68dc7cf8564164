//! Boxes' keys for sealed values, made anew for each test.

use std::path::Path;

use age::x25519::Identity;
use domain::instances::sealed::{self, Keys, Recipient};
use secrecy::{ExposeSecret as _, SecretString};

/// A box's key.
#[derive(Debug)]
pub struct BoxKey {
    text: SecretString,
    /// To whom one seals for it, `age1…`.
    pub recipient: String,
    /// As the box holds it.
    pub keys: Keys,
}

impl BoxKey {
    /// A fresh one.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn generate() -> Self {
        let identity = Identity::generate();
        let text = identity.to_string();
        let keys = Keys::parse(text.expose_secret()).expect("an identity");
        Self { text, recipient: identity.to_public().to_string(), keys }
    }

    /// Writes its file with this mode.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn write(&self, path: &Path, mode: u32) {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::write(path, format!("# of a test\n{}\n", self.text.expose_secret())).expect("write the key file");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set its mode");
    }
}

/// A value that each of these opens.
///
/// # Panics
/// Without a key.
#[must_use]
pub fn seal(plain: &str, to: &[&BoxKey]) -> String {
    let recipients: Vec<Recipient> = to.iter().map(|key| key.recipient.parse().expect("a recipient")).collect();
    sealed::seal(&recipients, &SecretString::from(plain))
}

/// Every file below a folder that holds one of these texts.
///
/// # Panics
/// When a folder cannot be read.
#[must_use]
pub fn files_with(folder: &Path, texts: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files_with(&path, texts));
        } else if let Ok(bytes) = std::fs::read(&path) {
            let holds = |text: &&str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
            found.extend(texts.iter().any(holds).then(|| path.display().to_string()));
        }
    }
    found
}
