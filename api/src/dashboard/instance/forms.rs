//! The forms that steer an instance: each does what the API's door of the same name does, audited alike.

use std::time::Duration;

use axum::Form;
use axum::extract::rejection::FormRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Redirect, Response};
use domain::authority::Permission;
use domain::instances::moves::{self, CutWish, Wish};
use domain::{db, instances};
use serde::Deserialize;

use super::{address, named, rehearsal};
use crate::App;
use crate::dashboard::act;
use crate::dashboard::failure::Failure;
use crate::dashboard::page::Ask;

/// Whose instance, and which.
type Place = Path<(String, String)>;

#[derive(Debug, Deserialize)]
pub(in crate::dashboard) struct Start {
    csrf: String,
    region: String,
    /// `auto` or `manual`.
    cut: String,
    /// The longest freeze that may be predicted, in seconds; empty: any.
    #[serde(default)]
    freeze_budget: String,
}

impl Start {
    /// How the move is asked for.
    fn wish(&self) -> Result<Wish, Failure> {
        if self.region.is_empty() {
            return Err(Failure::Invalid("Choose the region to which it moves.".to_owned()));
        }
        let cut_auto = match self.cut.as_str() {
            "auto" => true,
            "manual" => false,
            _ => return Err(Failure::Invalid("Who cuts it is auto or manual.".to_owned())),
        };
        Ok(Wish { cut_auto, freeze_budget: budget(&self.freeze_budget)?, ..Wish::default() })
    }
}

/// A freeze's budget as a form or an address has it: whole seconds; empty: any. Its bounds are the domain's.
pub(super) fn budget(text: &str) -> Result<Option<Duration>, Failure> {
    let seconds = Some(text.trim()).filter(|text| !text.is_empty()).map(str::parse::<u32>).transpose();
    let seconds =
        seconds.map_err(|_| Failure::Invalid("The freeze's budget is 1 to 86400 whole seconds.".to_owned()))?;
    Ok(seconds.map(|seconds| Duration::from_secs(seconds.into())))
}

#[derive(Debug, Deserialize)]
pub(in crate::dashboard) struct Confirmed {
    csrf: String,
    /// The host, typed: what follows cannot be taken back.
    confirm: String,
    /// Present where the box is ticked: also over the budget.
    force: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(in crate::dashboard) struct Plain {
    csrf: String,
}

/// Begins a move.
pub(in crate::dashboard) async fn begin(
    State(app): State<App>,
    ask: Ask,
    place: Place,
    sent: Result<Form<Start>, FormRejection>,
) -> Result<Response, Failure> {
    start(&app, &ask, place, sent?, false).await
}

/// Begins nothing, and shows what the move of the same form would meet.
pub(in crate::dashboard) async fn rehearse(
    State(app): State<App>,
    ask: Ask,
    place: Place,
    sent: Result<Form<Start>, FormRejection>,
) -> Result<Response, Failure> {
    start(&app, &ask, place, sent?, true).await
}

async fn start(
    app: &App,
    ask: &Ask,
    Path((owner, host)): Place,
    Form(sent): Form<Start>,
    dry_run: bool,
) -> Result<Response, Failure> {
    let (owner, host) = named(owner, host)?;
    let caller = act::sender(app, ask, &sent.csrf, Permission::MovesWrite).await?;
    let wish = sent.wish()?;
    let (queue, query) = act::again(async || {
        let mut conn = db::session(app.pool()).await?;
        let done = if dry_run {
            let told = moves::rehearsal::rehearse(&mut conn, &owner, &host, &sent.region, wish).await?;
            let query = rehearsal::query(&told);
            (told.look.map(|look| look.queue), query)
        } else {
            let started = moves::start_if(&mut conn, &owner, &host, &sent.region, caller.actor(), wish).await?;
            (Some(started.queue), String::new())
        };
        Ok(conn.done(done).await?)
    })
    .await?;
    if let Some(queue) = &queue {
        app.hints().add(queue, 1);
    }
    Ok(Redirect::to(&format!("{}{query}", address(owner.as_str(), host.as_str()))).into_response())
}

/// Lets a ready move be cut.
pub(in crate::dashboard) async fn cut(
    State(app): State<App>,
    ask: Ask,
    place: Place,
    sent: Result<Form<Confirmed>, FormRejection>,
) -> Result<Response, Failure> {
    steer(&app, &ask, place, sent?, true).await
}

/// Gives a move up.
pub(in crate::dashboard) async fn abort(
    State(app): State<App>,
    ask: Ask,
    place: Place,
    sent: Result<Form<Confirmed>, FormRejection>,
) -> Result<Response, Failure> {
    steer(&app, &ask, place, sent?, false).await
}

async fn steer(
    app: &App,
    ask: &Ask,
    Path((owner, host)): Place,
    Form(sent): Form<Confirmed>,
    cut: bool,
) -> Result<Response, Failure> {
    let (owner, host) = named(owner, host)?;
    let caller = act::sender(app, ask, &sent.csrf, Permission::MovesWrite).await?;
    if sent.confirm.trim() != host.as_str() {
        return Err(Failure::Invalid(format!("To confirm it, type the host: {host}.")));
    }
    let done = act::again(async || {
        let mut conn = db::session(app.pool()).await?;
        let done = if cut {
            let wish = CutWish { force: sent.force.is_some(), ..CutWish::default() };
            moves::cut_if(&mut conn, &owner, &host, caller.actor(), wish).await?
        } else {
            moves::abort(&mut conn, &owner, &host, caller.actor(), None).await?
        };
        Ok(conn.done(done).await?)
    })
    .await?;
    if let Some(queue) = &done.queue {
        app.hints().add(queue, 1);
    }
    Ok(Redirect::to(&address(owner.as_str(), host.as_str())).into_response())
}

/// Parks an instance.
pub(in crate::dashboard) async fn park(
    State(app): State<App>,
    ask: Ask,
    place: Place,
    sent: Result<Form<Plain>, FormRejection>,
) -> Result<Response, Failure> {
    set_parked(&app, &ask, place, sent?, true).await
}

/// Lets a parked instance run again.
pub(in crate::dashboard) async fn wake(
    State(app): State<App>,
    ask: Ask,
    place: Place,
    sent: Result<Form<Plain>, FormRejection>,
) -> Result<Response, Failure> {
    set_parked(&app, &ask, place, sent?, false).await
}

/// Has an instance's process end and another start.
pub(in crate::dashboard) async fn restart(
    State(app): State<App>,
    ask: Ask,
    Path((owner, host)): Place,
    sent: Result<Form<Plain>, FormRejection>,
) -> Result<Response, Failure> {
    let Form(sent) = sent?;
    let (owner, host) = named(owner, host)?;
    let caller = act::sender(&app, &ask, &sent.csrf, Permission::MovesWrite).await?;
    act::again(async || {
        let mut conn = db::session(app.pool()).await?;
        instances::restart(&mut conn, (&owner, &host), None, caller.actor()).await?;
        Ok(conn.done(()).await?)
    })
    .await?;
    Ok(Redirect::to(&address(owner.as_str(), host.as_str())).into_response())
}

async fn set_parked(
    app: &App,
    ask: &Ask,
    Path((owner, host)): Place,
    Form(sent): Form<Plain>,
    parked: bool,
) -> Result<Response, Failure> {
    let (owner, host) = named(owner, host)?;
    let caller = act::sender(app, ask, &sent.csrf, Permission::MovesWrite).await?;
    act::again(async || {
        let mut conn = db::session(app.pool()).await?;
        instances::set_parked(&mut conn, &owner, &host, parked, caller.actor()).await?;
        Ok(conn.done(()).await?)
    })
    .await?;
    Ok(Redirect::to(&address(owner.as_str(), host.as_str())).into_response())
}
