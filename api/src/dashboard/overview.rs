//! The first page: is anything wrong, what, since when, what do I do; and is it alive?

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use domain::db;
use domain::queue::{self, Filter, KindSpec, QueueView, RefusedWrite, ThroughputPoint, WorkerView};

use super::chart::{self, Drawing};
use super::failure::Failure;
use super::moves::{MoveRow, rows as move_rows};
use super::page::{self, Ask, Id, Shell, Visit};
use super::queues::QueueRow;
use super::verdict::{Facts, Row, Verdict};
use super::words::{self, Age, Now};
use crate::App;

mod figures;
mod tables;

use figures::Figure;
use tables::{KindRow, RefusedRow, WorkerRow};

/// Minutes of counters that the page reads: sixty whole ones, the present one and the last.
const MINUTES: u16 = 62;
/// Refused writes that the chart looks at.
const REFUSED: u16 = 200;
/// Rows of a table on this page.
const ROWS: usize = 10;
/// Refused writes in their table.
const REFUSED_ROWS: usize = 5;
/// What counts as coming in.
pub(super) const IN: [&str; 1] = ["enqueued"];
/// What counts as going out: a job's story ended.
pub(super) const OUT: [&str; 3] = ["completed", "discarded", "cancelled"];

#[derive(Template)]
#[template(path = "overview.html")]
struct Page<'a> {
    shell: Shell,
    now: Now,
    tone: &'static str,
    glyph: &'static str,
    headline: String,
    sentence: String,
    rows: &'a [Row],
    more_rows: usize,
    figures: Vec<Figure>,
    throughput: Drawing,
    failures: Drawing,
    fence: Drawing,
    queues: Vec<QueueRow>,
    more_queues: usize,
    kinds: Vec<KindRow>,
    kinds_title: &'static str,
    moves: Vec<MoveRow>,
    moves_total: String,
    more_moves: usize,
    workers: Vec<WorkerRow>,
    more_workers: usize,
    refused: Vec<RefusedRow>,
}

#[derive(Template)]
#[template(path = "first_steps.html")]
struct FirstSteps {
    shell: Shell,
    schema: i64,
    name: String,
    worker: Option<String>,
    kind: String,
    summary: &'static str,
    enqueue: String,
}

pub(super) async fn show(State(app): State<App>, ask: Ask) -> Result<Response, Failure> {
    let mut visit = Visit::begin(&app, ask).await?;
    let facts = visit.facts().await?;
    let points = queue::throughput(visit.query(), MINUTES).await?;
    let refused = queue::recent_refused(visit.query(), None, None, REFUSED).await?;
    let verdict = Verdict::of(&facts);
    let now = facts.overview.now;
    let idle = facts.queues.iter().all(|q| q.available + q.waiting + q.running == 0);
    if idle && points.is_empty() && refused.is_empty() && facts.moves.is_empty() {
        // Only here does it matter whether there ever was a job; a busy page never asks.
        let any = queue::list(visit.query(), &Filter::default(), 1).await?;
        if any.items.is_empty() {
            let page = first_steps(&app, &visit, &facts, &verdict);
            return visit.answer(&page, now).await;
        }
    }
    let (rows, more_rows) = verdict.shown();
    let (queues, more_queues) = tables::queues(&facts.queues, page::now(&facts), ROWS);
    let (kinds, kinds_title) = tables::kinds(&points, now, ROWS);
    let (moves, more_moves) = move_rows(&facts.moves, page::now(&facts), ROWS);
    let (workers, more_workers) = tables::workers(&facts.workers, page::now(&facts), ROWS);
    let page = Page {
        now: page::now(&facts),
        tone: verdict.tone(),
        glyph: verdict.glyph(),
        headline: verdict.title(),
        sentence: sentence(&facts, &verdict),
        rows,
        more_rows,
        figures: figures::all(&facts, &points),
        throughput: chart::lines(&chart::series(&points, now, &IN), &chart::series(&points, now, &OUT), now),
        failures: chart::bars(
            (&chart::series(&points, now, &["failed"]), r#"class="b-warn""#, "failed"),
            (&chart::series(&points, now, &["discarded"]), r#"class="b-bad""#, "discarded"),
            now,
        ),
        fence: chart::bars(
            (&chart::events(refused.iter().map(|r| r.at), now), r#"class="b-bad""#, "refused"),
            (&chart::series(&points, now, &["rescued"]), r#"fill="url(#hatch)""#, "rescued"),
            now,
        ),
        queues,
        more_queues,
        kinds,
        kinds_title,
        moves_total: words::count(i64::try_from(facts.moves.len()).unwrap_or(i64::MAX)),
        moves,
        more_moves,
        workers,
        more_workers,
        refused: tables::refused(&refused, page::now(&facts), REFUSED_ROWS),
        shell: visit.shell("overview", "Overview", now, &verdict),
    };
    visit.answer(&page, now).await
}

/// One sentence under the title: what the figures mean.
fn sentence(facts: &Facts, verdict: &Verdict) -> String {
    let running = words::things(facts.overview.running, "job runs", "jobs run");
    let live = words::things(facts.overview.workers_live, "worker is live", "workers are live");
    match (verdict.worst(), facts.overview.oldest_due_at) {
        (None, None) => format!("{running}, {live}, and nothing waits to be run."),
        (None, Some(_)) => format!("{running}, {live}, and what is due is taken up within a minute."),
        (Some(_), _) => format!("The worst comes first. Meanwhile {running} and {live}."),
    }
}

fn first_steps(app: &App, visit: &Visit, facts: &Facts, verdict: &Verdict) -> FirstSteps {
    let worker = facts
        .workers
        .iter()
        .find(|w| w.state == "live")
        .map(|w| format!("Process {} on {} serves {}.", w.pid, w.host, w.queues.join(", ")));
    // A kind that anybody may enqueue, best one that takes as many milliseconds as it is told: there is time to break it.
    let lasts = |spec: &KindSpec| spec.schema["properties"].get("ms").is_some();
    let public = app.catalogue().iter().filter(|spec| spec.public);
    let spec = public.min_by_key(|spec| (!lasts(spec), spec.kind.clone()));
    let (kind, summary) = spec.map_or_else(|| (String::new(), ""), |spec| (spec.kind.to_string(), spec.summary));
    let args = if spec.is_some_and(lasts) { r#" --args '{"ms": 20000}'"# } else { "" };
    FirstSteps {
        shell: visit.shell("overview", "Welcome", facts.overview.now, verdict),
        schema: db::known_version(),
        name: visit.caller.name.clone(),
        worker,
        enqueue: format!("leasehold job enqueue {kind}{args}"),
        kind,
        summary,
    }
}
