//! What runs for an instance in tests; never shipped.
//!
//! ```text
//! test-tenant internal-detach …   the hidden subcommand, as `leasehold` carries it
//! test-tenant serve               a tenant: tells everybody who connects its environment, one NAME=VALUE a line
//! test-tenant linger              what a tenant leaves behind: ignores SIGTERM
//! test-tenant worker …            an activator that starts one child, says so, and waits to be killed
//! ```
//! `serve` ends on SIGTERM, unless `TENANT_HANG` is set. With `TENANT_WRITES` it writes rows as fast as a rate of about
//! 200 a second; with `TENANT_LEAVES` it starts a `linger` whose number it writes into the file of that name;
//! with `TENANT_REFUSES` it ends at once; with `TENANT_DEAF` it never listens.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::signal::unix::{SignalKind, signal};

/// The pace of the writer.
const PAUSE: Duration = Duration::from_millis(5);

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some((first, rest)) = args.split_first()
        && first == workers::activator::SUBCOMMAND
    {
        workers::activator::internal_detach(rest);
    }
    let words: Vec<&str> = args.iter().filter_map(|arg| arg.to_str()).collect();
    let done = match words.as_slice() {
        ["serve"] => serve(),
        ["linger"] => linger(),
        ["worker", folder, url, access_key, secret_key, litestream, host] => {
            worker(folder, url, [access_key, secret_key], litestream, host)
        }
        _ => Err(anyhow::anyhow!("usage: test-tenant serve | linger | worker …")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("test-tenant: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a tenant reads its environment")]
fn var(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[tokio::main]
async fn serve() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let address = var("LEASEHOLD_LISTEN").context("no LEASEHOLD_LISTEN")?;
    if var("TENANT_REFUSES").is_some() {
        bail!("this tenant does not want to");
    }
    if let Some(path) = var("TENANT_LEAVES") {
        let mut command = Command::new(std::env::current_exe()?);
        #[allow(clippy::disallowed_methods, reason = "what a tenant starts is its own affair")]
        let left = command.arg("linger").spawn()?;
        std::fs::write(path, left.id().to_string())?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let writer = match var("TENANT_WRITES") {
        Some(_) => {
            let (database, stop) = (var("LEASEHOLD_DATABASE").context("no LEASEHOLD_DATABASE")?, Arc::clone(&stop));
            Some(std::thread::spawn(move || write(Path::new(&database), &stop)))
        }
        None => None,
    };
    // Where it is deaf, elsewhere.
    let address = if var("TENANT_DEAF").is_some() { "127.0.0.1:0".to_owned() } else { address };
    let listener = TcpListener::bind(address)?;
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            for (name, value) in environment() {
                let _ = stream.write_all(&[name.as_bytes(), b"=", value.as_bytes(), b"\n"].concat());
            }
        }
    });
    loop {
        terminate.recv().await;
        if var("TENANT_HANG").is_none() {
            break;
        }
    }
    stop.store(true, Ordering::SeqCst);
    if let Some(writer) = writer {
        writer.join().expect("the writer did not panic")?;
    }
    // Not by returning: the thread that listens would keep nothing waiting, and says so.
    std::process::exit(0)
}

#[allow(clippy::disallowed_methods, reason = "a tenant tells its whole environment")]
fn environment() -> BTreeMap<OsString, OsString> {
    std::env::vars_os().collect()
}

/// Rows 1 to n without a hole, one a transaction.
fn write(database: &Path, stop: &AtomicBool) -> anyhow::Result<()> {
    let conn = rusqlite::Connection::open(database)?;
    conn.busy_timeout(Duration::from_secs(10))?;
    conn.pragma_update(None, "journal_mode", "wal")?;
    conn.pragma_update(None, "synchronous", "full")?;
    conn.execute_batch("create table if not exists entries (n integer primary key, filler text not null)")?;
    while !stop.load(Ordering::SeqCst) {
        conn.execute("insert into entries (filler) values (hex(randomblob(200)))", [])?;
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

#[tokio::main]
async fn linger() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    loop {
        terminate.recv().await;
    }
}

#[tokio::main]
async fn worker(folder: &str, url: &str, key: [&str; 2], litestream: &str, host: &str) -> anyhow::Result<()> {
    let rig = tests::activator::BoxOf { folder: folder.into(), url: url.into(), key: key.map(str::to_owned) };
    let mut settings = rig.settings(std::env::current_exe()?, PathBuf::from(litestream));
    settings.exec = Some(vec![std::env::current_exe()?.into(), "serve".into()]);
    let activator = rig.open(settings).await?;
    let host = host.parse()?;
    activator.start(&host, tests::activator::plain(&BTreeMap::new()), async { Ok(true) }).await?;
    writeln!(std::io::stdout(), "started")?;
    std::future::pending().await
}
