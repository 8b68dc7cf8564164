//! A move's dry run: what its door says, what its freeze would be, who could land it, and what the source's box finds in the
//! stores. Nothing of the instance, its record or its regions is changed.
//!
//! The control plane has no rights in S3. What is to be copied is seen by the box that would copy it, by a job that lists and
//! does nothing else; its result is the [`Report`].
//!
//! # Consistency
//! The door's answer is of one moment and holds nothing: the move that follows is asked for, and refused, anew.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::{Connection as _, PgConnection};

use super::door::{self, Door};
use super::policy::{self, Gate};
use super::{Obstacle, Wish, store};
use crate::db;
use crate::ids::{AppName, Host, InstanceId, JobId, NodeId, QueueName, RegionCode};
use crate::instances::freeze::Prediction;
use crate::instances::jobs::{self, RehearseArgs};
use crate::instances::{Error, Refusal, predict, sealed};
use crate::nodes::{self, Node};
use crate::queue::{self, JobState};

/// What a move would meet.
#[derive(Debug, Clone)]
pub struct Rehearsal {
    /// Where it would begin.
    pub from: RegionCode,
    /// Where it would go, as it was asked.
    pub to: String,
    /// Every gate of the door, in the order in which a real move asks them.
    pub gates: Vec<Gate>,
    /// How long its cut would freeze the instance; `None` where no cut between the two regions predicts it.
    pub prediction: Option<Prediction>,
    /// The budget that it would carry.
    pub freeze_budget: Option<Duration>,
    /// Whether the instance's environment has sealed values.
    pub sealed: bool,
    /// The boxes of the target, by identity.
    pub boxes: Vec<Node>,
    /// The look into the stores; `None` where no box serves the instance, or the region is not known.
    pub look: Option<Looking>,
}

impl Rehearsal {
    /// The refusal that a real move would get: the first.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        policy::refusal_of(&self.gates)
    }

    /// Whether the freeze would be within the budget; `None` without a budget, or where nothing predicts it.
    #[must_use]
    pub fn within_budget(&self) -> Option<bool> {
        policy::within_budget(self.freeze_budget, self.prediction.as_ref().map(|it| it.freeze))
    }

    /// Whether a box could land the instance: it lives, runs instances, and opens sealed values where there are any.
    #[must_use]
    pub const fn could_land(&self, node: &Node) -> bool {
        node.could_land(self.sealed)
    }
}

/// A look into the stores that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Looking {
    /// Its job.
    pub job: JobId,
    /// That job's queue.
    pub queue: QueueName,
}

/// What the source's box found. Kept as the job's result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The box that looked.
    pub node: NodeId,
    /// Who it is.
    pub identity: String,
    /// What of the replica takes part in a move; `None` where it is not known.
    pub source: Option<Amount>,
    /// The newest transaction that its keys name.
    pub newest_txid: Option<u64>,
    /// What lies at the target's staging already; `None` where it is not known.
    pub staged: Option<Amount>,
    /// What the first round would do; `None` where something holds it up.
    pub first_round: Option<FirstRound>,
    /// What would hold the first round up.
    pub obstacle: Option<Obstacle>,
    /// Requests that the look itself made.
    pub requests: u64,
    /// How long it took.
    pub elapsed_ms: u64,
}

/// Objects, and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Amount {
    /// How many.
    pub keys: u64,
    /// Their bytes together.
    pub bytes: u64,
}

/// The first round of a move, as it would be at the moment of the look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstRound {
    /// What it would copy: everything, since what is staged without a journal proves nothing.
    pub copies: Amount,
    /// Objects of the staging that it would delete.
    pub deletes: u64,
    /// Requests to both stores, the listing that finds no difference included, none repeated.
    pub requests: u64,
}

/// How far a look is.
#[derive(Debug, Clone, PartialEq)]
pub enum Look {
    /// The box has not told yet.
    Waiting(JobState),
    /// What it found.
    Told(Box<Report>),
    /// It ended without an answer, for this reason.
    Failed(String),
}

/// What a move of an instance to `to` would meet, with a look into the stores by the box that serves it.
///
/// One transaction, which writes one job and nothing else. A second call while the first one's look goes on shares it.
///
/// # Errors
/// [`Refusal::NotFound`], [`Refusal::Stale`], [`Error::Invalid`] for a budget out of its bounds; the database's. What the
/// door refuses is no error here.
pub async fn rehearse(
    conn: &mut PgConnection,
    app: &AppName,
    host: &Host,
    to: &str,
    wish: Wish,
) -> Result<Rehearsal, Error> {
    let mut tx = conn.begin().await?;
    let done = async {
        let (mut told, place) = ask(&mut tx, app, host, to, wish).await?;
        if let Some((instance, node, to)) = place {
            let new = jobs::rehearse_job(instance, node, &to);
            let job = queue::enqueue(&mut tx, &new).await?.job();
            told.look = Some(Looking { job, queue: new.queue });
        }
        Ok::<_, Error>(told)
    }
    .await;
    db::finish(tx, done).await
}

/// As [`rehearse`], without a look into the stores: it only reads.
///
/// # Errors
/// As [`rehearse`].
pub async fn foresee(
    conn: &mut PgConnection,
    app: &AppName,
    host: &Host,
    to: &str,
    wish: Wish,
) -> Result<Rehearsal, Error> {
    Ok(ask(conn, app, host, to, wish).await?.0)
}

/// Who would look, and for which region.
type Place = (InstanceId, NodeId, RegionCode);

async fn ask(
    conn: &mut PgConnection,
    app: &AppName,
    host: &Host,
    to: &str,
    wish: Wish,
) -> Result<(Rehearsal, Option<Place>), Error> {
    policy::check_freeze_budget(wish.freeze_budget)?;
    let record = store::read::movable(conn, app, host).await?.ok_or(Refusal::NotFound)?;
    if let Some(expected) = wish.if_revision.filter(|expected| *expected != record.revision) {
        return Err(Refusal::Stale { expected, found: record.revision }.into());
    }
    let Door { target, node, gates } = door::at(conn, &record, host, to).await?;
    let (mut prediction, mut boxes) = (None, Vec::new());
    if let Some(target) = &target {
        prediction = predict(conn, &record.region, &target.code).await?;
        boxes = nodes::list(conn, Some(&target.code)).await?;
    }
    let place = node.zip(target).map(|(node, target)| (record.id, node, target.code));
    let told = Rehearsal {
        sealed: sealed::any(&record.env),
        from: record.region,
        to: to.to_owned(),
        gates,
        prediction,
        freeze_budget: wish.freeze_budget,
        boxes,
        look: None,
    };
    Ok((told, place))
}

/// How far a look is, and for which region; `None` where the job is no look at a move of this instance.
///
/// # Errors
/// Only the database's.
pub async fn look(
    conn: &mut PgConnection,
    app: &AppName,
    host: &Host,
    id: JobId,
) -> Result<Option<(RegionCode, Look)>, sqlx::Error> {
    let Some(job) = queue::get(conn, id).await?.filter(|job| job.kind.as_str() == jobs::REHEARSE_KIND) else {
        return Ok(None);
    };
    let Ok(args) = serde_json::from_value::<RehearseArgs>(job.args) else { return Ok(None) };
    if store::read::movable(conn, app, host).await?.is_none_or(|record| record.id != args.instance_id) {
        return Ok(None);
    }
    let told = match job.state {
        JobState::Completed => match job.result.map(serde_json::from_value::<Report>) {
            Some(Ok(report)) => Look::Told(Box::new(report)),
            Some(Err(_)) | None => Look::Failed("the box answered in the words of another version".to_owned()),
        },
        JobState::Cancelled => Look::Failed("somebody cancelled it".to_owned()),
        JobState::Discarded => {
            let why = job.last_error.as_ref().and_then(|error| error["message"].as_str());
            Look::Failed(why.unwrap_or("the box gave up").to_owned())
        }
        state @ (JobState::Scheduled | JobState::Available | JobState::Running | JobState::Retryable) => {
            Look::Waiting(state)
        }
    };
    Ok(Some((args.to, told)))
}

/// The host of an instance that this box serves in its own region; `None` where another does by now.
///
/// # Errors
/// Only the database's.
pub async fn host_on(conn: &mut PgConnection, id: InstanceId, node: NodeId) -> Result<Option<Host>, sqlx::Error> {
    store::read::host_on(conn, id, node).await
}
