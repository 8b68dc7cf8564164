//! What all pages share: who asks, the snapshot that they read, the frame around them, and how they are answered.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use askama::Template;
use axum::extract::FromRequestParts;
use axum::response::{IntoResponse as _, Response};
use domain::authority::{Caller, Permission, Scopes};
use domain::clock::Timestamp;
use domain::instances::{self, moves};
use domain::sessions::{self, Token};
use domain::{db, digest, queue};
use http::request::Parts;
use http::{StatusCode, header};
use sqlx::{PgConnection, Postgres, Transaction};

use super::assets::{ADDRESSES, Addresses};
use super::failure::Failure;
use super::headers::{NOW, PART, set_cookie};
use super::theme::Theme;
use super::verdict::{Facts, Verdict};
use super::words::{self, Now, Volatile};
use crate::App;
use crate::door::known::Shown;
use crate::door::session::{caller_of, cookie_name, token};

/// Longest time that one statement of a page may take.
const STATEMENT_LIMIT: Duration = Duration::from_millis(800);
/// Workers that a verdict looks at.
const WORKERS: u16 = 200;
/// Pauses of kinds that a verdict looks at.
const PAUSES: u16 = 200;
/// Moves that a verdict looks at.
const MOVES: u16 = 200;
/// What a visitor needs: every page carries the verdict, which is made from all of these.
const NEEDED: [Permission; 4] =
    [Permission::JobsRead, Permission::QueuesRead, Permission::WorkersRead, Permission::InstancesRead];
/// What a request says before anything is read.
#[derive(Debug)]
pub(super) struct Ask {
    /// The address, for the way back.
    pub(super) back: String,
    pub(super) theme: Option<Theme>,
    /// Only the live regions are wanted.
    pub(super) live: bool,
    pub(super) token: Option<Token>,
    known: Option<String>,
    started: Instant,
}

impl Ask {
    pub(super) fn of(parts: &Parts, secure: bool) -> Self {
        Self {
            back: parts.uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string),
            theme: Theme::of(&parts.headers),
            live: parts.headers.get(PART).is_some_and(|part| part == "live"),
            token: token(&parts.headers, secure),
            known: parts.headers.get(header::IF_NONE_MATCH).and_then(|v| v.to_str().ok()).map(str::to_owned),
            started: Instant::now(),
        }
    }
}

impl FromRequestParts<App> for Ask {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Infallible> {
        Ok(Self::of(parts, app.config().secure_cookies))
    }
}

/// The cookie that holds a session, or that ends one where `token` is none.
pub(super) fn session_cookie(token: Option<&Token>, secure: bool) -> Option<http::HeaderValue> {
    let name = cookie_name(secure);
    match token {
        Some(token) => set_cookie(name, &token.reveal(), sessions::LIFE.as_secs(), secure),
        None => set_cookie(name, "", 0, secure),
    }
}

/// A signed-in visit: one snapshot, and a count of what is asked of it.
pub(super) struct Visit {
    pub(super) ask: Ask,
    pub(super) caller: Caller,
    form_token: String,
    snapshot: Transaction<'static, Postgres>,
    queries: u32,
}

impl Visit {
    /// Knows the visitor and opens the snapshot.
    pub(super) async fn begin(app: &App, mut ask: Ask) -> Result<Self, Failure> {
        let Some(token) = ask.token.take() else { return Err(Failure::SignIn) };
        let mut snapshot = db::begin_read(app.pool(), STATEMENT_LIMIT).await?;
        let Some(caller) = caller_of(&mut snapshot, &token).await? else { return Err(Failure::SignIn) };
        app.rates().accepted(&Shown::session_of(&token.reveal()));
        if let Some(missing) = NEEDED.into_iter().find(|permission| !caller.may(*permission)) {
            return Err(Failure::Forbidden(missing));
        }
        // Jobs, queues and workers belong to no application: what cannot be narrowed is not shown in part.
        if caller.scopes != Scopes::default() {
            return Err(Failure::Scoped);
        }
        app.rates().take(caller.key).map_err(|_| Failure::TooMany)?;
        // Two statements were made to know the visitor: its session and its key.
        Ok(Self { ask, caller, form_token: token.form_token(), snapshot, queries: 2 })
    }

    /// The snapshot, for one statement, which is counted.
    pub(super) fn query(&mut self) -> &mut PgConnection {
        self.queries += 1;
        &mut self.snapshot
    }

    /// The snapshot, for so many statements as were or will be made.
    pub(super) fn queries(&mut self, statements: u32) -> &mut PgConnection {
        self.queries += statements;
        &mut self.snapshot
    }

    /// The figures that the verdict of every page stands on.
    pub(super) async fn facts(&mut self) -> Result<Facts, Failure> {
        let overview = queue::overview(self.query()).await?;
        let queues = queue::queues(self.query()).await?;
        let workers = queue::list_workers(self.query(), WORKERS).await?;
        let open = moves::Filter { open: Some(true), ..moves::Filter::default() };
        let moves = moves::list(self.query(), &open, MOVES).await?.items;
        let held = instances::held_landings(self.query(), Duration::ZERO, MOVES).await?;
        // Kinds come first, and pauses of queues are told with these.
        let mut pauses = queue::pauses_after(self.query(), None, PAUSES).await?;
        pauses.retain(|pause| pause.scope == "kind");
        Ok(Facts { overview, queues, workers, moves, held, pauses })
    }

    /// The token that forms of this visit carry; none where the visitor may not send them.
    pub(super) fn form_token(&self, may: bool) -> Option<String> {
        may.then(|| self.form_token.clone())
    }

    /// The frame of a page.
    pub(super) fn shell(&self, place: &'static str, title: &str, now: Timestamp, verdict: &Verdict) -> Shell {
        let (loud, rest) = match (verdict.problem_words(), verdict.warning_words()) {
            (Some(problems), warnings) => (problems, warnings.map_or_else(String::new, |words| format!(", {words}"))),
            (None, Some(warnings)) => (warnings, String::new()),
            (None, None) => ("all well".to_owned(), String::new()),
        };
        let problems = verdict.problems();
        Shell {
            title: if problems > 0 { format!("({problems}) {title}") } else { title.to_owned() },
            place,
            topics: "jobs,workers,moves",
            live: self.ask.live,
            now: Some(Volatile(now.to_rfc3339_opts(chrono::SecondsFormat::Millis, true))),
            clock: Some(Volatile(words::clock(now))),
            verdict: Some(Badge { tone: verdict.tone(), glyph: verdict.glyph(), loud, rest }),
            who: Some(Who {
                name: self.caller.name.clone(),
                kind: self.caller.kind.as_str(),
                csrf: self.form_token.clone(),
            }),
            effort: Some(Volatile(self.effort())),
            ..Shell::bare(self.ask.theme, &self.ask.back)
        }
    }

    fn effort(&self) -> String {
        let ms = i64::try_from(self.ask.started.elapsed().as_millis()).unwrap_or(i64::MAX);
        format!("{} queries, {}", self.queries, words::millis(ms))
    }

    /// Ends the snapshot and answers with the page, or with 304 where the browser has it.
    pub(super) async fn answer(self, page: &impl Template, now: Timestamp) -> Result<Response, Failure> {
        self.snapshot.rollback().await?;
        let (html, steady) = words::settle(&page.render()?);
        // Weak: two renderings with one ETag mean the same, though their ages differ.
        let etag = format!("W/\"{}\"", hex::encode(&digest::sha256(steady.as_bytes())[..16]));
        let known = self.ask.known.as_deref().is_some_and(|known| matches(known, &etag));
        let head = [
            (header::ETAG, etag),
            (header::CACHE_CONTROL, "private, no-cache".to_owned()),
            (header::VARY, "Cookie, X-Leasehold-Part".to_owned()),
            (NOW, now.to_rfc3339_opts(chrono::SecondsFormat::Millis, true)),
        ];
        if known {
            return Ok((StatusCode::NOT_MODIFIED, head).into_response());
        }
        Ok((head, [(header::CONTENT_TYPE, "text/html; charset=utf-8")], html).into_response())
    }
}

/// Whether an `If-None-Match` names this ETag, compared weakly as RFC 9110 asks for it.
fn matches(known: &str, etag: &str) -> bool {
    let plain = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    known.trim() == "*" || known.split(',').any(|tag| plain(tag) == plain(etag))
}

/// The verdict in the top bar.
pub(super) struct Badge {
    pub(super) tone: &'static str,
    pub(super) glyph: &'static str,
    pub(super) loud: String,
    pub(super) rest: String,
}

/// Who is signed in.
pub(super) struct Who {
    pub(super) name: String,
    pub(super) kind: &'static str,
    pub(super) csrf: String,
}

/// The frame around a page: what `base.html` needs.
pub(super) struct Shell {
    pub(super) title: String,
    /// Which entry of the navigation is the page's.
    pub(super) place: &'static str,
    /// Events that the page follows; empty for none.
    pub(super) topics: &'static str,
    pub(super) theme: Option<&'static str>,
    pub(super) other_theme: &'static str,
    pub(super) back: String,
    pub(super) live: bool,
    /// The database's moment, for the script.
    pub(super) now: Option<Volatile<String>>,
    /// The same for people.
    pub(super) clock: Option<Volatile<String>>,
    /// Seconds after which the page tries again by itself.
    pub(super) again: Option<u32>,
    pub(super) verdict: Option<Badge>,
    pub(super) who: Option<Who>,
    pub(super) effort: Option<Volatile<String>>,
    pub(super) version: &'static str,
    pub(super) assets: &'static Addresses,
}

impl Shell {
    /// A frame that says nothing of the deployment: for pages without a visitor or without a database.
    pub(super) fn bare(theme: Option<Theme>, back: &str) -> Self {
        Self {
            title: String::new(),
            place: "",
            topics: "",
            theme: theme.map(Theme::word),
            other_theme: theme.map_or(Theme::Dark, Theme::other).word(),
            back: back.to_owned(),
            live: false,
            now: None,
            clock: None,
            again: None,
            verdict: None,
            who: None,
            effort: None,
            version: env!("CARGO_PKG_VERSION"),
            assets: &ADDRESSES,
        }
    }
}

/// An id in the three lengths in which pages show it.
pub(super) struct Id {
    pub(super) full: String,
    pub(super) short: String,
    pub(super) tail: String,
}

impl Id {
    pub(super) fn of(id: impl ToString) -> Self {
        let full = id.to_string();
        Self { short: words::short(&full), tail: words::tail(&full).to_owned(), full }
    }
}

/// How far something is.
pub(super) struct Meter {
    /// Per cent, with two decimals; `None` where the end is not known.
    pub(super) width: Option<String>,
    pub(super) words: String,
}

impl Meter {
    /// Words without a bar.
    pub(super) fn words(words: impl Into<String>) -> Self {
        Self { width: None, words: words.into() }
    }

    /// A job's progress in its handler's words; `None` for what is no progress.
    pub(super) fn of(progress: &serde_json::Value) -> Option<Self> {
        let progress: queue::Progress = serde_json::from_value(progress.clone()).ok()?;
        let unit = if progress.unit.is_empty() { String::new() } else { format!("\u{a0}{}", progress.unit) };
        let mut text = match progress.total {
            Some(total) => format!("{} of {}{unit}", words::count(progress.done), words::count(total)),
            None if progress.done == 0 && !progress.message.is_empty() => String::new(),
            None => format!("{}{unit}", words::count(progress.done)),
        };
        if !progress.message.is_empty() {
            text = if text.is_empty() { progress.message.clone() } else { format!("{text}: {}", progress.message) };
        }
        if let Some(eta) = progress.eta_ms {
            text = format!("{text}, {} left", words::millis(eta));
        }
        let width = progress.total.filter(|total| *total > 0).map(|total| {
            let hundredths = progress.done.clamp(0, total).saturating_mul(10_000) / total;
            format!("{}.{:02}", hundredths / 100, hundredths % 100)
        });
        Some(Self { width, words: text })
    }
}

/// The moment of a page's figures.
pub(super) const fn now(facts: &Facts) -> Now {
    Now(facts.overview.now)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_etag_is_known_in_any_of_its_spellings() {
        for known in ["W/\"a\"", "\"a\"", "\"b\", W/\"a\"", "*"] {
            assert!(matches(known, "W/\"a\""), "{known}");
        }
        assert!(!matches("\"b\"", "W/\"a\""));
        assert!(!matches("", "W/\"a\""));
    }

    #[test]
    fn progress_is_told_in_the_handlers_words() {
        let meter = |value| Meter::of(&value).map(|m| (m.width, m.words));
        assert_eq!(
            meter(json!({"done": 131, "total": 214, "unit": "GiB", "eta_ms": 840_000})),
            Some((Some("61.21".into()), "131 of 214\u{a0}GiB, 14\u{a0}min 0\u{a0}s left".into()))
        );
        assert_eq!(meter(json!({"message": "lists the source"})), Some((None, "lists the source".into())));
        assert_eq!(meter(json!({"done": 9, "total": 3})).and_then(|m| m.0), Some("100.00".into()));
        assert_eq!(meter(json!({"done": 1, "total": 0})).and_then(|m| m.0), None);
        assert_eq!(meter(json!("half")), None);
    }
}
