//! `leasehold dev`: the whole of Leasehold on this machine, kept running.
//!
//! State is in one folder and taken up again at the next start: the database, the buckets, the key.

use std::path::PathBuf;
use std::time::Duration;

use secrecy::ExposeSecret as _;

use crate::interrupt;
use sandbox::tools::{self, Tool};

use crate::stack::{self, Instances, Narrator, Options, Stack, database_path, key_path};

/// How often the processes are looked at.
const LOOK_PACE: Duration = Duration::from_millis(500);

/// Runs until it is asked to end.
///
/// # Errors
/// What did not start, or ended by itself.
pub(crate) async fn run(dir: PathBuf, port: u16, round_seconds: u32, narrator: &Narrator) -> anyhow::Result<()> {
    let interrupted = interrupt::first()?;
    let (key_path, database_path) = (key_path(&dir), database_path(&dir));
    // Without litestream the boxes mirror, and neither run nor land instances: the rest is worth having.
    let instances = match stack::blocking(|| tools::ensure(Tool::Litestream)).await {
        Ok(litestream) => Some(Instances { litestream, hosts: Vec::new() }),
        Err(error) => {
            narrator.line(&format!("          no litestream, so the boxes run and land no instances: {error:#}"));
            None
        }
    };
    let options = Options { dir: dir.clone(), api_port: Some(port), keep: true, round_seconds, instances };
    let stack = tokio::select! {
        stack = Stack::start(options, narrator) => stack?,
        // Dropping what had started ends it.
        () = interrupted.cancelled() => {
            stack::reap(&dir);
            return Ok(());
        }
    };
    narrator.rest();
    narrator.line(&format!(
        "\nLeasehold is running. Ctrl-C ends it.\n  \
         dashboard  {url}/\n  \
         edge       {edge}/ for instances, by their Host\n  \
         key        {key}\n             kept in {path}\n  \
         database   LEASEHOLD_DATABASE_URL=$(cat {database}) for leasehold doctor, prune and key bootstrap\n  \
         logs       {logs}\n  \
         try        LEASEHOLD_URL={url} LEASEHOLD_KEY_FILE={path} leasehold job enqueue system.noop\n",
        url = stack.url,
        edge = stack.edge.url(),
        key = stack.key.expose_secret(),
        path = key_path.display(),
        database = database_path.display(),
        logs = stack.logs().display(),
    ));
    let ended = loop {
        tokio::select! {
            () = interrupted.cancelled() => break Ok(()),
            () = tokio::time::sleep(LOOK_PACE) => {}
        }
        if let Err(error) = stack.check() {
            break Err(error);
        }
    };
    narrator.line("ending; Ctrl-C again ends at once");
    stack.stop().await;
    narrator.line("everything has ended");
    ended
}
