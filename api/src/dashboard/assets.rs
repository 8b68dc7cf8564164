//! The script, the style and the icon: embedded, addressed by their content, kept by browsers for good.

use std::sync::LazyLock;

use axum::extract::{Path, RawQuery};
use axum::response::{IntoResponse as _, Response};
use domain::digest;
use http::{HeaderMap, StatusCode, header};

/// One embedded file.
struct Asset {
    name: &'static str,
    kind: &'static str,
    body: &'static str,
}

const FILES: [Asset; 3] = [
    Asset { name: "dashboard.css", kind: "text/css; charset=utf-8", body: include_str!("../../assets/dashboard.css") },
    Asset {
        name: "dashboard.js",
        kind: "text/javascript; charset=utf-8",
        body: include_str!("../../assets/dashboard.js"),
    },
    Asset { name: "favicon.svg", kind: "image/svg+xml", body: include_str!("../../assets/favicon.svg") },
];

/// The addresses of the files, each with its version.
#[derive(Debug)]
pub(super) struct Addresses {
    pub(super) css: String,
    pub(super) js: String,
    pub(super) favicon: String,
}

/// Made once: the files are constants.
pub(super) static ADDRESSES: LazyLock<Addresses> = LazyLock::new(|| {
    let [css, js, favicon] = FILES.map(|file| format!("/assets/{}?v={}", file.name, version(file.body)));
    Addresses { css, js, favicon }
});

/// The beginning of the content's digest: enough to tell one release's file from another's.
fn version(body: &str) -> String {
    let [a, b, c, d, ..] = digest::sha256(body.as_bytes());
    hex::encode([a, b, c, d])
}

pub(super) async fn serve(Path(name): Path<String>, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    let Some(file) = FILES.iter().find(|file| file.name == name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let version = version(file.body);
    let etag = format!("\"{version}\"");
    // An address without the right version, e.g. of an older page, must not be kept under that address.
    let keep = if query.as_deref() == Some(&format!("v={version}")) {
        "public, max-age=31536000, immutable"
    } else {
        "no-cache"
    };
    let known = headers.get(header::IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == etag.as_bytes());
    let head = [(header::CACHE_CONTROL, keep.to_owned()), (header::ETAG, etag)];
    if known {
        return (StatusCode::NOT_MODIFIED, head).into_response();
    }
    (head, [(header::CONTENT_TYPE, file.kind)], file.body).into_response()
}
