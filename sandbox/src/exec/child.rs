//! A running child: wait, stop, kill; gone when dropped.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::watch;

/// How long a SIGKILL may take to be visible. The kernel needs microseconds, a loaded machine or a
/// process deep in a disk write some seconds.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// A child that runs, or has ended and was reaped. Dropping it kills it (SIGKILL) and reaps it.
#[derive(Debug)]
pub struct Running {
    name: String,
    pid: u32,
    /// Signals go through this descriptor, so that they never hit another process that got the pid
    /// after ours was reaped. Absent only where the kernel has none to give.
    handle: Option<OwnedFd>,
    end: Arc<End>,
    ended: watch::Receiver<Option<ExitStatus>>,
    log: Option<PathBuf>,
}

/// How a child that was asked to stop ended.
#[derive(Debug, Clone, Copy)]
pub struct Stopped {
    /// Its exit status.
    pub status: ExitStatus,
    /// Whether it had to be killed because it did not end in time.
    pub killed: bool,
}

/// The end of a child, for callers outside a runtime.
#[derive(Debug, Default)]
struct End {
    status: Mutex<Option<ExitStatus>>,
    reached: Condvar,
}

impl End {
    fn wait(&self, limit: Duration) -> Option<ExitStatus> {
        let guard = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        let (guard, _) = self
            .reached
            .wait_timeout_while(guard, limit, |status| status.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        *guard
    }
}

impl Running {
    pub(super) fn new(name: String, mut child: Child, log: Option<PathBuf>) -> Self {
        let pid = child.id();
        // Opened before anyone waits for the child: until it is reaped its pid cannot be another's.
        let handle =
            i32::try_from(pid).ok().and_then(Pid::from_raw).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let end = Arc::new(End::default());
        let (sender, ended) = watch::channel(None);
        let reaper = {
            let end = Arc::clone(&end);
            move || {
                let status = child.wait().unwrap_or_default();
                *end.status.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
                end.reached.notify_all();
                let _ = sender.send(Some(status));
            }
        };
        // One small thread a child: a child lives long, and there are few.
        std::thread::Builder::new()
            .name(format!("reap-{name}"))
            .stack_size(64 * 1024)
            .spawn(reaper)
            .expect("the system has a thread left for a child that it had a process for");
        Self { name, pid, handle, end, ended, log }
    }

    /// The child's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The short name of the child's program.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the child's output goes.
    #[must_use]
    pub fn log_path(&self) -> Option<&Path> {
        self.log.as_deref()
    }

    /// The last lines of the child's log, for a message about its failure.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.log.as_deref().map(super::run::tail_of_file).unwrap_or_default()
    }

    /// Sends `signal`. A child that has ended already is not an error.
    pub fn signal(&self, signal: Signal) {
        if let Some(handle) = &self.handle {
            let _ = pidfd_send_signal(handle, signal);
        }
    }

    /// How the child ended, if it has.
    #[must_use]
    pub fn status(&self) -> Option<ExitStatus> {
        self.end.wait(Duration::ZERO)
    }

    /// Kills the child with SIGKILL and returns when it has been reaped. Blocks for microseconds.
    pub fn kill9(&self) {
        self.signal(Signal::KILL);
        if self.end.wait(KILL_LIMIT).is_none() {
            tracing::error!(child = self.name, pid = self.pid, "a killed child has not ended");
        }
    }

    /// Waits for the child's end.
    pub async fn wait(&self) -> ExitStatus {
        let mut ended = self.ended.clone();
        // The sender is dropped only after it sent, so the value is there in either case.
        let _ = ended.wait_for(Option::is_some).await;
        self.status().unwrap_or_default()
    }

    /// Waits for the child's end, at most `limit`.
    pub async fn wait_timeout(&self, limit: Duration) -> Option<ExitStatus> {
        tokio::time::timeout(limit, self.wait()).await.ok()
    }

    /// Asks the child to end with `signal`, and kills it when it has not after `limit`.
    pub async fn stop(&self, signal: Signal, limit: Duration) -> Stopped {
        self.signal(signal);
        match self.wait_timeout(limit).await {
            Some(status) => Stopped { status, killed: false },
            None => {
                self.signal(Signal::KILL);
                Stopped { status: self.wait().await, killed: true }
            }
        }
    }

    /// As [`Running::stop`], for callers outside a runtime and for `Drop`.
    pub fn stop_blocking(&self, signal: Signal, limit: Duration) {
        self.signal(signal);
        if self.end.wait(limit).is_none() {
            self.kill9();
        }
    }

    /// As [`Running::wait_timeout`], for callers outside a runtime.
    #[must_use]
    pub fn wait_blocking(&self, limit: Duration) -> Option<ExitStatus> {
        self.end.wait(limit)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.status().is_none() {
            self.kill9();
        }
    }
}
