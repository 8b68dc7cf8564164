//! What holds after every step, and at the end of a history.

use std::time::Duration;

use domain::audit::Actor;
use domain::instances;
use domain::instances::moves::{self, MoveState};
use sandbox::s3::{Fault, Rule};
use tests::wait::until;

use super::World;
use super::runs::LEASE;
use crate::acting::{PATIENCE, activator, rows_of};
use crate::support::{HOST, app, host};

impl World {
    pub(super) fn strike(&mut self, on: bool) {
        let faults = self.fleet.s3.faults();
        faults.clear();
        faults.seed(self.random.u64(..));
        let kinds = [
            Fault::SlowDown,
            Fault::Answer("InternalError"),
            Fault::Disconnect,
            Fault::LostAnswer,
            Fault::ErrorInBody("InternalError"),
        ];
        for fault in kinds.into_iter().filter(|_| on) {
            let whole = !matches!(fault, Fault::ErrorInBody(_));
            // Together three of ten calls. Only a copy answers with an error in its body.
            for op in ["CopyObject", "ListObjectsV2", "DeleteObjects", "PutObject", "GetObject"] {
                if whole || op == "CopyObject" {
                    faults.add(Rule::on(op, fault.clone()).probability(0.08));
                }
            }
        }
    }

    /// I5, and every row that was seen.
    pub(super) async fn check(&mut self) {
        let record = self.fleet.record(HOST).await;
        let mut living = Vec::new();
        for code in ["eu", "uk"] {
            let here = activator(self.node(code)).here().expect("a look");
            if here.values().any(|now| now.lives || now.unknown) {
                living.push(code);
            }
            let Some(now) = here.get(&host(HOST)).filter(|now| now.address.is_some()) else { continue };
            assert_eq!(record.region.as_str(), code, "{now:?} runs in another region");
            let status: Option<String> =
                sqlx::query_scalar("select status from routes where host = $1 and node_id = $2")
                    .bind(HOST)
                    .bind(self.node(code).id().0)
                    .fetch_optional(self.fleet.db.pool())
                    .await
                    .expect("an answer");
            assert!(matches!(status.as_deref(), Some("serving" | "moving")), "{status:?}");
            let rows = rows_of(&self.fleet.database(self.node(code))).unwrap_or_default();
            assert!(rows >= self.committed, "{rows} of {} rows", self.committed);
            self.committed = rows;
        }
        assert!(living.len() <= 1, "{living:?}");
    }

    /// Everything comes to its end once the store answers: a move is cut, and the instance served with every row.
    pub(super) async fn settle(&mut self) {
        self.strike(false);
        for turn in 0..40 {
            self.pass(if turn % 4 == 3 { Duration::from_secs(600) } else { LEASE }).await;
            for code in ["eu", "uk"] {
                self.run(code).await;
                self.tend(code).await;
            }
            self.check().await;
            let open = moves::open_of_host(&mut *self.fleet.conn().await, &host(HOST)).await.expect("an answer");
            if open.as_ref().is_some_and(|open| open.state.known() == Some(MoveState::Ready)) {
                self.fleet.cut().await;
            }
            instances::set_parked(&mut *self.fleet.conn().await, &app(), &host(HOST), false, Actor::System)
                .await
                .expect("it may run");
            let at = self.fleet.record(HOST).await.region;
            if open.is_none() && activator(self.node(at.as_str())).running(&host(HOST)).is_some() {
                let database = self.fleet.database(self.node(at.as_str()));
                let wanted = self.committed + 5;
                until("it goes on", PATIENCE, || async {
                    rows_of(&database).is_some_and(|rows| rows >= wanted).then_some(())
                })
                .await;
                let node = self.node(at.as_str());
                activator(node).stop_child(&host(HOST)).await.expect("it ends");
                let rows = rows_of(&database).expect("a database");
                let proven = activator(node).prove_tail(&host(HOST)).await;
                let tail = proven.unwrap_or_else(|error| panic!("its replica has a hole: {error:?}"));
                let prefix = format!("instances/{HOST}");
                let restored = activator(node).restore(&host(HOST), &prefix, &tail.txid).await;
                let restored = restored.unwrap_or_else(|error| panic!("no restore: {error:?}"));
                assert_eq!(restored.sha256, tail.sha256, "the replica is the database");
                assert_eq!(rows_of(&restored.path), Some(rows));
                return;
            }
        }
        let held: Option<serde_json::Value> = sqlx::query_scalar("select jsonb_agg(to_jsonb(r)) from routes r")
            .fetch_one(self.fleet.db.pool())
            .await
            .expect("an answer");
        panic!("it does not settle: {:?}\n{held:?}", self.fleet.record(HOST).await);
    }
}
