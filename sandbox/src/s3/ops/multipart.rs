//! Multipart uploads.

use std::sync::atomic::Ordering;

use s3s::crypto::{Checksum as _, Md5};
use s3s::dto::*;
use s3s::{S3Error, S3Result, TrailingHeaders, s3_error};

use super::upload::Claims;
use crate::s3::service::Service;
use crate::s3::store::{Attributes, Bucket, Condition, Part, Store, Upload, now_ms, timestamp};

/// The highest part number, as S3 has it.
const MAX_PARTS: i32 = 10_000;

impl Service {
    pub(in crate::s3) fn create_upload(
        &self,
        input: CreateMultipartUploadInput,
    ) -> S3Result<CreateMultipartUploadOutput> {
        let id = format!("{:032x}", fastrand::u128(..));
        let attributes = Attributes {
            content_type: input.content_type,
            cache_control: input.cache_control,
            content_disposition: input.content_disposition,
            content_encoding: input.content_encoding,
            content_language: input.content_language,
            metadata: input.metadata.unwrap_or_default().into_iter().collect(),
        };
        let upload = Upload { key: input.key.clone(), attributes, initiated_ms: now_ms(), parts: Default::default() };
        self.store.with(&input.bucket, |bucket| {
            bucket.uploads.insert(id.clone(), upload);
            Ok(())
        })?;
        Ok(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(id),
            checksum_algorithm: input.checksum_algorithm,
            checksum_type: input.checksum_type,
            ..Default::default()
        })
    }

    pub(in crate::s3) async fn put_part(
        &self,
        input: UploadPartInput,
        trailers: Option<TrailingHeaders>,
    ) -> S3Result<UploadPartOutput> {
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
        let part = Part { body: written.body, md5: written.md5, modified_ms: now_ms() };
        self.keep_part(&input.bucket, &input.key, &input.upload_id, input.part_number, part)?;
        Ok(UploadPartOutput {
            e_tag: Some(ETag::Strong(hex::encode(written.md5))),
            checksum_crc32: written.sums.checksum_crc32,
            checksum_crc32c: written.sums.checksum_crc32c,
            checksum_crc64nvme: written.sums.checksum_crc64nvme,
            checksum_sha1: written.sums.checksum_sha1,
            checksum_sha256: written.sums.checksum_sha256,
            ..Default::default()
        })
    }

    /// Puts a part in its place; a second one of the same number replaces the first.
    pub(super) fn keep_part(&self, bucket: &str, key: &str, id: &str, number: i32, part: Part) -> S3Result<()> {
        if !(1..=MAX_PARTS).contains(&number) {
            return Err(s3_error!(InvalidArgument, "a part's number is 1 to {MAX_PARTS}"));
        }
        self.store.with(bucket, |bucket| {
            upload_of(bucket, id, key)?.parts.insert(number, part);
            Ok(())
        })
    }

    pub(in crate::s3) fn complete_upload(
        &self,
        input: CompleteMultipartUploadInput,
    ) -> S3Result<CompleteMultipartUploadOutput> {
        let named = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
        let (attributes, parts) = self.store.with(&input.bucket, |bucket| {
            let upload = upload_of(bucket, &input.upload_id, &input.key)?;
            Ok((upload.attributes.clone(), choose(upload, &named)?))
        })?;
        let min_part = self.limits.min_part.load(Ordering::Relaxed);
        if parts.iter().rev().skip(1).any(|part| part.body.len() < min_part) {
            return Err(s3_error!(EntityTooSmall, "a part that is not the last has at least {min_part} bytes"));
        }
        let pieces = parts.iter().map(|part| (&part.body, 0..part.body.len()));
        let written = self.store.vault.join(pieces).map_err(S3Error::internal_error)?;
        let etag = etag_of(&parts);
        let condition = Condition { if_match: input.if_match, if_none_match: input.if_none_match };
        let object = Store::object(&input.key, written, Some(etag), attributes);
        let object = self.store.put(&input.bucket, object, &condition)?;
        self.store.with(&input.bucket, |bucket| Ok(bucket.uploads.remove(&input.upload_id)))?;
        Ok(CompleteMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag: Some(object.etag()),
            ..Default::default()
        })
    }

    pub(in crate::s3) fn abort_upload(&self, input: &AbortMultipartUploadInput) -> S3Result<()> {
        self.store.with(&input.bucket, |bucket| {
            upload_of(bucket, &input.upload_id, &input.key)?;
            bucket.uploads.remove(&input.upload_id);
            Ok(())
        })
    }

    pub(in crate::s3) fn list_parts_of(&self, input: &ListPartsInput) -> S3Result<ListPartsOutput> {
        let parts = self.store.with(&input.bucket, |bucket| {
            let upload = upload_of(bucket, &input.upload_id, &input.key)?;
            let part = |(number, part): (&i32, &Part)| s3s::dto::Part {
                part_number: Some(*number),
                e_tag: Some(ETag::Strong(hex::encode(part.md5))),
                size: i64::try_from(part.body.len()).ok(),
                last_modified: Some(timestamp(part.modified_ms)),
                ..Default::default()
            };
            Ok(upload.parts.iter().map(part).collect::<Vec<_>>())
        })?;
        Ok(ListPartsOutput {
            bucket: Some(input.bucket.clone()),
            key: Some(input.key.clone()),
            upload_id: Some(input.upload_id.clone()),
            is_truncated: Some(false),
            parts: Some(parts),
            ..Default::default()
        })
    }
}

fn upload_of<'a>(bucket: &'a mut Bucket, id: &str, key: &str) -> S3Result<&'a mut Upload> {
    match bucket.uploads.get_mut(id) {
        Some(upload) if upload.key == key => Ok(upload),
        Some(_) | None => Err(s3_error!(NoSuchUpload, "The specified upload does not exist.")),
    }
}

/// The parts that a completion names: ascending, each there, each with the ETag it was given.
fn choose(upload: &Upload, named: &[CompletedPart]) -> S3Result<Vec<Part>> {
    if named.is_empty() {
        return Err(s3_error!(MalformedXML, "a completion names at least one part"));
    }
    let numbers: Vec<i32> = named.iter().map(|part| part.part_number.unwrap_or_default()).collect();
    if numbers.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(s3_error!(InvalidPartOrder));
    }
    let find = |(number, named): (&i32, &CompletedPart)| {
        let part = upload.parts.get(number).ok_or_else(|| s3_error!(InvalidPart))?;
        match &named.e_tag {
            Some(etag) if etag.value() == hex::encode(part.md5) => Ok(part.clone()),
            Some(_) | None => Err(s3_error!(InvalidPart)),
        }
    };
    numbers.iter().zip(named).map(find).collect()
}

/// The MD5 of the parts' MD5s, a dash, and their number, as S3 has it.
fn etag_of(parts: &[Part]) -> String {
    let mut md5 = Md5::new();
    for part in parts {
        md5.update(&part.md5);
    }
    format!("{}-{}", hex::encode(md5.finalize()), parts.len())
}
