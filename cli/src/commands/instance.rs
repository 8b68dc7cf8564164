//! `leasehold instance`

use wire::{Instance, MoveRequest, MoveView, NewInstance};

use super::Context;
use crate::exit::Exit;
use crate::output::{details, moment, or_dash, table};
use crate::runtime;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Register an instance of an application
    #[command(after_help = "Example: leasehold instance create acme ledger.acme.example --region eu")]
    Create(Create),
    /// List an application's instances
    #[command(after_help = "Example: leasehold instance list acme")]
    List(List),
    /// Show an instance, and the move that it is in
    #[command(after_help = "Example: leasehold instance show acme ledger.acme.example")]
    Show {
        /// The application
        app: String,
        /// The instance's host
        host: String,
    },
    /// Begin to move an instance: its data is copied until the move is ready
    #[command(after_help = "Example: leasehold instance move acme ledger.acme.example uk\n\n\
        The instance is served where it is. `leasehold instance show` tells when the copy is ready.")]
    Move {
        /// The application
        app: String,
        /// The instance's host
        host: String,
        /// The target region's code
        region: String,
    },
    /// List an instance's moves, newest first, with what the newest round came to
    #[command(after_help = "Example: leasehold instance moves acme ledger.acme.example")]
    Moves(Moves),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Moves {
    /// The application
    app: String,
    /// The instance's host
    host: String,
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
    /// A variable of its environment, NAME=VALUE; may be repeated
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
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
    let api = context.api()?;
    match command {
        Command::Create(create) => {
            let new = NewInstance {
                host: create.host,
                region: create.region,
                kind: create.kind,
                backing: None,
                role: None,
                placement: None,
                pool: None,
                hibernate: None,
                replica_regions: Vec::new(),
                env: create.env.into_iter().collect(),
            };
            let key = create.idempotency_key.as_deref();
            let answer = runtime::run(api.call(|client| client.create_instance(&create.app, &new, key)))?;
            context.output.show(&answer.value, described)?;
        }
        Command::List(list) => {
            let page =
                runtime::run(api.call(|client| client.instances(&list.app, list.limit, list.cursor.as_deref())))?;
            context.output.page(&page, "no instances", |instances| {
                table(
                    &["host", "kind", "region", "observed", "move", "revision"],
                    instances.iter().map(|it| {
                        let moving =
                            it.moving.as_ref().map_or_else(|| "-".to_owned(), |it| format!("{} {}", it.state, it.to));
                        let observed = or_dash(it.observed_region.as_deref().unwrap_or_default());
                        [it.host.clone(), it.kind.clone(), it.region.clone(), observed, moving, it.revision.to_string()]
                    }),
                )
            })?;
        }
        Command::Show { app, host } => {
            let instance = runtime::run(api.call(|client| client.instance(&app, &host)))?;
            context.output.show(&instance, described)?;
        }
        Command::Move { app, host, region } => {
            let request = MoveRequest { region };
            let moving = runtime::run(api.call(|client| client.move_instance(&app, &host, &request)))?;
            context.output.show(&moving, |it| format!("{host}: {} a move to {}", it.state, it.to))?;
        }
        Command::Moves(args) => {
            let page = runtime::run(api.call(|client| client.moves_of(&args.app, &args.host)))?;
            context.output.page(&page, "no moves", |moves| {
                table(
                    &["id", "from", "to", "state", "requested", "ready", "rounds", "last round", "held up by"],
                    moves.iter().map(moved),
                )
            })?;
        }
    }
    Ok(Exit::Ok)
}

fn moved(it: &MoveView) -> [String; 9] {
    let last = it.last.map_or_else(
        || "-".to_owned(),
        |last| format!("{} copied, {} differ", last.copied, last.differ_copies + last.differ_deletes),
    );
    [
        it.id.to_string(),
        it.from.clone(),
        it.to.clone(),
        it.outcome.clone().unwrap_or_else(|| it.state.clone()),
        moment(Some(it.requested_at)),
        moment(it.ready_at),
        it.round.to_string(),
        last,
        it.obstacle.as_ref().map_or_else(|| "-".to_owned(), |obstacle| obstacle.code.clone()),
    ]
}

fn described(instance: &Instance) -> String {
    let mut lines = vec![
        ("host", instance.host.clone()),
        ("app", instance.app.clone()),
        ("kind", instance.kind.clone()),
        ("backing", instance.backing.clone()),
        ("role", instance.role.clone()),
        ("region", instance.region.clone()),
        ("observed region", or_dash(instance.observed_region.as_deref().unwrap_or_default())),
        ("hibernate", instance.hibernate.to_string()),
        ("revision", instance.revision.to_string()),
        ("created at", moment(Some(instance.created_at))),
    ];
    if let Some(moving) = &instance.moving {
        lines.push(("move", format!("{} to {}", moving.state, moving.to)));
        lines.push(("requested at", moment(Some(moving.requested_at))));
        lines.push(("ready at", moment(moving.ready_at)));
    }
    details(&lines)
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}
