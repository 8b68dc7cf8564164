//! The API's description: derived from the routes, so that it cannot say what is not there.

use std::fmt::Write as _;
use std::sync::LazyLock;

use utoipa::openapi::path::{Operation, Parameter, PathItem};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{ComponentsBuilder, InfoBuilder, LicenseBuilder, OpenApi, RefOr, SecurityRequirement};
use wire::Code;

use crate::door::access;
use crate::routes;

/// The description of every route, in OpenAPI 3.1.
///
/// # Panics
/// When the table of permissions and the routes do not name the same: our own mistake, found at the first start.
#[must_use]
pub fn openapi() -> OpenApi {
    let (_, mut openapi) = routes::described().split_for_parts();
    openapi.info = InfoBuilder::new()
        .title("Leasehold")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "A fleet's control plane: durable jobs under fenced leases, and instances that move between regions.\n\n\
             Every error is an `application/problem+json` with a stable `code`; `/docs/errors/<code>` explains it.",
        ))
        .license(Some(LicenseBuilder::new().name("MIT OR Apache-2.0").build()))
        .build();
    let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    let mut components = openapi.components.take().unwrap_or_else(|| ComponentsBuilder::new().build());
    components.security_schemes.insert("key".to_owned(), scheme.into());
    openapi.components = Some(components);
    let mut described = 0;
    for (path, item) in &mut openapi.paths.paths {
        for (method, operation) in operations_mut(item) {
            let access = access::of(method, path);
            let access = access.unwrap_or_else(|| panic!("{method} {path} is missing in the table of permissions"));
            described += 1;
            let Some((permission, honours)) = access.needed() else { continue };
            let told = operation.description.take().map_or_else(String::new, |text| format!("{text}\n\n"));
            operation.description = Some(format!("{told}{}", honours.sentence()));
            operation.security = Some(vec![SecurityRequirement::new("key", [permission.as_str()])]);
        }
    }
    assert_eq!(described, access::TABLE.len(), "the table of permissions names a route that is not there");
    openapi
}

/// The description, built once.
pub(crate) fn described() -> &'static OpenApi {
    static DESCRIBED: LazyLock<OpenApi> = LazyLock::new(openapi);
    &DESCRIBED
}

/// The description's JSON text, built once.
pub(crate) fn text() -> &'static str {
    static TEXT: LazyLock<String> =
        LazyLock::new(|| serde_json::to_string(described()).expect("the description has string keys only"));
    &TEXT
}

/// The description as a page for people, built once.
pub(crate) fn reference() -> &'static str {
    static REFERENCE: LazyLock<String> = LazyLock::new(|| page(described()));
    &REFERENCE
}

/// Each operation of a path, with its method.
pub(crate) fn operations(item: &PathItem) -> impl Iterator<Item = (&'static str, &Operation)> {
    [("GET", &item.get), ("PUT", &item.put), ("POST", &item.post), ("DELETE", &item.delete), ("PATCH", &item.patch)]
        .into_iter()
        .filter_map(|(method, operation)| operation.as_ref().map(|operation| (method, operation)))
}

/// The parameters of an operation, of its path, query and headers.
pub(crate) fn parameters(operation: &Operation) -> impl Iterator<Item = &Parameter> {
    operation.parameters.iter().flatten().filter_map(|parameter| match parameter {
        RefOr::T(parameter) => Some(parameter),
        // None of ours is shared by reference.
        RefOr::Ref(_) => None,
    })
}

fn operations_mut(item: &mut PathItem) -> impl Iterator<Item = (&'static str, &mut Operation)> {
    [
        ("GET", &mut item.get),
        ("PUT", &mut item.put),
        ("POST", &mut item.post),
        ("DELETE", &mut item.delete),
        ("PATCH", &mut item.patch),
    ]
    .into_iter()
    .filter_map(|(method, operation)| operation.as_mut().map(|operation| (method, operation)))
}

const STYLE: &str = ":root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}body{max-width:60rem;margin:2rem \
                     auto;padding:0 1rem}h2{margin-top:3rem}h3{font-family:ui-monospace,monospace;margin-top:2rem}\
                     table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.25rem \
                     .75rem .25rem 0;border-bottom:1px solid #8884}code{font-family:ui-monospace,monospace}";

/// The description as a page for people: headings and tables, no script.
#[must_use]
pub fn page(openapi: &OpenApi) -> String {
    let mut html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>Leasehold API</title><style>{STYLE}</style></head><body>\
         <h1>Leasehold API {}</h1>",
        escape(&openapi.info.version)
    );
    paragraphs(&mut html, openapi.info.description.as_deref().unwrap_or_default());
    let _ = write!(html, "<p>For programs: <a href=\"/openapi.json\">openapi.json</a>.</p>");
    for (path, item) in &openapi.paths.paths {
        let _ = write!(html, "<h2><code>{}</code></h2>", escape(path));
        for (method, operation) in operations(item) {
            describe(&mut html, method, path, operation);
        }
    }
    html.push_str("<h2>Error codes</h2><table><tr><th>Code</th><th>Status</th><th>Title</th></tr>");
    for code in Code::ALL {
        let (name, status, title) = (code.as_str(), code.status(), escape(code.title()));
        let _ = write!(
            html,
            "<tr><td><a href=\"/docs/errors/{name}\"><code>{name}</code></a></td><td>{status}</td><td>{title}</td></tr>"
        );
    }
    html.push_str("</table></body></html>");
    html
}

fn describe(html: &mut String, method: &str, path: &str, operation: &Operation) {
    let _ = write!(html, "<h3>{method} {}</h3>", escape(path));
    paragraphs(html, operation.summary.as_deref().unwrap_or_default());
    paragraphs(html, operation.description.as_deref().unwrap_or_default());
    match access::of(method, path).and_then(access::Access::needed) {
        Some((permission, _)) => {
            let _ = write!(html, "<p>Needs the permission <code>{permission}</code>.</p>");
        }
        None => html.push_str("<p>Open to everybody.</p>"),
    }
    let mut parameters = parameters(operation).peekable();
    if parameters.peek().is_some() {
        html.push_str("<table><tr><th>Parameter</th><th>In</th><th>Meaning</th></tr>");
        for parameter in parameters {
            let place = serde_json::to_value(&parameter.parameter_in).unwrap_or_default();
            let _ = write!(
                html,
                "<tr><td><code>{}</code></td><td>{}</td><td>{}</td></tr>",
                escape(&parameter.name),
                place.as_str().unwrap_or_default(),
                escape(parameter.description.as_deref().unwrap_or_default())
            );
        }
        html.push_str("</table>");
    }
    html.push_str("<table><tr><th>Answer</th><th>Meaning</th></tr>");
    for (status, response) in &operation.responses.responses {
        let meaning = match response {
            RefOr::T(response) => response.description.as_str(),
            RefOr::Ref(_) => "",
        };
        let _ = write!(html, "<tr><td>{}</td><td>{}</td></tr>", escape(status), escape(meaning));
    }
    html.push_str("</table>");
}

fn paragraphs(html: &mut String, text: &str) {
    for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        let _ = write!(html, "<p>{}</p>", escape(paragraph.trim()));
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

macro_rules! error_pages {
    ($($name:ident = $text:literal;)*) => {
        /// The help page of a code, in Markdown.
        #[must_use]
        pub const fn error_page(code: Code) -> &'static str {
            match code { $(Code::$name => include_str!(concat!("../../docs/errors/", $text, ".md")),)* }
        }
    };
}

error_pages! {
    MalformedRequest = "malformed_request";
    WrongContentType = "wrong_content_type";
    InvalidQuery = "invalid_query";
    RegionUnknown = "region_unknown";
    RegionUnarmed = "region_unarmed";
    RegionCannotHost = "region_cannot_host";
    SameRegion = "same_region";
    KindNotMovable = "kind_not_movable";
    BackingNotMovable = "backing_not_movable";
    Replica = "replica";
    FleetNotMovable = "fleet_not_movable";
    PoolNotMovable = "pool_not_movable";
    HibernateRequired = "hibernate_required";
    Unauthenticated = "unauthenticated";
    EnrolmentRefused = "enrolment_refused";
    SessionRefused = "session_refused";
    PermissionDenied = "permission_denied";
    NotFound = "not_found";
    MethodNotAllowed = "method_not_allowed";
    JobConflict = "job_conflict";
    MoveInFlight = "move_in_flight";
    NoMove = "no_move";
    MoveNotReady = "move_not_ready";
    FreezeOverBudget = "freeze_over_budget";
    MoveNotCutting = "move_not_cutting";
    MovePastRecall = "move_past_recall";
    InstanceServed = "instance_served";
    RegionPurging = "region_purging";
    NotPlaced = "not_placed";
    HostTaken = "host_taken";
    RegionInUse = "region_in_use";
    NodeDecommissioned = "node_decommissioned";
    StaleReport = "stale_report";
    NameTaken = "name_taken";
    StaleRevision = "stale_revision";
    BodyTooLarge = "body_too_large";
    PayloadTooLarge = "payload_too_large";
    ValidationFailed = "validation_failed";
    UnknownKind = "unknown_kind";
    KindNotPublic = "kind_not_public";
    IdempotencyKeyReused = "idempotency_key_reused";
    RateLimited = "rate_limited";
    Internal = "internal";
    DatabaseUnavailable = "database_unavailable";
    RequestTimeout = "request_timeout";
    TooManyListeners = "too_many_listeners";
    FormTokenMismatch = "form_token_mismatch";
}
