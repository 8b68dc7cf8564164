//! What is kept between runs: `bodies/<id>` and one small JSON file an object,
//! `buckets/<bucket>/<id>.json`.
//!
//! The JSON file is written last and renamed into place: an object is there when it is. Nothing is
//! synced: a SIGKILL of this process loses nothing, a crash of the machine may.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};

use super::body::Vault;
use super::store::{Facts, Object};

/// A store's folder, held by one process.
#[derive(Debug)]
pub(super) struct Disk {
    buckets: PathBuf,
    /// Held for as long as the store lives.
    _lock: File,
}

/// All objects of one bucket, by key.
pub(super) type Index = BTreeMap<String, Arc<Object>>;

impl Disk {
    /// Opens the folder, reads every object, and sweeps what a cut-off write left.
    pub(super) fn open(root: &Path) -> io::Result<(Self, Vault, BTreeMap<String, Index>)> {
        let (buckets, bodies) = (root.join("buckets"), root.join("bodies"));
        fs::create_dir_all(&buckets)?;
        fs::create_dir_all(&bodies)?;
        let lock = File::create(root.join(".lock"))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| io::Error::new(io::ErrorKind::AddrInUse, "another server uses this folder"))?;
        let disk = Self { buckets, _lock: lock };
        let body_ids = numbers(&bodies, "")?;
        // Nothing reads the counter yet; it is set right below, once all numbers are known.
        let finder = Vault::new(Some(bodies.clone()), 0);
        let (mut found, mut used, mut highest) = (BTreeMap::new(), HashSet::new(), 0);
        for entry in fs::read_dir(&disk.buckets)? {
            let folder = entry?.path();
            let Some(bucket) = folder.file_name().and_then(|name| name.to_str()).map(str::to_owned) else { continue };
            let mut index = Index::new();
            // Ascending, so that of two objects of one key the later stays.
            for id in numbers(&folder, ".json")? {
                highest = highest.max(id);
                let path = disk.path(&bucket, id);
                match read_object(&path, &finder, id) {
                    Ok((key, object)) => {
                        used.insert(id);
                        if let Some(older) = index.insert(key, object) {
                            used.remove(&older.id);
                            fs::remove_file(disk.path(&bucket, older.id))?;
                        }
                    }
                    Err(error) => {
                        tracing::warn!(file = %path.display(), %error, "an unreadable object is dropped");
                        fs::remove_file(&path)?;
                    }
                }
            }
            found.insert(bucket, index);
        }
        for id in body_ids {
            highest = highest.max(id);
            if !used.contains(&id) {
                // Already gone when the body belonged to an older object dropped above.
                let _ = fs::remove_file(bodies.join(format!("{id:016x}")));
            }
        }
        Ok((disk, Vault::new(Some(bodies), highest + 1), found))
    }

    pub(super) fn create_bucket(&self, bucket: &str) -> io::Result<()> {
        fs::create_dir_all(self.buckets.join(bucket))
    }

    pub(super) fn remove_bucket(&self, bucket: &str) -> io::Result<()> {
        fs::remove_dir_all(self.buckets.join(bucket))
    }

    pub(super) fn save(&self, bucket: &str, object: &Object) -> io::Result<()> {
        let path = self.path(bucket, object.id);
        let aside = path.with_extension("new");
        fs::write(&aside, serde_json::to_vec(&object.facts)?)?;
        rename_into_place(&aside, &path)
    }

    pub(super) fn forget(&self, bucket: &str, id: u64) -> io::Result<()> {
        fs::remove_file(self.path(bucket, id))
    }

    fn path(&self, bucket: &str, id: u64) -> PathBuf {
        self.buckets.join(bucket).join(format!("{id:016x}.json"))
    }
}

#[allow(clippy::disallowed_methods, reason = "a test server's own file; durability is not promised")]
fn rename_into_place(aside: &Path, path: &Path) -> io::Result<()> {
    fs::rename(aside, path)
}

fn read_object(path: &Path, vault: &Vault, id: u64) -> io::Result<(String, Arc<Object>)> {
    let facts: Facts = serde_json::from_slice(&fs::read(path)?)?;
    let body = vault.existing(id)?;
    Ok((facts.key.clone(), Arc::new(Object { id, facts, body })))
}

/// The numbers of a folder's files with this ending, ascending; files of other names are swept.
fn numbers(folder: &Path, ending: &str) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        match name.and_then(|name| u64::from_str_radix(name.strip_suffix(ending)?, 16).ok()) {
            Some(number) => numbers.push(number),
            None => fs::remove_file(&path)?,
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}
