//! Short-lived commands: run to the end in bounded time, output captured.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use super::{ExecError, Running, Spawn};

/// How much of a log a message carries.
const TAIL_LINES: usize = 12;
/// How much of a log is read to find those lines.
const TAIL_BYTES: u64 = 16 * 1024;

/// A command that ended, however it ended.
#[derive(Debug)]
pub struct Finished {
    /// Its exit status.
    pub status: ExitStatus,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
    name: String,
}

impl Finished {
    /// The command's output if it succeeded.
    ///
    /// # Errors
    /// [`ExecError::Failed`] with the end of what it printed.
    pub fn success(self) -> Result<Self, ExecError> {
        if self.status.success() {
            return Ok(self);
        }
        let said = if self.stderr.trim().is_empty() { &self.stdout } else { &self.stderr };
        Err(ExecError::Failed { tail: tail(said), program: self.name, status: self.status })
    }
}

/// A command under way whose output goes to two unlinked files: no pipe can fill up and block it.
struct Captured {
    running: Running,
    stdout: File,
    stderr: File,
}

impl Captured {
    fn start(spawn: &Spawn) -> Result<Self, ExecError> {
        let file = || -> Result<(File, Stdio), ExecError> {
            let file = tempfile::tempfile().map_err(|source| spawn.open_error(&std::env::temp_dir(), source))?;
            let twin = file.try_clone().map_err(|source| spawn.open_error(&std::env::temp_dir(), source))?;
            Ok((file, Stdio::from(twin)))
        };
        let ((stdout, out), (stderr, err)) = (file()?, file()?);
        let child = spawn.fork(out, err)?;
        Ok(Self { running: Running::new(spawn.name(), child, None), stdout, stderr })
    }

    fn finish(mut self, status: Option<ExitStatus>, limit: Duration) -> Result<Finished, ExecError> {
        let name = self.running.name().to_owned();
        // Kills a command that had not ended, so that its files do not change under us.
        drop(self.running);
        let (stdout, stderr) = (contents(&mut self.stdout), contents(&mut self.stderr));
        match status {
            Some(status) => Ok(Finished { status, stdout, stderr, name }),
            None => Err(ExecError::TimedOut { program: name, limit, tail: tail(&stderr) }),
        }
    }
}

impl Spawn {
    /// Runs the command to its end, at most `limit`, and returns what it printed. `log_file` is not used.
    ///
    /// # Errors
    /// [`ExecError::TimedOut`] after `limit` (the command is killed), or when it cannot be started. A
    /// failing command is no error here: see [`Finished::success`].
    pub async fn run(&self, limit: Duration) -> Result<Finished, ExecError> {
        let captured = Captured::start(self)?;
        let status = captured.running.wait_timeout(limit).await;
        captured.finish(status, limit)
    }

    /// As [`Spawn::run`], for callers outside a runtime.
    ///
    /// # Errors
    /// As [`Spawn::run`].
    pub fn run_blocking(&self, limit: Duration) -> Result<Finished, ExecError> {
        let captured = Captured::start(self)?;
        let status = captured.running.wait_blocking(limit);
        captured.finish(status, limit)
    }
}

fn contents(file: &mut File) -> String {
    let mut bytes = Vec::new();
    // A capture that cannot be read back only makes a message poorer.
    let _ = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The last lines of `text`.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// The last lines of the file at `path`; empty when it cannot be read.
pub(crate) fn tail_of_file(path: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(tail(&String::from_utf8_lossy(&bytes)))
    };
    read().unwrap_or_default()
}
