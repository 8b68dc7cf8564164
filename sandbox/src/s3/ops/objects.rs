//! Put, get, head, delete.

use std::ops::Range;
use std::sync::Arc;

use s3s::dto::*;
use s3s::{S3Result, TrailingHeaders, s3_error};

use super::upload::Claims;
use crate::s3::Action;
use crate::s3::service::Service;
use crate::s3::store::{Attributes, Condition, Object, Store, matches};

impl Service {
    pub(in crate::s3) async fn put(
        &self,
        input: PutObjectInput,
        trailers: Option<TrailingHeaders>,
    ) -> S3Result<PutObjectOutput> {
        self.require_bucket(&input.bucket)?;
        let claims = Claims {
            content_md5: input.content_md5,
            algorithm: input.checksum_algorithm,
            sums: Checksum {
                checksum_crc32: input.checksum_crc32,
                checksum_crc32c: input.checksum_crc32c,
                checksum_crc64nvme: input.checksum_crc64nvme,
                checksum_sha1: input.checksum_sha1,
                checksum_sha256: input.checksum_sha256,
                checksum_type: None,
            },
            trailers,
        };
        let written = self.receive(input.body, claims).await?;
        let attributes = Attributes {
            content_type: input.content_type,
            cache_control: input.cache_control,
            content_disposition: input.content_disposition,
            content_encoding: input.content_encoding,
            content_language: input.content_language,
            metadata: input.metadata.unwrap_or_default().into_iter().collect(),
        };
        let condition = Condition { if_match: input.if_match, if_none_match: input.if_none_match };
        let object = self.store.put(&input.bucket, Store::object(&input.key, written, None, attributes), &condition)?;
        let sums = object.facts.sums.clone();
        Ok(PutObjectOutput {
            e_tag: Some(object.etag()),
            checksum_crc32: sums.crc32,
            checksum_crc32c: sums.crc32c,
            checksum_crc64nvme: sums.crc64nvme,
            checksum_sha1: sums.sha1,
            checksum_sha256: sums.sha256,
            ..Default::default()
        })
    }

    pub(in crate::s3) fn read(&self, input: GetObjectInput) -> S3Result<GetObjectOutput> {
        let object = self.store.get(&input.bucket, &input.key)?;
        check_read(&object, input.if_match.as_ref(), input.if_none_match.as_ref())?;
        let size = object.body.len();
        let range = range_of(input.range.as_ref(), size)?;
        let sent = range.clone().unwrap_or(0..size);
        self.faults.count_out(sent.end - sent.start);
        let Facts { attributes, sums, etag, modified } = Facts::of(&object);
        // S3 names the checksum of the whole object only when the whole object is sent.
        let sums = if input.checksum_mode.is_some() && range.is_none() { sums } else { Default::default() };
        Ok(GetObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            body: Some(object.body.stream(sent.clone())),
            content_length: i64::try_from(sent.end - sent.start).ok(),
            content_range: range.map(|range| format!("bytes {}-{}/{size}", range.start, range.end - 1)),
            e_tag: Some(etag),
            last_modified: Some(modified),
            content_type: attributes.content_type,
            cache_control: attributes.cache_control,
            content_disposition: attributes.content_disposition,
            content_encoding: attributes.content_encoding,
            content_language: attributes.content_language,
            metadata: Some(attributes.metadata.into_iter().collect()),
            checksum_crc32: sums.crc32,
            checksum_crc32c: sums.crc32c,
            checksum_crc64nvme: sums.crc64nvme,
            checksum_sha1: sums.sha1,
            checksum_sha256: sums.sha256,
            ..Default::default()
        })
    }

    pub(in crate::s3) fn head(&self, input: &HeadObjectInput) -> S3Result<HeadObjectOutput> {
        let object = self.store.get(&input.bucket, &input.key)?;
        check_read(&object, input.if_match.as_ref(), input.if_none_match.as_ref())?;
        let Facts { attributes, sums, etag, modified } = Facts::of(&object);
        let sums = if input.checksum_mode.is_some() { sums } else { Default::default() };
        Ok(HeadObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: i64::try_from(object.body.len()).ok(),
            e_tag: Some(etag),
            last_modified: Some(modified),
            content_type: attributes.content_type,
            cache_control: attributes.cache_control,
            content_disposition: attributes.content_disposition,
            content_encoding: attributes.content_encoding,
            content_language: attributes.content_language,
            metadata: Some(attributes.metadata.into_iter().collect()),
            checksum_crc32: sums.crc32,
            checksum_crc32c: sums.crc32c,
            checksum_crc64nvme: sums.crc64nvme,
            checksum_sha1: sums.sha1,
            checksum_sha256: sums.sha256,
            ..Default::default()
        })
    }

    pub(in crate::s3) fn delete_one(&self, input: &DeleteObjectInput) -> S3Result<()> {
        let condition = Condition { if_match: input.if_match.clone(), if_none_match: None };
        self.store.delete(&input.bucket, &input.key, &condition).map(drop)
    }

    /// Deletes key by key: one that is refused is reported, and the others go.
    pub(in crate::s3) fn delete_many(
        &self,
        input: DeleteObjectsInput,
        access_key: &str,
    ) -> S3Result<DeleteObjectsOutput> {
        self.require_bucket(&input.bucket)?;
        let quiet = input.delete.quiet.unwrap_or(false);
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for object in input.delete.objects {
            let path = format!("{}/{}", input.bucket, object.key);
            let refused = match self.faults.key_error(&input.bucket, &object.key) {
                Some(code) => Some(code),
                None => self.require(access_key, Action::Write, &path).err().map(|_| "AccessDenied"),
            };
            match refused {
                Some(code) => errors.push(s3s::dto::Error {
                    code: Some(code.to_owned()),
                    key: Some(object.key),
                    message: Some("refused".to_owned()),
                    version_id: None,
                }),
                None => {
                    self.store.delete(&input.bucket, &object.key, &Condition::default())?;
                    if !quiet {
                        deleted.push(DeletedObject { key: Some(object.key), ..Default::default() });
                    }
                }
            }
        }
        Ok(DeleteObjectsOutput { deleted: Some(deleted), errors: Some(errors), ..Default::default() })
    }
}

/// An object's facts in the words of an answer.
struct Facts {
    attributes: Attributes,
    sums: crate::s3::store::Sums,
    etag: ETag,
    modified: Timestamp,
}

impl Facts {
    fn of(object: &Arc<Object>) -> Self {
        Self {
            attributes: object.facts.attributes.clone(),
            sums: object.facts.sums.clone(),
            etag: object.etag(),
            modified: object.modified(),
        }
    }
}

fn check_read(
    object: &Object,
    if_match: Option<&ETagCondition>,
    if_none_match: Option<&ETagCondition>,
) -> S3Result<()> {
    if if_match.is_some_and(|wanted| !matches(wanted, object)) {
        return Err(s3_error!(PreconditionFailed));
    }
    if if_none_match.is_some_and(|unwanted| matches(unwanted, object)) {
        return Err(s3_error!(NotModified));
    }
    Ok(())
}

fn range_of(range: Option<&s3s::dto::Range>, size: u64) -> S3Result<Option<Range<u64>>> {
    range.map(|range| range.check(size)).transpose().map_err(Into::into)
}
