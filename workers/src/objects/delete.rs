//! Deletes, in batches.

use aws_sdk_s3::types::{Delete, ObjectIdentifier};

use super::{Error, ObjectStore, Op};

/// S3's bound for one `DeleteObjects`.
const BATCH: usize = 1_000;

/// A key, and the version of it that is meant, if not the present one.
pub(super) type Named<'a> = (&'a str, Option<&'a str>);

/// A key that the store did not delete, although it answered the batch with 200.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyError {
    /// The whole key.
    pub key: String,
    /// The store's code, such as `AccessDenied`.
    pub code: String,
}

impl ObjectStore {
    /// Deletes keys, 1,000 a request. A key that does not exist counts as deleted. Gives the keys that the store
    /// refused one by one; all others are gone.
    ///
    /// # Errors
    /// A batch that failed as a whole; batches before it are done, batches after it are not begun.
    pub async fn delete_many(&self, bucket: &str, keys: &[String]) -> Result<Vec<KeyError>, Error> {
        let mut refused = Vec::new();
        for batch in keys.chunks(BATCH) {
            crate::failpoint::hit("objects.before_delete", bucket).await;
            refused.extend(self.delete_batch(bucket, batch).await?);
            crate::failpoint::hit("objects.after_delete", bucket).await;
        }
        Ok(refused)
    }

    async fn delete_batch(&self, bucket: &str, keys: &[String]) -> Result<Vec<KeyError>, Error> {
        let named: Vec<Named<'_>> = keys.iter().map(|key| (key.as_str(), None)).collect();
        // Boxed: a pass is a deep future, and a batch of deletes is rare.
        Box::pin(self.delete_named(bucket, &named)).await
    }

    /// Deletes at most 1,000 objects, or versions of some, in one request; gives those that the store refused.
    pub(super) async fn delete_named(&self, bucket: &str, named: &[Named<'_>]) -> Result<Vec<KeyError>, Error> {
        let one = |(key, version): &Named<'_>| {
            ObjectIdentifier::builder().key(*key).set_version_id(version.map(str::to_owned)).build()
        };
        let objects: Result<Vec<_>, _> = named.iter().map(one).collect();
        let delete = objects.and_then(|objects| Delete::builder().set_objects(Some(objects)).quiet(true).build());
        let delete = delete.map_err(|error| Error::Refused { op: Op::Delete, code: error.to_string() })?;
        let request = self.client.delete_objects().bucket(bucket).delete(delete);
        self.call(Op::Delete, self.tuning.request_timeout, || async {
            let answer = request.clone().send().await.map_err(|error| Error::from_sdk(Op::Delete, error))?;
            Ok(answer.errors.unwrap_or_default())
        })
        .await
        .map(|errors| {
            errors
                .into_iter()
                .map(|error| KeyError { key: error.key.unwrap_or_default(), code: error.code.unwrap_or_default() })
                .collect()
        })
    }
}
