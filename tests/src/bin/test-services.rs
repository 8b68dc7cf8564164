//! What the tests need around them; never shipped.
//!
//! ```text
//! test-services setup              nextest's set-up script: starts the run's PostgreSQL, tells its URL in $NEXTEST_ENV
//! test-services serve PID FILE     that server: writes its URL to FILE, stays until the process PID has ended
//! test-services internal-…        the hidden subcommands, as `leasehold` carries them: see `sandbox::hidden`
//! ```

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tests::server;

/// How long the server may take to start, on a machine that builds at the same time.
const START_LIMIT: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    // First of all, while this process has a single thread.
    if let Some(code) = sandbox::hidden(&args) {
        return code;
    }
    let words: Vec<&str> = args.iter().filter_map(|arg| arg.to_str()).collect();
    let done = match words.as_slice() {
        ["setup"] => setup(),
        ["serve", owner, file] => serve(owner, file),
        _ => Err(anyhow::anyhow!("usage: test-services setup | serve PID FILE | internal-…")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("test-services: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn setup() -> anyhow::Result<()> {
    let told = server::variable("NEXTEST_ENV").context("NEXTEST_ENV is not set: this is nextest's set-up script")?;
    let nextest = rustix::process::getppid().context("nextest is gone")?.as_raw_pid().to_string();
    let folder = tempfile::tempdir()?;
    let (answer, log) = (folder.path().join("url"), folder.path().join("log"));
    let serving = std::cell::RefCell::new(detached(&nextest, &answer, &log)?);
    let url = tests::wait::until("the run's PostgreSQL starts", START_LIMIT, || async {
        let told = std::fs::read_to_string(&answer).ok().filter(|url| url.ends_with('\n'));
        let ended = || serving.borrow_mut().try_wait().ok().flatten();
        match told {
            Some(url) => Some(Ok(url.trim().to_owned())),
            None => ended()
                .map(|status| Err(format!("{status}: {}", std::fs::read_to_string(&log).unwrap_or_default().trim()))),
        }
    })
    .await;
    let url = match url {
        Ok(url) => url,
        Err(why) => bail!("the run's PostgreSQL did not start: {why}"),
    };
    let launcher = std::env::current_exe()?;
    let mut told = std::fs::OpenOptions::new().append(true).open(told)?;
    writeln!(told, "{}={url}", server::URL_VARIABLE)?;
    writeln!(told, "LEASEHOLD_LAUNCHER={}", launcher.display())?;
    Ok(())
}

/// A copy of this program that outlives this one; it watches nextest itself.
#[allow(clippy::disallowed_methods, reason = "sandbox's children die with their parent; this one must outlive it")]
fn detached(owner: &str, answer: &std::path::Path, log: &std::path::Path) -> anyhow::Result<std::process::Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["serve", owner]).arg(answer);
    // nextest waits for everyone who holds its script's output.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(std::fs::File::create(log)?).process_group(0);
    Ok(command.spawn()?)
}

fn serve(owner: &str, file: &str) -> anyhow::Result<()> {
    let pid = owner.parse().ok().and_then(rustix::process::Pid::from_raw).context("not a process id")?;
    // Opened first: from here on its end cannot be missed, and its number cannot become another's.
    let owner = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).context("the owner is gone")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let server = runtime.block_on(server::start(std::process::id()))?;
    std::fs::write(file, format!("{}\n", server.url()))?;
    let mut watched = [rustix::event::PollFd::new(&owner, rustix::event::PollFlags::IN)];
    loop {
        match rustix::event::poll(&mut watched, None) {
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("watch the owner"),
        }
    }
    drop(server);
    Ok(())
}
