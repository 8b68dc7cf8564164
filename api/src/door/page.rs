//! Pages of lists: `limit` and an opaque `cursor`.

use std::str::FromStr;

use http::Uri;
use serde::Deserialize;
use wire::{Code, DEFAULT_LIMIT, MAX_LIMIT, Page};

use super::failure::Failure;

/// The query of a list that is only paged.
#[derive(Debug, Deserialize)]
struct Asked {
    limit: Option<i64>,
    cursor: Option<String>,
}

/// Reads the query of a list that is only paged: how many items, and behind which place.
///
/// # Errors
/// `invalid_query`, `validation_failed`.
pub fn read<T: FromStr>(uri: &Uri) -> Result<(u16, Option<T>), Failure> {
    let asked: Asked = super::query::read(uri)?;
    Ok((limit(asked.limit)?, cursor(asked.cursor.as_deref())?))
}

/// How many items a caller gets.
///
/// # Errors
/// `validation_failed` outside 1…200.
pub fn limit(asked: Option<i64>) -> Result<u16, Failure> {
    let Some(asked) = asked else { return Ok(DEFAULT_LIMIT) };
    u16::try_from(asked)
        .ok()
        .filter(|limit| (1..=MAX_LIMIT).contains(limit))
        .ok_or_else(|| Failure::parameter("limit", format!("must be between 1 and {MAX_LIMIT}")))
}

/// What a cursor stands for.
///
/// # Errors
/// `invalid_query` for a text that was never a `next_cursor`.
pub fn cursor<T: FromStr>(text: Option<&str>) -> Result<Option<T>, Failure> {
    let Some(text) = text else { return Ok(None) };
    let bytes = hex::decode(text).ok();
    let place = bytes.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok()).and_then(|text| text.parse().ok());
    place.map(Some).ok_or_else(|| {
        let detail = "The cursor is none that this list gave: pass the next_cursor of the page before, unchanged.";
        Failure::new(Code::InvalidQuery, detail)
    })
}

/// Where the next page begins, told so that nobody builds on what it is.
#[must_use]
pub fn next(place: impl ToString) -> String {
    hex::encode(place.to_string())
}

/// A page of at most `limit` out of up to `limit + 1` items.
pub fn of<T, U>(mut items: Vec<T>, limit: u16, place: impl Fn(&T) -> String, tell: impl Fn(T) -> U) -> Page<U> {
    let more = items.len() > usize::from(limit);
    items.truncate(usize::from(limit));
    let next_cursor = if more { items.last().map(|last| next(place(last))) } else { None };
    Page { items: items.into_iter().map(tell).collect(), next_cursor }
}

/// A page of a list that is short by nature and held in memory, in the order of its places.
pub fn held<T, U>(
    items: impl IntoIterator<Item = T>,
    after: Option<&str>,
    limit: u16,
    place: impl Fn(&T) -> String,
    tell: impl Fn(T) -> U,
) -> Page<U> {
    let behind = items.into_iter().filter(|item| after.is_none_or(|after| place(item).as_str() > after));
    let found: Vec<T> = behind.take(usize::from(limit) + 1).collect();
    of(found, limit, place, tell)
}
