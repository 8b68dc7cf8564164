//! The objects of a server, past its protocol: what tests lay out, look at and damage.

use std::sync::Arc;

use s3s::checksum::ChecksumHasher;
use s3s::{S3Error, S3Result};

use super::store::{Attributes, Condition, Store};

/// What is known of an object without its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// The ETag without quotes.
    pub etag: String,
    /// Bytes.
    pub size: u64,
    /// What the client gave along.
    pub attributes: Attributes,
}

/// A server's objects. Clones are the same; while one lives, the server's folder stays taken.
#[derive(Debug, Clone)]
pub struct Objects {
    store: Arc<Store>,
}

impl Objects {
    pub(super) fn new(store: Arc<Store>) -> Self {
        Self { store }
    }

    /// Creates a bucket; one that is there stays as it is.
    pub fn create_bucket(&self, name: &str) {
        must(self.store.create_bucket(name).map_err(S3Error::internal_error));
    }

    /// Puts an object with neither content type nor metadata. Any key goes, also one that the
    /// server would refuse.
    pub fn put(&self, bucket: &str, key: &str, bytes: &[u8]) {
        self.put_with(bucket, key, bytes, Attributes::default());
    }

    /// Puts an object.
    pub fn put_with(&self, bucket: &str, key: &str, bytes: &[u8], attributes: Attributes) {
        let written = must(self.store.write(bytes, ChecksumHasher::default()));
        must(self.store.put(bucket, Store::object(key, written, None, attributes), &Condition::default()));
    }

    /// The bytes of an object, if there is one.
    #[must_use]
    pub fn get(&self, bucket: &str, key: &str) -> Option<Vec<u8>> {
        let object = self.store.get(bucket, key).ok()?;
        object.body.read(0..object.body.len()).ok().map(|bytes| bytes.to_vec())
    }

    /// What is known of an object, if there is one.
    #[must_use]
    pub fn stat(&self, bucket: &str, key: &str) -> Option<Stat> {
        let object = self.store.get(bucket, key).ok()?;
        Some(Stat {
            etag: object.facts.etag.clone(),
            size: object.body.len(),
            attributes: object.facts.attributes.clone(),
        })
    }

    /// Removes an object; says whether there was one.
    pub fn delete(&self, bucket: &str, key: &str) -> bool {
        must(self.store.delete(bucket, key, &Condition::default()))
    }

    /// All keys under a prefix, in UTF-8 byte order.
    #[must_use]
    pub fn keys(&self, bucket: &str, prefix: &str) -> Vec<String> {
        let all = self.store.with(bucket, |bucket| {
            let below = bucket.objects.range(prefix.to_owned()..).map(|(key, _)| key);
            Ok(below.take_while(|key| key.starts_with(prefix)).cloned().collect())
        });
        all.unwrap_or_default()
    }

    /// Damages an object: changes its bytes and leaves its ETag and checksums, as a bad disk does.
    pub fn corrupt(&self, bucket: &str, key: &str, damage: impl FnOnce(&mut Vec<u8>)) {
        let whole = must(self.store.get(bucket, key));
        let mut bytes = self.get(bucket, key).unwrap_or_default();
        damage(&mut bytes);
        let written = must(self.store.write(&bytes, ChecksumHasher::default()));
        let mut object = Store::object(key, written, Some(whole.facts.etag.clone()), whole.facts.attributes.clone());
        object.facts.sums = whole.facts.sums.clone();
        must(self.store.put(bucket, object, &Condition::default()));
    }
}

/// This handle is a test's own hand: what it cannot do is a mistake of the test.
#[track_caller]
fn must<T>(result: S3Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("the sandbox's objects: {error}"),
    }
}
