//! A machine enrols: it makes its key here, sends the public half with a token's secret, and keeps who it is now.
//!
//! # Crash consistency
//! The key is on the disk before anything is sent, so an answer that is lost loses nothing: the machine proves itself with
//! that key, where it is told as which node, and keeps it (A16). What is kept is one file, replaced whole.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use domain::ids::NodeId;
use domain::nodes::proof::{Nonce, SigningKey};
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use wire::{Client, Code, Enrolment, NodeSession, NodeSessionRequest};

use crate::activator::durable;

/// Who the machine is, in its folder.
const KEPT: &str = "node.json";
/// Keys that were sent, of which one perhaps is the node's by now: followed by their public halves.
const SENT: &str = "node.key.sent-";
/// Most of those that are tried.
const MAX_SENT: usize = 8;
/// What a file is called until it is whole.
const NEXT: &str = ".next";
/// The largest of those files.
const MAX_BYTES: u64 = 16 << 10;
/// What the owner alone may have.
const OTHERS: u32 = 0o077;

/// Why a machine did not enrol.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// A file of the identity folder cannot be used.
    #[error("use {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Whoever may read a secret's file is the node.
    #[error("others than its owner have rights on {path} (mode {mode:04o}): chmod 600 {path}")]
    Open {
        /// Which.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A file of the identity folder holds something else.
    #[error("{0} is not what `leasehold node enrol` writes: name another folder, or remove the file")]
    Malformed(PathBuf),
    /// The secret would be readable on its way.
    #[error("the API's address is neither https:// nor this machine's own: the secret was not sent")]
    NotPrivate,
    /// The API refused, or did not answer.
    #[error(transparent)]
    Api(#[from] wire::Error),
}

/// Who a machine is, as it keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The node.
    pub node_id: NodeId,
    /// Which machine under that node it is.
    pub incarnation: i64,
    /// The public half of its key.
    pub public_key: String,
    /// Where the API says that it is.
    pub api_url: Option<String>,
    /// SHA-256 of the certificate that the API says to show there.
    pub certificate_sha256: Option<String>,
    /// The key with which the control plane signs.
    pub signing_key_id: Option<String>,
}

/// As it stands in its file: with the key.
#[derive(Serialize, Deserialize)]
struct Whole {
    #[serde(flatten)]
    kept: Kept,
    key: String,
}

/// What became of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It enrolled: the token is spent.
    Enrolled(Kept),
    /// It proved itself with the key that it had, so nothing was spent.
    Proven(Kept),
}

/// Enrols this machine, or finds that it is enrolled.
///
/// The node that it was, or `node`, which an operator names where an answer was lost, is tried first with the key in the
/// folder (A16). Only then a fresh key is made and the secret is sent.
///
/// # Errors
/// [`EnrolError`].
pub async fn enrol(
    client: &Client,
    folder: &Path,
    secret: &SecretString,
    node: Option<NodeId>,
) -> Result<Outcome, EnrolError> {
    if !client.is_private() {
        return Err(EnrolError::NotPrivate);
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|source| used(folder, source))?;
    let kept_path = folder.join(KEPT);
    if let Some((kept, key)) = read_kept(&kept_path)?
        && node.is_none_or(|node| node == kept.node_id)
        && let Some(session) = prove(client, kept.node_id, &key).await?
    {
        return Ok(Outcome::Proven(Kept { incarnation: session.incarnation, ..kept }));
    }
    let sent = sent(folder).map_err(|source| used(folder, source))?;
    if let Some(node) = node {
        for path in sent.iter().take(MAX_SENT) {
            let key = read_sent(path)?;
            if let Some(session) = prove(client, node, &key).await? {
                let kept = kept(node, session.incarnation, &key, wire::ControlPlane::default());
                keep(&kept_path, &sent, &kept, &key)?;
                return Ok(Outcome::Proven(kept));
            }
        }
    }
    let key = SigningKey::generate();
    let fresh = folder.join(format!("{SENT}{}", key.public()));
    write_secret(&fresh, key.reveal().expose_secret().as_bytes())?;
    let enrolment = Enrolment { secret: secret.clone(), public_key: key.public().to_string() };
    let enrolled = match client.enrol(&enrolment).await {
        Ok(enrolled) => enrolled,
        Err(error) => {
            // Refused for certain: it is no node's key. Where nothing is known, it stays.
            if error.problem().is_some_and(|problem| problem.is(Code::EnrolmentRefused)) {
                durable::remove(&fresh).map_err(|source| used(&fresh, source))?;
            }
            return Err(error.into());
        }
    };
    let kept = kept(NodeId(enrolled.node_id), enrolled.incarnation, &key, enrolled.control_plane);
    let sent: Vec<PathBuf> = sent.into_iter().chain([fresh]).collect();
    keep(&kept_path, &sent, &kept, &key)?;
    Ok(Outcome::Enrolled(kept))
}

/// The files of keys that were sent.
fn sent(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        // Not what a run that was killed had not written whole.
        if name.to_str().is_some_and(|name| name.starts_with(SENT) && !name.ends_with(NEXT)) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

fn kept(node: NodeId, incarnation: i64, key: &SigningKey, told: wire::ControlPlane) -> Kept {
    Kept {
        node_id: node,
        incarnation,
        public_key: key.public().to_string(),
        api_url: told.api_url,
        certificate_sha256: told.certificate_sha256,
        signing_key_id: told.signing_key_id,
    }
}

/// A session, or `None` where the key is not this node's.
async fn prove(client: &Client, node: NodeId, key: &SigningKey) -> Result<Option<NodeSession>, EnrolError> {
    let told = client.node_nonce(node.0).await?;
    // What is signed is made here of the nonce, never taken from an answer: the key signs nothing else.
    let Some(nonce) = Nonce::parse(&told.nonce) else { return Ok(None) };
    let request = NodeSessionRequest { signature: key.prove(node, &nonce), nonce: told.nonce };
    match client.open_node_session(node.0, &request).await {
        Ok(session) => Ok(Some(session)),
        Err(error) if error.problem().is_some_and(|problem| problem.is(Code::SessionRefused)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn keep(kept_path: &Path, sent: &[PathBuf], kept: &Kept, key: &SigningKey) -> Result<(), EnrolError> {
    let whole = Whole { kept: kept.clone(), key: key.reveal().expose_secret().to_owned() };
    let text = Zeroizing::new(serde_json::to_vec_pretty(&whole).map_err(|error| used(kept_path, error.into()))?);
    write_secret(kept_path, &text)?;
    // Only now: until the file above is there, one of these has the only copy of the node's key.
    for path in sent {
        durable::remove(path).map_err(|source| used(path, source))?;
    }
    durable::sync_folder_of(kept_path).map_err(|source| used(kept_path, source))
}

/// Writes a secret so that nobody else can ever read it, whole or not at all.
fn write_secret(path: &Path, bytes: &[u8]) -> Result<(), EnrolError> {
    let failed = |source| used(path, source);
    let mut next = path.as_os_str().to_owned();
    next.push(NEXT);
    let next = PathBuf::from(next);
    // Left by a run that was killed, perhaps with another mode.
    durable::remove(&next).map_err(failed)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&next).map_err(failed)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed)?;
    durable::rename(&next, path).map_err(failed)
}

fn read_kept(path: &Path) -> Result<Option<(Kept, SigningKey)>, EnrolError> {
    let Some(text) = read_secret(path)? else { return Ok(None) };
    let malformed = || EnrolError::Malformed(path.to_owned());
    let whole: Whole = serde_json::from_str(&text).map_err(|_| malformed())?;
    let key = SigningKey::parse(&SecretString::from(whole.key)).ok_or_else(malformed)?;
    Ok(Some((whole.kept, key)))
}

fn read_sent(path: &Path) -> Result<SigningKey, EnrolError> {
    let text = read_secret(path)?.ok_or_else(|| used(path, io::Error::from(io::ErrorKind::NotFound)))?;
    SigningKey::parse(&SecretString::from(text.trim())).ok_or_else(|| EnrolError::Malformed(path.to_owned()))
}

/// What stands in a file that its owner alone may read; `None` where it is not there.
///
/// # Errors
/// [`EnrolError::File`], [`EnrolError::Open`]. What stands in it is never quoted.
pub fn read_secret(path: &Path) -> Result<Option<Zeroizing<String>>, EnrolError> {
    let failed = |source| used(path, source);
    // Before it is opened: to open a pipe waits for its writer.
    match std::fs::metadata(path) {
        Ok(about) if about.is_file() => {}
        Ok(_) => return Err(failed(io::Error::other("it is not a file"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    }
    let file = File::open(path).map_err(failed)?;
    // Of the opened file: the name may be another's by now.
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o7777;
    if mode & OTHERS != 0 {
        return Err(EnrolError::Open { path: path.to_owned(), mode });
    }
    let mut text = Zeroizing::new(String::new());
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(failed(io::Error::other(format!("it is larger than {MAX_BYTES} bytes"))));
    }
    Ok(Some(text))
}

fn used(path: &Path, source: io::Error) -> EnrolError {
    EnrolError::File { path: path.to_owned(), source }
}
