//! One table of what was measured: medians of the rounds, and how they stand to each other.
//!
//! Rates move with the machine's load, so a ratio is taken within each round, and the median of these is told.

use crate::measure::{Figures, median, middle};

/// One row, before its rounds.
#[derive(Debug, Clone)]
pub struct Place {
    /// What was measured.
    pub name: String,
    /// Rows of one series are compared with its first.
    pub series: &'static str,
    /// The row of the bare limit that was measured beside it.
    pub limit: Option<String>,
}

impl Place {
    /// A row of the limit itself.
    #[must_use]
    pub fn of_limit(name: impl Into<String>) -> Self {
        Self { name: name.into(), series: "limit", limit: None }
    }

    /// A row of ours, beside a row of the limit.
    #[must_use]
    pub fn of_ours(name: impl Into<String>, limit: &str) -> Self {
        Self { name: name.into(), series: "ours", limit: Some(limit.to_owned()) }
    }

    /// In another series.
    #[must_use]
    pub fn in_series(self, series: &'static str) -> Self {
        Self { series, ..self }
    }
}

/// The rows of one situation.
#[derive(Debug, Default)]
pub struct Report {
    rows: Vec<(Place, Vec<Figures>)>,
}

impl Report {
    /// Keeps the figures of one round.
    pub fn keep(&mut self, place: Place, figures: Figures) {
        eprintln!("  {}: {:.0} jobs/s", place.name, figures.rate());
        match self.rows.iter_mut().find(|(row, _)| row.name == place.name) {
            Some((_, runs)) => runs.push(figures),
            None => self.rows.push((place, vec![figures])),
        }
    }

    /// Prints the rows in the order in which they came.
    pub fn print(&self) {
        for (place, runs) in &self.rows {
            let rates = || runs.iter().map(Figures::rate);
            let limit = place.limit.as_ref().and_then(|name| self.rows.iter().find(|(row, _)| row.name == *name));
            let first = self.rows.iter().find(|(row, _)| row.series == place.series);
            let first = first.filter(|(row, _)| row.name != place.name);
            println!(
                "{:<60} {:>8.0} {:>17} {:>8} {:>8} {:>7.1} {:>7.1} {:>6.0}",
                place.name,
                median(runs, Figures::rate),
                format!("{:.0}–{:.0}", rates().fold(f64::MAX, f64::min), rates().fold(0.0, f64::max)),
                share(runs, limit),
                share(runs, first),
                median(runs, Figures::server_us),
                median(runs, Figures::client_us),
                median(runs, Figures::wal_bytes_each),
            );
        }
    }
}

/// The heading of all reports.
pub fn print_heading() {
    println!(
        "{:<60} {:>8} {:>17} {:>8} {:>8} {:>7} {:>7} {:>6}",
        "medians", "jobs/s", "least–most", "of limit", "of first", "srv µs", "cli µs", "WAL B"
    );
}

/// How the rates of `runs` stand to those of the same rounds of `others`.
fn share(runs: &[Figures], others: Option<&(Place, Vec<Figures>)>) -> String {
    let Some((_, others)) = others else { return String::new() };
    let ratios = runs.iter().zip(others).map(|(own, other)| own.rate() / other.rate());
    format!("{:.2}", middle(ratios.collect()))
}
