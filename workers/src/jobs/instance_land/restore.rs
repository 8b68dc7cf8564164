//! From a staging, or a replica, to a database that is proven to be the one that is wanted.

use std::time::Duration;

use domain::instances::landing;
use domain::instances::moves::Tail;
use serde_json::{Value, json};

use super::{Arrival, InstanceLand};
use crate::activator::{self, Activator, Restored};
use crate::jobs::halt::{Halt, obstacle_of_unready, pass_until};
use crate::jobs::instance_move::journal::MoveJournal;
use crate::jobs::instance_move::told;
use crate::jobs::{Done, JobError};
use crate::mirror::{KeyJournal, MemoryJournal, Mirror, Outcome, Pair, Unobserved};

impl InstanceLand {
    /// The landing of a move: the staging becomes the own replica, nothing else is left in it, and the database that it
    /// restores to is the one of the cut.
    pub(super) async fn land_pending(
        &self,
        arrival: &Arrival<'_>,
        activator: &Activator,
        tail: &Tail,
    ) -> Result<Done, JobError> {
        if let Some(held) = self.step(arrival, "mirror_in", self.mirror_in(arrival, Some(tail))).await? {
            return Ok(held);
        }
        crate::failpoint::hit("land.before_restore", arrival.fall.host.as_str()).await;
        let restored = self.step(arrival, "restore", self.restore(arrival, activator, &tail.txid, Some(tail)));
        if let Some(held) = restored.await? {
            // What was copied is not what it should be, although its names say so: the next try copies all of it anew.
            if let Some((id, _)) = &arrival.fall.pending {
                self.forget_copies(*id, arrival.context).await?;
            }
            return Ok(held);
        }
        self.serve(arrival).await
    }

    /// The landing of what is here: the own replica, or a staging where there is nothing else.
    pub(super) async fn land_newest(
        &self,
        arrival: &Arrival<'_>,
        activator: &Activator,
        from_staging: bool,
    ) -> Result<Done, JobError> {
        if from_staging && let Some(held) = self.step(arrival, "mirror_in", self.mirror_in(arrival, None)).await? {
            return Ok(held);
        }
        let restored = self.step(arrival, "restore", async {
            let prefix = format!("instances/{}", arrival.fall.host);
            let newest = activator.newest(&arrival.fall.host, &prefix).await;
            let newest = newest.map_err(|error| Halt::of_restore("replica_broken", &error))?;
            self.restore(arrival, activator, &newest, None).await
        });
        if let Some(held) = restored.await? {
            return Ok(held);
        }
        let done = self.serve(arrival).await?;
        if from_staging && matches!(done, Done::Complete(_)) {
            self.drop_staging(arrival).await?;
        }
        Ok(done)
    }

    /// A database that is on the box's disk: served only if it is whole.
    pub(super) async fn land_local(
        &self,
        arrival: &Arrival<'_>,
        activator: &Activator,
        has_own: bool,
    ) -> Result<Done, JobError> {
        let checked = self.step(arrival, "check", async {
            if has_own {
                self.not_behind(arrival, activator).await?;
            }
            match activator.check(&arrival.fall.host).await {
                Ok(Ok(())) => Ok(json!({})),
                Ok(Err(damage)) => {
                    let message = format!("the database on this box is damaged: {}", damage.0);
                    Err(Halt::lasting("database_damaged", message))
                }
                Err(error @ activator::Error::Database { .. }) => Err(Halt::of_restore("database_damaged", &error)),
                Err(error) => Err(Halt::of_box("database_unknown", &error)),
            }
        });
        if let Some(held) = checked.await? {
            return Ok(held);
        }
        self.serve(arrival).await
    }

    /// A database that stayed behind on this box while another one wrote is not the instance any more: the replica tells.
    async fn not_behind(&self, arrival: &Arrival<'_>, activator: &Activator) -> Result<(), Halt> {
        let host = &arrival.fall.host;
        let here = activator.position(host).await.map_err(|error| Halt::of_restore("database_unknown", &error))?;
        let there = activator.newest(host, &format!("instances/{host}")).await;
        let there = there.map_err(|error| Halt::of_restore("replica_broken", &error))?;
        if here >= there {
            return Ok(());
        }
        let message = format!(
            "the database on this box is at transaction {here}, its replica at {there}: another box wrote since. Put the file \
             {}/app.db aside, and the replica is restored",
            host
        );
        Err(Halt::lasting("database_behind", message))
    }

    /// Copies the staging over the own replica, and deletes there what the staging does not hold: an older lineage with
    /// higher transactions would be restored instead, with every check passed.
    async fn mirror_in(&self, arrival: &Arrival<'_>, tail: Option<&Tail>) -> Result<Value, Halt> {
        let own = self.node.own().await;
        let pair = Pair::of_landing(arrival.fall.host.as_str())
            .map_err(|error| Halt::lasting("host_invalid", error.to_string()))?;
        let mirror =
            Mirror { source: own.clone(), target: own, pairs: vec![pair], settings: self.node.config().mirror.clone() };
        let context = arrival.context;
        let journal: Box<dyn KeyJournal> = match &arrival.fall.pending {
            Some((id, _)) => Box::new(MoveJournal::of_landing(self.pool.clone(), context.clone(), *id)),
            None => Box::new(MemoryJournal::default()),
        };
        let report = pass_until(&mirror, journal.as_ref(), &Unobserved, context, std::future::pending()).await?;
        let evidence = json!({
            "source_keys": report.source_keys, "copied": report.copied, "copied_bytes": report.copied_bytes,
            "deleted": report.deleted, "newest_txid": report.newest.map(|newest| newest.to_string()),
        });
        match &report.outcome {
            Outcome::InSync => {}
            Outcome::WithinBars => {
                let message = "somebody writes to the staging or to the replica".to_owned();
                return Err(Halt::passing("staging_busy", message));
            }
            Outcome::NotReady(why) => {
                let busy = || "somebody writes to the staging or to the replica".to_owned();
                return Err(Halt::Held(obstacle_of_unready(why, busy)));
            }
        }
        let newest = report.newest.map(|newest| newest.to_string());
        match tail {
            Some(tail) if newest.as_deref() != Some(tail.txid.as_str()) => {
                let newest = newest.unwrap_or_else(|| "no transaction".to_owned());
                let message = format!("the staging ends with {newest}, the cut proved {}", tail.txid);
                Err(Halt::lasting("staging_differs", message))
            }
            Some(_) | None => Ok(evidence),
        }
    }

    /// Restores the own replica at a transaction and takes it as the database, if it is the one that is wanted.
    async fn restore(
        &self,
        arrival: &Arrival<'_>,
        activator: &Activator,
        txid: &str,
        tail: Option<&Tail>,
    ) -> Result<Value, Halt> {
        let host = &arrival.fall.host;
        let restored = activator.restore(host, &format!("instances/{host}"), txid).await;
        let restored: Restored = restored.map_err(|error| Halt::of_restore("restore_failed", &error))?;
        let evidence = json!({"txid": txid, "sha256": restored.sha256, "size": restored.size});
        if let Some(tail) = tail
            && (restored.sha256 != tail.sha256 || restored.size != tail.size)
        {
            let found = format!("{} bytes of SHA-256 {}", restored.size, restored.sha256);
            let aside = activator.quarantine(host, restored).await;
            let aside = aside.map_err(|error| Halt::of_restore("restore_differs", &error))?;
            let message = format!(
                "what is restored at {txid} is not the database of the cut: {found}, not {} bytes of SHA-256 {}; it is put \
                 aside in {}, and the source keeps its replica",
                tail.size,
                tail.sha256,
                aside.display()
            );
            return Err(Halt::lasting("restore_differs", message));
        }
        crate::failpoint::hit("land.before_adopt", host.as_str()).await;
        activator.adopt(host, restored).await.map_err(|error| Halt::of_restore("restore_failed", &error))?;
        Ok(evidence)
    }

    /// Journals one step of a move's landing around an act; of other landings there is no journal. `Some`: the run ends, and
    /// the route says why.
    async fn step(
        &self,
        arrival: &Arrival<'_>,
        step: &'static str,
        act: impl Future<Output = Result<Value, Halt>>,
    ) -> Result<Option<Done>, JobError> {
        let context = arrival.context;
        context.check()?;
        let row = match &arrival.fall.pending {
            Some((id, _)) => {
                let mut conn = self.connection().await?;
                let row = told(context, landing::begin_step(&mut conn, context.lease(), *id, step).await)?;
                Some(conn.done(row).await.map_err(anyhow::Error::new)?)
            }
            None => None,
        };
        let ended = act.await;
        // The lease is another's: what is left is that one's.
        context.check()?;
        let (outcome, evidence) = match &ended {
            Ok(evidence) => ("done", evidence.clone()),
            Err(Halt::Held(held)) => ("failed", json!({"code": held.code, "message": held.message})),
            Err(Halt::Drained) => ("cancelled", json!({"why": "the worker stops, or the job is to"})),
        };
        if let Some(row) = row {
            let mut conn = self.connection().await?;
            let closed = domain::instances::moves::end_step(&mut conn, context.lease(), row, outcome, &evidence).await;
            told(context, closed)?;
            conn.done(()).await.map_err(anyhow::Error::new)?;
        }
        match ended {
            Ok(_) => Ok(None),
            Err(Halt::Held(held)) => self.hold(arrival, held).await.map(Some),
            Err(Halt::Drained) => Ok(Some(Done::Snooze { after: Duration::ZERO })),
        }
    }
}
