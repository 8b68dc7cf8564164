//! Random histories of one instance and two boxes: verbs, passes, crashes at any effect, leases that are stolen while their
//! holder goes on, restarts, time, and a store that fails nearly every third call. After every step at most one box runs the
//! instance, and no row that was ever committed is missing (I5); in the end it is served with all of them.
//!
//! A history is drawn from its seed, which a failure prints with the steps: `LEASEHOLD_MODEL_SEED` runs that one alone. What
//! the tenant writes meanwhile is its own pace, and not drawn.

mod holds;
mod runs;

use std::io::Write as _;
use std::time::Duration;

use domain::audit::Actor;
use domain::instances::moves::{self, MoveState};
use domain::instances::{self, rescue};
use fastrand::Rng;
use tests::server::variable;
use workers::node::{NodeConfig, NodeContext};

use crate::acting::acting;
use crate::support::{Fleet, HOST, app, host};

/// Histories in an ordinary run.
const CASES: u64 = 3;
/// Of as many cases of the queue's model, one history: it takes some ten seconds.
const CASES_A_HISTORY: u64 = 10;
/// Steps of a history.
const STEPS: usize = 40;
struct World {
    fleet: Fleet,
    random: Rng,
    /// Rows that were seen committed.
    committed: u64,
    /// What was done, for whoever reads a failure.
    told: Vec<String>,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "{}", self.told.join("\n  "));
        }
    }
}

/// A box whose requests are tried often enough to get on while every third fails.
fn patient(config: NodeConfig) -> NodeConfig {
    let mut config = acting(config);
    config.tuning.attempts = 4;
    config
}

#[test]
fn random_histories_of_moves_have_one_writer_and_lose_no_row() {
    let number = |name: &str| variable(name).and_then(|n| n.parse::<u64>().ok());
    let cases = number("LEASEHOLD_MODEL_CASES").map(|n| (n / CASES_A_HISTORY).max(CASES));
    let seeds = match number("LEASEHOLD_MODEL_SEED") {
        Some(seed) => seed..seed + cases.unwrap_or(1),
        None => 1..1 + cases.unwrap_or(CASES),
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    for seed in seeds {
        runtime.block_on(Box::pin(history(seed)));
    }
}

async fn history(seed: u64) {
    let fleet = Fleet::start_with(patient).await;
    fleet.place_with(&[("TENANT_WRITES", "1")]).await;
    fleet.until_rows(&fleet.eu, 5).await;
    fleet.until_replica().await;
    let mut world = World { fleet, random: Rng::with_seed(seed), committed: 5, told: vec![format!("history {seed}")] };
    for _ in 0..STEPS {
        let step = world.step().await;
        world.told.push(step);
        world.check().await;
    }
    world.settle().await;
}

impl World {
    fn node(&self, code: &str) -> &NodeContext {
        if code == "eu" { &self.fleet.eu } else { &self.fleet.uk }
    }

    fn any(&mut self) -> &'static str {
        if self.random.bool() { "eu" } else { "uk" }
    }

    async fn step(&mut self) -> String {
        let dice = self.random.u8(0..100);
        match dice {
            0..20 => {
                // Mostly the verb that brings the move on.
                let state = self.open().await;
                let (to, drawn) = (self.other().await, self.random.u8(0..16));
                let mut conn = self.fleet.conn().await;
                let verb = match (drawn, state) {
                    (0, _) | (4.., None) => "move",
                    (1, _) | (4.., Some(MoveState::Ready)) => "cut",
                    (2..4, _) => "abort",
                    (4.., Some(_)) => {
                        let code = self.due().await;
                        return self.run(&code).await;
                    }
                };
                let said = match verb {
                    "move" => word(&self.fleet.start_move_to(HOST, &to).await),
                    "cut" => word(&moves::cut(&mut conn, &app(), &host(HOST), Actor::System, None).await),
                    _ => word(&moves::abort(&mut conn, &app(), &host(HOST), Actor::System, None).await),
                };
                format!("{verb}: {said}")
            }
            20..27 => {
                let code = self.due().await;
                self.run(&code).await
            }
            27..29 => {
                let mut conn = self.fleet.conn().await;
                let at = (&app(), &host(HOST));
                let done = rescue::unstick(&mut conn, at, Actor::System, "the dice", None).await;
                format!("unstick: {}", word(&done))
            }
            29..32 => {
                // Only a landing that hangs is given up here: pointing a record away from the region that served it last
                // leaves what that region holds, and is an operator's own affair.
                let sql = "select pending_landing_move is not null from instances where host = $1";
                let pending = sqlx::query_scalar::<_, bool>(sql).bind(HOST).fetch_one(self.fleet.db.pool()).await;
                if !pending.expect("an answer") {
                    return "nothing to point back".to_owned();
                }
                let to = self.other().await;
                let mut conn = self.fleet.conn().await;
                let at = (&app(), &host(HOST));
                let done = rescue::set_region(&mut conn, at, &to, Actor::System, "the dice", None).await;
                format!("set region {to}: {}", word(&done))
            }
            32..37 => {
                let parked = dice < 34;
                let mut conn = self.fleet.conn().await;
                let done = instances::set_parked(&mut conn, &app(), &host(HOST), parked, Actor::System).await;
                format!("parked {parked}: {}", word(&done))
            }
            37..45 => {
                let code = self.due().await;
                self.run(&code).await
            }
            45..61 => self.crash().await,
            61..77 => self.overtake().await,
            77..79 => {
                let code = self.any();
                self.restart(code).await;
                format!("restart {code}")
            }
            79..85 => {
                let struck = self.random.bool();
                self.strike(struck);
                format!("faults {struck}")
            }
            85..92 => {
                for code in ["eu", "uk"] {
                    self.tend(code).await;
                }
                "the boxes look at their routes".to_owned()
            }
            _ => {
                let by = *self.random.choice(&[2, 5, 31, 90, 3_600, 90_000]).expect("some");
                self.pass(Duration::from_secs(by)).await;
                format!("{by} s pass")
            }
        }
    }

    async fn open(&self) -> Option<MoveState> {
        let open = moves::open_of_host(&mut *self.fleet.conn().await, &host(HOST)).await.expect("an answer");
        open.and_then(|open| open.state.known())
    }

    async fn other(&self) -> String {
        let at = self.fleet.record(HOST).await.region;
        if at.as_str() == "eu" { "uk".to_owned() } else { "eu".to_owned() }
    }
}

/// How a verb was answered.
fn word<T>(done: &Result<T, instances::Error>) -> String {
    match done {
        Ok(_) => "taken".to_owned(),
        Err(instances::Error::Refused(refusal)) => format!("refused: {refusal}"),
        Err(error) => panic!("a verb is taken or refused, not {error:?}"),
    }
}
