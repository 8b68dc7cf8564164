//! Child processes that cannot outlive us.
//!
//! Every child is started through a *launcher*: an executable of ours that carries the hidden
//! subcommand `internal-exec --parent <pid> [--uid N --gid N] -- <program> <args…>`. It changes its
//! identity, asks the kernel for SIGKILL when its parent dies, checks that the parent is still
//! there, and becomes the program ([`internal_exec`]). So a SIGKILL of the parent takes the child
//! along, without a watchdog, and without unsafe code after a fork.
//!
//! Three traps, each handled here:
//! - The kernel sends the parent-death signal when the *thread* that forked ends, not the process.
//!   All children are therefore forked by one thread that lives as long as the process; a thread
//!   of a runtime's blocking pool would kill its children when it idles out.
//! - A change of uid clears the parent-death signal, so the identity is changed first.
//! - The parent may die between fork and the request: the launcher compares `getppid` afterwards.
//!
//! Children run in a process group of their own: Ctrl-C in a terminal reaches us alone, and we stop
//! them in order. Their environment is an allow-list: what [`Spawn::env`] names, nothing else.

mod child;
mod inner;
mod launcher;
mod run;

pub use child::{Running, Stopped};
pub use inner::{SUBCOMMAND, internal_exec};
pub use launcher::{launcher, set_launcher};
pub use run::Finished;
pub use rustix::process::Signal;

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

/// The unprivileged identity (`nobody` and `nogroup` on Debian) under which servers that refuse to
/// be root run when we are root.
pub const NOBODY: u32 = 65_534;

/// Why a child could not be started, or did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// No executable with the hidden subcommand was found.
    #[error("no launcher: build it with `cargo build -p leasehold-sandbox`, or name one with LEASEHOLD_LAUNCHER")]
    NoLauncher,
    /// A file or folder that the child needs could not be opened.
    #[error("open {path} for {program}")]
    Open {
        /// The child's program.
        program: String,
        /// What could not be opened.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The launcher could not be started.
    #[error("start {program}")]
    Start {
        /// The child's program.
        program: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A short-lived command did not end in its time and was killed.
    #[error("{program} did not end within {limit:?}: {tail}")]
    TimedOut {
        /// The command's program.
        program: String,
        /// How long it was given.
        limit: Duration,
        /// The end of what it had printed.
        tail: String,
    },
    /// A short-lived command ended with a failure.
    #[error("{program} failed ({status}): {tail}")]
    Failed {
        /// The command's program.
        program: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// The end of what it printed.
        tail: String,
    },
}

/// A child to be started: what runs, with which environment, as whom, and where its output goes.
#[derive(Debug, Clone)]
pub struct Spawn {
    /// The program: a path, or a name looked up in the child's `PATH`.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// The child's whole environment, after the few basic names that every child gets
    /// (`PATH HOME TMPDIR LANG TZ`).
    pub env: Vec<(OsString, OsString)>,
    /// Whether the child sees all of our environment as well: for the user's own tools (pip), which
    /// obey the user's settings. Never for a server.
    pub inherit_env: bool,
    /// Where it runs; our own working folder when absent.
    pub cwd: Option<PathBuf>,
    /// Where stdout and stderr are appended; discarded when absent.
    pub log_file: Option<PathBuf>,
    /// The uid (and gid of the same number) it runs as; ours when absent. Needs root.
    pub uid: Option<u32>,
}

impl Spawn {
    /// A child of `program` without arguments.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            inherit_env: false,
            cwd: None,
            log_file: None,
            uid: None,
        }
    }

    /// Adds one argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<T: Into<OsString>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds one variable to the child's environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Sets the child's working folder.
    #[must_use]
    pub fn cwd(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cwd = Some(folder.into());
        self
    }

    /// Appends the child's stdout and stderr to `path`.
    #[must_use]
    pub fn log_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.log_file = Some(path.into());
        self
    }

    /// Runs the child as `uid`, if given.
    #[must_use]
    pub fn uid(mut self, uid: Option<u32>) -> Self {
        self.uid = uid;
        self
    }

    /// Starts the child. It dies with this process, and when the returned handle is dropped.
    ///
    /// # Errors
    /// [`ExecError`]. A program that does not exist is seen as the child's own end with code 127 and
    /// a line in its log, since it is the launcher that looks for it.
    pub fn start(&self) -> Result<Running, ExecError> {
        let (out, err) = match &self.log_file {
            Some(path) => {
                let file = self.open_log(path)?;
                let twin = file.try_clone().map_err(|source| self.open_error(path, source))?;
                (Stdio::from(file), Stdio::from(twin))
            }
            None => (Stdio::null(), Stdio::null()),
        };
        let child = self.fork(out, err)?;
        Ok(Running::new(self.name(), child, self.log_file.clone()))
    }

    fn fork(&self, out: Stdio, err: Stdio) -> Result<Child, ExecError> {
        let mut command = Command::new(launcher()?);
        command.arg(SUBCOMMAND).arg("--parent").arg(std::process::id().to_string());
        if let Some(uid) = self.uid {
            let uid = uid.to_string();
            command.args(["--uid", &uid, "--gid", &uid]);
        }
        command.arg("--").arg(&self.program).args(&self.args);
        if !self.inherit_env {
            command.env_clear().envs(crate::environment::base());
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = &self.cwd {
            command.current_dir(folder);
        }
        command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        fork_on_lasting_thread(command).map_err(|source| ExecError::Start { program: self.name(), source })
    }

    /// The program's short name, for messages.
    fn name(&self) -> String {
        self.program.file_name().unwrap_or(self.program.as_os_str()).to_string_lossy().into_owned()
    }

    fn open_log(&self, path: &Path) -> Result<File, ExecError> {
        OpenOptions::new().create(true).append(true).open(path).map_err(|source| self.open_error(path, source))
    }

    fn open_error(&self, path: &Path, source: io::Error) -> ExecError {
        ExecError::Open { program: self.name(), path: path.to_owned(), source }
    }
}

type ForkRequest = (Command, mpsc::SyncSender<io::Result<Child>>);

/// The queue of the one thread that forks, started on first use and never ended.
static FORKER: Mutex<Option<mpsc::Sender<ForkRequest>>> = Mutex::new(None);

fn fork_on_lasting_thread(command: Command) -> io::Result<Child> {
    let forker = {
        let mut guard = FORKER.lock().unwrap_or_else(PoisonError::into_inner);
        match &*guard {
            Some(sender) => sender.clone(),
            None => guard.insert(start_forker()?).clone(),
        }
    };
    let (reply, answer) = mpsc::sync_channel(1);
    let gone = |_| io::Error::other("the thread that forks children is gone");
    forker.send((command, reply)).map_err(|_| gone(mpsc::RecvError))?;
    answer.recv().map_err(gone)?
}

fn start_forker() -> io::Result<mpsc::Sender<ForkRequest>> {
    let (sender, requests) = mpsc::channel::<ForkRequest>();
    std::thread::Builder::new().name("sandbox-forker".to_owned()).spawn(move || {
        // The sender lives in a static, so this loop, and with it this thread, lasts as long as
        // the process: exactly as long as the children may.
        for (mut command, reply) in requests {
            #[allow(clippy::disallowed_methods, reason = "the one place that starts processes")]
            let child = command.spawn();
            // Nobody waits for the answer only when the asking thread died: then the child goes too.
            if let Err(mpsc::SendError(Ok(mut orphan))) = reply.send(child) {
                let _ = orphan.kill();
                let _ = orphan.wait();
            }
        }
    })?;
    Ok(sender)
}
