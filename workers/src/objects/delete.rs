//! Deletes, in batches.

use aws_sdk_s3::types::{Delete, ObjectIdentifier};

use super::{Error, ObjectStore, Op};

/// S3's bound for one `DeleteObjects`.
const BATCH: usize = 1_000;

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
        let objects: Result<Vec<_>, _> = keys.iter().map(|key| ObjectIdentifier::builder().key(key).build()).collect();
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
