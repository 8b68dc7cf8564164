//! A folder that one process at a time uses.

use std::fs::File;
use std::path::Path;

use anyhow::Context as _;

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
}
