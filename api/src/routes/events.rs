//! The stream of hints.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use futures::stream;
use http::HeaderMap;
use wire::{Code, Problem};

use crate::App;
use crate::door::failure::Failure;
use crate::events::{Listener, Position, Topic};

/// A comment goes out as often, so that what stands between does not cut an idle stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// When a caller should try again where every place is taken.
const RETRY_SECONDS: u32 = 10;

/// Hints at what changed: `jobs`, `workers`, `moves`. A hint carries no data: ask again for what is shown.
///
/// With the `Last-Event-ID` of an earlier stream, what changed since comes first. An id that is not known, e.g. of a
/// process that was restarted, is answered with `reset`: ask again for everything.
#[utoipa::path(get, path = "/v1/events", tag = "events", operation_id = "listen",
    params(("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was seen")),
    responses(
        (status = 200, description = "Server-sent events", body = String, content_type = "text/event-stream"),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn stream(State(app): State<App>, headers: HeaderMap) -> Result<Response, Failure> {
    let Some(listener) = app.hub().listen() else {
        let detail = "As many listeners as may be are connected: ask again later, or poll the lists.";
        return Err(Failure::new(Code::TooManyListeners, detail).retry_after(RETRY_SECONDS));
    };
    let asked = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    Ok(events(app, listener, asked))
}

/// The stream of one listener that saw `last_id` last.
pub(crate) fn events(app: App, mut listener: Listener, last_id: Option<&str>) -> Response {
    let position = *listener.position.borrow_and_update();
    let known = last_id.map(|id| app.hub().count_of(id));
    let first: Vec<Event> = match known {
        // A new listener learns where it stands; a known one, what it missed.
        None => vec![Event::default().event("hello").id(app.hub().id(position)).data("{}")],
        Some(None) => vec![Event::default().event("reset").id(app.hub().id(position)).data("{}")],
        Some(Some(count)) => hints(&app, position, count),
    };
    let shutdown = app.shutdown().clone();
    let later = stream::unfold((app, listener, position), async |(app, mut listener, seen)| {
        listener.position.changed().await.ok()?;
        let position = *listener.position.borrow_and_update();
        let events = hints(&app, position, seen.count());
        Some((stream::iter(events), (app, listener, position)))
    });
    let events = stream::iter(first).chain(later.flatten()).map(Ok::<_, Infallible>);
    let events = events.take_until(shutdown.cancelled_owned());
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

fn hints(app: &App, position: Position, since: u64) -> Vec<Event> {
    let id = app.hub().id(position);
    let event = |topic: Topic| Event::default().event(topic.as_str()).id(id.clone()).data("{}");
    position.changed_since(since).map(event).collect()
}
