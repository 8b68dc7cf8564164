//! The stream of hints.

use std::convert::Infallible;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use futures::stream;
use http::HeaderMap;
use wire::{Code, Problem};

use crate::App;
use crate::door::auth::{self, Caller};
use crate::door::failure::Failure;
use crate::events::{Full, Listener, Position, Topic};

/// Where it stands in the table of accesses.
const PATH: &str = "/v1/events";
/// When a caller should try again where every place is taken.
const RETRY_SECONDS: u32 = 10;

/// Hints at what changed: `jobs`, `workers`, `moves`. A hint carries no data: ask again for what is shown.
///
/// With the `Last-Event-ID` of an earlier stream, what changed since comes first. An id that is not known, e.g. of a
/// process that was restarted, is answered with `reset`: ask again for everything.
///
/// A key has a share of the places. The stream ends soon after its key is revoked or expires.
#[utoipa::path(get, path = "/v1/events", tag = "events", operation_id = "listen",
    params(("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was seen")),
    responses(
        (status = 200, description = "Server-sent events", body = String, content_type = "text/event-stream"),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn stream(State(app): State<App>, caller: Caller, headers: HeaderMap) -> Result<Response, Failure> {
    let listener = app.hub().listen(caller.key).map_err(|full| {
        let detail = match full {
            Full::Process => "As many listeners as may be are connected: ask again later, or poll the lists.",
            Full::Key => "This key listens as often as one key may: close a stream of it, or poll the lists.",
        };
        Failure::new(Code::TooManyListeners, detail).retry_after(RETRY_SECONDS)
    })?;
    let asked = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let over = over(app.clone(), headers.clone());
    Ok(events(app, listener, asked, over))
}

/// Ends when the key would no longer open the stream: revoked, expired, or without the permission; a browser's also
/// with its session. While the database does not answer, nothing is known to have ended.
async fn over(app: App, headers: HeaderMap) {
    loop {
        tokio::time::sleep(app.config().keep_alive).await;
        match auth::still(&app, "GET", PATH, &headers).await {
            Err(failure) if matches!(failure.code(), Code::Unauthenticated | Code::PermissionDenied) => return,
            Ok(()) | Err(_) => {}
        }
    }
}

/// The stream of one listener that saw `last_id` last.
fn events(
    app: App,
    mut listener: Listener,
    last_id: Option<&str>,
    over: impl Future<Output = ()> + Send + 'static,
) -> Response {
    let position = *listener.position.borrow_and_update();
    let known = last_id.map(|id| app.hub().count_of(id));
    let first: Vec<Event> = match known {
        // A new listener learns where it stands; a known one, what it missed.
        None => vec![Event::default().event("hello").id(app.hub().id(position)).data("{}")],
        Some(None) => vec![Event::default().event("reset").id(app.hub().id(position)).data("{}")],
        Some(Some(count)) => hints(&app, position, count),
    };
    // A comment goes out as often, so that what stands between does not cut an idle stream.
    let keep_alive = KeepAlive::new().interval(app.config().keep_alive);
    let shutdown = app.shutdown().clone();
    let later = stream::unfold((app, listener, position), async |(app, mut listener, seen)| {
        listener.position.changed().await.ok()?;
        let position = *listener.position.borrow_and_update();
        let events = hints(&app, position, seen.count());
        Some((stream::iter(events), (app, listener, position)))
    });
    let events = stream::iter(first).chain(later.flatten()).map(Ok::<_, Infallible>);
    let end = async move {
        shutdown.run_until_cancelled(over).await;
    };
    Sse::new(events.take_until(end)).keep_alive(keep_alive).into_response()
}

fn hints(app: &App, position: Position, since: u64) -> Vec<Event> {
    let id = app.hub().id(position);
    let event = |topic: Topic| Event::default().event(topic.as_str()).id(id.clone()).data("{}");
    position.changed_since(since).map(event).collect()
}
