//! Worker processes on one database, and what can be seen of their jobs.

use std::cell::Cell;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use domain::ids::{JobId, Kind, QueueName, WorkerId};
use domain::lease::{Fence, Lease};
use domain::queue::{
    self, Attempt, Fate, Job, JobState, KindSpec, LeaseView, Leased, NewJob, Outcome, RefusedWrite, Settlement, Step,
    WorkerSpec,
};
use sandbox::exec::{Running, Signal, Spawn};
use serde_json::{Value, json};
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

/// A process that does what it is ordered, one order after the other; it dies with its handle.
pub struct Puppet {
    pub process: Process,
    orders: PathBuf,
    answers: PathBuf,
    given: Cell<usize>,
}

impl Puppet {
    /// Gives an order, and its number; a stopped puppet obeys when it goes on.
    pub fn order(&self, order: &Value) -> usize {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.orders).expect("a file");
        writeln!(file, "{order}").expect("a file");
        self.given.replace(self.given.get() + 1)
    }

    /// What order number `n` was answered, where it was.
    pub fn answered(&self, n: usize) -> Option<Value> {
        let text = std::fs::read_to_string(&self.answers).unwrap_or_default();
        let line = text.split_inclusive('\n').filter(|line| line.ends_with('\n')).nth(n)?;
        Some(serde_json::from_str(line).expect("JSON"))
    }

    /// Waits for the answer to order number `n`.
    pub async fn answer(&self, n: usize) -> Value {
        until(&format!("order {n} is answered"), PATIENCE, || async { self.answered(n) }).await
    }

    /// Gives an order and waits for its answer.
    pub async fn ask(&self, order: Value) -> Value {
        let n = self.order(&order);
        self.answer(n).await
    }

    /// Writes under its first lease; whether that was accepted.
    pub async fn write(&self, what: &str) -> bool {
        let answer = self.ask(json!({"do": what, "cursor": self.given.get()})).await;
        answer.as_bool().unwrap_or_else(|| panic!("{what}: {answer}"))
    }

    /// Settles all that it holds; what became of each.
    pub async fn settle(&self, outcome: &str) -> Vec<String> {
        let answer = self.ask(json!({"do": "settle", "outcome": outcome})).await;
        serde_json::from_value(answer.clone()).unwrap_or_else(|_| panic!("{outcome}: {answer}"))
    }

    /// Leases so many jobs that are due.
    pub async fn lease(&self, jobs: usize) -> Vec<Lease> {
        let answer = self.ask(json!({"do": "lease", "limit": jobs})).await;
        let pairs: Vec<(JobId, Fence)> =
            serde_json::from_value(answer.clone()).unwrap_or_else(|_| panic!("lease: {answer}"));
        assert_eq!(pairs.len(), jobs, "so many are due");
        pairs.into_iter().map(|(job, fence)| Lease { job, fence }).collect()
    }

    /// Asks for jobs and gets none.
    pub async fn leases_nothing(&self) {
        assert_eq!(self.ask(json!({"do": "lease", "limit": 5})).await, json!([]), "nothing is due");
    }

    /// Leases the one job that is due.
    pub async fn lease_one(&self) -> Lease {
        self.lease(1).await[0]
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
        Process(self.spawn(name, self.db.url(), args).start().expect("the worker starts"))
    }

    /// A worker under the product's runner that reaches the database at `url`, in an environment of its own.
    pub fn worker_at(&self, name: &str, engine: &str, url: &str, env: &[(&str, &Path)]) -> Process {
        let mut spawn = self.spawn(name, url, &["run", "--engine", engine]);
        for (variable, value) in env {
            spawn = spawn.env(*variable, *value);
        }
        Process(spawn.start().expect("the worker starts"))
    }

    /// A holder on strings: see `test-worker puppet`.
    pub fn puppet(&self, name: &str) -> Puppet {
        self.puppet_at(name, self.db.url())
    }

    /// As [`Self::puppet`], over a URL of its own.
    pub fn puppet_at(&self, name: &str, url: &str) -> Puppet {
        let (orders, answers) = (self.file(&format!("{name}.orders")), self.file(&format!("{name}.answers")));
        let args = ["puppet", "--orders", &orders.to_string_lossy(), "--answers", &answers.to_string_lossy()];
        let process = Process(self.spawn(name, url, &args).start().expect("the puppet starts"));
        Puppet { process, orders, answers, given: Cell::new(0) }
    }

    fn spawn(&self, name: &str, url: &str, args: &[&str]) -> Spawn {
        Spawn::new(env!("CARGO_BIN_EXE_test-worker"))
            .args(args.iter().copied())
            .args(["--url", url, "--lease-ms", &LEASE.as_millis().to_string()])
            .log_file(self.file(&format!("{name}.log")))
    }

    pub async fn conn(&self) -> PoolConnection<Postgres> {
        self.db.pool().acquire().await.expect("the database answers")
    }

    pub async fn enqueue(&self, kind: &'static str, args: Value) -> JobId {
        let job = NewJob::new(&KindSpec::new::<Value>(kind, "A kind of the tests."), args);
        queue::enqueue(&mut *self.conn().await, &job).await.expect("a valid job").job()
    }

    /// Enqueues a job under a concurrency key.
    pub async fn enqueue_keyed(&self, kind: &'static str, key: &str) -> JobId {
        let job = NewJob::new(&KindSpec::new::<Value>(kind, "A kind of the tests."), json!({})).keyed(key);
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

    /// Takes back what has expired, until something was taken or the job is over. Another session may hold the row for
    /// a moment: a statement of a process that was stopped meanwhile. Answers whether it was taken.
    pub async fn expire_until_rescued_or_over(&self, id: JobId) -> bool {
        until("the job is taken back or over", PATIENCE, || async {
            self.db.clock().advance(LEASE * 2).await;
            let rescued = queue::rescue_expired(&mut *self.conn().await, 10).await.expect("the database answers");
            if rescued.again > 0 {
                return Some(true);
            }
            self.job(id).await.state.is_final().then_some(false)
        })
        .await
    }

    pub async fn attempts(&self, id: JobId) -> Vec<Attempt> {
        queue::attempts(&mut *self.conn().await, id).await.expect("the database answers")
    }

    /// How many jobs wait on the queue of the children.
    pub async fn children(&self) -> i64 {
        sqlx::query_scalar("select count(*) from jobs where queue = 'children'")
            .fetch_one(self.db.pool())
            .await
            .expect("the database answers")
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
             'slots', (select jsonb_agg(to_jsonb(t) order by t.queue, t.what, t.key, t.n) from slots t),
             'steps', (select jsonb_agg(to_jsonb(t) order by t.job_id, t.seq) from job_steps t),
             'logs', (select jsonb_agg(to_jsonb(t) order by t.job_id, t.seq) from job_logs t))",
    )
    .fetch_one(db.pool())
    .await
    .expect("the database answers")
}
