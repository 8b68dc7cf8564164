//! Listings: complete, in key order, page by page.

use super::{Error, ObjectStore, Op};

/// Pages without a single key that a listing may show in a row, before it counts as broken.
const EMPTY_PAGES: u32 = 100;

/// One listed object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The whole key.
    pub key: String,
    /// Bytes.
    pub size: u64,
    /// The store's name for this content, without quotes. Some stores list none.
    pub etag: Option<String>,
}

/// One sequential pass over all keys below a prefix.
///
/// Memory for one page (at most 1,000 keys), whatever the number of keys. Ends properly or with an error: keys that
/// go backwards or lie outside the prefix, and a truncated page without a token, are errors. A page without a key that
/// says there is more is believed only when it is empty twice: a page that was lost on the way must not look like
/// keys that were pruned. Pages are not atomic: what changes meanwhile may or may not be seen.
#[derive(Debug)]
pub struct Listing {
    store: ObjectStore,
    bucket: String,
    prefix: String,
    position: Position,
    last: Option<String>,
}

#[derive(Debug)]
enum Position {
    Start,
    After(String),
    End,
}

impl ObjectStore {
    /// Lists the keys of `bucket` that begin with `prefix`, sorted by their UTF-8 bytes. Sends nothing yet.
    #[must_use]
    pub fn list(&self, bucket: &str, prefix: &str) -> Listing {
        Listing {
            store: self.clone(),
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            position: Position::Start,
            last: None,
        }
    }
}

impl Listing {
    /// The next page with at least one key, or `None` at the proper end.
    ///
    /// # Errors
    /// The store's, or a listing that contradicts itself. There is no page after an error.
    pub async fn next_page(&mut self) -> Result<Option<Vec<Listed>>, Error> {
        for _ in 0..EMPTY_PAGES {
            let token = match std::mem::replace(&mut self.position, Position::End) {
                Position::Start => None,
                Position::After(token) => Some(token),
                Position::End => return Ok(None),
            };
            let mut page = self.request(token.as_deref()).await?;
            if page.is_truncated == Some(true) && page.contents.as_ref().is_none_or(Vec::is_empty) {
                page = self.request(token.as_deref()).await?;
            }
            self.position = match (page.is_truncated.unwrap_or(false), page.next_continuation_token) {
                (true, Some(next)) if !next.is_empty() && Some(&next) != token.as_ref() => Position::After(next),
                (true, _) => return Err(Error::ListingTruncated),
                (false, _) => Position::End,
            };
            let count = page.key_count;
            let entries = self.check(page.contents.unwrap_or_default())?;
            if count.is_some_and(|count| usize::try_from(count) != Ok(entries.len())) {
                return Err(Error::ListingInvalid("the page holds another number of keys than it says"));
            }
            if !entries.is_empty() {
                return Ok(Some(entries));
            }
        }
        Err(Error::ListingInvalid("page after page without a key"))
    }

    async fn request(
        &self,
        token: Option<&str>,
    ) -> Result<aws_sdk_s3::operation::list_objects_v2::ListObjectsV2Output, Error> {
        let request = self
            .store
            .client
            .list_objects_v2()
            .bucket(&self.bucket)
            .prefix(&self.prefix)
            .set_continuation_token(token.map(str::to_owned));
        self.store
            .call(Op::List, self.store.tuning.request_timeout, || async {
                request.clone().send().await.map_err(|error| Error::from_sdk(Op::List, error))
            })
            .await
    }

    fn check(&mut self, objects: Vec<aws_sdk_s3::types::Object>) -> Result<Vec<Listed>, Error> {
        let mut entries = Vec::with_capacity(objects.len());
        for object in objects {
            let key = object.key.ok_or(Error::ListingInvalid("an entry without a key"))?;
            let size = object.size.and_then(|size| u64::try_from(size).ok());
            let size = size.ok_or(Error::ListingInvalid("an entry without a size"))?;
            if !key.starts_with(&self.prefix) {
                return Err(Error::ListingInvalid("a key outside the prefix"));
            }
            let before = entries.last().map(|entry: &Listed| &entry.key).or(self.last.as_ref());
            if before.is_some_and(|before| *before >= key) {
                return Err(Error::ListingInvalid("the keys are not in order"));
            }
            entries.push(Listed { key, size, etag: object.e_tag.as_deref().map(unquoted) });
        }
        if let Some(last) = entries.last() {
            self.last = Some(last.key.clone());
        }
        Ok(entries)
    }
}

/// `ETag`s come quoted from some calls and stores and bare from others; one form makes them comparable.
pub(super) fn unquoted(etag: &str) -> String {
    etag.trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags_are_compared_without_quotes() {
        assert_eq!(unquoted("\"ab-2\""), unquoted("ab-2"));
    }
}
