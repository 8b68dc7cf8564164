//! The objects: a sorted index a bucket, changed under one lock, so that every conditional write is
//! decided and done in one step.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use s3s::checksum::ChecksumHasher;
use s3s::dto::{Checksum, ETag, ETagCondition, Timestamp};
use s3s::{S3Error, S3Result, s3_error};
use serde::{Deserialize, Serialize};

use super::body::{Body, Vault, Written};
use super::disk::{Disk, Index};

/// What a client gave along with an object's bytes, and gets back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Content-Type.
    pub content_type: Option<String>,
    /// Cache-Control.
    pub cache_control: Option<String>,
    /// Content-Disposition.
    pub content_disposition: Option<String>,
    /// Content-Encoding.
    pub content_encoding: Option<String>,
    /// Content-Language.
    pub content_language: Option<String>,
    /// User metadata, without the `x-amz-meta-` in front.
    pub metadata: BTreeMap<String, String>,
}

/// An object without its body: what is saved beside it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Facts {
    pub(super) key: String,
    pub(super) etag: String,
    pub(super) modified_ms: u64,
    pub(super) attributes: Attributes,
    pub(super) sums: Sums,
}

/// Checksums that the client asked for, in base64.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Sums {
    pub(super) crc32: Option<String>,
    pub(super) crc32c: Option<String>,
    pub(super) crc64nvme: Option<String>,
    pub(super) sha1: Option<String>,
    pub(super) sha256: Option<String>,
}

impl From<Checksum> for Sums {
    fn from(sums: Checksum) -> Self {
        Self {
            crc32: sums.checksum_crc32,
            crc32c: sums.checksum_crc32c,
            crc64nvme: sums.checksum_crc64nvme,
            sha1: sums.checksum_sha1,
            sha256: sums.checksum_sha256,
        }
    }
}

/// An object. Never changed: a write puts another one in its place.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) id: u64,
    pub(super) facts: Facts,
    pub(super) body: Body,
}

impl Object {
    pub(super) fn etag(&self) -> ETag {
        ETag::Strong(self.facts.etag.clone())
    }

    /// Whether it was made of parts: its ETag is then no MD5 of its content.
    pub(super) fn is_multipart(&self) -> bool {
        self.facts.etag.contains('-')
    }

    pub(super) fn modified(&self) -> Timestamp {
        timestamp(self.facts.modified_ms)
    }

    #[cfg(test)]
    pub(super) fn for_tests() -> Self {
        Self { id: 0, facts: Facts::default(), body: Body::Memory(hyper::body::Bytes::new()) }
    }
}

/// A multipart upload under way; not kept between runs.
#[derive(Debug)]
pub(super) struct Upload {
    pub(super) key: String,
    pub(super) attributes: Attributes,
    pub(super) initiated_ms: u64,
    pub(super) parts: BTreeMap<i32, Part>,
}

#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) body: Body,
    pub(super) md5: [u8; 16],
    pub(super) modified_ms: u64,
}

#[derive(Debug, Default)]
pub(super) struct Bucket {
    pub(super) objects: Index,
    pub(super) uploads: HashMap<String, Upload>,
}

/// What must hold for a write to happen.
#[derive(Debug, Clone, Default)]
pub(super) struct Condition {
    pub(super) if_match: Option<ETagCondition>,
    pub(super) if_none_match: Option<ETagCondition>,
}

impl Condition {
    /// Refuses with 412 (404 where `If-Match` meets no object), as S3 does.
    fn check(&self, existing: Option<&Object>) -> S3Result<()> {
        if let Some(wanted) = &self.if_match {
            let existing = existing.ok_or_else(no_such_key)?;
            if !matches(wanted, existing) {
                return Err(s3_error!(PreconditionFailed));
            }
        }
        if let (Some(unwanted), Some(existing)) = (&self.if_none_match, existing)
            && matches(unwanted, existing)
        {
            return Err(s3_error!(PreconditionFailed));
        }
        Ok(())
    }
}

pub(super) fn matches(condition: &ETagCondition, object: &Object) -> bool {
    match condition {
        ETagCondition::Any => true,
        ETagCondition::ETag(etag) => etag.value() == object.facts.etag,
    }
}

pub(super) fn no_such_key() -> S3Error {
    s3_error!(NoSuchKey, "The specified key does not exist.")
}

pub(super) fn no_such_bucket() -> S3Error {
    s3_error!(NoSuchBucket, "The specified bucket does not exist")
}

/// All buckets of one server.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) vault: Vault,
    disk: Option<Disk>,
    buckets: Mutex<BTreeMap<String, Bucket>>,
}

impl Store {
    /// Opens what `root` holds; in memory, and empty, where there is none.
    pub(super) fn open(root: Option<&Path>) -> io::Result<Self> {
        let Some(root) = root else {
            return Ok(Self { vault: Vault::new(None, 1), disk: None, buckets: Mutex::default() });
        };
        let (disk, vault, found) = Disk::open(root)?;
        let bucket = |objects| Bucket { objects, uploads: HashMap::new() };
        let buckets = found.into_iter().map(|(name, objects)| (name, bucket(objects))).collect();
        Ok(Self { vault, disk: Some(disk), buckets: Mutex::new(buckets) })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Bucket>> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `look` on a bucket.
    pub(super) fn with<T>(&self, bucket: &str, look: impl FnOnce(&mut Bucket) -> S3Result<T>) -> S3Result<T> {
        look(self.lock().get_mut(bucket).ok_or_else(no_such_bucket)?)
    }

    /// Creates a bucket; one that is there already stays as it is. A name that S3 does not have is
    /// refused: no request could reach it, and it would be a folder's name.
    pub(super) fn create_bucket(&self, name: &str) -> io::Result<()> {
        if !s3s::path::check_bucket_name(name) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is no bucket's name")));
        }
        let mut buckets = self.lock();
        if let Some(disk) = &self.disk {
            disk.create_bucket(name)?;
        }
        buckets.entry(name.to_owned()).or_default();
        Ok(())
    }

    /// Removes an empty bucket.
    pub(super) fn remove_bucket(&self, name: &str) -> S3Result<()> {
        let mut buckets = self.lock();
        let bucket = buckets.get(name).ok_or_else(no_such_bucket)?;
        if !bucket.objects.is_empty() {
            return Err(s3_error!(BucketNotEmpty));
        }
        if let Some(disk) = &self.disk {
            disk.remove_bucket(name).map_err(S3Error::internal_error)?;
        }
        buckets.remove(name);
        Ok(())
    }

    /// The object at a key.
    pub(super) fn get(&self, bucket: &str, key: &str) -> S3Result<Arc<Object>> {
        self.with(bucket, |bucket| bucket.objects.get(key).cloned().ok_or_else(no_such_key))
    }

    /// Puts an object in place if `condition` holds at that instant.
    pub(super) fn put(&self, bucket: &str, object: Object, condition: &Condition) -> S3Result<Arc<Object>> {
        let object = Arc::new(object);
        self.with(bucket, |index| {
            let key = object.facts.key.clone();
            condition.check(index.objects.get(&key).map(AsRef::as_ref))?;
            if let Some(disk) = &self.disk {
                disk.save(bucket, &object).map_err(S3Error::internal_error)?;
                object.body.keep(true);
            }
            if let Some(older) = index.objects.insert(key, Arc::clone(&object)) {
                self.forget(bucket, &older)?;
            }
            Ok(())
        })?;
        Ok(object)
    }

    /// Removes the object at a key. An absent one is no error.
    pub(super) fn delete(&self, bucket: &str, key: &str, condition: &Condition) -> S3Result<bool> {
        self.with(bucket, |index| {
            condition.check(index.objects.get(key).map(AsRef::as_ref))?;
            match index.objects.remove(key) {
                Some(object) => self.forget(bucket, &object).map(|()| true),
                None => Ok(false),
            }
        })
    }

    /// A new object of a finished body.
    pub(super) fn object(key: &str, written: Written, etag: Option<String>, attributes: Attributes) -> Object {
        let facts = Facts {
            key: key.to_owned(),
            etag: etag.unwrap_or_else(|| hex::encode(written.md5)),
            modified_ms: now_ms(),
            attributes,
            sums: written.sums.into(),
        };
        Object { id: written.id, facts, body: written.body }
    }

    /// A body of these bytes.
    pub(super) fn write(&self, bytes: &[u8], sums: ChecksumHasher) -> S3Result<Written> {
        let mut writer = self.vault.writer(sums).map_err(S3Error::internal_error)?;
        writer.write(bytes).map_err(S3Error::internal_error)?;
        Ok(writer.finish())
    }

    fn forget(&self, bucket: &str, object: &Object) -> S3Result<()> {
        object.body.keep(false);
        match &self.disk {
            Some(disk) => disk.forget(bucket, object.id).map_err(S3Error::internal_error),
            None => Ok(()),
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "an S3 server stamps objects; nothing of ours decides by it")]
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn timestamp(ms: u64) -> Timestamp {
    Timestamp::from(UNIX_EPOCH + std::time::Duration::from_millis(ms))
}
