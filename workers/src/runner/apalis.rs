//! The apalis engine: the only module that knows apalis.
//!
//! Its rules, by the ways of apalis 1.0: a poll that answers `Err` or `None` ends the worker and drops every handler, so
//! it never does. Leases are bounded by the leaser, since apalis's own limit lies inside the settle layer and does not
//! bound what waits there. Handlers run in tasks of their own that end when they are dropped; a bare join handle would
//! let them run on. apalis's retries are not used: they know no fence.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::apalis::prelude::{Backend, BoxDynError, ParallelizeExt as _, Task, WorkerBuilder, WorkerContext, WorkerError};
use apalis_core::backend::BackendConfig;
use apalis_core::backend::finalize::Ephemeral;
use domain::lease::LeaseLost;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tower::{Layer, Service};

use super::attempt::Verdict;
use super::grip::Grip;

/// Runs jobs until `draining` fires and the last has ended. Dropped, it drops every handler.
///
/// # Errors
/// apalis's own: the worker then ends.
pub(super) async fn run(
    name: &str,
    jobs: mpsc::UnboundedReceiver<Arc<Grip>>,
    draining: CancellationToken,
) -> Result<(), WorkerError> {
    let context = WorkerContext::new(name);
    let worker = WorkerBuilder::new(&context)
        .backend(LeasedJobs { jobs })
        .parallelize(|handler| AbortOnDropHandle::new(tokio::spawn(handler)))
        .build(|grip: Arc<Grip>| async move { Ok::<Verdict, BoxDynError>(grip.run().await) });
    let running = worker.run().boxed();
    let stop = async {
        draining.cancelled().await;
        context.stop()
    };
    // Joined in this order: apalis refuses to stop a worker that was not started, and its first poll starts it.
    let (ended, _) = futures::future::join(running, stop).await;
    ended
}

/// Jobs that the leaser leased.
///
/// The argument of a task is the grip on its lease, not the payload: the payload is decoded inside the handler, where
/// one that is undecodable fails one job, and is not copied on its way.
struct LeasedJobs {
    jobs: mpsc::UnboundedReceiver<Arc<Grip>>,
}

impl Backend for LeasedJobs {
    type Task = Task<Arc<Grip>>;
    type Error = Infallible;

    fn poll_ready(&mut self, _: &mut Context<'_>, _: &WorkerContext) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn poll_next(&mut self, cx: &mut Context<'_>, _: &WorkerContext) -> Poll<Option<Result<Self::Task, Infallible>>> {
        match self.jobs.poll_recv(cx) {
            Poll::Ready(Some(grip)) => Poll::Ready(Some(Ok(Task::new(grip)))),
            // The leaser has ended: the worker is about to be stopped, and is not ended from here.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    fn poll_close(&mut self, _: &mut Context<'_>, _: &WorkerContext) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }
}

impl BackendConfig for LeasedJobs {
    type Args = Arc<Grip>;
    type Id = ();
    type Kind = Ephemeral;
    type Config = ();
    type Layer = SettleLayer;

    fn config(&self) -> &() {
        &()
    }

    fn middleware(&mut self, _: &mut WorkerContext) -> SettleLayer {
        SettleLayer
    }
}

/// Records what each handler came to: the outermost layer, so nothing can change a verdict after it.
#[derive(Debug, Clone, Copy)]
struct SettleLayer;

impl<S> Layer<S> for SettleLayer {
    type Service = Settle<S>;

    fn layer(&self, inner: S) -> Settle<S> {
        Settle { inner }
    }
}

#[derive(Debug, Clone)]
struct Settle<S> {
    inner: S,
}

impl<S> Service<Task<Arc<Grip>>> for Settle<S>
where
    S: Service<Task<Arc<Grip>>, Response = Verdict>,
    S::Future: Send + 'static,
    S::Error: Into<BoxDynError> + Send,
{
    type Response = ();
    type Error = LeaseLost;
    type Future = BoxFuture<'static, Result<(), LeaseLost>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LeaseLost>> {
        // An inner service that fails to be ready would end the worker; ours never does.
        match self.inner.poll_ready(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(_) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, task: Task<Arc<Grip>>) -> Self::Future {
        let grip = Arc::clone(&task.args);
        let handler = self.inner.call(task);
        async move {
            let verdict = match handler.await {
                Ok(verdict) => verdict,
                Err(error) => grip.broken(&error.into().to_string()),
            };
            grip.conclude(verdict).await
        }
        .boxed()
    }
}
