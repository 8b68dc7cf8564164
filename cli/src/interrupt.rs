//! Ctrl-C and SIGTERM: the first asks to end in order, the second ends at once.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The exit code of a process that was told twice: 128 and SIGINT's number, as shells have it.
const AT_ONCE: i32 = 130;

/// A token that the first signal cancels. The second ends the process; children die with it.
///
/// # Errors
/// Where signals cannot be watched.
pub(crate) fn first() -> io::Result<CancellationToken> {
    let second = CancellationToken::new();
    let first = watch(&second)?;
    tokio::spawn(async move {
        second.cancelled().await;
        tracing::warn!("ended at once by a second signal");
        std::process::exit(AT_ONCE)
    });
    Ok(first)
}

/// A token that the first signal cancels; `second` is cancelled by the second.
///
/// # Errors
/// Where signals cannot be watched.
pub(crate) fn watch(second: &CancellationToken) -> io::Result<CancellationToken> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let first = CancellationToken::new();
    let (asked, second) = (first.clone(), second.clone());
    tokio::spawn(async move {
        for token in [asked, second] {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            token.cancel();
        }
    });
    Ok(first)
}
