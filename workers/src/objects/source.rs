//! The header `x-amz-copy-source`.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Everything but the unreserved characters and the separator of segments.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// `bucket/key`, percent-encoded once, segment by segment. The SDK sends the header as it is given: a raw
/// `+` would arrive as a space, a raw `?` would begin a query, and a raw `é` is no header at all.
pub(super) fn copy_source(bucket: &str, key: &str) -> String {
    format!("{}/{}", utf8_percent_encode(bucket, SEGMENT), utf8_percent_encode(key, SEGMENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_source_is_encoded_once_and_by_segment() {
        let encoded = copy_source("b", "instances/a b/1+1=2?%2F#é/x~y-z_.ltx");
        assert_eq!(encoded, "b/instances/a%20b/1%2B1%3D2%3F%252F%23%C3%A9/x~y-z_.ltx");
    }
}
