//! Copies on the server.

use super::list::unquoted;
use super::source::copy_source;
use super::{Error, ObjectStore, Op};

/// The object to copy, as it was listed.
#[derive(Debug, Clone, Copy)]
pub struct CopySource<'a> {
    /// The store that holds it; asked only for the headers of an object that is copied in parts.
    pub store: &'a ObjectStore,
    /// Its bucket.
    pub bucket: &'a str,
    /// Its key.
    pub key: &'a str,
    /// Its `ETag`, without quotes. The copy fails with [`Error::Changed`] when it is another by now.
    pub etag: &'a str,
    /// Its size, bytes.
    pub size: u64,
}

impl CopySource<'_> {
    pub(super) fn header(&self) -> String {
        copy_source(self.bucket, self.key)
    }

    pub(super) fn if_match(&self) -> String {
        format!("\"{}\"", self.etag)
    }
}

/// A finished copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    /// The `ETag` that the store gave to the copy, without quotes. It may differ from the source's.
    pub etag: String,
}

impl ObjectStore {
    /// Copies one object into a bucket of this store, without its bytes passing through us.
    ///
    /// One `CopyObject` up to `copy_limit`, above it a multipart copy by ranges. Content type, the other standard
    /// headers and user metadata survive both. Waits for its turn in [`super::CopyLimits`].
    ///
    /// # Errors
    /// [`Error::Vanished`] when the source is gone and [`Error::Changed`] when it is another object by now: list again.
    /// A multipart copy that fails is aborted, as far as our rights allow; else a lifecycle rule must do it.
    pub async fn copy(&self, source: CopySource<'_>, bucket: &str, key: &str) -> Result<Copied, Error> {
        crate::failpoint::hit("objects.before_copy", key).await;
        let copied = if source.size <= self.tuning.copy_limit {
            self.copy_whole(source, bucket, key).await?
        } else {
            self.copy_in_parts(source, bucket, key).await?
        };
        crate::failpoint::hit("objects.after_copy", key).await;
        Ok(copied)
    }

    async fn copy_whole(&self, source: CopySource<'_>, bucket: &str, key: &str) -> Result<Copied, Error> {
        let request = self
            .client
            .copy_object()
            .copy_source(source.header())
            .copy_source_if_match(source.if_match())
            .bucket(bucket)
            .key(key);
        let _turn = self.limits.enter(bucket).await;
        self.call(Op::Copy, self.tuning.copy_timeout, || async {
            let answer = request.clone().send().await.map_err(|error| Error::from_sdk(Op::Copy, error))?;
            let etag = answer.copy_object_result.and_then(|result| result.e_tag);
            etag_of(Op::Copy, etag).map(|etag| Copied { etag })
        })
        .await
    }
}

/// A 200 without an `ETag` is no answer: S3 begins to answer before it has copied, and may break off.
pub(super) fn etag_of(op: Op, etag: Option<String>) -> Result<String, Error> {
    match etag.as_deref().map(unquoted) {
        Some(etag) if !etag.is_empty() => Ok(etag),
        Some(_) | None => Err(Error::Failed { op, code: "200 without an ETag".to_owned() }),
    }
}
