//! One queue: what waits and runs in it, who paused it, what limits it, and the forms that change both.

use askama::Template;
use axum::Form;
use axum::extract::rejection::FormRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Redirect, Response};
use domain::authority::Permission;
use domain::db;
use domain::ids::{Kind, QueueName};
use domain::queue::{self, LimitsView, Paused, QueueView};
use serde::Deserialize;

use super::act;
use super::failure::Failure;
use super::page::{self, Ask, Shell, Visit};
use super::queues::{QueueRow, limits_words};
use super::verdict::Verdict;
use super::words::Age;
use crate::operating::Verb;
use crate::{App, operating};

#[derive(Template)]
#[template(path = "queue.html")]
struct Page {
    shell: Shell,
    row: QueueRow,
    cli: String,
    curl: String,
    limits: String,
    set: Option<Set>,
    revision: i64,
    running: String,
    running_per_key: String,
    starts: String,
    span_seconds: String,
    /// The token of the forms; none where the visitor may not send them.
    form: Option<String>,
}

/// Who set the limits.
struct Set {
    by: String,
    age: Age,
    reason: String,
}

pub(super) async fn show(State(app): State<App>, ask: Ask, Path(name): Path<String>) -> Result<Response, Failure> {
    let mut visit = Visit::begin(&app, ask).await?;
    let name = QueueName::new(name).map_err(|_| Failure::NotFound("queue"))?;
    let facts = visit.facts().await?;
    let found = queue::queue(visit.query(), name.as_str()).await?;
    let limits = queue::limits(visit.query(), &name).await?;
    let (now, verdict) = (page::now(&facts), Verdict::of(&facts));
    let number = |n: Option<u16>| n.map(|n| n.to_string()).unwrap_or_default();
    let may = visit.caller.may(Permission::QueuesOperate);
    let rate = limits.limits.starts_per_key;
    let page = Page {
        // One that nothing names can be limited or paused all the same, before its first job.
        row: QueueRow::of(&found.unwrap_or_else(|| empty(&name)), now),
        cli: format!("leasehold queue limit {name}"),
        curl: format!("/v1/queues/{name}"),
        limits: limits_words(&limits.limits),
        revision: limits.revision,
        running: number(limits.limits.running),
        running_per_key: number(limits.limits.running_per_key),
        starts: number(rate.map(|rate| rate.starts)),
        span_seconds: rate.map(|rate| rate.span.as_secs().to_string()).unwrap_or_default(),
        set: set(limits, now),
        form: visit.form_token(may),
        shell: visit.shell("queues", &format!("Queue {name}"), facts.overview.now, &verdict),
    };
    visit.answer(&page, facts.overview.now).await
}

fn set(limits: LimitsView, now: super::words::Now) -> Option<Set> {
    let age = now.ago(limits.set_at?);
    Some(Set { by: limits.set_by_name.unwrap_or_else(|| "the program itself".to_owned()), age, reason: limits.reason })
}

fn empty(name: &QueueName) -> QueueView {
    QueueView {
        name: name.to_string(),
        available: 0,
        waiting: 0,
        waiting_at_least: false,
        running: 0,
        oldest_due_at: None,
        served: false,
        pause: None,
        limits: queue::Limits::default(),
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Why {
    csrf: String,
    reason: String,
}

pub(super) async fn pause(
    State(app): State<App>,
    ask: Ask,
    Path(name): Path<String>,
    sent: Result<Form<Why>, FormRejection>,
) -> Result<Response, Failure> {
    hold_queue(&app, &ask, name, sent?, Verb::Pause).await
}

pub(super) async fn resume(
    State(app): State<App>,
    ask: Ask,
    Path(name): Path<String>,
    sent: Result<Form<Why>, FormRejection>,
) -> Result<Response, Failure> {
    hold_queue(&app, &ask, name, sent?, Verb::Resume).await
}

async fn hold_queue(
    app: &App,
    ask: &Ask,
    name: String,
    Form(sent): Form<Why>,
    verb: Verb,
) -> Result<Response, Failure> {
    let name = QueueName::new(name).map_err(|_| Failure::NotFound("queue"))?;
    let back = format!("/queues/{name}");
    hold(app, ask, &Paused::Queue(name), &sent.csrf, &sent.reason, verb, &back).await
}

#[derive(Debug, Deserialize)]
pub(super) struct OfKind {
    csrf: String,
    reason: String,
    kind: String,
}

pub(super) async fn pause_kind(
    State(app): State<App>,
    ask: Ask,
    sent: Result<Form<OfKind>, FormRejection>,
) -> Result<Response, Failure> {
    let Form(sent) = sent?;
    // The form offers the kinds that are known; another one was written by hand.
    let known = app.catalogue().iter().find(|spec| spec.kind.as_str() == sent.kind).map(|spec| spec.kind.clone());
    let kind = known.ok_or_else(|| Failure::Invalid(format!("{:?} is no kind that is known here.", sent.kind)))?;
    hold(&app, &ask, &Paused::Kind(kind), &sent.csrf, &sent.reason, Verb::Pause, "/queues#kinds").await
}

pub(super) async fn resume_kind(
    State(app): State<App>,
    ask: Ask,
    sent: Result<Form<OfKind>, FormRejection>,
) -> Result<Response, Failure> {
    let Form(sent) = sent?;
    let kind = Kind::new(sent.kind).map_err(|error| Failure::Invalid(format!("{error}.")))?;
    hold(&app, &ask, &Paused::Kind(kind), &sent.csrf, &sent.reason, Verb::Resume, "/queues#kinds").await
}

async fn hold(
    app: &App,
    ask: &Ask,
    what: &Paused,
    csrf: &str,
    reason: &str,
    verb: Verb,
    back: &str,
) -> Result<Response, Failure> {
    let caller = act::sender(app, ask, csrf, Permission::QueuesOperate).await?;
    let reason = why(reason)?;
    act::again(async || {
        let mut tx = domain::db::begin(app.pool()).await?;
        match verb {
            Verb::Pause => drop(operating::pause(&mut tx, &caller, what, reason).await?),
            Verb::Resume => drop(operating::resume(&mut tx, &caller, what, reason).await?),
        }
        Ok(tx.commit().await?)
    })
    .await?;
    if verb == Verb::Resume {
        app.hints().resumed(what);
    }
    Ok(Redirect::to(back).into_response())
}

#[derive(Debug, Deserialize)]
pub(super) struct LimitsForm {
    csrf: String,
    reason: String,
    revision: i64,
    running: String,
    running_per_key: String,
    starts: String,
    span_seconds: String,
}

pub(super) async fn limit(
    State(app): State<App>,
    ask: Ask,
    Path(name): Path<String>,
    sent: Result<Form<LimitsForm>, FormRejection>,
) -> Result<Response, Failure> {
    let Form(sent) = sent?;
    let name = QueueName::new(name).map_err(|_| Failure::NotFound("queue"))?;
    let caller = act::sender(&app, &ask, &sent.csrf, Permission::QueuesOperate).await?;
    let reason = why(&sent.reason)?;
    let limits = operating::limits(&asked(&sent)?);
    act::again(async || {
        let mut tx = domain::db::begin(app.pool()).await?;
        // What was set since the form was opened is not put back.
        let done = operating::limit(&mut tx, &caller, &name, &limits, reason, Some(sent.revision)).await;
        Ok(db::finish(tx, done).await?)
    })
    .await?;
    app.hints().freed(&name);
    Ok(Redirect::to(&format!("/queues/{name}")).into_response())
}

/// An empty field is no limit.
fn asked(sent: &LimitsForm) -> Result<wire::LimitsRequest, Failure> {
    let number = |name: &str, text: &str| match text.trim() {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| Failure::Invalid(format!("{name}: {text:?} is no whole number."))),
    };
    let starts = match (number("starts", &sent.starts)?, number("seconds", &sent.span_seconds)?) {
        (Some(starts), Some(span_seconds)) => Some(wire::Rate { starts, span_seconds }),
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => {
            return Err(Failure::Invalid("A rate has both, so many starts and so many seconds.".to_owned()));
        }
    };
    Ok(wire::LimitsRequest {
        running: number("running", &sent.running)?,
        running_per_key: number("running of a key", &sent.running_per_key)?,
        starts_per_key: starts,
        reason: None,
    })
}

fn why(reason: &str) -> Result<&str, Failure> {
    operating::reason(Some(reason)).map_err(|rule| Failure::Invalid(format!("The reason {rule}.")))
}
