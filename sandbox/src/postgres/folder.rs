//! The cluster's folder: where it is, whose it is, and what is in it.

use std::fs::{self, Permissions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::{INIT_LIMIT, StartError, secret};
use crate::exec::{NOBODY, Spawn};
use crate::tools::reachable_by;

/// The folder of one cluster.
#[derive(Debug)]
pub(super) struct Home {
    path: PathBuf,
    data: PathBuf,
    log: PathBuf,
    password: PathBuf,
    uid: Option<u32>,
    note: Option<String>,
}

impl Home {
    /// Creates or takes over the folder, closed to others, owned by whoever will run the server.
    pub(super) fn prepare(wanted: &Path) -> Result<Self, StartError> {
        let wanted =
            std::path::absolute(wanted).map_err(|source| StartError::Folder { path: wanted.to_owned(), source })?;
        // PostgreSQL refuses to run as root.
        let uid = rustix::process::geteuid().is_root().then_some(NOBODY);
        let (path, note) = match uid {
            Some(uid) if wanted.parent().is_some_and(|parent| !reachable_by(parent, uid)) => {
                let path = stand_in(&wanted);
                let note = format!(
                    "PostgreSQL runs as uid {uid}, which cannot reach {}; its data is in {}",
                    wanted.display(),
                    path.display()
                );
                (path, Some(note))
            }
            Some(_) | None => (wanted, None),
        };
        own(&path, uid).map_err(|source| StartError::Folder { path: path.clone(), source })?;
        Ok(Self {
            data: path.join("data"),
            password: path.join("password"),
            log: path.join("postgres.log"),
            path,
            uid,
            note,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn data(&self) -> &Path {
        &self.data
    }

    pub(super) fn log(&self) -> &Path {
        &self.log
    }

    pub(super) fn uid(&self) -> Option<u32> {
        self.uid
    }

    pub(super) fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Refuses a folder on which a server runs, and removes the pid file of one that is gone.
    ///
    /// PostgreSQL looks only at whether *some* process has the recorded pid; after a reboot that may
    /// be anything, and it would refuse to start. A server's working folder is its data folder, which
    /// tells the two apart.
    pub(super) fn refuse_if_in_use(&self) -> Result<(), StartError> {
        let pid_file = self.data.join("postmaster.pid");
        let Ok(text) = fs::read_to_string(&pid_file) else { return Ok(()) };
        let pid = text.lines().next().and_then(|line| line.trim().parse::<u32>().ok());
        if let Some(pid) = pid
            && let Ok(folder) = fs::read_link(format!("/proc/{pid}/cwd"))
            && fs::canonicalize(&self.data).is_ok_and(|data| data == folder)
        {
            return Err(StartError::InUse { path: self.path.clone(), pid });
        }
        fs::remove_file(&pid_file).map_err(|source| StartError::Folder { path: pid_file, source })
    }

    /// Creates the cluster unless there is one, and returns its superuser's password. It is built aside
    /// and renamed last, so that a start cut off in the middle leaves no half of one.
    pub(super) async fn create_cluster(&self, bin: &Path) -> Result<String, StartError> {
        let folder = |path: &Path, source| StartError::Folder { path: path.to_owned(), source };
        if self.data.join("PG_VERSION").is_file() {
            return match fs::read_to_string(&self.password) {
                Ok(password) => Ok(password),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Err(StartError::Open(self.path.clone())),
                Err(error) => Err(folder(&self.password, error)),
            };
        }
        // Kept before the cluster is there: one without its password would be lost.
        let password = secret::draw().map_err(|error| folder(&self.password, error))?;
        secret::write(&self.password, &password).map_err(|error| folder(&self.password, error))?;
        let verifier = self.path.join("verifier");
        let told = secret::verifier(&password).and_then(|text| secret::write(&verifier, &text));
        told.and_then(|()| chown(&verifier, self.uid, self.uid)).map_err(|error| folder(&verifier, error))?;
        let aside = self.path.join("data.new");
        if aside.exists() {
            fs::remove_dir_all(&aside).map_err(|source| StartError::Folder { path: aside.clone(), source })?;
        }
        Spawn::new(bin.join("initdb"))
            .arg("-D")
            .arg(&aside)
            .arg("--pwfile")
            .arg(&verifier)
            .args(["-A", "scram-sha-256", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C"])
            .env("LC_ALL", "C")
            .cwd(&self.path)
            .uid(self.uid)
            .run(INIT_LIMIT)
            .await
            .and_then(|finished| finished.success())
            .map_err(|source| StartError::Init { path: self.path.clone(), source })?;
        fs::remove_file(&verifier).map_err(|error| folder(&verifier, error))?;
        put_in_place(&aside, &self.data).map_err(|error| folder(&self.data, error))?;
        Ok(password)
    }

    /// The port of the last run.
    pub(super) fn last_port(&self) -> Option<u16> {
        fs::read_to_string(self.path.join("port")).ok()?.trim().parse().ok()
    }

    pub(super) fn remember_port(&self, port: u16) -> Result<(), StartError> {
        let path = self.path.join("port");
        fs::write(&path, port.to_string()).map_err(|source| StartError::Folder { path, source })
    }

    pub(super) fn log_length(&self) -> u64 {
        fs::metadata(&self.log).map_or(0, |about| about.len())
    }

    /// What was logged after the first `offset` bytes.
    pub(super) fn log_since(&self, offset: u64) -> String {
        let read = || -> io::Result<String> {
            let mut file = fs::File::open(&self.log)?;
            file.seek(SeekFrom::Start(offset))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        read().unwrap_or_default()
    }

    /// Removes the whole folder.
    pub(super) fn remove(&self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(folder = %self.path.display(), %error, "the PostgreSQL folder was not removed");
        }
    }
}

/// A folder under /var/tmp that stands for `wanted`: the same one each time.
fn stand_in(wanted: &Path) -> PathBuf {
    let digest = hex::encode(Sha256::digest(wanted.as_os_str().as_encoded_bytes()));
    PathBuf::from(format!("/var/tmp/leasehold-postgres-{}", &digest[..16]))
}

/// Makes `path` a folder of mode 0700 owned by `uid` (ours when absent).
fn own(path: &Path, uid: Option<u32>) -> io::Result<()> {
    fs::create_dir_all(path)?;
    let about = fs::symlink_metadata(path)?;
    let ours = rustix::process::geteuid().as_raw();
    // /var/tmp is everybody's: a link or a folder that somebody else laid there is not taken over.
    if !about.is_dir() || (about.uid() != ours && Some(about.uid()) != uid) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to somebody else or is a link"));
    }
    if let Some(uid) = uid {
        chown(path, Some(uid), Some(uid))?;
    }
    fs::set_permissions(path, Permissions::from_mode(0o700))
}

#[allow(clippy::disallowed_methods, reason = "the cluster is ours alone until this rename; initdb need not be durable")]
fn put_in_place(aside: &Path, data: &Path) -> io::Result<()> {
    fs::rename(aside, data)
}
