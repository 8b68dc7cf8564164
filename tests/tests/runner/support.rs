//! Workers with test kinds, and looks at what became of their jobs.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use domain::ids::{JobId, Kind, QueueName, WorkerId};
use domain::queue::{self, Attempt, Backoff, Job as JobView, JobState, KindSpec, NewJob, RefusedWrite};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use serde_json::{Value, json};
use tests::db::Database;
use tests::wait::until;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use workers::runner::{
    Done, Engine, Error, Handle, Job, JobContext, JobError, Registry, RunnerConfig, Summary, Worker,
};
use workers::seam::{LeaseStore, PgLeaseStore};

/// Bound of every wait: far more than anything here takes, so that only what never happens fails.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// A lease that is short, and long enough to be renewed on a busy machine.
pub const SHORT_LEASE: Duration = Duration::from_millis(1500);

/// A kind whose handler is a closure over raw arguments.
pub struct Act<F>(pub F);

#[async_trait]
impl<F, Fut> Job for Act<F>
where
    F: Fn(Value, JobContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Done, JobError>> + Send,
{
    type Args = Value;

    fn spec() -> KindSpec {
        kind("test.act")
    }

    async fn run(&self, args: Value, context: JobContext) -> Result<Done, JobError> {
        (self.0)(args, context).await
    }
}

/// A kind with quick retries.
pub fn kind(name: &'static str) -> KindSpec {
    KindSpec {
        backoff: Backoff { base: Duration::from_millis(100), cap: Duration::from_millis(200) },
        ..KindSpec::new::<Value>(name, "A kind of the tests.")
    }
}

/// A registry with the one kind `test.act`.
pub fn act<F, Fut>(spec: KindSpec, handler: F) -> Registry
where
    F: Fn(Value, JobContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Done, JobError>> + Send + 'static,
{
    let mut registry = Registry::default();
    registry.add_as(spec, Act(handler));
    registry
}

/// A completed job without a result.
pub fn complete() -> Result<Done, JobError> {
    Ok(Done::Complete(Value::Null))
}

/// A configuration whose worker serves `default`.
pub fn config(engine: Engine) -> RunnerConfig {
    RunnerConfig { engine, concurrency: 4, drain: Duration::from_secs(10), ..RunnerConfig::default() }
}

/// A worker that runs in this process.
pub struct Running {
    pub handle: Handle,
    pub shutdown: CancellationToken,
    task: JoinHandle<Result<Summary, Error>>,
}

impl Running {
    /// Starts a worker on a store.
    pub fn on(store: Arc<dyn LeaseStore>, registry: Registry, config: RunnerConfig) -> Self {
        let worker = Worker::builder(store, registry, config).build().expect("it serves something");
        let (handle, shutdown) = (worker.handle(), CancellationToken::new());
        let task = tokio::spawn(worker.run(shutdown.clone()));
        Self { handle, shutdown, task }
    }

    /// Starts a worker on a database.
    pub fn start(db: &Database, registry: Registry, config: RunnerConfig) -> Self {
        Self::on(Arc::new(PgLeaseStore::new(db.pool())), registry, config)
    }

    pub fn worker(&self) -> WorkerId {
        self.handle.worker()
    }

    /// Waits until it has ended by itself.
    pub async fn ended(self) -> Result<Summary, Error> {
        tokio::time::timeout(PATIENCE, self.task).await.expect("the worker ends").expect("the worker does not panic")
    }

    /// Asks it to stop, and waits until it has.
    pub async fn stop(self) -> Summary {
        self.shutdown.cancel();
        self.ended().await.expect("the worker ends in order")
    }
}

/// Enqueues one job.
pub async fn enqueue(db: &Database, job: &NewJob) -> JobId {
    let mut conn = db.pool().acquire().await.expect("the database answers");
    queue::enqueue(&mut conn, job).await.expect("the queue takes it").job()
}

/// Enqueues one job of a kind without arguments.
pub async fn enqueue_kind(db: &Database, spec: &KindSpec) -> JobId {
    enqueue(db, &NewJob::new(spec, json!({}))).await
}

pub async fn job(db: &Database, id: JobId) -> JobView {
    let mut conn = db.pool().acquire().await.expect("the database answers");
    queue::get(&mut conn, id).await.expect("the database answers").expect("the job is kept")
}

pub async fn attempts(db: &Database, id: JobId) -> Vec<Attempt> {
    let mut conn = db.pool().acquire().await.expect("the database answers");
    queue::attempts(&mut conn, id).await.expect("the database answers")
}

pub async fn refused(db: &Database, id: JobId) -> Vec<RefusedWrite> {
    let mut conn = db.pool().acquire().await.expect("the database answers");
    queue::recent_refused(&mut conn, Some(id), None, 100).await.expect("the database answers")
}

pub async fn cancel(db: &Database, id: JobId, reason: &str) {
    let mut conn = db.pool().acquire().await.expect("the database answers");
    queue::cancel(&mut conn, id, reason, None).await.expect("the job can be cancelled");
}

/// Waits until the job is in `state`.
pub async fn until_state(db: &Database, id: JobId, state: JobState) -> JobView {
    until(&format!("job {id} becomes {state}"), PATIENCE, async || {
        let job = job(db, id).await;
        (job.state == state).then_some(job)
    })
    .await
}

/// Waits until `condition` gives a value.
pub async fn until_some<T, F, Fut>(what: &str, condition: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    until(what, PATIENCE, condition).await
}

pub fn queue_name(name: &str) -> QueueName {
    QueueName::new(name).expect("a valid name")
}

pub fn kind_name(name: &str) -> Kind {
    Kind::new(name).expect("a valid name")
}

/// What this process tells Prometheus. Call it before anything is counted.
pub fn meters() -> &'static PrometheusHandle {
    static METERS: OnceLock<PrometheusHandle> = OnceLock::new();
    METERS.get_or_init(|| {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).expect("nobody else records here");
        handle
    })
}

/// The value of the one line that has this name and all of these labels.
pub fn measured(name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let page = meters().render();
    let mut lines = page.lines().filter(|line| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'))
            && labels.iter().all(|(label, value)| line.contains(&format!("{label}=\"{value}\"")))
    });
    lines.next()?.rsplit_once(' ')?.1.parse().ok()
}

/// Sets a flag when it is dropped: how a test sees that a handler's future is gone.
pub struct Flag(pub Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}
