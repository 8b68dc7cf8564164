//! The audit trail.

use axum::Json;
use axum::extract::State;
use domain::audit::{self, Filter};
use http::Uri;
use serde::Deserialize;
use wire::{AuditEvent, Page, Problem};

use crate::door::failure::Failure;
use crate::door::{page, query};
use crate::{App, convert};

#[derive(Debug, Deserialize)]
struct Asked {
    subject_kind: Option<String>,
    subject: Option<String>,
    limit: Option<i64>,
    cursor: Option<String>,
}

/// Who did what, to what, and why; newest first.
#[utoipa::path(get, path = "/v1/audit", tag = "audit", operation_id = "list_audit",
    params(
        ("subject_kind" = Option<String>, Query, description = "Only acts on this kind of thing, e.g. job"),
        ("subject" = Option<String>, Query, description = "Only acts on this one"),
        ("limit" = Option<u16>, Query, description = "1…200 items, 50 where not named"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before")),
    responses(
        (status = 200, description = "A page", body = Page<AuditEvent>),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(State(app): State<App>, uri: Uri) -> Result<Json<Page<AuditEvent>>, Failure> {
    let asked: Asked = query::read(&uri)?;
    let limit = page::limit(asked.limit)?;
    let before = page::cursor::<i64>(asked.cursor.as_deref())?;
    let filter = Filter { subject_kind: asked.subject_kind, subject: asked.subject, before };
    let mut conn = domain::db::session(app.pool()).await?;
    let found = audit::list(&mut conn, &filter, limit + 1).await?;
    Ok(Json(page::of(found, limit, |event| event.id.to_string(), convert::audit_event)))
}
