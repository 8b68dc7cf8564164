//! A folder that one process at a time uses.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// Pause between two tries to remove a folder.
const POLL: Duration = Duration::from_millis(50);

/// Creates the folder where it is not there and takes it for this process, until the file is dropped; `None` where
/// another process has it.
///
/// # Errors
/// A folder that cannot be made or locked.
pub(crate) fn take(dir: &Path) -> anyhow::Result<Option<File>> {
    std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    let path = dir.join("lock");
    let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("lock {}", path.display())),
    }
}

/// Removes the folders beside `own` whose names begin with `prefix`, that belong to the same user, were left alone for
/// longer than `age` before `own` was made, and that no process holds.
///
/// # Errors
/// Where what is beside `own` cannot be listed. A folder that cannot be removed is left.
pub(crate) fn sweep(own: &Path, prefix: &str, age: Duration) -> io::Result<()> {
    let mine = own.symlink_metadata()?;
    let made = mine.modified()?;
    let Some(parent) = own.parent() else { return Ok(()) };
    for entry in std::fs::read_dir(parent)?.filter_map(Result::ok) {
        let is_ours = entry.file_name().to_string_lossy().starts_with(prefix);
        // Of the entry itself, not of what a link points to.
        let Ok(found) = entry.metadata() else { continue };
        let left = found.modified().is_ok_and(|then| made.duration_since(then).is_ok_and(|passed| passed > age));
        if !(is_ours && found.is_dir() && found.uid() == mine.uid() && left) {
            continue;
        }
        let path = entry.path();
        if let Ok(Some(_held)) = take(&path)
            && let Err(error) = std::fs::remove_dir_all(&path)
        {
            tracing::warn!(%error, path = %path.display(), "the folder of an earlier run cannot be removed");
        }
    }
    Ok(())
}

/// Removes a folder into which processes that are ending may still write, within `limit`.
///
/// # Errors
/// The last refusal.
pub(crate) async fn remove(dir: &Path, limit: Duration) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        match std::fs::remove_dir_all(dir) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !dir.exists() => return Ok(()),
            Err(error) if begun.elapsed() >= limit => return Err(error),
            Err(_) => tokio::time::sleep(POLL).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_taken_once_and_free_when_it_is_let_go() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("new");
        let held = take(&dir).unwrap();
        assert!(held.is_some() && take(&dir).unwrap().is_none());
        drop(held);
        assert!(take(&dir).unwrap().is_some());
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a link that a stranger laid beside our folders")]
    fn a_sweep_takes_old_folders_of_ours_that_nobody_holds() {
        let scratch = tempfile::tempdir().unwrap();
        let make = |name: &str, hours: u64| {
            let dir = scratch.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            let held = take(&dir).unwrap();
            let then = std::fs::metadata(scratch.path()).unwrap().modified().unwrap();
            File::open(&dir).unwrap().set_modified(then - Duration::from_secs(hours * 3600)).unwrap();
            (dir, held)
        };
        let (own, _own) = make("demo-own", 0);
        let (old, _) = make("demo-old", 25);
        let (young, _) = make("demo-young", 23);
        let (foreign, _) = make("other-old", 25);
        let (used, _used) = make("demo-used", 25);
        std::os::unix::fs::symlink(&foreign, scratch.path().join("demo-link")).unwrap();
        sweep(&own, "demo-", Duration::from_secs(24 * 3600)).unwrap();
        assert!(!old.exists(), "left by a run that is gone");
        for kept in [own, young, foreign, used] {
            assert!(kept.join("lock").exists(), "{}", kept.display());
        }
    }
}
