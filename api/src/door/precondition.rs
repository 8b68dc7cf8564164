//! `If-Match` and `ETag`: a change only of what the caller has seen.

use axum::response::Response;
use http::header::{ETAG, IF_MATCH, LOCATION};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Deserialize;
use wire::Code;

use super::failure::Failure;

/// The revision that the caller expects; `None` where it names none, or `*`.
///
/// # Errors
/// `malformed_request`.
pub fn expected(headers: &HeaderMap) -> Result<Option<i64>, Failure> {
    let mut values = headers.get_all(IF_MATCH).iter();
    let (first, second) = (values.next(), values.next());
    let Some(value) = first else { return Ok(None) };
    let text = if second.is_some() { None } else { value.to_str().ok().map(str::trim) };
    match text {
        Some("*") => Ok(None),
        Some(text) => revision(text).map(Some).ok_or_else(malformed),
        None => Err(malformed()),
    }
}

fn revision(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('"')?.strip_suffix('"')?;
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

fn malformed() -> Failure {
    let detail = "If-Match takes one revision in quotation marks, as the ETag of an earlier answer: If-Match: \"7\".";
    Failure::new(Code::MalformedRequest, detail)
}

/// Marks an answer with the revision that it shows.
pub fn mark(headers: &mut HeaderMap, revision: i64) {
    if let Ok(value) = HeaderValue::from_str(&format!("\"{revision}\"")) {
        headers.insert(ETAG, value);
    }
}

/// Marks an answer that is told again as it was marked the first time: with the revision that its body shows, and,
/// where it was created, with its place.
///
/// # Errors
/// `internal`: a kept answer is one that was told.
pub async fn mark_again(answer: Response, place: impl FnOnce(&str) -> Option<String>) -> Result<Response, Failure> {
    #[derive(Deserialize)]
    struct Shown {
        id: Option<String>,
        // Of a node, its generation.
        #[serde(alias = "generation")]
        revision: Option<i64>,
    }
    let (mut parts, body) = answer.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.map_err(|error| Failure::internal(&error))?;
    let shown: Shown = serde_json::from_slice(&body).map_err(|error| Failure::internal(&error))?;
    if let Some(revision) = shown.revision {
        mark(&mut parts.headers, revision);
    }
    let place = shown.id.filter(|_| parts.status == StatusCode::CREATED).and_then(|id| place(&id));
    if let Some(place) = place.and_then(|place| HeaderValue::from_str(&place).ok()) {
        parts.headers.insert(LOCATION, place);
    }
    Ok(Response::from_parts(parts, body.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_strong_tag_is_taken() {
        let read = |text: &'static str| {
            let headers = HeaderMap::from_iter([(IF_MATCH, HeaderValue::from_static(text))]);
            expected(&headers).ok()
        };
        assert_eq!(read("\"7\""), Some(Some(7)));
        assert_eq!(read("*"), Some(None));
        for bad in ["7", "W/\"7\"", "\"7\", \"8\"", "\"\"", "\"-1\"", "\"99999999999999999999\""] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
