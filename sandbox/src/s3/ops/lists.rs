//! Listings.

use s3s::dto::*;
use s3s::{S3Result, s3_error};

use crate::s3::gate::Orders;
use crate::s3::keys::encode;
use crate::s3::listing::{self, From, MAX_KEYS};
use crate::s3::service::Service;

impl Service {
    pub(in crate::s3) fn list(&self, input: ListObjectsV2Input, orders: &Orders) -> S3Result<ListObjectsV2Output> {
        let from = match (&input.continuation_token, &input.start_after) {
            (Some(token), _) => From::parse(token)
                .ok_or_else(|| s3_error!(InvalidArgument, "The continuation token provided is incorrect"))?,
            (None, Some(key)) => From::Key(key.clone()),
            (None, None) => From::Start,
        };
        let limit = limit_of(input.max_keys)?;
        let prefix = input.prefix.clone().unwrap_or_default();
        let delimiter = input.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty());
        let page = self
            .store
            .with(&input.bucket, |bucket| Ok(listing::page(&bucket.objects, &prefix, delimiter, &from, limit)))?;
        let written = written_in(input.encoding_type.as_ref())?;
        let object = |(key, object): (String, std::sync::Arc<crate::s3::store::Object>)| s3s::dto::Object {
            key: Some(written(key)),
            e_tag: Some(object.etag()),
            size: i64::try_from(object.body.len()).ok(),
            last_modified: Some(object.modified()),
            storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
            ..Default::default()
        };
        let objects: Vec<_> =
            if orders.lose_page { Vec::new() } else { page.objects.into_iter().map(object).collect() };
        let group = |prefix: String| CommonPrefix { prefix: Some(written(prefix)) };
        let groups: Vec<_> = page.groups.into_iter().map(group).collect();
        let token = page.next.map(|next| next.token());
        Ok(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(written(prefix.clone())),
            delimiter: input.delimiter.clone().map(written),
            start_after: input.start_after.clone().map(written),
            encoding_type: input.encoding_type.clone(),
            max_keys: i32::try_from(limit).ok(),
            key_count: i32::try_from(objects.len() + groups.len()).ok(),
            continuation_token: input.continuation_token,
            is_truncated: Some(token.is_some() || orders.lose_token),
            next_continuation_token: token.filter(|_| !orders.lose_token),
            contents: Some(objects),
            common_prefixes: Some(groups),
            ..Default::default()
        })
    }

    /// Every upload under way below a prefix, by key; never more than one page, since nobody here
    /// leaves a thousand behind.
    pub(in crate::s3) fn list_uploads(&self, input: ListMultipartUploadsInput) -> S3Result<ListMultipartUploadsOutput> {
        let prefix = input.prefix.clone().unwrap_or_default();
        let written = written_in(input.encoding_type.as_ref())?;
        let mut found = self.store.with(&input.bucket, |bucket| {
            let below = bucket.uploads.iter().filter(|(_, upload)| upload.key.starts_with(&prefix));
            Ok(below.map(|(id, upload)| (upload.key.clone(), id.clone(), upload.initiated_ms)).collect::<Vec<_>>())
        })?;
        found.sort();
        let truncated = found.len() > MAX_KEYS;
        found.truncate(MAX_KEYS);
        let upload = |(key, id, initiated)| MultipartUpload {
            key: Some(written(key)),
            upload_id: Some(id),
            initiated: Some(crate::s3::store::timestamp(initiated)),
            ..Default::default()
        };
        Ok(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            prefix: input.prefix,
            encoding_type: input.encoding_type.clone(),
            is_truncated: Some(truncated),
            uploads: Some(found.into_iter().map(upload).collect()),
            ..Default::default()
        })
    }
}

/// How keys are written in this answer: as they are, or encoded where the client asked for it.
fn written_in(encoding: Option<&EncodingType>) -> S3Result<impl Fn(String) -> String + Copy> {
    let encoded = match encoding {
        None => false,
        Some(encoding) if encoding.as_str() == EncodingType::URL => true,
        Some(_) => return Err(s3_error!(InvalidArgument, "Invalid Encoding Method specified in Request")),
    };
    Ok(move |text: String| if encoded { encode(&text) } else { text })
}

fn limit_of(max_keys: Option<i32>) -> S3Result<usize> {
    let asked = usize::try_from(max_keys.unwrap_or(1000))
        .map_err(|_| s3_error!(InvalidArgument, "max-keys is not negative"))?;
    Ok(asked.min(MAX_KEYS))
}
