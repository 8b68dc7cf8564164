//! Answers on stdout: tables for people, JSON for programs.

use std::io::{self, Write as _};

use comfy_table::{Table, presets};
use serde::Serialize;

/// How this run answers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    /// JSON where it was asked for; tables otherwise, without color: they are pasted and piped.
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether programs read the answer.
    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// Shows `value` as JSON, or what `for_people` makes of it.
    ///
    /// # Errors
    /// When stdout is gone.
    pub(crate) fn show<T: Serialize>(self, value: &T, for_people: impl FnOnce(&T) -> String) -> anyhow::Result<()> {
        let text = if self.json { serde_json::to_string_pretty(value)? } else { for_people(value) };
        self.line(&text)
    }

    /// Shows a page of a list: JSON as it is, or a table, and how to see the next page.
    ///
    /// # Errors
    /// When stdout is gone.
    pub(crate) fn page<T: Serialize>(
        self,
        page: &wire::Page<T>,
        nothing: &str,
        for_people: impl FnOnce(&[T]) -> String,
    ) -> anyhow::Result<()> {
        self.show(page, |page| {
            if page.items.is_empty() {
                return nothing.to_owned();
            }
            let more = page.next_cursor.as_ref().map(|cursor| format!("\n(more: --cursor {cursor})"));
            for_people(&page.items) + &more.unwrap_or_default()
        })
    }

    /// Writes one line. A reader that went away (`| head`) is no error of ours.
    ///
    /// # Errors
    /// When stdout is gone for another reason.
    pub(crate) fn line(self, text: &str) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        match writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => Ok(other?),
        }
    }
}

/// Rows under these columns, framed by nothing but space.
pub(crate) fn table<R: Into<comfy_table::Row>>(columns: &[&str], rows: impl IntoIterator<Item = R>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(columns.iter().map(|name| name.to_uppercase())).add_rows(rows);
    let lines: Vec<String> = table.lines().map(|line| line.trim().to_owned()).collect();
    lines.join("\n")
}

/// Names with their values, one a line.
pub(crate) fn details(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<String> = pairs.iter().map(|(name, value)| format!("{name:width$}  {value}")).collect();
    lines.join("\n")
}

/// `text`, or a dash where it is empty.
pub(crate) fn or_dash(text: &str) -> String {
    if text.is_empty() { "-" } else { text }.to_owned()
}

/// A moment as people read it: to the second, in UTC.
pub(crate) fn moment(at: Option<chrono::DateTime<chrono::Utc>>) -> String {
    at.map_or_else(|| "-".to_owned(), |at| at.format("%Y-%m-%d %H:%M:%S").to_string())
}

/// Bytes as people read them.
pub(crate) fn size(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    match bytes {
        0..KIB => format!("{bytes} B"),
        KIB..MIB => format!("{:.1} KiB", bytes as f64 / KIB as f64),
        MIB.. => format!("{:.1} MiB", bytes as f64 / MIB as f64),
    }
}

/// `text`, at most `limit` characters of it, on one line.
pub(crate) fn short(text: &str, limit: usize) -> String {
    let flat: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if flat.chars().count() <= limit {
        return flat;
    }
    flat.chars().take(limit.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_in_the_unit_that_fits() {
        assert_eq!([0, 1023, 1024, 1 << 20].map(size), ["0 B", "1023 B", "1.0 KiB", "1.0 MiB"]);
    }

    #[test]
    fn a_long_text_is_cut_and_says_so() {
        assert_eq!(short("abc", 3), "abc");
        assert_eq!(short("abcd", 3), "ab…");
        assert_eq!(short("a\nb", 9), "a b");
    }
}
