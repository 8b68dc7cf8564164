//! Moves: those in flight, what needs a person first, and those that ended lately.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use domain::instances::moves::{self, Filter, Move, Outcome};

use super::failure::Failure;
use super::instance;
use super::page::{self, Ask, Id, Shell, Visit};
use super::verdict::Verdict;
use super::words::{self, Age, Now};
use crate::App;

mod rows;

pub(super) use rows::{MoveRow, rows};

/// Moves in flight that the page shows.
const OPEN: usize = 200;
/// Moves that are over, of which the page shows the newest.
const OVER: u16 = 25;

#[derive(Template)]
#[template(path = "moves.html")]
struct Page {
    shell: Shell,
    sentence: String,
    open: Vec<MoveRow>,
    more: usize,
    over: Vec<Over>,
}

/// A move that is over.
struct Over {
    id: Id,
    host: String,
    href: String,
    way: String,
    word: &'static str,
    tone: &'static str,
    glyph: &'static str,
    age: Age,
    rounds: String,
    size: String,
    freeze: String,
}

pub(super) async fn show(State(app): State<App>, ask: Ask) -> Result<Response, Failure> {
    let mut visit = Visit::begin(&app, ask).await?;
    let facts = visit.facts().await?;
    let filter = Filter { open: Some(false), ..Filter::default() };
    // A place to stop at, the moves there, and what they say.
    let over = moves::list(visit.queries(3), &filter, OVER).await?.items;
    let (now, verdict) = (page::now(&facts), Verdict::of(&facts));
    let (open, more) = rows(&facts.moves, now, OPEN);
    let stuck = facts.moves.iter().filter(|it| it.status.obstacle.as_ref().is_some_and(|o| o.permanent)).count();
    let landing = over.iter().filter(|it| it.is_landing()).count();
    let sentence = format!(
        "{} in flight, {stuck} of them waiting for a person; {} held up of {landing} landing.",
        words::things(i64::try_from(facts.moves.len()).unwrap_or(i64::MAX), "move", "moves"),
        facts.held.iter().filter(|it| !it.landed).count(),
    );
    let page = Page {
        sentence,
        open,
        more,
        over: over.iter().map(|it| row(it, now)).collect(),
        shell: visit.shell("moves", "Moves", facts.overview.now, &verdict),
    };
    visit.answer(&page, facts.overview.now).await
}

fn row(it: &Move, now: Now) -> Over {
    let (word, tone, glyph) = match (it.outcome, it.landed_at) {
        (Some(Outcome::Moved), None) if it.given_up_at.is_some() => ("given up", "idle", "abort"),
        (Some(Outcome::Moved), None) => ("landing", "run", "land"),
        (Some(Outcome::Moved), Some(_)) => ("landed", "ok", "ok"),
        (Some(Outcome::Aborted) | None, _) => ("aborted", "idle", "abort"),
    };
    let freeze = it.landed_at.zip(it.cut_at).map(|(landed, cut)| words::millis((landed - cut).num_milliseconds()));
    Over {
        id: Id::of(it.id),
        host: it.host.to_string(),
        href: instance::address(it.app.as_str(), it.host.as_str()),
        way: format!("{} → {}", it.from, it.to),
        word,
        tone,
        glyph,
        age: now.ago(it.landed_at.or(it.finished_at).unwrap_or(it.requested_at)),
        rounds: words::count(it.round.into()),
        size: it.tail.as_ref().map_or_else(|| "–".to_owned(), |tail| words::bytes(tail.size)),
        freeze: freeze.unwrap_or_else(|| "–".to_owned()),
    }
}
