//! Worker processes on one database, and what can be seen of their jobs.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use domain::ids::{JobId, Kind, QueueName, WorkerId};
use domain::lease::Lease;
use domain::queue::{
    self, Fate, Job, JobState, KindSpec, LeaseView, Leased, NewJob, Outcome, RefusedWrite, Settlement, Step, WorkerSpec,
};
use sandbox::exec::{Running, Signal, Spawn};
use serde_json::Value;
use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use tests::db::Database;
use tests::wait::until;

/// Life of every lease here: short, and long enough to be renewed on a busy machine.
pub const LEASE: Duration = Duration::from_secs(3);
/// Bound of every wait: far more than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A database, a folder for logs and signal files, and workers on it.
pub struct Bench {
    pub db: Database,
    folder: tempfile::TempDir,
}

/// A worker process; it dies with its handle.
pub struct Process(Running);

impl Process {
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    pub fn signal(&self, signal: Signal) {
        self.0.signal(signal);
    }

    pub fn kill9(&self) {
        self.0.kill9();
    }

    /// All that it has logged.
    pub fn log(&self) -> String {
        self.0.log_path().and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default()
    }

    pub async fn ended(&self) -> ExitStatus {
        self.0.wait_timeout(PATIENCE).await.expect("the process ends")
    }

    pub async fn stop(&self) -> ExitStatus {
        self.0.stop(Signal::TERM, PATIENCE).await.status
    }
}

impl Bench {
    pub async fn start() -> Self {
        Self { db: Database::start().await, folder: tempfile::tempdir().expect("a folder") }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A worker under the product's runner.
    pub fn worker(&self, name: &str, engine: &str) -> Process {
        self.process(name, &["run", "--engine", engine])
    }

    /// A bare holder: see `test-worker hold`.
    pub fn holder(&self, name: &str) -> Process {
        let (go, answer) = (self.file("go"), self.file("answer"));
        self.process(name, &["hold", "--go", &go.to_string_lossy(), "--answer", &answer.to_string_lossy()])
    }

    fn process(&self, name: &str, args: &[&str]) -> Process {
        let spawn = Spawn::new(env!("CARGO_BIN_EXE_test-worker"))
            .args(args.iter().copied())
            .args(["--url", self.db.url(), "--lease-ms", &LEASE.as_millis().to_string()])
            .log_file(self.file(&format!("{name}.log")));
        Process(spawn.start().expect("the worker starts"))
    }

    pub async fn conn(&self) -> PoolConnection<Postgres> {
        self.db.pool().acquire().await.expect("the database answers")
    }

    pub async fn enqueue(&self, kind: &'static str, args: Value) -> JobId {
        let job = NewJob::new(&KindSpec::new::<Value>(kind, "A kind of the tests."), args);
        queue::enqueue(&mut *self.conn().await, &job).await.expect("a valid job").job()
    }

    pub async fn job(&self, id: JobId) -> Job {
        queue::get(&mut *self.conn().await, id).await.expect("the database answers").expect("the job is kept")
    }

    pub async fn lease_of(&self, id: JobId) -> Option<LeaseView> {
        self.job(id).await.lease
    }

    pub async fn steps(&self, id: JobId) -> Vec<Step> {
        queue::steps(&mut *self.conn().await, id).await.expect("the database answers")
    }

    pub async fn evidence(&self, id: JobId) -> Vec<RefusedWrite> {
        queue::recent_refused(&mut *self.conn().await, Some(id), None, 100).await.expect("the database answers")
    }

    /// Waits until the job runs, and its handler has begun where it is one that takes steps.
    pub async fn until_running(&self, id: JobId) -> LeaseView {
        until("the job runs", PATIENCE, || async { self.lease_of(id).await }).await
    }

    pub async fn until_state(&self, id: JobId, state: JobState) -> Job {
        until(&format!("the job becomes {state}"), PATIENCE, || async {
            let job = self.job(id).await;
            (job.state == state).then_some(job)
        })
        .await
    }

    pub async fn until_registered(&self, workers: usize) {
        until("the workers have registered", PATIENCE, || async {
            let shown = queue::list_workers(&mut *self.conn().await, 100).await.expect("the database answers");
            (shown.iter().filter(|w| w.state == "live").count() == workers).then_some(())
        })
        .await;
    }

    /// Waits until the kernel says that the process is stopped: from then on it runs no instruction.
    pub async fn until_stopped(&self, process: &Process) {
        let stat = format!("/proc/{}/stat", process.pid());
        until("the process is stopped", PATIENCE, || async {
            let stat = std::fs::read_to_string(&stat).expect("the process is there");
            let (_, fields) = stat.rsplit_once(") ").expect("its name ends with a bracket");
            fields.starts_with('T').then_some(())
        })
        .await;
    }

    /// Lets every lease expire and takes the jobs back.
    pub async fn expire_and_rescue(&self) {
        self.db.clock().advance(LEASE * 2).await;
        let rescued = queue::rescue_expired(&mut *self.conn().await, 10).await.expect("the database answers");
        assert_eq!(rescued.again, 1, "the stopped holder's lease had expired");
    }

    /// Leases the one job that is due as a worker in this process.
    pub async fn lease_here(&self) -> Leased {
        let worker = WorkerSpec {
            worker: WorkerId::generate(),
            queues: vec![QueueName::new("default").expect("a name")],
            kinds: vec![(Kind::new("test.tick").expect("a name"), LEASE)],
        };
        let mut leased =
            queue::lease_next(&mut *self.conn().await, &worker, 10, &[]).await.expect("the database answers");
        assert_eq!(leased.len(), 1, "one job is due");
        leased.remove(0)
    }

    pub async fn complete(&self, lease: Lease, result: Value) {
        let asked = [Settlement { lease, outcome: Outcome::Completed { result } }];
        let fates = queue::settle(&mut *self.conn().await, &asked).await.expect("the database answers");
        assert_eq!(fates, [Fate::Settled(JobState::Completed)]);
    }
}

/// Every row that a worker can write.
pub async fn rows(db: &Database) -> Value {
    sqlx::query_scalar(
        "select jsonb_build_object(
             'jobs', (select jsonb_agg(to_jsonb(t) order by t.id) from jobs t),
             'finished', (select jsonb_agg(to_jsonb(t) order by t.id) from jobs_finished t),
             'attempts', (select jsonb_agg(to_jsonb(t) order by t.last_fence) from job_attempts t),
             'steps', (select jsonb_agg(to_jsonb(t) order by t.job_id, t.seq) from job_steps t),
             'logs', (select jsonb_agg(to_jsonb(t) order by t.job_id, t.seq) from job_logs t))",
    )
    .fetch_one(db.pool())
    .await
    .expect("the database answers")
}
