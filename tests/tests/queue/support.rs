//! A queue with one kind, and the verbs in their shortest form.

use std::time::Duration;

use domain::ids::{JobId, Kind, QueueName, WorkerId};
use domain::lease::Lease;
use domain::queue::{self, Fate, Job, KindSpec, Leased, NewJob, Outcome, Settlement, WorkerSpec};
use serde_json::{Value, json};
use sqlx::pool::PoolConnection;
use sqlx::{Postgres, Row as _};
use tests::db::Database;

/// Life of every lease here.
pub const LEASE: Duration = Duration::from_secs(30);

/// A database with the verbs that tests call most.
pub struct Queue {
    pub db: Database,
}

impl Queue {
    pub async fn start() -> Self {
        Self { db: Database::start().await }
    }

    pub async fn conn(&self) -> PoolConnection<Postgres> {
        self.db.pool().acquire().await.expect("a connection")
    }

    /// Enqueues a job with every default.
    pub async fn enqueue(&self) -> JobId {
        self.enqueue_as(job()).await
    }

    pub async fn enqueue_as(&self, job: NewJob) -> JobId {
        queue::enqueue(&mut *self.conn().await, &job).await.expect("a valid job").job()
    }

    /// Leases the one job that is due, as a worker of its own.
    pub async fn lease(&self) -> Leased {
        let mut leased = self.lease_up_to(1).await;
        assert_eq!(leased.len(), 1, "one job is due");
        leased.remove(0)
    }

    pub async fn lease_up_to(&self, limit: u16) -> Vec<Leased> {
        queue::lease_next(&mut *self.conn().await, &worker(), limit, &[]).await.expect("the database answers")
    }

    pub async fn settle(&self, lease: Lease, outcome: Outcome) -> Fate {
        let asked = [Settlement { lease, outcome }];
        queue::settle(&mut *self.conn().await, &asked).await.expect("the database answers")[0]
    }

    pub async fn complete(&self, lease: Lease) -> Fate {
        self.settle(lease, completed()).await
    }

    /// Lets every lease expire and rescues.
    pub async fn expire_and_rescue(&self) {
        self.db.clock().advance(LEASE + Duration::from_secs(1)).await;
        queue::rescue_expired(&mut *self.conn().await, 100).await.expect("the database answers");
    }

    pub async fn rescue(&self) -> queue::Rescued {
        queue::rescue_expired(&mut *self.conn().await, 100).await.expect("the database answers")
    }

    pub async fn stage(&self) -> u64 {
        queue::stage_due(&mut *self.conn().await, 100).await.expect("the database answers")
    }

    pub async fn job(&self, id: JobId) -> Job {
        queue::get(&mut *self.conn().await, id).await.expect("the database answers").expect("the job exists")
    }

    /// Every row of every table, so that "changes nothing" means nothing.
    pub async fn dump(&self) -> Vec<(String, Value)> {
        let mut conn = self.conn().await;
        let tables: Vec<String> = sqlx::query_scalar(
            "select c.relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
              where n.nspname = 'public' and c.relkind in ('r', 'p') and not c.relispartition
              order by 1",
        )
        .fetch_all(&mut *conn)
        .await
        .expect("the catalogue");
        assert!(tables.iter().any(|t| t == "jobs") && tables.iter().any(|t| t == "jobs_finished"), "{tables:?}");
        let mut dump = Vec::new();
        for table in tables {
            let sql =
                format!("select coalesce(jsonb_agg(to_jsonb(t) order by to_jsonb(t)::text), '[]') from {table} t");
            let row = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_one(&mut *conn).await.expect("the rows");
            dump.push((table, row.get(0)));
        }
        dump
    }
}

pub fn kind() -> Kind {
    Kind::new("test.work").expect("a constant name")
}

pub fn queue_name(name: &str) -> QueueName {
    QueueName::new(name).expect("a constant name")
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[allow(dead_code, reason = "only its shape is used")]
struct Args {
    n: u32,
}

pub fn spec() -> KindSpec {
    KindSpec::new::<Args>("test.work", "Does nothing.")
}

/// A job with every default.
pub fn job() -> NewJob {
    NewJob::new(&spec(), json!({"n": 1}))
}

/// A worker of its own that serves the kind on the default queue.
pub fn worker() -> WorkerSpec {
    WorkerSpec { worker: WorkerId::generate(), queues: vec![queue_name("default")], kinds: vec![(kind(), LEASE)] }
}

pub fn completed() -> Outcome {
    Outcome::Completed { result: json!({"ok": true}) }
}

pub fn failed() -> Outcome {
    Outcome::Failed { error: json!({"code": "boom", "message": "it broke"}), after: Duration::from_secs(10) }
}

pub fn snoozed(after_s: u64) -> Outcome {
    Outcome::Snoozed { after: Duration::from_secs(after_s) }
}

pub fn discarded() -> Outcome {
    Outcome::Discarded { error: json!({"code": "never", "message": "it cannot work"}) }
}

pub fn cancelled() -> Outcome {
    Outcome::Cancelled { reason: "asked to end".to_owned() }
}
