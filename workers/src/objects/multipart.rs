//! Copies in parts, for objects above the limit of one `CopyObject`.

use aws_sdk_s3::operation::head_object::HeadObjectOutput;
use aws_sdk_s3::primitives::DateTime;
use aws_sdk_s3::primitives::DateTimeFormat;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};
use futures::{StreamExt, TryStreamExt, stream};

use super::copy::etag_of;
use super::{Copied, CopySource, Error, ObjectStore, Op};

/// S3's bound for the parts of one upload.
const MAX_PARTS: u64 = 10_000;

/// An upload that has begun at the target.
#[derive(Clone, Copy)]
struct Upload<'a> {
    bucket: &'a str,
    key: &'a str,
    id: &'a str,
}

impl ObjectStore {
    /// Copies by ranges. Headers are read from the source and given to the new object, since only `CopyObject` takes
    /// them over by itself.
    pub(super) async fn copy_in_parts(&self, source: CopySource<'_>, bucket: &str, key: &str) -> Result<Copied, Error> {
        let head = source.store.head(source).await?;
        let id = self.create_upload(head, bucket, key).await?;
        crate::failpoint::hit("objects.after_create_upload", key).await;
        let upload = Upload { bucket, key, id: &id };
        let done = async {
            let parts = self.copy_parts(source, upload).await?;
            crate::failpoint::hit("objects.before_complete_upload", key).await;
            self.complete(upload, parts).await
        }
        .await;
        if done.is_err() {
            self.abort(upload).await;
        }
        done
    }

    async fn head(&self, source: CopySource<'_>) -> Result<HeadObjectOutput, Error> {
        let request = self.client.head_object().bucket(source.bucket).key(source.key).if_match(source.if_match());
        self.call(Op::Head, self.tuning.request_timeout, || async {
            request.clone().send().await.map_err(|error| Error::from_sdk(Op::Head, error))
        })
        .await
    }

    async fn create_upload(&self, head: HeadObjectOutput, bucket: &str, key: &str) -> Result<String, Error> {
        let expires =
            head.expires_string.as_deref().and_then(|at| DateTime::from_str(at, DateTimeFormat::HttpDate).ok());
        let request = self
            .client
            .create_multipart_upload()
            .bucket(bucket)
            .key(key)
            .set_metadata(head.metadata.filter(|metadata| !metadata.is_empty()))
            .set_content_type(head.content_type)
            .set_cache_control(head.cache_control)
            .set_content_disposition(head.content_disposition)
            .set_content_encoding(head.content_encoding)
            .set_content_language(head.content_language)
            .set_expires(expires);
        self.call(Op::CreateUpload, self.tuning.request_timeout, || async {
            let answer = request.clone().send().await.map_err(|error| Error::from_sdk(Op::CreateUpload, error))?;
            let id = answer.upload_id.filter(|id| !id.is_empty());
            id.ok_or_else(|| Error::Failed { op: Op::CreateUpload, code: "200 without an upload id".to_owned() })
        })
        .await
    }

    async fn copy_parts(&self, source: CopySource<'_>, upload: Upload<'_>) -> Result<Vec<CompletedPart>, Error> {
        let size = part_size(source.size, self.tuning.part_size);
        let mut parts: Vec<CompletedPart> = stream::iter(ranges(source.size, size))
            .map(|(number, first, last)| self.copy_part(source, upload, number, first, last))
            .buffer_unordered(self.tuning.parts_at_once.max(1))
            .try_collect()
            .await?;
        parts.sort_by_key(|part| part.part_number);
        Ok(parts)
    }

    async fn copy_part(
        &self,
        source: CopySource<'_>,
        upload: Upload<'_>,
        number: i32,
        first: u64,
        last: u64,
    ) -> Result<CompletedPart, Error> {
        let request = self
            .client
            .upload_part_copy()
            .copy_source(source.header())
            .copy_source_if_match(source.if_match())
            .copy_source_range(format!("bytes={first}-{last}"))
            .bucket(upload.bucket)
            .key(upload.key)
            .upload_id(upload.id)
            .part_number(number);
        let _turn = self.limits.enter(upload.bucket).await;
        let etag = self
            .call(Op::CopyPart, self.tuning.copy_timeout, || async {
                let answer = request.clone().send().await.map_err(|error| Error::from_sdk(Op::CopyPart, error))?;
                etag_of(Op::CopyPart, answer.copy_part_result.and_then(|result| result.e_tag))
            })
            .await?;
        crate::failpoint::hit("objects.after_part", upload.key).await;
        Ok(CompletedPart::builder().part_number(number).e_tag(format!("\"{etag}\"")).build())
    }

    async fn complete(&self, upload: Upload<'_>, parts: Vec<CompletedPart>) -> Result<Copied, Error> {
        let request = self
            .client
            .complete_multipart_upload()
            .bucket(upload.bucket)
            .key(upload.key)
            .upload_id(upload.id)
            .multipart_upload(CompletedMultipartUpload::builder().set_parts(Some(parts)).build());
        self.call(Op::CompleteUpload, self.tuning.copy_timeout, || async {
            let answer = request.clone().send().await.map_err(|error| Error::from_sdk(Op::CompleteUpload, error))?;
            etag_of(Op::CompleteUpload, answer.e_tag).map(|etag| Copied { etag })
        })
        .await
    }

    /// Best effort: a mover may lack the right to abort, and then a lifecycle rule on the bucket clears its parts.
    async fn abort(&self, upload: Upload<'_>) {
        let request = self.client.abort_multipart_upload().bucket(upload.bucket).key(upload.key).upload_id(upload.id);
        let aborted = self
            .call(Op::AbortUpload, self.tuning.request_timeout, || async {
                request.clone().send().await.map_err(|error| Error::from_sdk(Op::AbortUpload, error))
            })
            .await;
        if let Err(error) = aborted {
            tracing::warn!(
                bucket = upload.bucket,
                key = upload.key,
                error = &error as &dyn std::error::Error,
                "parts of a failed copy stay until the bucket's lifecycle rule removes them"
            );
        }
    }

    /// The requests that a copy of an object of this size makes, none of them repeated.
    pub(crate) fn requests_of_copy(&self, size: u64) -> u64 {
        if size <= self.tuning.copy_limit {
            return 1;
        }
        // Its headers are read, the upload begins, its parts, its end.
        3 + size.div_ceil(part_size(size, self.tuning.part_size))
    }
}

/// The wished part size, or the smallest one that needs at most 10,000 parts.
fn part_size(size: u64, wished: u64) -> u64 {
    wished.max(size.div_ceil(MAX_PARTS)).max(1)
}

/// Part number from 1, first and last byte, for an object of at least one byte.
fn ranges(size: u64, part: u64) -> impl Iterator<Item = (i32, u64, u64)> {
    (1_i32..).zip((0..size).step_by(usize::try_from(part).unwrap_or(usize::MAX))).map(move |(number, first)| {
        let last = first.saturating_add(part).min(size) - 1;
        (number, first, last)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_every_byte_once() {
        for (size, part) in [(1, 1), (10, 3), (9, 3), (5, 10), (12, 12), (13, 12)] {
            let mut next = 0;
            for (n, (number, first, last)) in ranges(size, part).enumerate() {
                assert_eq!((usize::try_from(number).unwrap(), first), (n + 1, next), "{size} by {part}");
                assert!(last >= first && last - first < part);
                next = last + 1;
            }
            assert_eq!(next, size, "{size} by {part}");
        }
    }

    #[test]
    fn the_part_grows_where_ten_thousand_would_not_do() {
        assert_eq!(part_size(6 << 30, 512 << 20), 512 << 20);
        let five_tib = 5 << 40;
        assert!(five_tib / part_size(five_tib, 512 << 20) <= 10_000 && part_size(five_tib, 512 << 20) <= 5 << 30);
        assert_eq!(part_size(100_001, 1), 11);
    }
}
