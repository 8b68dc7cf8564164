//! `leasehold instance`

use std::path::PathBuf;

use uuid::Uuid;
use wire::{Instance, NewInstance};

use super::Context;
use crate::client::Api;
use crate::exit::Exit;
use crate::output::{details, moment, or_dash, table};
use crate::{parse, runtime};

mod environment;
mod moves;
mod receipt;
mod rehearsal;
mod rescue;
mod seal;
mod standing;
mod wait;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Register an instance of an application
    #[command(after_help = "Examples:\n  leasehold instance create acme ledger.acme.example --region eu\n  \
        leasehold instance create acme ledger.acme.example --region eu --env-file ledger.env")]
    Create(Create),
    /// Set the environment of an instance's process, in place of the one that it has
    #[command(after_help = environment::HELP)]
    Env(environment::Set),
    /// Seal a value of an environment, so that only the boxes that run the instance can read it
    #[command(after_help = seal::HELP)]
    Seal(seal::Seal),
    /// List an application's instances
    #[command(after_help = "Example: leasehold instance list acme")]
    List(List),
    /// Show an instance, how far the move is that it is in, and what holds that up
    #[command(after_help = "Example: leasehold instance show acme ledger.acme.example")]
    Show(Named),
    /// Begin to move an instance: its data is copied until the move is ready
    #[command(after_help = moves::MOVE_HELP)]
    Move(moves::Begin),
    /// Cut a ready move: the source stops the instance for good, and the target serves it
    #[command(after_help = moves::CUT_HELP)]
    Cut(moves::Cutting),
    /// Give up a move that is not being cut: what is staged is deleted, and the instance stays where it is
    #[command(after_help = "Example: leasehold instance abort acme ledger.acme.example --wait\n\n\
        The instance is served all the while. What is staged is deleted twice, the second time when nothing that was \
        under way can come late any more: that takes a minute or more. A move that is being cut is taken back by operators \
        alone: `leasehold instance unstick`, before the source's database is deleted.")]
    Abort(moves::Steer),
    /// Stop an instance until it is woken; its data and a move of it go on
    #[command(after_help = "Example: leasehold instance park acme ledger.acme.example")]
    Park(Named),
    /// Let a parked instance run again
    #[command(after_help = "Example: leasehold instance wake acme ledger.acme.example")]
    Wake(Named),
    /// End an instance's process and start another, with the environment that it has now
    #[command(after_help = "Example: leasehold instance restart acme ledger.acme.example\n\n\
        Its box does so within seconds; edges answer 503 with Retry-After in between.")]
    Restart(standing::Restart),
    /// Tell why an instance is where it is, and what holds its move, its cut or its landing up
    #[command(after_help = "Example: leasehold instance why acme ledger.acme.example\n\n\
        One reason a paragraph, the one to act on first, then what to do about it. docs/runbooks/moves.md explains each.")]
    Why(Named),
    /// Show what a move proved, did and left
    #[command(after_help = "Examples:\n  leasehold instance receipt acme ledger.acme.example\n  \
        leasehold instance receipt acme ledger.acme.example --move 01890a5d-ac96-774b-bcce-b302099a8057")]
    Receipt(Receipt),
    /// Take back a cut that hangs, before it deletes anything (operators)
    #[command(after_help = rescue::UNSTICK_HELP)]
    Unstick(rescue::Unstick),
    /// Point an instance to a region by hand, when a region is gone or a landing cannot end (operators)
    #[command(after_help = rescue::POINT_HELP)]
    Point(rescue::Point),
    /// List an instance's moves, newest first, with what the newest round came to
    #[command(after_help = "Example: leasehold instance moves acme ledger.acme.example")]
    Moves(Named),
}

/// Names one instance.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Named {
    /// The application
    app: String,
    /// The instance's host
    host: String,
}

impl Named {
    /// As a refusal names it.
    fn what(&self) -> String {
        format!("instance {} of {}", self.host, self.app)
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Receipt {
    #[command(flatten)]
    of: Named,
    /// The move; the newest where not named
    #[arg(long = "move", value_name = "ID", value_parser = parse::id)]
    id: Option<Uuid>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Create {
    /// The application
    app: String,
    /// The instance's host
    host: String,
    /// Its region's code
    #[arg(long)]
    region: String,
    /// What it is [default: instance]
    #[arg(long)]
    kind: Option<String>,
    /// A file with its environment, a NAME=VALUE a line; - is stdin
    #[arg(long, value_name = "PATH")]
    env_file: Option<PathBuf>,
    /// A repeated call with this key is answered as the first was
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// The application
    app: String,
    /// Instances of one page, 1 to 200
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=200))]
    limit: Option<u16>,
    /// Where the page begins, as the page before said
    #[arg(long)]
    cursor: Option<String>,
}

pub(crate) fn run(context: &Context, command: Command) -> anyhow::Result<Exit> {
    match command {
        // Alone without the API.
        Command::Seal(args) => return seal::run(context, &args),
        Command::Create(args) => create(context, &context.api()?, args)?,
        Command::Env(args) => environment::set(context, &context.api()?, &args)?,
        Command::List(args) => list(context, &context.api()?, &args)?,
        Command::Show(of) => show(context, &context.api()?, &of)?,
        Command::Move(args) => return moves::begin(context, &context.api()?, args),
        Command::Cut(args) => return moves::cut(context, &context.api()?, &args),
        Command::Abort(args) => return moves::abort(context, &context.api()?, &args),
        Command::Unstick(args) => return rescue::unstick(context, &context.api()?, args),
        Command::Point(args) => return rescue::point(context, &context.api()?, args),
        Command::Moves(of) => moves::list(context, &context.api()?, &of)?,
        Command::Park(of) => standing::park(context, &context.api()?, &of, true)?,
        Command::Wake(of) => standing::park(context, &context.api()?, &of, false)?,
        Command::Restart(args) => standing::restart(context, &context.api()?, &args)?,
        Command::Why(of) => standing::why(context, &context.api()?, &of)?,
        Command::Receipt(args) => receipt::show(context, &context.api()?, &args.of, args.id)?,
    }
    Ok(Exit::Ok)
}

fn create(context: &Context, api: &Api, create: Create) -> anyhow::Result<()> {
    let new = NewInstance {
        kind: create.kind,
        env: create.env_file.as_deref().map(environment::read).transpose()?.unwrap_or_default(),
        ..NewInstance::new(create.host, create.region)
    };
    let key = create.idempotency_key.as_deref();
    let answer =
        runtime::run(api.call_about(&app_of(&create.app), |client| client.create_instance(&create.app, &new, key)))?;
    context.output.show(&answer.value, described)
}

fn list(context: &Context, api: &Api, list: &List) -> anyhow::Result<()> {
    let page = runtime::run(
        api.call_about(&app_of(&list.app), |client| client.instances(&list.app, list.limit, list.cursor.as_deref())),
    )?;
    context.output.page(&page, "no instances", |instances| {
        table(
            &["host", "kind", "region", "observed", "move", "revision"],
            instances.iter().map(|it| {
                let moving = it.moving.as_ref().map_or_else(|| "-".to_owned(), |it| format!("{} {}", it.state, it.to));
                let observed = or_dash(it.observed_region.as_deref().unwrap_or_default());
                [it.host.clone(), it.kind.clone(), it.region.clone(), observed, moving, it.revision.to_string()]
            }),
        )
    })
}

/// As a refusal names them.
fn app_of(app: &str) -> String {
    format!("application {app}")
}

fn show(context: &Context, api: &Api, of: &Named) -> anyhow::Result<()> {
    let (app, host) = (&of.app, &of.host);
    let (instance, moving) = runtime::run(async {
        let instance = api.call_about(&of.what(), |client| client.instance(app, host)).await?;
        let moves = match instance.moving {
            Some(_) => api.call(|client| client.moves_of(app, host)).await?.items,
            None => Vec::new(),
        };
        anyhow::Ok((instance, moves.into_iter().find(|it| it.outcome.is_none())))
    })?;
    let mut answer = serde_json::to_value(&instance)?;
    if let Some(moving) = &moving {
        answer["move"] = serde_json::to_value(moving)?;
    }
    context.output.show(&answer, |_| {
        let progress = moving.as_ref().map(moves::progress).unwrap_or_default();
        details(&[fields(&instance), progress].concat())
    })
}

fn described(instance: &Instance) -> String {
    details(&fields(instance))
}

fn fields(instance: &Instance) -> Vec<(&'static str, String)> {
    let mut lines = vec![
        ("host", instance.host.clone()),
        ("app", instance.app.clone()),
        ("kind", instance.kind.clone()),
        ("backing", instance.backing.clone()),
        ("role", instance.role.clone()),
        ("region", instance.region.clone()),
        ("observed region", or_dash(instance.observed_region.as_deref().unwrap_or_default())),
        ("hibernate", instance.hibernate.to_string()),
        ("parked", instance.parked.to_string()),
        ("environment", or_dash(&instance.env.keys().cloned().collect::<Vec<_>>().join(", "))),
        ("revision", instance.revision.to_string()),
        ("created at", moment(Some(instance.created_at))),
    ];
    if let Some(moving) = &instance.moving {
        lines.push(("move", format!("{} to {}", moving.state, moving.to)));
        lines.push(("requested at", moment(Some(moving.requested_at))));
        lines.push(("ready at", moment(moving.ready_at)));
    }
    if let Some(held) = &instance.held {
        lines.push(("held up by", moves::obstacle(held)));
        lines.push(("held up since", moment(held.since)));
    }
    lines
}
