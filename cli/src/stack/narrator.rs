//! What `dev` and `demo` tell while they work.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// One line a thing done, with the time since the start. On a terminal the thing under way turns
/// below the lines; elsewhere there are the lines alone.
pub(crate) struct Narrator {
    started: Instant,
    spinner: Option<ProgressBar>,
    to_stderr: bool,
}

impl Narrator {
    /// Tells on stdout; on stderr where stdout carries an answer for programs.
    pub(crate) fn new(json: bool) -> Self {
        let terminal = if json { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
        Self { started: Instant::now(), spinner: terminal.then(spinner), to_stderr: json }
    }

    /// The time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// What is under way.
    pub(crate) fn doing(&self, what: impl Into<String>) {
        if let Some(spinner) = &self.spinner {
            spinner.set_message(what.into());
        }
    }

    /// What was done.
    pub(crate) fn done(&self, what: &str) {
        self.line(&format!("{:6.1} s  {what}", self.elapsed().as_secs_f64()));
    }

    /// A line without a time.
    pub(crate) fn line(&self, text: &str) {
        match &self.spinner {
            Some(spinner) => spinner.suspend(|| self.write(text)),
            None => self.write(text),
        }
    }

    /// Ends what turns.
    pub(crate) fn rest(&self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
    }

    /// A reader that went away is no reason to stop: the work goes on and ends with its own code.
    fn write(&self, text: &str) {
        let _ = if self.to_stderr { writeln!(io::stderr(), "{text}") } else { writeln!(io::stdout(), "{text}") };
    }
}

impl Drop for Narrator {
    fn drop(&mut self) {
        self.rest();
    }
}

fn spinner() -> ProgressBar {
    let spinner = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("          {spinner} {msg}") {
        spinner.set_style(style);
    }
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}
