//! The thread that keeps leases alive, and ends what can no longer be kept alive.
//!
//! An OS thread with a runtime and connections of its own: no handler, however it blocks, can keep it from renewing.
//! On it run four loops: renewals, the self-stop, the worker's beat, and the evidence of refused writes. The self-stop
//! waits for no answer of the database, so it works while a renewal hangs.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use domain::clock::Timestamp;
use domain::entropy;
use domain::lease::Lease;
use domain::queue::{Operation, Renewed};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::config::{ANSWER_LIMIT, BATCH, BEAT_INTERVAL, LAST_WRITES};
use super::core::Core;
use super::lease::{HeldLease, Phase, Stop};
use super::outage::Outage;
use crate::seam::{LeaseStore, StoreError};

/// The evidence of one refused write, on its way to the database.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refusal {
    pub(super) lease: Lease,
    pub(super) operation: Operation,
}

/// Longest sleep of a loop that has nothing to wait for.
const IDLE: Duration = Duration::from_secs(3600);

/// The thread.
pub(super) struct Keeper {
    /// Ends it, when no lease is held any longer.
    pub(super) stop: CancellationToken,
    /// Answers when the thread has ended; without a value where it panicked.
    pub(super) ended: oneshot::Receiver<()>,
}

/// Starts the thread.
///
/// # Errors
/// The operating system gives no thread.
pub(super) fn start(core: Arc<Core>, refusals: mpsc::Receiver<Refusal>) -> std::io::Result<Keeper> {
    let stop = CancellationToken::new();
    let (tell, ended) = oneshot::channel();
    let stopping = stop.clone();
    std::thread::Builder::new().name(String::from("lease-keeper")).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        match runtime {
            Ok(runtime) => {
                runtime.block_on(keep(core, refusals, stopping));
                let _ = tell.send(());
            }
            // The sender is dropped without a value, which ends the worker.
            Err(error) => tracing::error!(%error, "the thread that renews leases has no runtime"),
        }
    })?;
    Ok(Keeper { stop, ended })
}

async fn keep(core: Arc<Core>, refusals: mpsc::Receiver<Refusal>, stop: CancellationToken) {
    // Made here, so that its connections belong to this thread's runtime.
    let store = core.store.on_own_connections();
    tokio::join!(
        until(&stop, renew_leases(&core, &*store)),
        until(&stop, stop_in_time(&core)),
        until(&stop, beat(&core, &*store)),
        keep_evidence(&core, &*store, refusals, &stop),
    );
}

async fn until(stop: &CancellationToken, work: impl Future<Output = ()>) {
    tokio::select! {
        () = work => {}
        () = stop.cancelled() => {}
    }
}

/// Renews every lease a third of its life after its last renewal was sent.
async fn renew_leases(core: &Core, store: &dyn LeaseStore) {
    let mut outage = Outage::new("renewing");
    loop {
        let (due, next) = core.held.due(Instant::now());
        if due.is_empty() {
            let next = next.unwrap_or_else(|| Instant::now() + IDLE);
            tokio::select! {
                () = sleep_until(next.into()) => {}
                () = core.held.renewal_moved.notified() => {}
            }
            continue;
        }
        for batch in due.chunks(usize::from(BATCH)) {
            renew(core, store, batch, &mut outage).await;
        }
    }
}

async fn renew(core: &Core, store: &dyn LeaseStore, batch: &[Arc<HeldLease>], outage: &mut Outage) {
    let asked: Vec<(Lease, Duration)> = batch.iter().map(|held| (held.lease(), held.life)).collect();
    let shortest = asked.iter().map(|(_, life)| *life).min().unwrap_or_default();
    let sent = Instant::now();
    // An answer that is later than this leaves time for one more try before the self-stop.
    let failure = match timeout(shortest / 4, store.renew(&asked)).await {
        Ok(Ok(answers)) => {
            outage.over();
            for (held, answer) in batch.iter().zip(answers) {
                take_answer(core, held, answer, sent);
            }
            return;
        }
        Ok(Err(error)) => error,
        Err(late) => StoreError::Unavailable(late.into()),
    };
    // Nothing is known: the leases may have been renewed or not. Their local deadlines stay where they were.
    let pause = outage.failed(&failure).min(shortest / 12).mul_f64(0.5 + entropy::fraction() / 2.0);
    for held in batch {
        held.renew_again_in(pause);
    }
}

fn take_answer(core: &Core, held: &HeldLease, answer: Renewed, sent: Instant) {
    match answer {
        Renewed::Alive => held.renewed(sent),
        Renewed::CancelRequested { reason } => {
            held.renewed(sent);
            if held.ask_to_end(reason) {
                let _entered = held.span.enter();
                tracing::info!("somebody asks the job to end: its handler is told");
            }
        }
        // Whose row another session holds is asked for again before its local deadline, beside the others.
        Renewed::Busy => held.renew_again_in(held.life / 12),
        Renewed::Lost => match held.phase() {
            Phase::Waiting | Phase::Running => {
                // Once is enough: a handler that blocks is told when it yields, and asks no more renewals till then.
                held.renew_again_in(IDLE);
                core.refused(held, Operation::Renew);
                held.stop(Stop::Lost);
            }
            // Our own settling came between: its answer says what became of the lease.
            Phase::Settling | Phase::Over => held.renew_again_in(held.life / 3),
        },
    }
}

/// Stops handlers whose leases were not renewed in time.
async fn stop_in_time(core: &Core) {
    loop {
        let (expiring, next) = core.held.expiring(Instant::now());
        for held in expiring {
            if matches!(held.phase(), Phase::Waiting | Phase::Running) {
                let _entered = held.span.enter();
                tracing::warn!("the lease could not be renewed in time: its handler is stopped before it ends");
            }
            held.stop(Stop::Expiring);
        }
        let next = next.unwrap_or_else(|| Instant::now() + IDLE);
        tokio::select! {
            () = sleep_until(next.into()) => {}
            () = core.held.stop_moved.notified() => {}
        }
    }
}

/// Registers the worker, and says that it lives where its polls do not, with its wall clock: reported, never used
///
async fn beat(core: &Core, store: &dyn LeaseStore) {
    let mut outage = Outage::new("beating");
    let worker = core.registration.spec.worker;
    while let Err(error) = in_time(store.register(&core.registration)).await {
        sleep(outage.failed(&error)).await;
    }
    outage.over();
    core.registered.cancel();
    loop {
        // A little later than a poll would: those of an idle worker say it in passing.
        sleep(BEAT_INTERVAL / 4).await;
        let now = Instant::now();
        if core.rhythm.misses_beat(now) {
            match in_time(store.seen(worker, wall_clock())).await {
                Ok(()) => {
                    outage.over();
                    core.rhythm.beaten(now);
                }
                Err(error) => sleep(outage.failed(&error)).await,
            }
        }
    }
}

async fn in_time<T>(answer: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    timeout(ANSWER_LIMIT, answer).await.unwrap_or_else(|late| Err(StoreError::Unavailable(late.into())))
}

/// The one look at this machine's wall clock: to report how far it is off.
#[allow(clippy::disallowed_methods, reason = "the report of a skewed clock is what it is for")]
pub(super) fn wall_clock() -> Timestamp {
    SystemTime::now().into()
}

/// Writes down refused writes, on a connection that no other loop waits for. What is queued when the worker ends is
/// still written, for a bounded time.
async fn keep_evidence(
    core: &Core,
    store: &dyn LeaseStore,
    mut refusals: mpsc::Receiver<Refusal>,
    stop: &CancellationToken,
) {
    let mut outage = Outage::new("keeping evidence");
    let worker = core.registration.spec.worker;
    let mut write = async |refusal: Refusal| {
        loop {
            let written = timeout(ANSWER_LIMIT, store.refused_write(refusal.lease, worker, refusal.operation)).await;
            match written.unwrap_or_else(|late| Err(StoreError::Unavailable(late.into()))) {
                Ok(_) => {
                    outage.over();
                    return;
                }
                Err(error @ (StoreError::Unavailable(_) | StoreError::Held(_))) => sleep(outage.failed(&error)).await,
                Err(error @ (StoreError::LeaseLost(_) | StoreError::Refused(_))) => {
                    tracing::error!(%error, "the evidence of a refused write could not be kept");
                    return;
                }
            }
        }
    };
    loop {
        let refusal = tokio::select! {
            biased;
            refusal = refusals.recv() => refusal,
            () = stop.cancelled() => break,
        };
        let Some(refusal) = refusal else { return };
        tokio::select! {
            () = write(refusal) => {}
            () = async { stop.cancelled().await; sleep(LAST_WRITES).await } => return,
        }
    }
    // The worker ends: only what is queued.
    let _ = timeout(LAST_WRITES, async {
        while let Ok(refusal) = refusals.try_recv() {
            write(refusal).await;
        }
    })
    .await;
}
