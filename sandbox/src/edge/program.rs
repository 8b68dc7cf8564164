//! An edge as a process of its own: several of them, on one machine, as several places on earth.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use tokio::signal::unix::{SignalKind, signal};

use super::{Api, Edge, Options, SUBCOMMAND};

/// How it is called.
const USAGE: &str = "internal-edge --listen ADDRESS --api URL --key-file PATH REGION…";

/// Runs the hidden subcommand to its end; `args` are what follows its name. Its URL is its first line on stdout, once
/// every document was read; it ends on SIGTERM.
#[must_use]
pub fn internal_edge(args: &[OsString]) -> ExitCode {
    let run = || -> anyhow::Result<()> {
        let words: Vec<&str> =
            args.iter().map(|arg| arg.to_str()).collect::<Option<_>>().context("arguments are UTF-8")?;
        let (options, api) = parse(&words)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(run(options, api))
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{SUBCOMMAND}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn parse(words: &[&str]) -> anyhow::Result<(Options, Api)> {
    let ["--listen", listen, "--api", url, "--key-file", key_file, regions @ ..] = words else { bail!(USAGE) };
    if regions.is_empty() {
        bail!(USAGE);
    }
    let listen = listen.parse().with_context(|| format!("{listen} is no address"))?;
    // From a file: other users of a machine see arguments.
    let key = std::fs::read_to_string(key_file).with_context(|| format!("read {key_file}"))?;
    Ok((Options { listen, ..Options::of(regions.iter().copied()) }, Api::new(url, key.trim())?))
}

async fn run(options: Options, api: Api) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("watch SIGTERM")?;
    let edge = Edge::start(options, Arc::new(api)).await?;
    let told = async {
        edge.until_read().await;
        // Whoever started us may not listen: then nobody is told.
        let _ = writeln!(std::io::stdout(), "{}", edge.url());
        std::future::pending::<()>().await
    };
    tokio::select! {
        () = told => {}
        _ = terminate.recv() => {}
    }
    edge.stop().await;
    Ok(())
}
