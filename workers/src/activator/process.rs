//! Processes: those that outlive us, and short commands.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::sync::watch;

use super::detach::{SUBCOMMAND, encode};
use super::identity::Identity;
use super::record::{Ended, Record};

/// Pause between two looks at a process.
pub(super) const POLL: Duration = Duration::from_millis(20);
/// How long a started process may take to write its record.
const BEGIN_LIMIT: Duration = Duration::from_secs(20);
/// How long the status of a child that is gone may take to be reaped.
const REAP_LIMIT: Duration = Duration::from_secs(1);
/// A log longer than this is put aside when its process starts anew, bytes.
const LOG_LIMIT: u64 = 10 << 20;
/// How much of a log a message carries.
const TAIL_BYTES: u64 = 2 * 1024;

type Exit = watch::Receiver<Option<ExitStatus>>;

/// How the processes that this worker started itself ended. Those of an earlier worker are not our children, so
/// nobody tells us.
#[derive(Debug, Clone, Default)]
pub(super) struct Exits(Arc<Mutex<HashMap<u32, Exit>>>);

impl Exits {
    fn watch(&self, pid: u32, mut child: tokio::process::Child) -> Exit {
        let (sender, exit) = watch::channel(None);
        tokio::spawn(async move {
            let _ = sender.send(child.wait().await.ok());
        });
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(pid, exit.clone());
        exit
    }

    /// The status of a process that is gone, where it was our child. Forgets it: the number may be given again.
    async fn of(&self, pid: u32) -> Option<ExitStatus> {
        let mut exit = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&pid)?;
        let status = tokio::time::timeout(REAP_LIMIT, exit.wait_for(Option::is_some)).await.ok()?.ok()?;
        *status
    }
}

/// A process that is to outlive us.
pub(super) struct Detached<'a> {
    /// The executable of ours that carries the hidden subcommand.
    pub(super) launcher: &'a Path,
    /// Where the process writes who it is.
    pub(super) record: &'a Path,
    pub(super) note: &'a str,
    pub(super) program: &'a Path,
    pub(super) args: Vec<OsString>,
    /// Its whole environment.
    pub(super) environment: BTreeMap<OsString, OsString>,
    pub(super) folder: &'a Path,
    /// Where its output is appended.
    pub(super) log: &'a Path,
}

impl Detached<'_> {
    /// Starts it, and returns once its record is written, or once it has ended before it wrote one.
    pub(super) async fn start(&self, exits: &Exits) -> io::Result<Record> {
        let log = self.open_log()?;
        // An earlier process's record, whose end the caller knows, must not be taken for this one's.
        super::durable::remove(self.record)?;
        let mut command = Command::new(self.launcher);
        command.arg(SUBCOMMAND).arg(std::process::id().to_string()).arg(self.record).arg(self.note).arg("--");
        // The tenant's environment comes on stdin: nothing of it (a library to preload) is obeyed by our own program.
        command.arg(self.program).args(&self.args).env_clear().current_dir(self.folder);
        command.stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log);
        #[allow(clippy::disallowed_methods, reason = "a tenant's child must outlive its worker")]
        let mut child = command.spawn()?;
        let pid = child.id().ok_or_else(|| io::Error::other("it ended before it had a number"))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A launcher that ended already is told by its status below.
            let _ = stdin.write_all(&encode(&self.environment)).await;
        }
        let exit = exits.watch(pid, child);
        let deadline = Instant::now() + BEGIN_LIMIT;
        loop {
            match Record::read(self.record)? {
                Some(record) if record.identity.pid == pid && record.ended.is_none() => return Ok(record),
                Some(_) | None => {}
            }
            if let Some(status) = *exit.borrow() {
                return Err(io::Error::other(format!("it did not begin ({status}): {}", tail(self.log))));
            }
            if Instant::now() >= deadline {
                return Err(io::Error::other(format!("process {pid} wrote no record within {BEGIN_LIMIT:?}")));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn open_log(&self) -> io::Result<std::fs::File> {
        if std::fs::metadata(self.log).is_ok_and(|about| about.len() > LOG_LIMIT) {
            let mut older = self.log.as_os_str().to_owned();
            older.push(".1");
            #[allow(clippy::disallowed_methods, reason = "a log that a crash leaves in its place is only longer")]
            std::fs::rename(self.log, &older)?;
        }
        OpenOptions::new().create(true).append(true).open(self.log)
    }
}

/// What is known of a record's process.
pub(super) enum Life {
    /// Nothing was started, or its end is proven.
    Gone,
    /// It lives.
    Lives(Record),
    /// It is gone, and others of its group or session live.
    Lingers(u32),
}

/// Looks at the process of the record at `path`.
pub(super) fn look(path: &Path) -> io::Result<Life> {
    let Some(record) = Record::read(path)? else { return Ok(Life::Gone) };
    if record.ended.is_some() {
        return Ok(Life::Gone);
    }
    if record.identity.lives()? {
        return Ok(Life::Lives(record));
    }
    let other = record.identity.living()?.first().copied();
    Ok(match other {
        Some(pid) => Life::Lingers(pid),
        None => Life::Gone,
    })
}

/// Why a process has no proven end.
pub(super) enum NoEnd {
    /// These live on.
    Hangs { pid: u32, lingering: Vec<u32>, waited: Duration },
    /// It could not be looked at.
    Unknown(io::Error),
}

impl From<io::Error> for NoEnd {
    fn from(error: io::Error) -> Self {
        Self::Unknown(error)
    }
}

/// Ends the process of the record at `path`, and everything of its group and session: SIGTERM, and a wait of at most
/// `limit` for the proven end, which is written into the record. Never SIGKILL. `None` where nothing was started.
///
/// Asked again after the proof, the answer is the same.
pub(super) async fn end(path: &Path, limit: Duration, exits: &Exits) -> Result<Option<Ended>, NoEnd> {
    let Some(mut record) = Record::read(path)? else { return Ok(None) };
    if let Some(ended) = record.ended {
        return Ok(Some(ended));
    }
    let begun = Instant::now();
    let identity = record.identity.clone();
    if identity.lives()? || !identity.living()?.is_empty() {
        ask_to_end(&identity)?;
    }
    loop {
        // In this order: a leader that lives may start others.
        if !identity.lives()? {
            let lingering = identity.living()?;
            if lingering.is_empty() {
                break;
            }
        }
        if begun.elapsed() >= limit {
            let lingering = identity.living()?.into_iter().collect();
            return Err(NoEnd::Hangs { pid: identity.pid, lingering, waited: begun.elapsed() });
        }
        tokio::time::sleep(POLL).await;
    }
    let status = exits.of(identity.pid).await;
    let ended = Ended {
        identity,
        exit_code: status.and_then(|status| status.code()),
        exit_signal: status.and_then(|status| status.signal()),
        group_empty: true,
        waited_ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
    };
    record.ended = Some(ended.clone());
    record.write(path)?;
    Ok(Some(ended))
}

/// SIGTERM to the group, and to whoever left the group but not the session. The caller has just seen that something
/// lives there, and while it does, the kernel gives the number to nobody else.
fn ask_to_end(identity: &Identity) -> io::Result<()> {
    let number = |pid: u32| i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let Some(group) = number(identity.pid) {
        // Nobody there: it ended meanwhile.
        let _ = kill_process_group(group, Signal::TERM);
    }
    for pid in identity.living()? {
        let left = number(pid).filter(|pid| rustix::process::getpgid(Some(*pid)).ok() != number(identity.pid));
        if let Some(pid) = left {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
    Ok(())
}

/// A short command, and what it said.
pub(super) struct Output {
    pub(super) success: bool,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// Runs a command to its end, at most `limit`; `None` where it was not done by then and was killed.
pub(super) async fn run(
    program: &Path,
    args: &[OsString],
    environment: &BTreeMap<OsString, OsString>,
    folder: &Path,
    limit: Duration,
) -> io::Result<Option<Output>> {
    let mut command = Command::new(program);
    command.args(args).env_clear().envs(environment).current_dir(folder).stdin(Stdio::null()).kill_on_drop(true);
    #[allow(clippy::disallowed_methods, reason = "litestream's short commands, in the one file that starts processes")]
    let output = command.output();
    let Ok(output) = tokio::time::timeout(limit, output).await else { return Ok(None) };
    let output = output?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Some(Output { success: output.status.success(), stdout: text(&output.stdout), stderr: text(&output.stderr) }))
}

/// The end of a log, for a message; empty where it cannot be read.
pub(super) fn tail(log: &Path) -> String {
    let read = || -> io::Result<String> {
        let mut file = std::fs::File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
    };
    read().unwrap_or_default()
}

/// The program of a setting: a path as it is, a bare name looked up in the box's own PATH, never in a tenant's.
pub(super) fn resolve(program: &Path, environment: &BTreeMap<OsString, OsString>) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return std::path::absolute(program).ok().filter(|path| path.is_file());
    }
    let path = environment.get(std::ffi::OsStr::new("PATH"))?;
    std::env::split_paths(path).map(|folder| folder.join(program)).find(|path| path.is_file())
}
