//! Versioned buckets: a delete there hides an object and keeps its bytes.

use aws_sdk_s3::types::BucketVersioningStatus;

use super::{Error, KeyError, ObjectStore, Op};

/// What a bucket does with what is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Versioning {
    /// It is gone.
    Never,
    /// It is kept, or was at some time: versioning is on, or suspended.
    Kept,
    /// We may not ask, or the store does not know the question.
    Unknown,
}

/// What deleting the versions below a prefix came to.
#[derive(Debug, Default)]
pub struct VersionsDeleted {
    /// Versions and markers that are gone.
    pub deleted: u64,
    /// Keys of which the store kept a version.
    pub refused: Vec<KeyError>,
}

impl ObjectStore {
    /// Whether a bucket keeps what is deleted.
    ///
    /// # Errors
    /// The store's, other than that we may not ask.
    pub async fn versioning(&self, bucket: &str) -> Result<Versioning, Error> {
        let request = self.client.get_bucket_versioning().bucket(bucket);
        let answer = self
            .call(Op::Versions, self.tuning.request_timeout, || async {
                request.clone().send().await.map_err(|error| Error::from_sdk(Op::Versions, error))
            })
            .await;
        match answer {
            Ok(answer) => Ok(match answer.status {
                None => Versioning::Never,
                Some(BucketVersioningStatus::Enabled | BucketVersioningStatus::Suspended) => Versioning::Kept,
                Some(_) => Versioning::Unknown,
            }),
            Err(error) if error.is_worth_a_retry() => Err(error),
            Err(_) => Ok(Versioning::Unknown),
        }
    }

    /// Deletes every version and every marker below a prefix, page by page.
    ///
    /// # Errors
    /// The store's: what was deleted until then is gone.
    pub async fn delete_versions(&self, bucket: &str, prefix: &str) -> Result<VersionsDeleted, Error> {
        let mut done = VersionsDeleted::default();
        let mut marker: (Option<String>, Option<String>) = (None, None);
        loop {
            let request = self
                .client
                .list_object_versions()
                .bucket(bucket)
                .prefix(prefix)
                .set_key_marker(marker.0.clone())
                .set_version_id_marker(marker.1.clone());
            let page = self
                .call(Op::Versions, self.tuning.request_timeout, || async {
                    request.clone().send().await.map_err(|error| Error::from_sdk(Op::Versions, error))
                })
                .await?;
            let versions = page.versions.unwrap_or_default().into_iter().map(|it| (it.key, it.version_id));
            let markers = page.delete_markers.unwrap_or_default().into_iter().map(|it| (it.key, it.version_id));
            let named: Vec<_> = versions.chain(markers).filter_map(|(key, id)| Some((key?, id))).collect();
            if let Some((key, _)) = named.iter().find(|(key, _)| !key.starts_with(prefix)) {
                return Err(Error::Refused { op: Op::Versions, code: format!("a key outside the prefix: {key}") });
            }
            if !named.is_empty() {
                let these: Vec<_> = named.iter().map(|(key, id)| (key.as_str(), id.as_deref())).collect();
                let refused = self.delete_named(bucket, &these).await?;
                done.deleted += u64::try_from(named.len() - refused.len().min(named.len())).unwrap_or(u64::MAX);
                done.refused.extend(refused);
            }
            let next = (page.next_key_marker, page.next_version_id_marker);
            match page.is_truncated {
                Some(true) if next.0.is_some() && next != marker => marker = next,
                Some(true) => return Err(Error::ListingTruncated),
                Some(false) | None => return Ok(done),
            }
        }
    }
}
