//! All instances, by host: where each is and how it stands, in one line.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use domain::ids::{AppName, Host, InvalidName};
use domain::instances::{self, Entry, RouteStatus};
use serde::Deserialize;

use super::address::Address;
use super::failure::{Failure, form_urlencoded};
use super::instance;
use super::page::{Ask, Shell, Visit};
use super::verdict::Verdict;
use crate::App;

/// Instances on one page.
const ROWS: u16 = 100;

/// The address's query. Empty fields are as good as absent: a form sends them.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Asked {
    app: String,
    after: String,
}

#[derive(Template)]
#[template(path = "instances.html")]
struct Page {
    shell: Shell,
    sentence: &'static str,
    cli: String,
    curl: String,
    app: String,
    rows: Vec<Row>,
    first: Option<String>,
    next: Option<String>,
}

struct Row {
    host: String,
    href: String,
    app: String,
    region: String,
    node: String,
    word: String,
    tone: &'static str,
    glyph: &'static str,
    edge: &'static str,
    now: String,
}

pub(super) async fn show(
    State(app): State<App>,
    ask: Ask,
    Address(asked): Address<Asked>,
) -> Result<Response, Failure> {
    let invalid = |error: InvalidName| Failure::Invalid(error.to_string());
    let given = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
    let of = given(&asked.app).map(AppName::new).transpose().map_err(invalid)?;
    let after = given(&asked.after).map(Host::new).transpose().map_err(invalid)?;
    let mut visit = Visit::begin(&app, ask).await?;
    let facts = visit.facts().await?;
    let mut entries = instances::index(visit.query(), of.as_ref(), after.as_ref(), ROWS + 1).await?;
    let more = entries.len() > usize::from(ROWS);
    entries.truncate(ROWS.into());
    let address = |after: Option<&Host>| {
        let pairs = [("app", of.as_ref().map(AppName::as_str)), ("after", after.map(Host::as_str))];
        let pairs = pairs.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", form_urlencoded(value?))));
        let query = pairs.collect::<Vec<_>>().join("&");
        if query.is_empty() { "/instances".to_owned() } else { format!("/instances?{query}") }
    };
    let name = of.as_ref().map_or("APP", AppName::as_str);
    let page = Page {
        sentence: if of.is_some() { "Of one application, by host." } else { "Of all applications, by host." },
        cli: format!("leasehold instance list {name}"),
        curl: format!("/v1/apps/{name}/instances"),
        app: of.as_ref().map(ToString::to_string).unwrap_or_default(),
        rows: entries.iter().map(row).collect(),
        first: after.is_some().then(|| address(None)),
        next: entries.last().filter(|_| more).map(|last| address(Some(&last.host))),
        shell: visit.shell("instances", "Instances", facts.overview.now, &Verdict::of(&facts)),
    };
    visit.answer(&page, facts.overview.now).await
}

fn row(it: &Entry) -> Row {
    let here = it.node.as_ref().is_some_and(|(_, region)| *region == it.region);
    let (word, tone, glyph) = match (&it.moving, it.status) {
        (Some((state, _)), _) => (state.to_string(), "run", "prep"),
        (None, Some(RouteStatus::Serving)) if here && it.parked => ("parked".to_owned(), "idle", "pause"),
        (None, Some(RouteStatus::Serving)) if here => ("serving".to_owned(), "ok", "ok"),
        (None, Some(RouteStatus::Serving | RouteStatus::Landing | RouteStatus::Moving)) => {
            ("landing".to_owned(), "run", "land")
        }
        (None, None) => ("unplaced".to_owned(), "idle", "pending"),
    };
    let silent = it.node.as_ref().filter(|_| !it.live);
    let (now, edge) = match (silent, &it.held, &it.moving) {
        (Some((node, _)), ..) => (format!("box {node} is not heard"), "bad"),
        (None, Some(held), _) => (held.message.clone(), if held.permanent { "bad" } else { "warn" }),
        (None, None, Some((_, to))) => (format!("moves to {to}"), ""),
        (None, None, None) => ("–".to_owned(), ""),
    };
    Row {
        host: it.host.to_string(),
        href: instance::address(it.app.as_str(), it.host.as_str()),
        app: it.app.to_string(),
        region: it.region.to_string(),
        node: it.node.as_ref().map_or_else(|| "–".to_owned(), |(node, _)| node.clone()),
        tone: if edge.is_empty() { tone } else { edge },
        word,
        glyph,
        edge,
        now,
    }
}
