//! From a staging, or a replica, to a database that is proven to be the one that is wanted.

use domain::instances::landing;
use domain::instances::moves::Tail;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Arrival, InstanceLand};
use crate::activator::{self, Activator, Restored};
use crate::chain::chain;
use crate::jobs::instance_move::journal::MoveJournal;
use crate::jobs::instance_move::told;
use crate::jobs::{Done, JobError};
use crate::mirror::{KeyJournal, MemoryJournal, Mirror, Outcome, Pair, Unobserved};

/// Why a landing does not go on by itself right now.
pub(super) struct Held {
    code: &'static str,
    message: String,
    permanent: bool,
}

impl Held {
    fn of(code: &'static str, error: &activator::Error) -> Self {
        // What litestream or SQLite refused stays as it is until somebody looks; the rest may be the store's moment.
        let permanent = matches!(
            error,
            activator::Error::Litestream { .. } | activator::Error::Database { .. } | activator::Error::Tail { .. }
        );
        Self { code, message: chain(error), permanent }
    }
}

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
            let newest = newest.map_err(|error| Held::of("replica_broken", &error))?;
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
                    Err(Held { code: "database_damaged", message, permanent: true })
                }
                Err(error) => Err(Held::of("database_damaged", &error)),
            }
        });
        if let Some(held) = checked.await? {
            return Ok(held);
        }
        self.serve(arrival).await
    }

    /// A database that stayed behind on this box while another one wrote is not the instance any more: the replica tells.
    async fn not_behind(&self, arrival: &Arrival<'_>, activator: &Activator) -> Result<(), Held> {
        let host = &arrival.fall.host;
        let here = activator.position(host).await.map_err(|error| Held::of("database_unknown", &error))?;
        let there = activator.newest(host, &format!("instances/{host}")).await;
        let there = there.map_err(|error| Held::of("replica_broken", &error))?;
        if here >= there {
            return Ok(());
        }
        let message = format!(
            "the database on this box is at transaction {here}, its replica at {there}: another box wrote since. Put the file \
             {}/app.db aside, and the replica is restored",
            host
        );
        Err(Held { code: "database_behind", message, permanent: true })
    }

    /// Copies the staging over the own replica, and deletes there what the staging does not hold: an older lineage with
    /// higher transactions would be restored instead, with every check passed.
    async fn mirror_in(&self, arrival: &Arrival<'_>, tail: Option<&Tail>) -> Result<Value, Held> {
        let own = self.node.own().await;
        let pair = Pair::of_landing(arrival.fall.host.as_str()).map_err(|error| Held {
            code: "host_invalid",
            message: error.to_string(),
            permanent: true,
        })?;
        let mirror =
            Mirror { source: own.clone(), target: own, pairs: vec![pair], settings: self.node.config().mirror.clone() };
        let context = arrival.context;
        let journal: Box<dyn KeyJournal> = match &arrival.fall.pending {
            Some((id, _)) => Box::new(MoveJournal::of_landing(self.pool.clone(), context.clone(), *id)),
            None => Box::new(MemoryJournal::default()),
        };
        let stop = CancellationToken::new();
        let mut pass = Box::pin(mirror.pass(journal.as_ref(), &Unobserved, &stop));
        let report = tokio::select! {
            report = &mut pass => report,
            () = context.draining.cancelled() => {
                stop.cancel();
                pass.await
            }
        };
        let report = report.map_err(|error| Held {
            code: error.code(),
            message: chain(&error),
            permanent: error.is_permanent(),
        })?;
        let evidence = json!({
            "source_keys": report.source_keys, "copied": report.copied, "copied_bytes": report.copied_bytes,
            "deleted": report.deleted, "newest_txid": report.newest.map(|newest| newest.to_string()),
        });
        match &report.outcome {
            Outcome::InSync => {}
            Outcome::WithinBars => {
                let message = "somebody writes to the staging or to the replica".to_owned();
                return Err(Held { code: "staging_busy", message, permanent: false });
            }
            Outcome::NotReady(why) => {
                let message = format!("the staging cannot be copied: {}", why.code());
                return Err(Held { code: why.code(), message, permanent: false });
            }
        }
        let newest = report.newest.map(|newest| newest.to_string());
        match tail {
            Some(tail) if newest.as_deref() != Some(tail.txid.as_str()) => {
                let newest = newest.unwrap_or_else(|| "no transaction".to_owned());
                let message = format!("the staging ends with {newest}, the cut proved {}", tail.txid);
                Err(Held { code: "staging_differs", message, permanent: true })
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
    ) -> Result<Value, Held> {
        let host = &arrival.fall.host;
        let restored = activator.restore(host, &format!("instances/{host}"), txid).await;
        let restored: Restored = restored.map_err(|error| Held::of("restore_failed", &error))?;
        let evidence = json!({"txid": txid, "sha256": restored.sha256, "size": restored.size});
        if let Some(tail) = tail
            && (restored.sha256 != tail.sha256 || i64::try_from(restored.size) != Ok(tail.size))
        {
            let found = format!("{} bytes of SHA-256 {}", restored.size, restored.sha256);
            let aside = activator.quarantine(host, restored).await;
            let aside = aside.map_err(|error| Held::of("restore_differs", &error))?;
            let message = format!(
                "what is restored at {txid} is not the database of the cut: {found}, not {} bytes of SHA-256 {}; it is put \
                 aside in {}, and the source keeps its replica",
                tail.size,
                tail.sha256,
                aside.display()
            );
            return Err(Held { code: "restore_differs", message, permanent: true });
        }
        crate::failpoint::hit("land.before_adopt", host.as_str()).await;
        activator.adopt(host, restored).await.map_err(|error| Held::of("restore_failed", &error))?;
        Ok(evidence)
    }

    /// Journals one step of a move's landing around an act; of other landings there is no journal. `Some`: the run ends, and
    /// the route says why.
    async fn step(
        &self,
        arrival: &Arrival<'_>,
        step: &'static str,
        act: impl Future<Output = Result<Value, Held>>,
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
        // Drained, or the lease is another's: what is left is the next run's.
        context.check()?;
        let (outcome, evidence) = match &ended {
            Ok(evidence) => ("done", evidence.clone()),
            Err(held) => ("failed", json!({"code": held.code, "message": held.message})),
        };
        if let Some(row) = row {
            let mut conn = self.connection().await?;
            let closed = domain::instances::moves::end_step(&mut conn, context.lease(), row, outcome, &evidence).await;
            told(context, closed)?;
            conn.done(()).await.map_err(anyhow::Error::new)?;
        }
        match ended {
            Ok(_) => Ok(None),
            Err(held) => self.hold(arrival, held.code, held.message, held.permanent).await.map(Some),
        }
    }
}
