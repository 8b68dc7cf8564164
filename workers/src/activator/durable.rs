//! Files that survive a crash whole or not at all.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

/// Puts `bytes` at `path`: readers see the old content or the new one, also after a power cut.
pub(super) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut next = path.as_os_str().to_owned();
    next.push(".next");
    let mut file = File::create(&next)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    drop(file);
    rename(Path::new(&next), path)
}

/// Renames within one folder, which is flushed, too.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    #[allow(clippy::disallowed_methods, reason = "the folder is flushed in the next line")]
    std::fs::rename(from, to)?;
    sync_folder_of(to)
}

/// Makes what was renamed or removed in the folder of `path` last.
pub(crate) fn sync_folder_of(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// Removes a file or a folder with all it holds; tells whether there was one.
pub(crate) fn remove(path: &Path) -> io::Result<bool> {
    let about = match std::fs::symlink_metadata(path) {
        Ok(about) => about,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if about.is_dir() {
        std::fs::remove_dir_all(path)?
    } else {
        std::fs::remove_file(path)?
    }
    Ok(true)
}
