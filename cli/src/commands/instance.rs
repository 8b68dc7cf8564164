//! `leasehold instance`

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use wire::{Instance, MoveRequest, MoveView, NewInstance};

use super::Context;
use crate::exit::{Ending, Exit};
use crate::input;
use crate::output::{details, moment, or_dash, table};
use crate::runtime;

/// The largest environment that is read; the API takes less.
const MAX_ENV_BYTES: u64 = 1024 * 1024;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Register an instance of an application
    #[command(after_help = "Examples:\n  leasehold instance create acme ledger.acme.example --region eu\n  \
        leasehold instance create acme ledger.acme.example --region eu --env-file ledger.env")]
    Create(Create),
    /// List an application's instances
    #[command(after_help = "Example: leasehold instance list acme")]
    List(List),
    /// Show an instance, how far the move is that it is in, and what holds that up
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
                env: create.env_file.as_deref().map(environment).transpose()?.unwrap_or_default(),
            };
            let key = create.idempotency_key.as_deref();
            let answer = runtime::run(
                api.call_about(&app_of(&create.app), |client| client.create_instance(&create.app, &new, key)),
            )?;
            context.output.show(&answer.value, described)?;
        }
        Command::List(list) => {
            let page = runtime::run(api.call_about(&app_of(&list.app), |client| {
                client.instances(&list.app, list.limit, list.cursor.as_deref())
            }))?;
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
            let (instance, moving) = runtime::run(async {
                let instance = api.call_about(&instance_of(&app, &host), |client| client.instance(&app, &host)).await?;
                let moves = match instance.moving {
                    Some(_) => api.call(|client| client.moves_of(&app, &host)).await?.items,
                    None => Vec::new(),
                };
                anyhow::Ok((instance, moves.into_iter().find(|it| it.outcome.is_none())))
            })?;
            let mut answer = serde_json::to_value(&instance)?;
            if let Some(moving) = &moving {
                answer["move"] = serde_json::to_value(moving)?;
            }
            context.output.show(&answer, |_| {
                let progress = moving.as_ref().map(progress).unwrap_or_default();
                details(&[fields(&instance), progress].concat())
            })?;
        }
        Command::Move { app, host, region } => {
            let request = MoveRequest { region, cut: None };
            let moving = runtime::run(
                api.call_about(&instance_of(&app, &host), |client| client.move_instance(&app, &host, &request)),
            )?;
            context.output.show(&moving, |it| format!("{host}: {} a move to {}", it.state, it.to))?;
        }
        Command::Moves(args) => {
            let page = runtime::run(
                api.call_about(&instance_of(&args.app, &args.host), |client| client.moves_of(&args.app, &args.host)),
            )?;
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

/// As a refusal names them.
fn app_of(app: &str) -> String {
    format!("application {app}")
}

fn instance_of(app: &str, host: &str) -> String {
    format!("instance {host} of {app}")
}

fn moved(it: &MoveView) -> [String; 9] {
    [
        it.id.to_string(),
        it.from.clone(),
        it.to.clone(),
        it.outcome.clone().unwrap_or_else(|| it.state.clone()),
        moment(Some(it.requested_at)),
        moment(it.ready_at),
        it.round.to_string(),
        last_round(it),
        it.obstacle.as_ref().map_or_else(|| "-".to_owned(), |obstacle| obstacle.code.clone()),
    ]
}

fn last_round(it: &MoveView) -> String {
    it.last.map_or_else(
        || "-".to_owned(),
        |last| format!("{} copied, {} differ", last.copied, last.differ_copies + last.differ_deletes),
    )
}

/// How far an open move is, and what holds it up.
fn progress(it: &MoveView) -> Vec<(&'static str, String)> {
    let mut lines = vec![("rounds", it.round.to_string()), ("last round", last_round(it))];
    if it.failures > 0 {
        lines.push(("failed in a row", it.failures.to_string()));
    }
    if let Some(obstacle) = &it.obstacle {
        let permanent = if obstacle.permanent { " (somebody must act before it goes on)" } else { "" };
        lines.push(("held up by", format!("{}{permanent}: {}", obstacle.code, obstacle.message)));
        lines.push(("held up since", moment(obstacle.since)));
    }
    lines
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
        ("revision", instance.revision.to_string()),
        ("created at", moment(Some(instance.created_at))),
    ];
    if let Some(moving) = &instance.moving {
        lines.push(("move", format!("{} to {}", moving.state, moving.to)));
        lines.push(("requested at", moment(Some(moving.requested_at))));
        lines.push(("ready at", moment(moving.ready_at)));
    }
    lines
}

/// Reads the variables of a file: never from arguments, which every user of a machine sees.
fn environment(path: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    variables(&input::read(path, MAX_ENV_BYTES)?)
        .map_err(|error| Ending { exit: Exit::Usage, message: format!("{}: {error}", path.display()) }.into())
}

/// One NAME=VALUE a line, the value as it stands; empty lines and those that begin with # say nothing. A refusal names
/// the line and quotes nothing of it.
fn variables(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut found = BTreeMap::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        let number = index + 1;
        let pair = line.split_once('=').filter(|(name, _)| !name.is_empty());
        let (name, value) = pair.ok_or_else(|| format!("line {number} is not NAME=VALUE"))?;
        if found.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(format!("line {number} names a variable for the second time"));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_is_a_variable_a_line() {
        let read = variables("# of acme\nMODE=quiet\n\nKEY=a=b c\nEMPTY=\n").unwrap();
        let expected = [("EMPTY", ""), ("KEY", "a=b c"), ("MODE", "quiet")];
        assert_eq!(read, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    }

    #[test]
    fn a_refused_environment_names_the_line_and_quotes_nothing() {
        for (text, line) in [("A=1\nhunter2", "line 2"), ("=hunter2", "line 1"), ("A=1\nA=hunter2", "line 2")] {
            let refused = variables(text).unwrap_err();
            assert!(refused.starts_with(line) && !refused.contains("hunter2"), "{refused}");
        }
    }
}
