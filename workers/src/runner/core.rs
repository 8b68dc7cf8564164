//! What the parts of one worker share.

use std::sync::Arc;

use domain::queue::Operation;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::held::Held;
use super::hints::Outbox;
use super::job::Registry;
use super::keeper::Refusal;
use super::lease::HeldLease;
use super::meters::Meters;
use super::rhythm::Rhythm;
use super::settler::Request;
use crate::seam::{LeaseStore, Registration};

pub(super) struct Core {
    pub(super) registration: Registration,
    pub(super) registry: Registry,
    pub(super) store: Arc<dyn LeaseStore>,
    pub(super) held: Held,
    /// One permit for each handler that may run.
    pub(super) slots: Arc<Semaphore>,
    pub(super) meters: Meters,
    /// Fires when the worker's row is written: a lease's holder is always known.
    pub(super) registered: CancellationToken,
    /// Fires when the worker stops taking work.
    pub(super) draining: CancellationToken,
    /// Fires when the drain time is over: what still runs is dropped and snoozed.
    pub(super) drained: CancellationToken,
    /// Fires when everything must end at once.
    pub(super) stop_now: CancellationToken,
    /// Somebody has work for us: looked at before the next poll.
    pub(super) wake: Arc<Notify>,
    /// When this worker polls and looks, and what it last heard of its peers.
    pub(super) rhythm: Rhythm,
    /// The sweeps have work, as a poll saw.
    pub(super) sweep_wanted: Notify,
    /// Jobs that this worker made due, for others to hear of.
    pub(super) outbox: Outbox,
    /// It is this worker's turn to prune.
    pub(super) prune_wanted: Notify,
    /// Bounded by the leases that are held.
    pub(super) settlements: mpsc::UnboundedSender<Request>,
    pub(super) refusals: mpsc::Sender<Refusal>,
}

impl Core {
    /// Counts a refused write and has its evidence kept, without waiting for it.
    pub(super) fn refused(&self, held: &HeldLease, operation: Operation) {
        // Its handler settled it, and that has committed or is about to be refused for itself.
        if operation == Operation::Renew && held.inside().is_some() {
            return;
        }
        held.meter.refused(operation);
        let _entered = held.span.enter();
        tracing::warn!(operation = operation.as_str(), "the fence refused a write: the lease is lost");
        if self.refusals.try_send(Refusal { lease: held.lease(), operation }).is_err() {
            tracing::warn!("too many refused writes at once: this one is counted, its evidence is not kept");
        }
    }
}
