//! A holder on strings: it leases and writes what a test orders, when the test orders it, and nothing by itself.
//!
//! Orders and answers are files of one JSON value a line; the n-th answer is the n-th order's. So a test can stop the
//! process between two writes or in the middle of one, and let it go on later as if nothing had happened.
//!
//! ```text
//! {"do": "register", "host": H, "pid": N}      tells the list of workers
//! {"do": "lease", "limit": N}                  one poll; what it leases is held from now on -> [[JOB, FENCE], …]
//! {"do": "renew" | "progress" | "log" | "child"}, {"do": "step", "cursor": VALUE}   under the first lease -> accepted
//! {"do": "forget"}                             what was leased is held no more, in this process
//! {"do": "settle", "outcome": WORD}            all held leases in one call -> what became of each
//! {"do": "sweep"}                              -> how many jobs were taken from others
//! ```

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use domain::ids::{Kind, QueueName, WorkerId};
use domain::queue::{Fate, Leased, NewJob, Outcome, PollRequest, Progress, Renewed, Settlement, Turns, WorkerSpec};
use serde_json::{Value, json};
use workers::seam::{LeaseStore, Registration};

use crate::{accepted, spec};

/// Pause between two looks for an order.
const POLL: Duration = Duration::from_millis(1);

/// Obeys until it is killed.
pub async fn obey(store: &dyn LeaseStore, life: Duration, orders: &Path, answers: &Path) -> anyhow::Result<ExitCode> {
    let worker = WorkerSpec {
        worker: WorkerId::generate(),
        queues: vec![QueueName::new("default")?],
        kinds: vec![(Kind::new("test.tick")?, life)],
    };
    let mut puppet = Puppet { store, life, worker, held: Vec::new(), turns: Turns::default() };
    let mut answers = std::fs::OpenOptions::new().create(true).append(true).open(answers)?;
    let mut obeyed = 0;
    loop {
        let text = std::fs::read_to_string(orders).unwrap_or_default();
        // A line without its end is still being written.
        let Some(order) = text.split_inclusive('\n').filter(|line| line.ends_with('\n')).nth(obeyed) else {
            tokio::time::sleep(POLL).await;
            continue;
        };
        let answer =
            puppet.act(&serde_json::from_str(order)?).await.unwrap_or_else(|e| json!({"error": e.to_string()}));
        writeln!(answers, "{answer}")?;
        obeyed += 1;
    }
}

struct Puppet<'a> {
    store: &'a dyn LeaseStore,
    life: Duration,
    worker: WorkerSpec,
    held: Vec<Leased>,
    turns: Turns,
}

impl Puppet<'_> {
    async fn act(&mut self, order: &Value) -> anyhow::Result<Value> {
        let what = order["do"].as_str().context("an order says what to do")?;
        match what {
            "register" => {
                let registration = Registration {
                    spec: self.worker.clone(),
                    host: order["host"].as_str().context("host")?.to_owned(),
                    pid: u32::try_from(order["pid"].as_u64().context("pid")?)?,
                    version: "0.0.0",
                    node: None,
                    concurrency: 1,
                };
                self.store.register(&registration).await?;
                Ok(json!(true))
            }
            "lease" => {
                let limit = u16::try_from(order["limit"].as_u64().context("limit")?)?;
                let leased = self.poll(limit).await?;
                let told: Vec<_> = leased.iter().map(|l| (l.lease.job, l.lease.fence)).collect();
                self.held.extend(leased);
                Ok(json!(told))
            }
            "forget" => {
                self.held.clear();
                Ok(json!(true))
            }
            "settle" => self.settle(order["outcome"].as_str().context("outcome")?).await,
            "sweep" => {
                let swept = self.store.sweep(100).await?;
                Ok(json!(swept.rescued + swept.ended))
            }
            write => Ok(json!(self.write(write, &order["cursor"]).await?)),
        }
    }

    /// Polls as a runner does: once more where the first look passed by what is leased in turn.
    async fn poll(&mut self, limit: u16) -> anyhow::Result<Vec<Leased>> {
        let mut leased = Vec::new();
        for _ in 0..2 {
            let left = limit.saturating_sub(u16::try_from(leased.len())?);
            let turns = std::mem::take(&mut self.turns);
            let request = PollRequest {
                limit: left,
                ended: &[],
                look: false,
                wall_clock: None,
                turns: Some(&turns),
                low_water: None,
            };
            let polled = self.store.poll(&self.worker, &request).await?;
            leased.extend(polled.leased);
            self.turns = polled.turns;
            if !polled.more {
                break;
            }
        }
        Ok(leased)
    }

    async fn write(&self, what: &str, cursor: &Value) -> anyhow::Result<bool> {
        let lease = self.held.first().context("nothing was leased")?.lease;
        let store = self.store;
        match what {
            "renew" => Ok(store.renew(&[(lease, self.life)]).await?[0] != Renewed::Lost),
            "progress" => accepted(store.progress(lease, &Progress::default()).await),
            "step" => accepted(store.step(lease, "step", cursor, &json!({})).await),
            "log" => accepted(store.log(lease, "info", "a line").await),
            "child" => {
                let child = NewJob::new(&spec("test.tick", self.life), json!({})).on(QueueName::new("children")?);
                accepted(store.enqueue_child(lease, &child).await)
            }
            other => bail!("no write is called {other}"),
        }
    }

    /// As a worker does it: a row that another session holds is asked for again.
    async fn settle(&self, outcome: &str) -> anyhow::Result<Value> {
        let outcome = match outcome {
            "complete" => Outcome::Completed { result: json!({"by": self.worker.worker}) },
            "fail" => Outcome::Failed { error: json!({"code": "as_ordered"}), after: Duration::ZERO },
            "snooze" => Outcome::Snoozed { after: Duration::ZERO },
            "discard" => Outcome::Discarded { error: json!({"code": "as_ordered"}) },
            other => bail!("no outcome is called {other}"),
        };
        let asked: Vec<Settlement> =
            self.held.iter().map(|held| Settlement { lease: held.lease, outcome: outcome.clone() }).collect();
        loop {
            let fates = self.store.settle(&asked).await?;
            if !fates.contains(&Fate::Busy) {
                return Ok(fates.iter().map(|fate| word(*fate)).collect());
            }
        }
    }
}

fn word(fate: Fate) -> &'static str {
    match fate {
        Fate::Settled(state) => state.as_str(),
        Fate::Already => "already",
        Fate::Busy => "busy",
        Fate::Lost => "lost",
    }
}
