//! The box's loop: what its routes say runs, and nothing else.
//!
//! # Consistency
//! Looks at the region's serial about once a second, and at all of the box's routes when that changed, when something
//! here changed, and at least every ten seconds. A listing that failed starts, ends and retires nothing (M-122). Whether
//! a child may start is asked again at its start.
//!
//! # Cancellation
//! Nothing slow happens in the loop itself: starts and stops are tasks of their own, one a host (M-123). Ending the loop
//! ends no child: the next worker adopts them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::db;
use domain::ids::{Host, NodeId, RegionCode};
use domain::instances::moves::Obstacle;
use domain::instances::{self, BoxRoute, config_key, sealed};
use sqlx::PgPool;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::reconcile::{Action, Backoff, Here, reconcile};
use super::start::{CONNECT_LIMIT, Launch};
use super::watch::watch;
use super::{Activator, Error};
use crate::chain::chain;

/// The wait between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// The longest time between two listings of all routes.
const LISTING: Duration = Duration::from_secs(10);
/// How long one leg of a look may take before it is told by its name.
const BUDGET: Duration = Duration::from_secs(1);
/// How long the database may take for one answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Children that start at once: each brings a litestream, which lists its replica first.
const STARTS: usize = 8;

/// Why a look came to nothing.
type LookError = Box<dyn std::error::Error + Send + Sync>;

/// What became of a start or a stop.
struct Done {
    host: Host,
    began: bool,
    error: Option<Error>,
}

/// A box's care for its hosts.
struct Keeper {
    pool: PgPool,
    node: NodeId,
    region: RegionCode,
    activator: Activator,
    tasks: JoinSet<Done>,
    busy: HashSet<Host>,
    backoffs: HashMap<Host, Backoff>,
    starts: Arc<Semaphore>,
    serial: Option<i64>,
    listed: Option<Instant>,
    /// Whether the last listing found addresses to tell: the next look finds out whether they are told.
    unsettled: bool,
    /// What ran at the last look.
    here: BTreeMap<Host, Here>,
}

/// Keeps what runs here as the routes of the box say, and tells which of it is not replicated, until told to stop.
pub async fn keep(pool: PgPool, node: NodeId, activator: Activator, stop: CancellationToken) {
    let watching = watch(pool.clone(), node, activator.clone(), stop.clone());
    tokio::join!(keep_running(pool, node, activator, stop), watching);
}

/// An outage of the database is logged once, and its end; meanwhile everything stays as it is.
async fn keep_running(pool: PgPool, node: NodeId, activator: Activator, stop: CancellationToken) {
    let region = activator.inner.settings.region.clone();
    let mut keeper = Keeper {
        pool,
        node,
        region,
        activator,
        tasks: JoinSet::new(),
        busy: HashSet::new(),
        backoffs: HashMap::new(),
        starts: Arc::new(Semaphore::new(STARTS)),
        serial: None,
        listed: None,
        unsettled: false,
        here: BTreeMap::new(),
    };
    if !keeper.activator.has_program() {
        tracing::info!(node.id = %node, "this box has no program for its instances: they stay parked (node.exec)");
    }
    let mut away = false;
    loop {
        match keeper.look().await {
            Ok(()) if away => {
                away = false;
                tracing::info!(node.id = %node, "the box sees its routes again");
            }
            Ok(()) => {}
            Err(error) if away => tracing::debug!(node.id = %node, error = %chain(&*error), "no routes again"),
            Err(error) => {
                away = true;
                tracing::warn!(
                    node.id = %node,
                    error = %chain(&*error),
                    "the box does not see its routes: what runs goes on, nothing starts"
                );
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            Some(done) = keeper.tasks.join_next(), if !keeper.tasks.is_empty() => keeper.note(done),
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

impl Keeper {
    /// One look: cheap while nothing changed.
    async fn look(&mut self) -> Result<(), LookError> {
        while let Some(done) = self.tasks.try_join_next() {
            self.note(done);
        }
        // Before the routes are read: see `reconcile`.
        let activator = self.activator.clone();
        let here =
            leg("processes", async { Ok(tokio::task::spawn_blocking(move || activator.here()).await??) }).await?;
        let serial = leg("serial", self.read_serial()).await?;
        let changed = self.unsettled || serial.is_none() || serial != self.serial || here != self.here;
        if !changed && self.listed.is_some_and(|at| at.elapsed() < LISTING) && !self.is_anybody_due() {
            return Ok(());
        }
        let routes = leg("routes", self.read_routes()).await?;
        self.ended(&here);
        self.unsettled = false;
        for action in reconcile(&routes, &here) {
            self.act(action);
        }
        let now = Instant::now();
        for (_, backoff) in self.backoffs.iter_mut().filter(|(host, _)| !self.busy.contains(*host)) {
            backoff.looked_at(now);
        }
        let known = |host: &Host| routes.iter().any(|route| route.host == *host) || here.contains_key(host);
        self.backoffs.retain(|host, _| known(host));
        (self.serial, self.listed, self.here) = (serial, Some(Instant::now()), here);
        Ok(())
    }

    async fn read_serial(&self) -> Result<Option<i64>, LookError> {
        let mut conn = db::session(&self.pool).await?;
        let region = domain::nodes::region(&mut conn, &self.region).await?;
        Ok(conn.done(region.map(|region| region.serial)).await?)
    }

    async fn read_routes(&self) -> Result<Vec<BoxRoute>, LookError> {
        let mut conn = db::session(&self.pool).await?;
        let routes = instances::box_routes(&mut conn, self.node).await?;
        Ok(conn.done(routes).await?)
    }

    /// Children that ran at the last look and do not now have ended by themselves, unless somebody works on them.
    fn ended(&mut self, here: &BTreeMap<Host, Here>) {
        let now = Instant::now();
        for (host, was) in &self.here {
            let is = here.get(host).copied().unwrap_or_default();
            if was.address.is_some()
                && is.address.is_none()
                && !self.busy.contains(host)
                && let Some(backoff) = self.backoffs.get_mut(host)
            {
                backoff.ended(now);
            }
        }
    }

    fn is_anybody_due(&self) -> bool {
        let now = Instant::now();
        self.backoffs
            .iter()
            .any(|(host, backoff)| backoff.is_waiting() && backoff.is_due(now) && !self.busy.contains(host))
    }

    fn act(&mut self, action: Action) {
        let host = action.host().clone();
        if self.busy.contains(&host) {
            return;
        }
        match action {
            Action::Publish { host, address } => {
                // Quick, and safe to lose: the next look finds the difference again.
                let (pool, node) = (self.pool.clone(), self.node);
                self.unsettled = true;
                tokio::spawn(async move {
                    // A child of an earlier worker, or one that took its time: whether it is ready nobody else has seen.
                    if !answers(address).await {
                        return;
                    }
                    if let Err(error) = publish(&pool, node, &host, address).await {
                        tracing::debug!(host = %host, error = %chain(&*error), "an address is not told yet");
                    }
                });
            }
            Action::Start { host, env, restarts } => self.launch(host, env, restarts, false),
            Action::Restart { host, env, restarts } => self.launch(host, env, restarts, true),
            Action::Stop { host, why } => {
                if !self.backoffs.entry(host.clone()).or_default().is_due(Instant::now()) {
                    return;
                }
                tracing::info!(host = %host, "what runs is stopped: {why}");
                let (activator, pool, node) = (self.activator.clone(), self.pool.clone(), self.node);
                self.busy.insert(host.clone());
                self.tasks.spawn(async move {
                    // Edges learn first: what they still send would meet a child that ends.
                    let _ = publish(&pool, node, &host, None).await;
                    let error = activator.stop(&host).await.err();
                    Done { host, began: false, error }
                });
            }
        }
    }

    /// Starts a child, where it is time and there is a program; `anew` in place of the one that runs, which goes on otherwise.
    fn launch(&mut self, host: Host, env: BTreeMap<String, String>, restarts: i64, anew: bool) {
        let backoff = self.backoffs.entry(host.clone()).or_default();
        if !self.activator.has_program() || !backoff.is_due_with(&env, Instant::now()) {
            return;
        }
        let (activator, starts) = (self.activator.clone(), Arc::clone(&self.starts));
        let (pool, node) = (self.pool.clone(), self.node);
        self.busy.insert(host.clone());
        self.tasks.spawn(async move {
            let _turn = starts.acquire().await;
            let launch = Launch { env: &env, restarts };
            let ended = if anew { end_first(&pool, node, &activator, &host, launch).await } else { Ok(()) };
            let begun = match ended {
                Ok(()) => begin(&pool, node, &activator, &host, launch).await,
                Err(error) => Err(error),
            };
            Done { host, began: begun.is_ok(), error: begun.err() }
        });
    }

    fn note(&mut self, done: Result<Done, tokio::task::JoinError>) {
        let now = Instant::now();
        // A task that died: its host is looked at anew with the others.
        let Ok(Done { host, began, error }) = done else {
            tracing::error!("a start or a stop died");
            self.busy.clear();
            return;
        };
        self.busy.remove(&host);
        let backoff = self.backoffs.entry(host.clone()).or_default();
        match error {
            None if began => backoff.began(now),
            None => *backoff = Backoff::default(),
            Some(error) => {
                // The route changed between the listing and the start: the next listing says so.
                if matches!(error, Error::NotPermitted { .. }) {
                    *backoff = Backoff::default();
                    tracing::debug!(host = %host, "it may not start any more");
                } else {
                    backoff.failed(now);
                    tracing::warn!(host = %host, error = %chain(&error), "an instance is not as its route says");
                }
            }
        }
    }
}

/// Starts a child, and tells edges where it answers, or its record's page what it waits for.
async fn begin(
    pool: &PgPool,
    node: NodeId,
    activator: &Activator,
    host: &Host,
    launch: Launch<'_>,
) -> Result<(), Error> {
    // No edge may know its last port any more when another child can get that one.
    let permit = async {
        if activator.running(host).is_none() {
            publish(pool, node, host, None).await.map_err(|error| anyhow::anyhow!(error))?;
        }
        may_start(pool, node, host).await
    };
    match activator.start(host, launch, permit).await {
        Ok(started) => {
            // What is not told now is found by the next look; what held the start up goes with it.
            let _ = publish(pool, node, host, Some(started.address)).await;
            Ok(())
        }
        Err(error) => {
            note_start(pool, node, host, awaited_key(activator, launch.env, &error).as_ref()).await;
            Err(error)
        }
    }
}

/// Ends a child for another that is to be started in its place. litestream goes on: nothing waits for the store. A child that
/// no other could follow is not ended.
async fn end_first(
    pool: &PgPool,
    node: NodeId,
    activator: &Activator,
    host: &Host,
    launch: Launch<'_>,
) -> Result<(), Error> {
    if let Err(source) = sealed::open(launch.env, activator.config_key()) {
        let waits =
            Obstacle::lasting(config_key::CODE, format!("its new start waits, and it goes on as it was: {source}"));
        note_start(pool, node, host, Some(&waits)).await;
        return Err(Error::ConfigKey { host: host.clone(), source });
    }
    match may_start(pool, node, host).await {
        Ok(true) => {}
        Ok(false) => return Err(Error::NotPermitted { host: host.clone() }),
        Err(error) => return Err(Error::Permit { host: host.clone(), source: error.into() }),
    }
    tracing::info!(host = %host, "a new start was asked for");
    // Edges learn first: what they still send would meet a child that ends.
    let _ = publish(pool, node, host, None).await;
    activator.stop_child(host).await.map(drop)
}

/// One leg of a look, which is told by its name where it takes long.
async fn leg<T>(name: &'static str, work: impl Future<Output = Result<T, LookError>>) -> Result<T, LookError> {
    let begun = Instant::now();
    let done = tokio::time::timeout(ANSWER, work).await.map_err(LookError::from).and_then(|done| done);
    let elapsed = begun.elapsed();
    if elapsed > BUDGET {
        let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        tracing::warn!(leg = name, elapsed_ms, "a look at the box's routes takes long");
    }
    done
}

/// Whether a child takes connections; no address needs no answer.
async fn answers(address: Option<SocketAddr>) -> bool {
    let Some(address) = address else { return true };
    matches!(tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect(address)).await, Ok(Ok(_)))
}

async fn may_start(pool: &PgPool, node: NodeId, host: &Host) -> Result<bool, anyhow::Error> {
    let mut conn = db::session(pool).await?;
    let may = instances::may_start(&mut conn, node, host).await?;
    Ok(conn.done(may).await?)
}

/// The key that a child which did not start waits for, told for its record's page. What else kept it from starting is told
/// by the log alone: it may have come before the values were opened, so whether they open is asked anew.
fn awaited_key(activator: &Activator, env: &BTreeMap<String, String>, error: &Error) -> Option<Obstacle> {
    let unopened = if let Error::ConfigKey { source, .. } = error {
        source.clone()
    } else {
        sealed::open(env, activator.config_key()).err()?
    };
    Some(Obstacle::lasting(config_key::CODE, format!("its child does not start: {unopened}")))
}

/// Has the record's page say what a start waits for, or that it waits for nothing that the page tells. The next try tells it
/// where this does not.
async fn note_start(pool: &PgPool, node: NodeId, host: &Host, waits_for: Option<&Obstacle>) {
    let noted = async {
        let mut conn = db::session(pool).await?;
        let changed = instances::note_start(&mut conn, node, host, waits_for).await?;
        Ok::<_, LookError>(conn.done(changed).await.map(drop)?)
    };
    if let Err(error) = noted.await {
        tracing::debug!(host = %host, error = %chain(&*error), "what holds a start up is not told yet");
    }
}

async fn publish(pool: &PgPool, node: NodeId, host: &Host, address: Option<SocketAddr>) -> Result<(), LookError> {
    let mut conn = db::session(pool).await?;
    let address = address.map(|address| address.to_string());
    let changed = instances::publish_address(&mut conn, node, host, address.as_deref()).await?;
    conn.done(changed).await?;
    Ok(())
}
