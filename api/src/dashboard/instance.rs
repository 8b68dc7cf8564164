//! One instance: where it is and why, what its move does, what holds it up, what the last one left, and the forms that
//! steer it.

use askama::Template;
use axum::extract::{Path, State};
use axum::response::Response;
use domain::authority::Permission;
use domain::ids::{AppName, Host, MoveId};
use domain::instances::moves::{self, Move, MoveState, Outcome, policy};
use domain::instances::why::{Phase, Why};
use domain::instances::{self, Receipt};
use domain::nodes;

use super::address::Address;
use super::failure::{Failure, form_urlencoded};
use super::page::{self, Ask, Id, Meter, Shell, Visit};
use super::verdict::Verdict;
use super::words::{self, Age, Now};
use crate::App;

mod face;
mod forms;
mod rehearsal;
mod story;

use face::{Figure, Stage, WhyFace};
pub(super) use forms::{abort, begin, cut, park, rehearse, restart, wake};
use story::{Act, Fact, Row};

/// Moves of the instance that its page lists.
const MOVES: u16 = 10;
/// Regions that a form offers.
const REGIONS: u16 = 200;

#[derive(Template)]
#[template(path = "instance.html")]
struct Page {
    shell: Shell,
    app: String,
    host: String,
    href: String,
    cli: String,
    curl: String,
    word: String,
    tone: &'static str,
    glyph: &'static str,
    sentence: String,
    stages: Vec<Stage>,
    why: WhyFace,
    progress: Option<Meter>,
    figures: Vec<Figure>,
    acts_title: &'static str,
    acts: Vec<Act>,
    journal: Vec<Row>,
    receipt_title: String,
    receipt: Vec<Fact>,
    facts: Vec<Fact>,
    job: Option<Id>,
    earlier: Vec<Earlier>,
    /// The token of the forms; none where the visitor may not send them.
    form: Option<String>,
    parked: bool,
    /// Regions to which it may begin to move; none while one is in flight.
    targets: Vec<String>,
    may_cut: bool,
    may_abort: bool,
    from: String,
    to: String,
    freeze: String,
    /// A dry run that was asked for.
    rehearsal: Option<rehearsal::Face>,
    /// What its move may be predicted to take, where that is less than what is predicted.
    over_budget: Option<String>,
}

/// A move of the list.
struct Earlier {
    id: Id,
    way: String,
    end: String,
    age: Age,
}

/// The address of an instance's page.
pub(super) fn address(app: &str, host: &str) -> String {
    format!("/instances/{}/{}", form_urlencoded(app), form_urlencoded(host))
}

/// What is no name names nothing.
fn named(app: String, host: String) -> Result<(AppName, Host), Failure> {
    let app = AppName::new(app).map_err(|_| Failure::NotFound("instance"))?;
    Ok((app, Host::new(host).map_err(|_| Failure::NotFound("instance"))?))
}

pub(super) async fn show(
    State(app): State<App>,
    ask: Ask,
    Path((owner, host)): Path<(String, String)>,
    Address(asked): Address<rehearsal::Asked>,
) -> Result<Response, Failure> {
    let mut visit = Visit::begin(&app, ask).await?;
    let (owner, host) = named(owner, host)?;
    let why = find(&mut visit, &owner, &host).await?;
    let receipt = match &why.newest {
        Some(newest) => receipt(&mut visit, newest.id).await?,
        None => None,
    };
    render(visit, why, receipt, &asked).await
}

/// One move of an instance, which may be long over, on the page of its instance.
pub(super) async fn show_move(State(app): State<App>, ask: Ask, Path(id): Path<String>) -> Result<Response, Failure> {
    let mut visit = Visit::begin(&app, ask).await?;
    let id: MoveId = id.parse().map_err(|_| Failure::NotFound("move"))?;
    let receipt = receipt(&mut visit, id).await?.ok_or(Failure::NotFound("move"))?;
    let why = find(&mut visit, &receipt.moved.app, &receipt.moved.host).await?;
    render(visit, why, Some(receipt), &rehearsal::Asked::default()).await
}

async fn find(visit: &mut Visit, app: &AppName, host: &Host) -> Result<Why, Failure> {
    let why = instances::why_of(visit.queries(0), app, host).await?.ok_or(Failure::NotFound("instance"))?;
    // The record, its route and two for the newest move; two more for what there is of that, and of the job; the target's
    // region.
    let open = why.newest.as_ref().is_some_and(|it| it.finished_at.is_none());
    let made = 4 + 2 * u32::from(why.newest.is_some()) + 2 * u32::from(why.job.is_some()) + u32::from(open);
    visit.queries(made);
    Ok(why)
}

async fn receipt(visit: &mut Visit, id: MoveId) -> Result<Option<Receipt>, Failure> {
    Ok(instances::receipt_of(visit.queries(3), id).await?)
}

async fn render(
    mut visit: Visit,
    why: Why,
    receipt: Option<Receipt>,
    asked: &rehearsal::Asked,
) -> Result<Response, Failure> {
    let facts = visit.facts().await?;
    let (owner, host) = (why.record.app.clone(), why.record.host.clone());
    let earlier = moves::of_instance(visit.queries(2), &owner, &host, None, MOVES).await?;
    let rehearsal = rehearsal::read(&mut visit, (&owner, &host), asked).await?;
    let form = visit.form_token(visit.caller.may(Permission::MovesWrite));
    let open = why.newest.as_ref().filter(|it| it.finished_at.is_none());
    let targets = match (&form, open, &why.phase) {
        (Some(_), None, Phase::Serving) => {
            let mut all = nodes::regions(visit.query(), false, None, REGIONS).await?;
            let needs_key = why.record.env.as_ref().is_some_and(instances::sealed::any);
            all.retain(|region| {
                let taken = policy::gate_region(region.code.as_str(), Some(region), needs_key).is_ok();
                taken && region.code != why.record.region
            });
            all.into_iter().map(|region| region.code.to_string()).collect()
        }
        _ => Vec::new(),
    };
    let (now, verdict) = (page::now(&facts), Verdict::of(&facts));
    // The move that the page is about: the newest, unless another one was asked for.
    let about = receipt.as_ref().map(|receipt| &receipt.moved);
    let is_newest = about.map(|it| it.id) == why.newest.as_ref().map(|it| it.id);
    let state = open.and_then(|open| open.state.known());
    let (word, tone, glyph) = face::of_phase(&why);
    let acts = match about {
        Some(about) if about.ready_at.is_some() && about.aborted_at.is_none() => {
            story::acts(about, receipt.as_ref(), now)
        }
        Some(_) | None => Vec::new(),
    };
    let page = Page {
        word,
        tone,
        glyph,
        sentence: face::sentence(&why),
        stages: about.map(|about| face::stages(about, now)).unwrap_or_default(),
        why: face::why(&why, now),
        progress: why.progress.as_ref().and_then(Meter::of),
        figures: if is_newest { face::figures(&why, now) } else { Vec::new() },
        acts_title: if about.is_some_and(|it| it.cut_at.is_some()) {
            "What the cut did"
        } else {
            "What the cut will do"
        },
        acts,
        journal: if is_newest { story::journal(&why.steps, now) } else { Vec::new() },
        receipt_title: about.map(|it| format!("{} → {}", it.from, it.to)).unwrap_or_default(),
        receipt: receipt.as_ref().filter(|it| it.moved.finished_at.is_some()).map(story::receipt).unwrap_or_default(),
        facts: story::facts(&why),
        job: why.job.map(Id::of),
        earlier: earlier.iter().map(|it| earlier_row(it, now)).collect(),
        form,
        parked: why.record.parked == Some(true),
        targets,
        may_cut: state == Some(MoveState::Ready),
        may_abort: matches!(state, Some(MoveState::Preparing | MoveState::Ready)),
        from: open.map(|open| open.from.to_string()).unwrap_or_default(),
        to: open.map(|open| open.to.to_string()).unwrap_or_default(),
        freeze: why.predicted_freeze.map(face::span).unwrap_or_default(),
        rehearsal,
        over_budget: open
            .and_then(|open| open.freeze_budget)
            .filter(|budget| policy::within_budget(Some(*budget), why.predicted_freeze) == Some(false))
            .map(face::span),
        href: address(owner.as_str(), host.as_str()),
        cli: format!("leasehold instance why {owner} {host}"),
        curl: format!("/v1/apps/{owner}/instances/{host}/why"),
        shell: visit.shell("moves", host.as_str(), facts.overview.now, &verdict),
        app: owner.into(),
        host: host.into(),
    };
    visit.answer(&page, facts.overview.now).await
}

fn earlier_row(it: &Move, now: Now) -> Earlier {
    let end = match (it.outcome, it.landed_at) {
        (Some(Outcome::Moved), None) if it.given_up_at.is_some() => "given up".to_owned(),
        (Some(Outcome::Moved), None) => "landing".to_owned(),
        (Some(outcome), _) => outcome.as_str().to_owned(),
        (None, _) => it.state.to_string(),
    };
    Earlier {
        id: Id::of(it.id),
        way: format!("{} → {}", it.from, it.to),
        end,
        age: now.ago(it.landed_at.or(it.finished_at).unwrap_or(it.requested_at)),
    }
}
