//! Object keys: which are refused, and how they are written in an answer.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::{S3Result, s3_error};

/// The longest key, in bytes, as S3 has it.
const MAX_KEY_BYTES: usize = 1024;

/// What `encoding-type=url` leaves as it is.
const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/').remove(b'*');

/// Refuses keys that are legal on S3 but that Leasehold must never make: with a `.`, `..` or empty
/// segment, or with control bytes. Servers that map keys to files let them escape their prefix, so
/// the sandbox is as strict as the strictest.
pub(super) fn check(key: &str) -> S3Result<()> {
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        return Err(s3_error!(InvalidArgument, "a key has 1 to {MAX_KEY_BYTES} bytes"));
    }
    if key.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
        return Err(s3_error!(InvalidArgument, "a key has no control bytes"));
    }
    if key.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
        return Err(s3_error!(InvalidArgument, "a key has no segment that is empty, `.` or `..`"));
    }
    Ok(())
}

/// `text` as `encoding-type=url` asks for it. A space becomes `%20`, which every client decodes,
/// never `+`, which some do not.
pub(super) fn encode(text: &str) -> String {
    utf8_percent_encode(text, KEPT).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_could_escape_are_refused() {
        for key in ["", "a/../b", "..", "a//b", "/a", "a/", "./a", "a/.", "a\nb", "a\u{7f}", &"x".repeat(1025)] {
            assert!(check(key).is_err(), "{key:?}");
        }
        for key in ["a", "a/b", "a b+%2F=?#é", "..a/b..", "0009/0000000000000001-0000000000000001.ltx"] {
            assert!(check(key).is_ok(), "{key:?}");
        }
    }

    #[test]
    fn encoding_covers_what_clients_decode() {
        assert_eq!(encode("a b+c%2F/é=?#"), "a%20b%2Bc%252F/%C3%A9%3D%3F%23");
    }
}
