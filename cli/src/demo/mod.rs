//! `leasehold demo`: one real move, from nothing, that proves itself; then a storm over the queue that does.
//!
//! A tenant writes to a SQLite database in the eu region while Leasehold mirrors its replica to the
//! uk region; once the record says `ready`, the copy is restored there and every row is counted.
//! Everything runs on loopback in a folder that is gone afterwards, unless something failed.

mod journal;
mod proof;
mod store;
mod storm;
mod tenant;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use sandbox::litestream::{self, Replica};
use sandbox::s3::Identity;
use sandbox::tools::{self, Tool};
use wire::{IdentityKind, KeyScopes, MoveRequest, NewIdentity, NewInstance, NewKey};

use crate::exit::{self, Ending, Exit};
use crate::settings::Settings;
use crate::stack::{self, EU, Narrator, Options, Site, Stack, UK};
use crate::{folder, interrupt};
use journal::Journal;
use serde::Serialize;
use tenant::Tenant;

/// What both acts proved.
#[derive(Debug, Serialize)]
pub(crate) struct Proof {
    #[serde(flatten)]
    moved: proof::Proof,
    queue: storm::Proof,
}

impl Proof {
    /// The proof for people.
    pub(crate) fn told(&self) -> String {
        format!("{}\n{}", self.moved.told(), self.queue.told())
    }
}

/// The tenant's application.
const APP: &str = "acme";
/// The instance that is moved.
const HOST: &str = "ledger.acme.example";
/// How long the box may take to serve the instance.
const PLACED_LIMIT: Duration = Duration::from_secs(20);
/// How long the move may take to be ready.
const READY_LIMIT: Duration = Duration::from_secs(120);
/// The wait between two rounds here; 30 s in production.
const ROUND_SECONDS: u32 = 2;
/// How long the next round after ready may take.
const ROUND_LIMIT: Duration = Duration::from_secs(60);
/// Pause between two looks at the record.
const POLL: Duration = Duration::from_millis(100);

/// How the folder of each demo begins.
const PREFIX: &str = "leasehold-demo-";
/// How long the folder of a demo that failed is left for whoever looks into it.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// How long what an interrupted demo had started may take until it no longer writes into the folder.
const REMOVE_LIMIT: Duration = Duration::from_secs(10);

/// Runs the demo in a folder of its own.
///
/// # Errors
/// The step that failed; the message names the folder, which is kept then.
pub(crate) async fn run(settings: &Settings, narrator: &Narrator) -> anyhow::Result<Proof> {
    let interrupted = interrupt::first()?;
    let dir = tempfile::Builder::new().prefix(PREFIX).tempdir().context("make a folder for the demo")?;
    // Passable, not readable: where we are root, PostgreSQL runs as somebody else and must reach its own below.
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711)).context("open the demo's folder")?;
    crate::log::start_in(dir.path(), settings)?;
    if let Err(error) = folder::sweep(dir.path(), PREFIX, KEPT) {
        tracing::warn!(%error, "the folders of earlier demos could not be looked at");
    }
    let toured = tokio::select! {
        toured = tour(dir.path(), narrator) => toured,
        () = interrupted.cancelled() => {
            Err(Ending { exit: Exit::Interrupted, message: "interrupted".to_owned() }.into())
        }
    };
    narrator.rest();
    match toured {
        // Asked for, so there is nothing to look into. What had started was ended when its tour was dropped.
        Err(error) if exit::code_of(&error) == Exit::Interrupted => {
            folder::remove(&dir.keep(), REMOVE_LIMIT).await.context("remove the demo's folder")?;
            Err(error)
        }
        Ok(proof) => {
            dir.close().context("remove the demo's folder")?;
            Ok(proof)
        }
        Err(error) => {
            let kept = dir.keep();
            Err(error.context(format!(
                "the demo failed; logs are in {}, the rest is beside them",
                kept.join("logs").display()
            )))
        }
    }
}

async fn tour(dir: &Path, narrator: &Narrator) -> anyhow::Result<Proof> {
    narrator.doing("looking for litestream");
    stack::blocking(|| tools::ensure(Tool::Litestream)).await?;
    let options = Options { dir: dir.to_owned(), api_port: None, keep: false, round_seconds: ROUND_SECONDS };
    let stack = Stack::start(options, narrator).await?;
    let client = bearer(&stack).await.context("make the application's key")?;

    narrator.doing("starting the tenant");
    let key = EU.tenant_key(HOST);
    stack.s3.add_identity(key.clone());
    let replica = replica(&stack, EU, "instances", &key);
    let tenant = Tenant::start(&dir.join("tenant"), replica, stack.pool.clone()).await.context("start the tenant")?;
    narrator.done(&format!("{HOST} writes to SQLite; litestream replicates to {}/instances/{HOST}/", EU.bucket));

    register(&client, narrator).await?;
    let moved = prove(&stack, &client, &tenant, dir, narrator).await;
    // Also after a failure in order, so that the logs that are kept tell the whole story.
    let stopped = tenant.stop().await;
    let acts = match moved {
        Ok(moved) => storm::run(&stack, narrator).await.map(|queue| Proof { moved, queue }),
        Err(error) => Err(error),
    };
    narrator.doing("ending everything");
    stack.stop().await;
    let proof = acts?;
    let held = stopped.context("end the tenant")?;
    let restored = proof.moved.restored_rows;
    if !held.are_whole() || held.last < restored {
        bail!("the tenant's own file holds {held:?}, the staged copy {restored} rows: they cannot be of one story");
    }
    Ok(proof)
}

/// Registers the instance, and waits until the box in its region serves it.
async fn register(client: &wire::Client, narrator: &Narrator) -> anyhow::Result<()> {
    let instance = NewInstance {
        host: HOST.to_owned(),
        region: EU.code.to_owned(),
        kind: None,
        backing: None,
        role: None,
        placement: None,
        pool: None,
        hibernate: None,
        replica_regions: Vec::new(),
        env: std::collections::BTreeMap::new(),
    };
    client.create_instance(APP, &instance, None).await.context("register the instance")?;
    let deadline = Instant::now() + PLACED_LIMIT;
    while client.instance(APP, HOST).await?.observed_region.as_deref() != Some(EU.code) {
        if Instant::now() >= deadline {
            bail!("no box in {} took {HOST} within {PLACED_LIMIT:?}", EU.code);
        }
        tokio::time::sleep(POLL).await;
    }
    narrator.done(&format!("registered through HTTP; {} serves it in {}", EU.node, EU.code));
    Ok(())
}

/// Moves the instance and looks at what arrived.
async fn prove(
    stack: &Stack,
    client: &wire::Client,
    tenant: &Tenant,
    dir: &Path,
    narrator: &Narrator,
) -> anyhow::Result<proof::Proof> {
    let request = MoveRequest { region: UK.code.to_owned(), cut: None };
    let moving = client.move_instance(APP, HOST, &request).await.context("ask for the move")?;
    narrator.done(&format!("POST …/{HOST}/move {{\"region\": \"{}\"}}: {}", moving.to, moving.state));
    let mut journal = Journal::of_host(client, APP, HOST).await?;
    wait_until_ready(stack, client, tenant, &mut journal, narrator).await?;
    wait_for_another_round(stack, &mut journal, narrator).await?;

    let round = journal.promoting_round().await?;
    let acknowledged = tenant.acknowledged_before(round.started_at).context(
        "no row was acknowledged before the promoting round, so nothing can be proven; start the demo again",
    )?;

    narrator.doing("restoring the staged copy");
    let inspector = UK.inspector_key();
    stack.s3.add_identity(inspector.clone());
    let restored = dir.join("restored.db");
    litestream::restore(&replica(stack, UK, "moves", &inspector), &restored, None)
        .await
        .context("restore the staged copy")?;
    narrator.done(&format!("restored {}/moves/{HOST}/ with litestream", UK.bucket));
    let proof = stack::blocking(move || proof::examine(&restored)).await?;
    let traffic = proof::traffic_of_boxes(&stack.s3.faults().record(), &stack.box_keys)?;
    proof.against(proof::Story {
        traffic,
        host: HOST,
        from: EU.code,
        to: UK.code,
        journal: &journal,
        round: &round,
        acknowledged,
        // Counted last: whatever arrived was written before.
        held: tenant.committed(),
        elapsed: narrator.elapsed(),
    })
}

/// Looks at the record until its move is ready, and tells of each round as it ends.
async fn wait_until_ready(
    stack: &Stack,
    client: &wire::Client,
    tenant: &Tenant,
    journal: &mut Journal,
    narrator: &Narrator,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + READY_LIMIT;
    loop {
        let record = client.instance(APP, HOST).await.context("read the record")?;
        for line in journal.news().await? {
            narrator.done(&line);
        }
        let moving = record.moving.context("the record's move is gone")?;
        if let ("ready", Some(at)) = (moving.state.as_str(), moving.ready_at) {
            // Whatever ended before the promotion is in the journal by now.
            for line in journal.news().await? {
                narrator.done(&line);
            }
            narrator.done(&format!("the record says ready, since {}", at.format("%H:%M:%S%.3f")));
            return Ok(());
        }
        stack.check()?;
        if !tenant.is_running() {
            bail!("the tenant stopped writing; litestream's log is {}", tenant.log().display());
        }
        if Instant::now() >= deadline {
            bail!("the move is still {} after {READY_LIMIT:?}: {}", moving.state, journal.obstacle().await?);
        }
        narrator.doing(format!(
            "{}: {} rows written, {} acknowledged",
            moving.state,
            tenant.committed(),
            tenant.acknowledged()
        ));
        tokio::time::sleep(POLL).await;
    }
}

/// Ready is a level, not an end: rounds go on and carry what was written since. One of them is waited for.
async fn wait_for_another_round(stack: &Stack, journal: &mut Journal, narrator: &Narrator) -> anyhow::Result<()> {
    narrator.doing("rounds go on after ready; waiting for the next");
    let (before, deadline) = (journal.rounds(), Instant::now() + ROUND_LIMIT);
    while journal.rounds() == before {
        stack.check()?;
        if Instant::now() >= deadline {
            bail!("no round ended within {ROUND_LIMIT:?} after ready: {}", journal.obstacle().await?);
        }
        tokio::time::sleep(POLL).await;
        for line in journal.news().await? {
            narrator.done(&line);
        }
    }
    Ok(())
}

/// The application's own bearer: it may create, read and move its instances, and nothing else.
async fn bearer(stack: &Stack) -> anyhow::Result<wire::Client> {
    let identity = NewIdentity { name: APP.to_owned(), kind: IdentityKind::App, roles: BTreeSet::new() };
    let key = NewKey {
        name: "demo".to_owned(),
        identity_id: None,
        identity: Some(identity),
        permissions: None,
        scopes: KeyScopes { app: Some(BTreeSet::from([APP.to_owned()])), node: None },
        expires_at: None,
    };
    let made = stack.client.create_key(&key, None).await?.value;
    Ok(wire::Client::new(&stack.url, made.secret)?)
}

fn replica(stack: &Stack, site: Site, folder: &str, key: &Identity) -> Replica {
    Replica {
        endpoint: stack.s3.endpoint(),
        bucket: site.bucket.to_owned(),
        prefix: format!("{folder}/{HOST}"),
        access_key: key.access_key.clone(),
        secret_key: key.secret_key.clone(),
    }
}
