//! The player, which takes each step of a history on the database and on the model.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use domain::ids::{JobId, Kind, WorkerId};
use domain::lease::Lease;
use domain::queue::{self, Enqueued, JobState, NewJob, WorkerSpec};
use sqlx::pool::PoolConnection;
use sqlx::{Postgres, Row as _};

use super::calls::Call;
use super::reference::{LEASE_S, Model};
use super::steps::{KINDS, NewRow, QUEUES, Step, TICK_S, WORKERS};
use crate::support::{Queue, job, queue_name};

/// What is compared of a job after each step.
#[derive(Debug, PartialEq)]
struct Seen {
    state: JobState,
    attempt: i32,
    max_attempts: i32,
    interruptions: i32,
    revision: i64,
    fence: i64,
    running: bool,
    steps: i64,
}

pub struct Player<'a> {
    pub(super) q: &'a Queue,
    pub(super) conn: PoolConnection<Postgres>,
    pub(super) model: Model,
    pub(super) ids: Vec<JobId>,
    pub(super) leases: Vec<Lease>,
    /// Writes of holders that were stopped, in the order of their stopping.
    asleep: VecDeque<Call>,
    /// The last call.
    pub(super) last: Option<Call>,
    states: BTreeMap<JobId, JobState>,
    /// Every change of a state that was seen.
    pub edges: BTreeSet<(JobState, JobState)>,
}

impl<'a> Player<'a> {
    /// Begins on an empty queue.
    pub async fn start(q: &'a Queue) -> Self {
        let mut conn = q.conn().await;
        sqlx::raw_sql("truncate jobs, jobs_finished, job_attempts, job_steps, job_logs")
            .execute(&mut *conn)
            .await
            .expect("an empty queue");
        let (model, states, edges, asleep) = Default::default();
        Self { q, conn, model, ids: Vec::new(), leases: Vec::new(), asleep, last: None, states, edges }
    }

    /// Takes one step on both sides; says what differs.
    pub async fn play(&mut self, step: &Step) -> Result<(), String> {
        self.model.step += 1;
        match step {
            Step::Enqueue(new) => self.enqueue(new).await?,
            Step::Lease { worker, limit } => self.lease(*worker, *limit).await?,
            Step::Write(write) => {
                let call = self.prepare(write);
                self.make(call).await?;
            }
            Step::Stop(write) => {
                let call = self.prepare(write);
                self.asleep.extend(call);
            }
            Step::Wake => {
                let call = self.asleep.pop_front();
                self.make(call).await?;
            }
            Step::Again => {
                let call = self.last.clone();
                self.make(call).await?;
            }
            Step::CancelWhileSettling { lease, ending } => {
                if let Some(no) = self.some_lease(*lease) {
                    self.cancel_while_settling(no, ending).await?;
                }
            }
            Step::Rescue { limit } => {
                let done = queue::rescue_expired(&mut self.conn, *limit).await.map_err(text)?;
                // Whether more is to be done is the rescuer's bound, of which the model has none.
                let done = queue::Rescued { more: false, ..done };
                same("the rescue", &done, &self.model.rescue(usize::from(*limit)))?;
            }
            Step::Stage { limit } => {
                let done = queue::stage_due(&mut self.conn, *limit).await.map_err(text)?;
                same("the staging", &done, &self.model.stage(usize::from(*limit)))?;
            }
            Step::CancelIgnored => {
                let done = queue::cancel_ignored(&mut self.conn, 2).await.map_err(text)?;
                same("the ignored cancels", &done, &self.model.cancel_ignored(2))?;
            }
            Step::Cancel { job } => {
                let call = self.some_job(*job).map(Call::Cancel);
                self.make(call).await?;
            }
            Step::Retry { job } => {
                let call = self.some_job(*job).map(Call::Retry);
                self.make(call).await?;
            }
            Step::Advance { ticks } => {
                self.model.now_s += ticks * TICK_S;
                self.q.db.clock().advance(Duration::from_secs((ticks * TICK_S).unsigned_abs())).await;
            }
        }
        self.compare_running().await?;
        self.hold_invariants().await?;
        self.compare().await
    }

    pub(super) fn some_lease(&self, n: usize) -> Option<usize> {
        n.checked_rem(self.leases.len()).map(|back| self.leases.len() - 1 - back)
    }

    fn some_job(&self, n: usize) -> Option<usize> {
        n.checked_rem(self.ids.len()).map(|back| self.ids.len() - 1 - back)
    }

    async fn enqueue(&mut self, new: &NewRow) -> Result<(), String> {
        let asked = self.asked(new, JobId::generate()).await;
        let made = queue::enqueue(&mut self.conn, &asked).await.map_err(text)?;
        let wanted = self.enqueued(new, asked.id);
        same("the enqueue", &made, &wanted)
    }

    pub(super) async fn asked(&self, new: &NewRow, id: JobId) -> NewJob {
        let run_at = if new.delay_s > 0 {
            Some(self.q.db.clock().now().await + Duration::from_secs(new.delay_s.unsigned_abs()))
        } else {
            None
        };
        NewJob {
            id,
            kind: Kind::new(KINDS[new.kind]).expect("a name"),
            queue: queue_name(QUEUES[new.queue]),
            priority: new.priority,
            run_at,
            unique_key: new.unique.map(|key| key.to_string()),
            max_attempts: new.max_attempts,
            max_interruptions: new.max_interruptions,
            protected: new.protected,
            ..job()
        }
    }

    /// What the model makes of an enqueue.
    pub(super) fn enqueued(&mut self, new: &NewRow, id: JobId) -> Enqueued {
        match self.model.enqueue(new) {
            Ok(i) => {
                self.ids.push(id);
                made_as(self.model.rows[i].state, id)
            }
            Err(holder) => Enqueued::Existing(self.ids[holder]),
        }
    }

    async fn lease(&mut self, worker: usize, limit: u16) -> Result<(), String> {
        let (queues, kinds) = WORKERS[worker];
        let life = Duration::from_secs(LEASE_S.unsigned_abs());
        let spec = WorkerSpec {
            worker: WorkerId::generate(),
            queues: queues.iter().map(|&q| queue_name(QUEUES[q])).collect(),
            kinds: kinds.iter().map(|&k| (Kind::new(KINDS[k]).expect("a name"), life)).collect(),
        };
        let got = queue::lease_next(&mut self.conn, &spec, limit, &[]).await.map_err(text)?;
        let wanted = self.model.lease(queues, kinds, usize::from(limit));
        let wanted: Vec<JobId> = wanted.into_iter().map(|i| self.ids[i]).collect();
        same("the leased jobs", &got.iter().map(|l| l.lease.job).collect(), &wanted)?;
        let newest = self.leases.iter().map(|l| l.fence).max();
        if got.iter().any(|l| newest.is_some_and(|n| l.lease.fence <= n)) {
            return Err(format!("a fence that is not above {newest:?}"));
        }
        self.leases.extend(got.iter().map(|l| l.lease));
        Ok(())
    }

    /// Every running job is found by its batch, once, and nothing else is.
    async fn compare_running(&mut self) -> Result<(), String> {
        let stray: i64 = sqlx::query_scalar(
            "select count(*)
               from (select id, count(*) from jobs where state = 'running' group by id) a
               full join (select id, count(*) from running_jobs group by id) b using (id)
              where a.count is distinct from b.count",
        )
        .fetch_one(&mut *self.conn)
        .await
        .map_err(text)?;
        same("running jobs that their batches do not name once", &stray, &0)
    }

    /// What no answer tells: the steps of a job stand in the order of its leases, none is of a lease that there never was,
    /// nothing is settled under a fence that is not its newest or older, and what is over holds nothing.
    async fn hold_invariants(&mut self) -> Result<(), String> {
        let broken: Vec<String> = sqlx::query_scalar(
            "select 'an older step behind a newer one: ' || job_id
               from (select job_id, fence < lag(fence) over (partition by job_id order by seq) as back from job_steps) s
              where back
              union all
             select 'a step of a lease that never was: ' || s.job_id
               from job_steps s
               join (select id, fence from jobs union all select id, fence from jobs_finished) j on j.id = s.job_id
              where s.fence > j.fence
              union all
             select 'settled under a fence to come: ' || id
               from (select id, fence, settled_fence from jobs union all
                     select id, fence, settled_fence from jobs_finished) j
              where settled_fence > fence
              union all
             select 'a lease without a holder, or a holder without a lease: ' || id
               from jobs
              where (state = 'running') <> (worker_id is not null and lease_expires_at is not null)
              union all
             select 'two attempts of one lease: ' || job_id
               from job_attempts
              group by job_id, last_fence
             having count(*) > 1",
        )
        .fetch_all(&mut *self.conn)
        .await
        .map_err(text)?;
        same("broken invariants", &broken, &Vec::new())
    }

    /// Every job of the database is the model's, and every change of a state is an edge that the program names.
    async fn compare(&mut self) -> Result<(), String> {
        let seen = self.look().await?;
        for (i, row) in self.model.rows.iter().enumerate() {
            let id = self.ids[i];
            let wanted = Seen {
                state: row.state,
                attempt: row.attempt,
                max_attempts: row.max_attempts,
                interruptions: row.interruptions,
                revision: row.revision,
                fence: row.fence.map_or(0, |no| self.leases[no].fence.0),
                running: row.state == JobState::Running,
                steps: i64::try_from(row.steps).unwrap_or(i64::MAX),
            };
            let found = seen.get(&id).ok_or_else(|| format!("job {i} is nowhere"))?;
            same(&format!("job {i}"), found, &wanted)?;
            let before = self.states.insert(id, row.state);
            if let Some(before) = before.filter(|before| *before != row.state) {
                if !row.state.entered_from().contains(&before) {
                    return Err(format!("job {i} went from {before} to {}, which no edge allows", row.state));
                }
                self.edges.insert((before, row.state));
            }
        }
        same("the number of jobs", &seen.len(), &self.model.rows.len())
    }

    async fn look(&mut self) -> Result<BTreeMap<JobId, Seen>, String> {
        let rows = sqlx::query(
            "select id, state, attempt, max_attempts, interruptions, revision, fence,
                    lease_expires_at is not null and worker_id is not null as running,
                    (select count(*) from job_steps s where s.job_id = j.id) as steps
               from jobs j
              union all
             select id, state, attempt, max_attempts, interruptions, revision, fence, false,
                    (select count(*) from job_steps s where s.job_id = f.id)
               from jobs_finished f",
        )
        .fetch_all(&mut *self.conn)
        .await
        .map_err(text)?;
        let mut seen = BTreeMap::new();
        for row in rows {
            let state = JobState::parse(row.get("state")).ok_or("a state that is none")?;
            let job = Seen {
                state,
                attempt: row.get("attempt"),
                max_attempts: row.get("max_attempts"),
                interruptions: row.get("interruptions"),
                revision: row.get("revision"),
                fence: row.get("fence"),
                running: row.get("running"),
                steps: row.get("steps"),
            };
            if let Some(twice) = seen.insert(JobId(row.get("id")), job) {
                return Err(format!("a job stands twice: {twice:?}"));
            }
        }
        Ok(seen)
    }
}

/// What an enqueue answers of a job that it made, or made before, and that is in this state.
pub(super) fn made_as(state: JobState, id: JobId) -> Enqueued {
    if state == JobState::Available { Enqueued::Created(id) } else { Enqueued::Scheduled(id) }
}

pub(super) fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, wanted: &T) -> Result<(), String> {
    if found == wanted { Ok(()) } else { Err(format!("{what}: found {found:?}, the model says {wanted:?}")) }
}

pub(super) fn text(error: impl std::error::Error) -> String {
    let source = error.source().map(ToString::to_string).unwrap_or_default();
    format!("{error}: {source}")
}
