//! The asynchronous runtime of a command.

use anyhow::Context as _;

/// Threads for blocking work (file system, child processes). The default of 512 would let a burst
/// of slow disk calls take the machine.
const MAX_BLOCKING_THREADS: usize = 64;

/// Runs `work` to its end on a runtime of its own.
///
/// # Errors
/// The work's, or the system's where it has no threads left.
pub(crate) fn run<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    // Once for the process: every TLS connection of ours takes this provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .build()
        .context("start the runtime")?
        .block_on(work)
}
