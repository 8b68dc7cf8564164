//! The box's key for sealed values, from its file.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use domain::instances::sealed::{Keys, NoKeys};
use secrecy::zeroize::Zeroizing;

/// A key file is small, bytes: with its comments, eight identities are a few hundred.
const MAX_BYTES: u64 = 64 << 10;
/// Room for the largest, and for the read that finds its end.
const ROOM: usize = 65 << 10;
/// What the owner alone may have.
const OTHERS: u32 = 0o077;

/// Why a key file was refused. Nothing that stands in it is quoted.
#[derive(Debug, thiserror::Error)]
pub enum ConfigKeyError {
    /// It is not there, or may not be read.
    #[error("read the key file {path}")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Whoever may read it opens what tenants sealed.
    #[error("others than its owner have rights on the key file {path} (mode {mode:04o}): chmod 600 {path}")]
    Open {
        /// Which.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It is no file of identities.
    #[error("the key file {path} is not what age-keygen writes")]
    Malformed {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: NoKeys,
    },
}

/// Reads the identities of a key file, which nobody but its owner may have rights on.
///
/// # Errors
/// [`ConfigKeyError`].
pub fn read_config_key(path: &Path) -> Result<Keys, ConfigKeyError> {
    let unreadable = |source| ConfigKeyError::Unreadable { path: path.to_owned(), source };
    // Before it is opened: to open a pipe waits for its writer.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(unreadable(io::Error::other("it is not a file")));
    }
    let mut file = File::open(path).map_err(unreadable)?;
    // Of the opened file: the name may be another's by now.
    let about = file.metadata().map_err(unreadable)?;
    if !about.is_file() {
        return Err(unreadable(io::Error::other("it is not a file")));
    }
    let mode = about.permissions().mode() & 0o7777;
    if mode & OTHERS != 0 {
        return Err(ConfigKeyError::Open { path: path.to_owned(), mode });
    }
    // All its room at once, and wiped: one that grew would leave a copy of the keys at each place that it had.
    let mut text = Zeroizing::new(String::with_capacity(ROOM));
    file.by_ref().take(MAX_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(unreadable(io::Error::other(format!("it is larger than {MAX_BYTES} bytes"))));
    }
    Keys::parse(&text).map_err(|source| ConfigKeyError::Malformed { path: path.to_owned(), source })
}
