//! The second act: twenty thousand jobs through two worker processes, while one of them is stopped past its leases and
//! woken, the other is killed, and PostgreSQL is restarted. It proves that each job is done once past its fence, and tells
//! which late writes were refused.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use sandbox::exec::{Running, Signal};
use serde::Serialize;
use uuid::Uuid;
use wire::{Batch, FencedWrite, JobFilter, JobState, NewJob};

use crate::stack::{Narrator, Stack};

/// The queue of this act.
const QUEUE: &str = "demo";
/// A trial kind whose lease lives for five seconds.
const KIND: &str = "system.sleep";
/// How many jobs.
const JOBS: usize = 20_000;
/// Jobs of one call.
const CALL: usize = 10_000;
/// How long each sleeps.
const SLEEP_MS: u64 = 10;
/// How long all of it may take.
const LIMIT: Duration = Duration::from_secs(180);
/// How long a worker may take to end in order, late writes included.
const END_LIMIT: Duration = Duration::from_secs(30);
/// Pause between two looks.
const POLL: Duration = Duration::from_millis(50);

/// What was proven.
#[derive(Debug, Serialize)]
pub(crate) struct Proof {
    jobs: usize,
    /// Jobs that were done by a worker that took them over.
    taken_over: usize,
    /// Writes that came too late and were refused.
    refused: Vec<Late>,
    elapsed_seconds: f64,
}

/// A write that the fence refused.
#[derive(Debug, Serialize)]
struct Late {
    worker: Uuid,
    job: Uuid,
    operation: String,
    fence_held: i64,
    fence_current: Option<i64>,
    late_ms: Option<i64>,
}

/// Runs the act on a stack that is up.
///
/// # Errors
/// The step that failed, or the first thing that is not as it must be.
pub(super) async fn run(stack: &Stack, narrator: &Narrator) -> anyhow::Result<Proof> {
    let began = Instant::now();
    narrator.doing("the second act: enqueueing jobs");
    let enqueued = enqueue(stack).await.context("enqueue the jobs of the second act")?;
    narrator.done(&format!("{} jobs enqueued in {} calls", enqueued.len(), JOBS / CALL));

    let first = stack.start_worker("storm-a", QUEUE)?;
    let second = stack.start_worker("storm-b", QUEUE)?;
    narrator.done("two workers began");
    wait_until_left(stack, narrator, JOBS * 9 / 10).await?;
    first.signal(Signal::STOP);
    let stopped = Instant::now();
    narrator.done(&format!("worker {} was stopped (SIGSTOP) with its leases in hand", first.pid()));
    second.kill9();
    let third = stack.start_worker("storm-c", QUEUE)?;
    narrator.done(&format!("worker {} was killed (SIGKILL); {} takes its place", second.pid(), third.pid()));
    wait_until_left(stack, narrator, JOBS * 7 / 10).await?;
    narrator.doing("restarting PostgreSQL");
    stack.restart_postgres().await.context("restart PostgreSQL under load")?;
    narrator.done("PostgreSQL was restarted under load");
    wait_until_left(stack, narrator, 0).await?;

    let late_one = wake(stack, &first, stopped, narrator).await?;
    for worker in [&first, &third] {
        let ended = worker.stop(Signal::TERM, END_LIMIT).await;
        ensure!(!ended.killed, "worker {} did not end in order; its log:\n{}", worker.pid(), worker.log_tail());
    }
    // It ended in order, so whatever it wanted to write was tried.
    let late = refused_of(stack, late_one).await?;
    narrator.doing("counting what was done");
    let taken_over = count(stack, &enqueued).await?;
    let elapsed_seconds = (began.elapsed().as_secs_f64() * 10.0).round() / 10.0;
    Ok(Proof { jobs: enqueued.len(), taken_over, refused: late.into_iter().map(Late::from).collect(), elapsed_seconds })
}

async fn enqueue(stack: &Stack) -> anyhow::Result<HashSet<Uuid>> {
    let mut ids = HashSet::with_capacity(JOBS);
    for _ in 0..JOBS / CALL {
        let job = NewJob { queue: Some(QUEUE.to_owned()), ..NewJob::new(KIND, serde_json::json!({ "ms": SLEEP_MS })) };
        let made = stack.client.enqueue_batch(&Batch { jobs: vec![job; CALL] }, None).await?.value;
        ids.extend(made.items.into_iter().map(|item| item.id));
    }
    ensure!(ids.len() == JOBS, "{JOBS} jobs were asked for, {} were made", ids.len());
    Ok(ids)
}

/// Waits until at most `left` jobs are not done. A queue counts 10,000 exactly, so what is above is told by what was done.
async fn wait_until_left(stack: &Stack, narrator: &Narrator, left: usize) -> anyhow::Result<()> {
    let deadline = Instant::now() + LIMIT;
    loop {
        // The database may be away, and then nothing is known.
        let now = match (stack.client.queue(QUEUE).await, stack.client.throughput(60).await) {
            (Ok(queue), Ok(done)) => {
                let live = usize::try_from(queue.available + queue.running + queue.waiting).unwrap_or(usize::MAX);
                let completed: i64 = done
                    .items
                    .iter()
                    .filter(|point| point.queue == QUEUE && point.outcome == "completed")
                    .map(|point| point.total)
                    .sum();
                let rest = JOBS.saturating_sub(usize::try_from(completed).unwrap_or(0));
                Some(if live < 10_000 { live } else { rest.max(10_000) })
            }
            // Nothing waits or runs, and no worker names the queue any more.
            (Err(error), _) if error.problem().is_some_and(|problem| problem.is(wire::Code::NotFound)) => Some(0),
            (Err(_), _) | (_, Err(_)) => None,
        };
        if let Some(now) = now {
            narrator.doing(format!("{now} of {JOBS} jobs are left"));
            if now <= left {
                return Ok(());
            }
        }
        if Instant::now() >= deadline {
            bail!("{now:?} jobs are left after {LIMIT:?}, not {left}");
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Wakes the worker that was stopped; answers its id.
async fn wake(stack: &Stack, worker: &Running, stopped: Instant, narrator: &Narrator) -> anyhow::Result<Uuid> {
    let workers = stack.client.workers().await?.items;
    let pid = i64::from(worker.pid());
    let id = workers.iter().find(|known| i64::from(known.pid) == pid).context("the stopped worker is not listed")?.id;
    worker.signal(Signal::CONT);
    narrator.done(&format!("all is done without worker {pid}; woken after {:.1} s", stopped.elapsed().as_secs_f64()));
    Ok(id)
}

async fn refused_of(stack: &Stack, worker: Uuid) -> anyhow::Result<Vec<FencedWrite>> {
    let mut found = Vec::new();
    let mut cursor = None;
    loop {
        let page = stack.client.fenced_writes(None, Some(200), cursor.as_deref()).await?;
        found.extend(page.items.into_iter().filter(|write| write.worker_id == Some(worker)));
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(found);
        }
    }
}

/// Looks at every job: each that was enqueued is completed, once, and there is no other. Answers how many were taken over.
async fn count(stack: &Stack, enqueued: &HashSet<Uuid>) -> anyhow::Result<usize> {
    let mut seen = HashSet::with_capacity(enqueued.len());
    let mut taken_over = 0;
    let mut filter = JobFilter { queue: Some(QUEUE.to_owned()), limit: Some(200), ..JobFilter::default() };
    loop {
        let page = stack.client.jobs(&filter).await?;
        for job in page.items {
            ensure!(job.state == JobState::Completed, "job {} is {:?}", job.id, job.state);
            ensure!(enqueued.contains(&job.id), "job {} was never enqueued", job.id);
            ensure!(seen.insert(job.id), "job {} stands there twice", job.id);
            taken_over += usize::from(job.interruptions > 0);
        }
        filter.cursor = page.next_cursor;
        if filter.cursor.is_none() {
            break;
        }
    }
    ensure!(seen.len() == enqueued.len(), "{} of {} jobs are done", seen.len(), enqueued.len());
    Ok(taken_over)
}

impl From<FencedWrite> for Late {
    fn from(write: FencedWrite) -> Self {
        Self {
            worker: write.worker_id.unwrap_or_default(),
            job: write.job_id,
            operation: write.operation,
            fence_held: write.fence_held,
            fence_current: write.fence_current,
            late_ms: write.late_ms,
        }
    }
}

impl Proof {
    /// The proof for people.
    pub(crate) fn told(&self) -> String {
        const LISTED: usize = 5;
        let mut text = format!(
            "\nProven: {jobs} jobs, each done once past its fence, while a worker was killed, one was stopped past its \
             leases, and PostgreSQL was restarted.\n  \
             taken over  {taken_over} jobs were finished by another worker than the one that began them\n  \
             refused     {refused} late write(s) of the worker that was woken\n",
            jobs = self.jobs,
            taken_over = self.taken_over,
            refused = self.refused.len(),
        );
        for late in self.refused.iter().take(LISTED) {
            let by = late.late_ms.map_or_else(|| "late".to_owned(), |ms| format!("{:.1} s late", ms as f64 / 1000.0));
            text.push_str(&format!(
                "              {} of job {} by worker {}: {by}, under fence {}\n",
                late.operation, late.job, late.worker, late.fence_held
            ));
        }
        if self.refused.is_empty() {
            // As it should: the fence is for those that do not notice.
            text.push_str("              it saw by itself that its leases were over, and wrote nothing\n");
        }
        if self.refused.len() > LISTED {
            text.push_str(&format!("              and {} more\n", self.refused.len() - LISTED));
        }
        text.push_str(&format!("  took        {:.1} s", self.elapsed_seconds));
        text
    }
}
