//! The API's description, for programs and for people.

use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use wire::Code;

use crate::door::failure::Failure;
use crate::openapi;

/// Nothing is loaded and nothing runs; the page's own style is all that it may use.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'";

/// The API's description in OpenAPI 3.1.
#[utoipa::path(get, path = "/openapi.json", tag = "docs", operation_id = "openapi",
    responses((status = 200, description = "OpenAPI 3.1", body = Object)))]
pub(super) async fn description() -> Response {
    ([(CONTENT_TYPE, "application/json")], openapi::text()).into_response()
}

/// The API's description as a page to read.
#[utoipa::path(get, path = "/docs", tag = "docs", operation_id = "reference",
    responses((status = 200, description = "The reference", body = String, content_type = "text/html")))]
pub(super) async fn reference() -> Response {
    let head = [(CONTENT_TYPE, "text/html; charset=utf-8"), (CONTENT_SECURITY_POLICY, POLICY)];
    (head, openapi::reference()).into_response()
}

/// What an error code means and what to do about it.
#[utoipa::path(get, path = "/docs/errors/{code}", tag = "docs", operation_id = "error_page",
    params(("code" = String, Path, description = "The code of a problem")),
    responses(
        (status = 200, description = "The page, in Markdown", body = String, content_type = "text/markdown"),
        (status = "default", description = "Why not", body = wire::Problem, content_type = "application/problem+json")))]
pub(super) async fn error_page(Path(code): Path<String>) -> Result<Response, Failure> {
    let code = Code::parse(&code).ok_or_else(Failure::not_found)?;
    let page = openapi::error_page(code);
    Ok(([(CONTENT_TYPE, "text/markdown; charset=utf-8")], page).into_response())
}
