//! Copies on the server: no object byte passes a client.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use s3s::checksum::ChecksumHasher;
use s3s::dto::*;
use s3s::{S3Error, S3Result, s3_error};

use crate::s3::body::Written;
use crate::s3::service::Service;
use crate::s3::store::{Attributes, Condition, Object, Part, Store, matches, now_ms, timestamp};

impl Service {
    pub(in crate::s3) fn copy(&self, input: CopyObjectInput, source: &(String, String)) -> S3Result<CopyObjectOutput> {
        self.require_bucket(&input.bucket)?;
        let from = self.store.get(&source.0, &source.1)?;
        check_source(&from, input.copy_source_if_match.as_ref(), input.copy_source_if_none_match.as_ref())?;
        self.check_copy_size(from.body.len())?;
        let replaces =
            input.metadata_directive.as_ref().is_some_and(|word| word.as_str() == MetadataDirective::REPLACE);
        if !replaces && *source == (input.bucket.clone(), input.key.clone()) {
            return Err(s3_error!(InvalidRequest, "a copy onto itself changes nothing"));
        }
        let attributes = if replaces {
            Attributes {
                content_type: input.content_type,
                cache_control: input.cache_control,
                content_disposition: input.content_disposition,
                content_encoding: input.content_encoding,
                content_language: input.content_language,
                metadata: input.metadata.unwrap_or_default().into_iter().collect(),
            }
        } else {
            from.facts.attributes.clone()
        };
        let object = self.share(&from, &input.key, attributes)?;
        let object = self.store.put(&input.bucket, object, &Condition::default())?;
        let result = CopyObjectResult {
            e_tag: Some(object.etag()),
            last_modified: Some(object.modified()),
            ..Default::default()
        };
        Ok(CopyObjectOutput { copy_object_result: Some(result), ..Default::default() })
    }

    /// Copies a range into a part of an upload.
    pub(in crate::s3) fn copy_part(
        &self,
        input: &UploadPartCopyInput,
        source: &(String, String),
    ) -> S3Result<UploadPartCopyOutput> {
        let from = self.store.get(&source.0, &source.1)?;
        check_source(&from, input.copy_source_if_match.as_ref(), input.copy_source_if_none_match.as_ref())?;
        let range = match &input.copy_source_range {
            Some(text) => part_range(text, from.body.len())?,
            None => 0..from.body.len(),
        };
        self.check_copy_size(range.end - range.start)?;
        let Written { body, md5, .. } =
            self.store.vault.join([(&from.body, range)]).map_err(S3Error::internal_error)?;
        let part = Part { body, md5, modified_ms: now_ms() };
        let modified = timestamp(part.modified_ms);
        self.keep_part(&input.bucket, &input.key, &input.upload_id, input.part_number, part)?;
        let result = CopyPartResult {
            e_tag: Some(ETag::Strong(hex::encode(md5))),
            last_modified: Some(modified),
            ..Default::default()
        };
        Ok(UploadPartCopyOutput { copy_part_result: Some(result), ..Default::default() })
    }

    /// The copy of an object. As on AWS a copy is one whole: the ETag of an object that was uploaded
    /// in parts becomes the plain MD5, so that nobody takes an ETag for an identity.
    fn share(&self, from: &Arc<Object>, key: &str, attributes: Attributes) -> S3Result<Object> {
        if from.is_multipart() {
            let whole = 0..from.body.len();
            let written = self.store.vault.join([(&from.body, whole)]).map_err(S3Error::internal_error)?;
            return Ok(Store::object(key, written, None, attributes));
        }
        let (id, body) = self.store.vault.share(&from.body).map_err(S3Error::internal_error)?;
        let written = Written { id, body, md5: [0; 16], sums: ChecksumHasher::default().finalize() };
        let mut object = Store::object(key, written, Some(from.facts.etag.clone()), attributes);
        object.facts.sums = from.facts.sums.clone();
        Ok(object)
    }

    fn check_copy_size(&self, bytes: u64) -> S3Result<()> {
        let limit = self.limits.copy.load(Ordering::Relaxed);
        if bytes > limit {
            return Err(s3_error!(
                InvalidRequest,
                "The specified copy source is larger than the maximum allowable size for a copy source: {limit}"
            ));
        }
        Ok(())
    }
}

fn check_source(
    object: &Object,
    if_match: Option<&ETagCondition>,
    if_none_match: Option<&ETagCondition>,
) -> S3Result<()> {
    let refused = if_match.is_some_and(|wanted| !matches(wanted, object))
        || if_none_match.is_some_and(|unwanted| matches(unwanted, object));
    if refused { Err(s3_error!(PreconditionFailed)) } else { Ok(()) }
}

/// `bytes=first-last`, both needed and both within the source.
fn part_range(text: &str, size: u64) -> S3Result<Range<u64>> {
    let numbers = text.strip_prefix("bytes=").and_then(|range| range.split_once('-'));
    let parsed = numbers.and_then(|(first, last)| Some((first.parse::<u64>().ok()?, last.parse::<u64>().ok()?)));
    match parsed {
        Some((first, last)) if first <= last && last < size => Ok(first..last + 1),
        Some(_) => Err(s3_error!(InvalidRange, "the range {text} is not within {size} bytes")),
        None => Err(s3_error!(InvalidArgument, "x-amz-copy-source-range is bytes=first-last")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_range_lies_within_the_source() {
        assert_eq!(part_range("bytes=0-9", 10).ok(), Some(0..10));
        for text in ["bytes=0-10", "bytes=5-4", "bytes=5-", "0-9", "bytes=-3"] {
            assert!(part_range(text, 10).is_err(), "{text}");
        }
    }
}
