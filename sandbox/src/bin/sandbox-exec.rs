//! A developer's tool, never shipped: the launcher for tests, a PostgreSQL for a while, and the
//! fetching of pinned tools.
//!
//! ```text
//! sandbox-exec internal-…                the hidden subcommands, as `leasehold` carries them: see `sandbox::hidden`
//! sandbox-exec postgres --dir D           start a cluster in D, print its URL, stay until stdin closes or SIGTERM
//! sandbox-exec fetch [litestream|weed|postgres]…
//! ```

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use sandbox::{postgres, tools};

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    // First of all, while this process has a single thread.
    if let Some(code) = sandbox::hidden(&args) {
        return code;
    }
    let words: Vec<&str> = args.iter().filter_map(|arg| arg.to_str()).collect();
    let done = match words.as_slice() {
        ["postgres", "--dir", folder] => serve_postgres(folder),
        ["fetch", names @ ..] if !names.is_empty() => fetch(names),
        _ => Err(anyhow::anyhow!("usage: sandbox-exec postgres --dir D | fetch litestream|weed|postgres…")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandbox-exec: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn fetch(names: &[&str]) -> anyhow::Result<()> {
    for name in names {
        let Some(tool) = tools::Tool::from_name(name) else { bail!("no tool {name}: litestream, weed or postgres") };
        let path = tools::fetch(tool)?;
        writeln!(std::io::stdout(), "{}", path.display())?;
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn serve_postgres(folder: &str) -> anyhow::Result<()> {
    let options = postgres::Options { dir: folder.into(), durable: false, keep: true };
    let server = postgres::Postgres::start(options).await?;
    if let Some(note) = server.note() {
        eprintln!("sandbox-exec: {note}");
    }
    writeln!(std::io::stdout(), "{}", server.url())?;
    std::io::stdout().flush()?;
    let closed = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    let mut terminate =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).context("watch SIGTERM")?;
    tokio::select! {
        _ = closed => {}
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    server.stop().await;
    // Not by returning: the runtime would wait for the thread that still reads stdin.
    std::process::exit(0)
}
