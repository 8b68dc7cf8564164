//! `leasehold demo`: one real instance moved there and back, from nothing, that proves itself; then a storm over the queue
//! that does.
//!
//! A box in eu runs an application with a SQLite database, which litestream replicates; a client writes to it through an edge
//! and never stops. The instance is mirrored to uk until it is ready, frozen, cut, landed and served there, and then moved
//! back. At the end every acknowledged row is there, in order. Everything runs on loopback in a folder that is gone
//! afterwards, unless something failed.

mod journal;
mod proof;
mod storm;
mod writer;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use sandbox::tools::{self, Tool};
use wire::{IdentityKind, KeyScopes, MoveRequest, NewIdentity, NewInstance, NewKey};

use crate::exit::{self, Ending, Exit};
use crate::settings::Settings;
use crate::stack::{self, EU, Instances, Narrator, Options, Site, Stack, UK};
use crate::{folder, interrupt};
use journal::Journal;
use serde::Serialize;
use writer::{Door, Writer};

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
/// How long each further step may take.
const STEP_LIMIT: Duration = Duration::from_secs(60);
/// Rows that are acknowledged before the first move begins, and between the two moves.
const FIRST_ROWS: usize = 1_050;
const NEXT_ROWS: usize = 50;

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
    // What is made to outlive its worker would outlive the demo, too.
    stack::reap(dir.path());
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
    let litestream = stack::blocking(|| tools::ensure(Tool::Litestream)).await?;
    let options = Options {
        dir: dir.to_owned(),
        api_port: None,
        keep: false,
        round_seconds: ROUND_SECONDS,
        instances: Some(Instances { litestream, hosts: vec![HOST] }),
    };
    let stack = Stack::start(options, narrator).await?;
    let client = bearer(&stack).await.context("make the application's key")?;
    let moved = journey(&stack, &client, narrator).await;
    let acts = match moved {
        Ok(moved) => storm::run(&stack, narrator).await.map(|queue| Proof { moved, queue }),
        Err(error) => Err(error),
    };
    narrator.doing("ending everything");
    stack.stop().await;
    acts
}

/// There and back: from eu to uk, and from uk to eu, under a client that never stops writing.
async fn journey(stack: &Stack, client: &wire::Client, narrator: &Narrator) -> anyhow::Result<proof::Proof> {
    register(stack, client, narrator).await?;
    let door = Door::new(stack.edge.url(), HOST)?;
    stack
        .until(STEP_LIMIT, "the application does not answer at the edge", async || {
            Ok(door.state().await.filter(|state| state.region == EU.code).map(drop))
        })
        .await?;
    narrator.done(&format!("GET {}/state with Host: {HOST}: it answers, in region {}", stack.edge.url(), EU.code));
    ensure_unknown_hosts_are_unknown(stack).await?;
    let writer = Writer::start(door.clone());
    stack
        .until(STEP_LIMIT, "the application takes no rows", async || Ok((writer.count() >= FIRST_ROWS).then_some(())))
        .await?;
    narrator
        .done(&format!("a client has written {} rows through the edge, and goes on whatever happens", writer.count()));
    let mut legs = Vec::new();
    for (from, to) in [(EU, UK), (UK, EU)] {
        legs.push(leg(stack, client, (from, to), (&door, &writer), narrator).await?);
        let enough = writer.count() + NEXT_ROWS;
        stack
            .until(STEP_LIMIT, "the application takes no rows", async || Ok((writer.count() >= enough).then_some(())))
            .await?;
    }
    let refused = writer.refused();
    let acknowledged = writer.stop().await?;
    let ledger = door.rows().await?;
    let traffic = proof::traffic_of_boxes(&stack.s3.faults().record(), &stack.box_keys)?;
    proof::examine(HOST, (&ledger, &acknowledged), refused, legs, traffic, narrator.elapsed())
}

/// One move: rounds until ready, the freeze, the cut, the landing, and the first row that the other region takes.
async fn leg(
    stack: &Stack,
    client: &wire::Client,
    (from, to): (Site, Site),
    (door, writer): (&Door, &Writer),
    narrator: &Narrator,
) -> anyhow::Result<proof::Leg> {
    let request = MoveRequest { region: to.code.to_owned(), ..MoveRequest::default() };
    let moving = client.move_instance(APP, HOST, &request).await.context("ask for the move")?;
    narrator.done(&format!("POST …/{HOST}/move {{\"region\": \"{}\"}}: {}", moving.to, moving.state));
    let mut journal = Journal::of_host(client, APP, HOST).await?;
    wait_until_ready(stack, client, writer, &mut journal, narrator).await?;
    let begun = Instant::now();
    door.freeze().await?;
    let last = writer.last().context("nothing was acknowledged")?;
    let cut = client.cut_move(APP, HOST).await.context("cut the move")?;
    narrator.done(&format!("the application refuses writes after row {}; POST …/move/cut: {}", last.n, cut.state));
    let first = stack
        .until(STEP_LIMIT, "the target takes no row", async || {
            narrator.doing(format!("{} to {}: {}", from.code, to.code, journal.step().await?));
            let status = door.status().await?;
            // Served by the one or the other, or by nobody: never unknown, never sent elsewhere.
            if status != 200 && status != 503 {
                bail!("the edge answered {status} while the instance moved");
            }
            Ok(writer.first_after(begun, to.code))
        })
        .await?;
    let frozen = first.at - begun;
    narrator.done(&format!(
        "row {} is acknowledged by {}, {} ms after the freeze",
        first.n,
        to.code,
        frozen.as_millis()
    ));
    let found = stack
        .until(STEP_LIMIT, "the staging is not deleted", async || {
            Ok(Some(journal.read().await?).filter(|found| found.staging_deleted_at.is_some()))
        })
        .await?;
    let record = client.instance(APP, HOST).await?;
    if record.region != to.code || record.moving.is_some() {
        bail!("the record is in {} with {:?} after the move", record.region, record.moving);
    }
    proof::Leg::of(&found, &journal.steps().await?, frozen)
}

/// An edge says 404 for hosts that no region knows, so that its 503 means something.
async fn ensure_unknown_hosts_are_unknown(stack: &Stack) -> anyhow::Result<()> {
    let status = Door::new(stack.edge.url(), "nobody.example")?.status().await?;
    if status != 404 {
        bail!("the edge answered {status} for a host that nobody knows");
    }
    Ok(())
}

/// Registers the instance, and waits until the box in its region serves it.
async fn register(stack: &Stack, client: &wire::Client, narrator: &Narrator) -> anyhow::Result<()> {
    let instance = NewInstance::new(HOST, EU.code);
    client.create_instance(APP, &instance, None).await.context("register the instance")?;
    let without = format!("no box in {} took {HOST}", EU.code);
    stack
        .until(PLACED_LIMIT, &without, async || {
            let observed = client.instance(APP, HOST).await?.observed_region;
            Ok((observed.as_deref() == Some(EU.code)).then_some(()))
        })
        .await?;
    narrator.done(&format!("registered through HTTP; {} took it and starts it, litestream beside it", EU.node));
    Ok(())
}

/// Looks at the record until its move is ready, and tells of each round as it ends.
async fn wait_until_ready(
    stack: &Stack,
    client: &wire::Client,
    writer: &Writer,
    journal: &mut Journal,
    narrator: &Narrator,
) -> anyhow::Result<()> {
    let looked = stack
        .until(READY_LIMIT, "the move is not ready", async || {
            let record = client.instance(APP, HOST).await.context("read the record")?;
            for line in journal.news().await? {
                narrator.done(&line);
            }
            let moving = record.moving.context("the record's move is gone")?;
            if moving.state != "ready" {
                narrator.doing(format!("{}: {} rows acknowledged", moving.state, writer.count()));
                return Ok(None);
            }
            Ok(moving.ready_at)
        })
        .await;
    let at = match looked {
        Ok(at) => at,
        Err(error) => {
            return Err(match journal.obstacle().await {
                Ok(held) => error.context(format!("the newest round says: {held}")),
                Err(_) => error,
            });
        }
    };
    // Whatever ended before the promotion is in the journal by now.
    for line in journal.news().await? {
        narrator.done(&line);
    }
    narrator.done(&format!("the record says ready, since {}", at.format("%H:%M:%S%.3f")));
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
