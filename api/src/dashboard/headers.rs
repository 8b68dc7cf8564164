//! What every answer of the dashboard says to the browser, and what its cookies are.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// The policy: our own files only, no inline script or style, forms to ourselves, no frames around us.
pub(super) const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
/// Asks for the live regions only.
pub(super) const PART: HeaderName = HeaderName::from_static("x-leasehold-part");
/// The database's moment of an answer, on 304 too: what the browser lets its ages tick by.
pub(super) const NOW: HeaderName = HeaderName::from_static("x-leasehold-now");

/// Adds the security headers to every answer.
pub(super) async fn secure(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    harden(response.headers_mut());
    response
}

/// The security headers themselves, for answers that are made outside of the dashboard's routes.
pub(super) fn harden(headers: &mut HeaderMap) {
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Job ids stand in addresses; no other site learns them.
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

/// A cookie that scripts cannot read and that no other site's request carries. `None` for a value that is no cookie's.
pub(super) fn set_cookie(name: &str, value: &str, max_age_seconds: u64, secure: bool) -> Option<HeaderValue> {
    let secure = if secure { "; Secure" } else { "" };
    let text = format!("{name}={value}; Path=/; Max-Age={max_age_seconds}; HttpOnly; SameSite=Strict{secure}");
    HeaderValue::try_from(text).ok()
}

/// A path of ours, fit for a redirect: never another host's, never a header of its own.
pub(super) fn local_path(text: &str) -> Option<&str> {
    let plain = text.bytes().all(|b| b.is_ascii_graphic() && b != b'\\');
    (text.len() <= 2000 && plain && text.starts_with('/') && !text.starts_with("//")).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::door::session::cookie;

    #[test]
    fn only_paths_of_ours_are_redirected_to() {
        for good in ["/", "/jobs?state=running&kind=a.b", "/jobs/019cea2d#why"] {
            assert_eq!(local_path(good), Some(good));
        }
        for bad in ["", "jobs", "//evil.example", "/\\evil.example", "https://evil.example", "/a\r\nb: c", "/é", "/a b"]
        {
            assert_eq!(local_path(bad), None, "{bad:?}");
        }
        assert_eq!(local_path(&format!("/{}", "a".repeat(2000))), None);
    }

    #[test]
    fn a_cookie_is_found_among_others() {
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, HeaderValue::from_static("a=1; lh_theme=dark; lh_theme=light"));
        headers.append(header::COOKIE, HeaderValue::from_static("b=2=3"));
        assert_eq!(cookie(&headers, "lh_theme"), Some("dark"));
        assert_eq!(cookie(&headers, "b"), Some("2=3"));
        assert_eq!(cookie(&headers, "theme"), None);
    }

    #[test]
    fn a_cookie_is_hidden_from_scripts_and_from_other_sites() {
        let header = |secure| set_cookie("a", "b", 60, secure).expect("a plain value");
        assert_eq!(header(false), "a=b; Path=/; Max-Age=60; HttpOnly; SameSite=Strict");
        assert_eq!(header(true), "a=b; Path=/; Max-Age=60; HttpOnly; SameSite=Strict; Secure");
        assert_eq!(set_cookie("a", "b\r\nc", 60, true), None);
    }
}
