//! Which executable of ours carries the hidden subcommand.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::ExecError;

/// Executables known to carry it. Any other of ours, above all a test binary, is never executed in
/// the hope that it does: it would run all its tests.
const CARRIERS: [&str; 2] = ["leasehold", "sandbox-exec"];

static CHOSEN: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Names the executable whose hidden subcommand `internal-exec` starts children. Tests set their own.
pub fn set_launcher(path: PathBuf) {
    *CHOSEN.lock().unwrap_or_else(PoisonError::into_inner) = Some(path);
}

/// The launcher: the one that was set, `$LEASEHOLD_LAUNCHER`, this executable if it is a known
/// carrier, or a carrier in this executable's folder or the one above (where cargo puts binaries
/// beside a test binary's folder).
///
/// # Errors
/// [`ExecError::NoLauncher`].
pub fn launcher() -> Result<PathBuf, ExecError> {
    let mut chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = &*chosen {
        return Ok(path.clone());
    }
    let found = crate::environment::var("LEASEHOLD_LAUNCHER")
        .map(PathBuf::from)
        .or_else(|| near(&std::env::current_exe().ok()?))
        .ok_or(ExecError::NoLauncher)?;
    Ok(chosen.insert(found).clone())
}

fn near(executable: &Path) -> Option<PathBuf> {
    let is_carrier = |path: &Path| path.file_name().is_some_and(|name| CARRIERS.iter().any(|carrier| name == *carrier));
    if is_carrier(executable) {
        return Some(executable.to_owned());
    }
    executable
        .ancestors()
        .skip(1)
        .take(2)
        .flat_map(|folder| CARRIERS.iter().rev().map(move |name| folder.join(name)))
        .find(|path| path.is_file())
}
