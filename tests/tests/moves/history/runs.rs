//! Runs of the boxes' jobs: to their end, cut short, or overtaken; and the box's own loop.

use std::pin::pin;
use std::time::Duration;

use domain::instances::jobs::MOVE_KIND;
use domain::instances::moves::{self, MoveState};
use domain::instances::{self, residency};
use domain::queue::{self, Leased};
use tests::wait::until;
use workers::activator::{Action, Launch, reconcile};
use workers::failpoint;
use workers::jobs::{Done, JobError};

use super::{World, patient};
use crate::acting::{PATIENCE, activator, rows_of};
use crate::support::{HOST, host};

/// Longer than any lease, and than what is waited for after one.
pub(super) const LEASE: Duration = Duration::from_secs(90);
/// How long a run may wait for another that holds the same host.
const MUTEX: Duration = Duration::from_millis(1500);

/// Where rounds die, or are overtaken.
const OF_ROUNDS: [&str; 7] = [
    "move.after_begin",
    "objects.before_copy",
    "objects.after_copy",
    "mirror.after_copy",
    "mirror.before_record",
    "move.before_end",
    "move.before_promote",
];
/// Where cuts do.
const OF_CUTS: [&str; 17] = [
    "cut.before_close",
    "cut.after_close",
    "activator.before_stop",
    "activator.after_stop",
    "cut.before_proof",
    "activator.before_sync",
    "activator.before_once",
    "activator.before_listing",
    "activator.before_checkpoint",
    "cut.before_delta",
    "objects.before_copy",
    "mirror.after_copy",
    "cut.before_record",
    "cut.before_purge",
    "activator.before_remove",
    "cut.before_flip",
    "cut.after_flip",
];
/// Where aborts do.
const OF_ABORTS: [&str; 5] =
    ["abort.before_sweep", "objects.before_delete", "objects.after_delete", "abort.after_sweep", "abort.before_clear"];
/// Where landings and purges do.
const OF_LANDINGS: [&str; 14] = [
    "land.after_mint",
    "objects.before_copy",
    "objects.before_delete",
    "objects.after_copy",
    "land.before_restore",
    "activator.before_restore",
    "activator.after_restore",
    "land.before_adopt",
    "activator.before_adopt",
    "activator.before_rename",
    "land.before_serve",
    "land.after_serve",
    "activator.before_child",
    "purge.before_sweep",
];

/// Calls of S3, one of which a run may be waiting for when it is overtaken: it arrives late.
const CALLS: [&str; 3] = ["CopyObject", "DeleteObjects", "ListObjectsV2"];

impl World {
    /// Time passes, and every sweep of a worker runs.
    pub(super) async fn pass(&self, by: Duration) {
        self.fleet.pass_time(by).await;
        let mut conn = self.fleet.conn().await;
        queue::rescue_expired(&mut conn, 100).await.expect("an answer");
        moves::requeue_orphans(&mut conn).await.expect("an answer");
        instances::requeue_landings(&mut conn).await.expect("an answer");
        residency::requeue_purges(&mut conn).await.expect("an answer");
    }

    /// A box that has something to do: time passes until then, and where nothing is on its way a move begins.
    pub(super) async fn due(&mut self) -> String {
        let code = self.any();
        let due = async |code: &str| {
            let queues: Vec<String> = self.node(code).queues().into_iter().map(|queue| queue.to_string()).collect();
            queue::stage_due(&mut *self.fleet.conn().await, 100).await.expect("an answer");
            let sql = "select exists (select from jobs where state = 'available' and queue = any($1))";
            let due: bool =
                sqlx::query_scalar(sql).bind(queues).fetch_one(self.fleet.db.pool()).await.expect("an answer");
            due
        };
        for wait in [0, 6, 31, 120, 0] {
            if wait > 0 {
                self.pass(Duration::from_secs(wait)).await;
            }
            if wait == 120 && self.open().await.is_none() {
                let _ = self.fleet.start_move_to(HOST, &self.other().await).await;
            }
            for code in [code, if code == "eu" { "uk" } else { "eu" }] {
                if due(code).await {
                    return code.to_owned();
                }
            }
        }
        code.to_owned()
    }

    pub(super) async fn point(&mut self, leased: &Leased) -> &'static str {
        let points: &[&str] = match (leased.kind.as_str(), self.open().await) {
            (MOVE_KIND, Some(MoveState::Cutting)) => &OF_CUTS,
            (MOVE_KIND, Some(MoveState::Aborting)) => &OF_ABORTS,
            (MOVE_KIND, _) => &OF_ROUNDS,
            _ => &OF_LANDINGS,
        };
        self.random.choice(points).expect("points")
    }

    pub(super) async fn run(&self, code: &str) -> String {
        match self.fleet.lease(self.node(code)).await {
            Some(leased) => self.run_leased(code, leased).await,
            None => format!("nothing is due on {code}"),
        }
    }

    pub(super) async fn run_leased(&self, code: &str, leased: Leased) -> String {
        let (kind, lease) = (leased.kind.clone(), leased.lease);
        let done = self.fleet.handle(self.node(code), leased).await;
        self.fleet.settle(lease, &done).await;
        format!("{code} runs {kind}: {}", short(&done))
    }

    /// A run dies at a point, as a killed worker does; sometimes its box begins anew.
    pub(super) async fn crash(&mut self) -> String {
        let code = self.due().await;
        let Some(leased) = self.fleet.lease(self.node(&code)).await else { return "nothing to crash".to_owned() };
        let point = self.point(&leased).await;
        let (kind, lease) = (leased.kind.clone(), leased.lease);
        let gate = failpoint::gate_next(point, "");
        let died = tokio::select! {
            () = gate.arrived(1) => true,
            done = self.fleet.handle(self.node(&code), leased) => {
                self.fleet.settle(lease, &done).await;
                false
            }
        };
        drop(gate);
        if died {
            if self.random.bool() {
                self.restart(&code).await;
            }
            self.pass(LEASE).await;
        }
        format!("crash {code} {kind} at {point}: {died}")
    }

    /// A run is held at a point, or its request is on its way; its lease runs out, others go on, and then it does.
    pub(super) async fn overtake(&mut self) -> String {
        let code = self.due().await;
        let call = self.random.bool().then(|| *self.random.choice(&CALLS).expect("calls"));
        let far = self.random.bool();
        let Some(leased) = self.fleet.lease(self.node(&code)).await else { return "nothing to overtake".to_owned() };
        let point = self.point(&leased).await;
        let (kind, lease) = (leased.kind.clone(), leased.lease);
        let gate = failpoint::gate_next(if call.is_some() { "nowhere" } else { point }, "");
        let mut held = call.map(|call| self.fleet.s3.faults().hold(call, HOST));
        let mut old = pin!(self.fleet.handle(self.node(&code), leased));
        let reached = async {
            match &mut held {
                Some(held) => held.reached().await,
                None => {
                    gate.arrived(1).await;
                    true
                }
            }
        };
        let overtaken = tokio::select! {
            reached = reached => reached,
            done = &mut old => {
                self.fleet.settle(lease, &done).await;
                false
            }
        };
        let at = call.unwrap_or(point);
        if !overtaken {
            return format!("overtake {code} {kind} at {at}: false");
        }
        self.pass(LEASE).await;
        let others = async {
            let mut said = self.run(&code).await;
            if far {
                for code in ["eu", "uk", "eu", "uk"] {
                    said = format!("{said}; {}", self.run(code).await);
                    self.pass(Duration::from_secs(6)).await;
                }
                self.writes_on().await;
            }
            said
        };
        let mut others = pin!(others);
        // One that holds the host's mutex holds up its successor on the same box, too.
        let first = tokio::time::timeout(MUTEX, &mut others).await;
        drop((gate, held));
        let (late, said) = match first {
            Ok(said) => (old.await, said),
            Err(_) => tokio::join!(old, others),
        };
        self.fleet.settle(lease, &late).await;
        format!("overtake {code} {kind} at {at}: {said}; then {}", short(&late))
    }

    /// Whoever runs it by now writes some rows more.
    async fn writes_on(&self) {
        for code in ["eu", "uk"] {
            if activator(self.node(code)).running(&host(HOST)).is_some() {
                let database = self.fleet.database(self.node(code));
                let wanted = rows_of(&database).unwrap_or_default() + 50;
                let more = || async { rows_of(&database).is_some_and(|rows| rows >= wanted).then_some(()) };
                until("it writes on", PATIENCE, more).await;
            }
        }
    }

    /// The box's worker ends and begins again; what it started lives on.
    pub(super) async fn restart(&mut self, code: &str) {
        let config = patient(self.fleet.config(&format!("{code}-1"), code));
        let again = self.fleet.register(config).await.expect("the box begins again");
        if code == "eu" {
            self.fleet.eu = again;
        } else {
            self.fleet.uk = again;
        }
    }

    /// What the box's loop does in one look.
    pub(super) async fn tend(&self, code: &str) {
        let node = self.node(code);
        let here = activator(node).here().expect("a look");
        let routes = instances::box_routes(&mut *self.fleet.conn().await, node.id()).await.expect("an answer");
        for action in reconcile(&routes, &here) {
            match action {
                Action::Start { host, env, restarts } => {
                    let may =
                        async { Ok(instances::may_start(&mut *self.fleet.conn().await, node.id(), &host).await?) };
                    // What does not start now is tried at the next look.
                    let _ = activator(node).start(&host, Launch { env: &env, restarts }, may).await;
                }
                // No history asks for one.
                Action::Restart { .. } => unreachable!("nobody asked for a new start"),
                Action::Stop { host, .. } => {
                    let _ = activator(node).stop(&host).await;
                }
                Action::Publish { host, address } => {
                    let address = address.map(|address| address.to_string());
                    let mut conn = self.fleet.conn().await;
                    let told = instances::publish_address(&mut conn, node.id(), &host, address.as_deref()).await;
                    told.expect("an answer");
                }
            }
        }
    }
}

fn short(done: &Result<Done, JobError>) -> String {
    match done {
        Ok(Done::Complete(result)) => result.to_string(),
        other => format!("{other:?}"),
    }
}
