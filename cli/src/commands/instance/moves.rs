//! `leasehold instance move|cut|abort|moves`

use wire::{Code, Cut, MoveRequest, MoveView, Obstacle};

use super::wait::{self, Until};
use super::{Context, Named, rehearsal};
use crate::client::Api;
use crate::exit::Exit;
use crate::output::{moment, table};
use crate::{failure, parse, runtime};

/// What `move --help` says below its flags.
pub(super) const MOVE_HELP: &str = "Examples:
  leasehold instance move acme ledger.acme.example uk
  leasehold instance move acme ledger.acme.example uk --cut auto --wait
  leasehold instance move acme ledger.acme.example uk --freeze-budget 10s
  leasehold instance move acme ledger.acme.example uk --dry-run

The instance is served where it is while its data is copied. When the move is ready, freeze the application's writes
and cut it with `leasehold instance cut`. An application that cannot freeze its writes moves with `--cut auto`: the
platform closes its route and cuts as soon as the move is ready, and writes are refused from then until the target serves.
With `--freeze-budget` a cut that is predicted to freeze it for longer is refused, and `--cut auto` waits; where no cut
between the two regions predicts anything yet, the budget refuses nothing. `--dry-run` begins nothing and tells what the move
would meet: every gate of its door, what is to be copied, the predicted freeze and what it is made of, and the boxes that could
land it. Its exit code is that of the move.";

/// What `cut --help` says below its flags. What was measured, and how, stands in one place, docs/runbooks/moves.md, under
/// "The frozen window"; a test holds the figure here against it.
pub(super) const CUT_HELP: &str = "Example: leasehold instance cut acme ledger.acme.example --wait

Freeze the application's writes first: nobody checks that, and a write that meets the stop may be refused to its writer.
Keep them frozen from before this command until the target serves, which `--wait` tells. Cover ten seconds for a database
below a hundred megabytes: see \"The frozen window\" in docs/runbooks/moves.md, and `leasehold instance why`, which predicts it
from the newest cuts between the two regions. Meanwhile every edge answers 503 with Retry-After.

A cut whose predicted freeze is over the move's budget is refused, unless it is forced.

A cut goes forward by itself, however often a machine dies on the way. Only operators take it back: `unstick` before the
source's database is deleted, `point` where the target cannot land it. Then `--wait` ends with exit code 5.";

#[derive(Debug, clap::Args)]
pub(crate) struct Begin {
    #[command(flatten)]
    of: Named,
    /// The target region's code
    region: String,
    /// Who cuts it when it is ready: you, or the platform by itself
    #[arg(long, value_name = "WHO", default_value = "manual")]
    cut: Who,
    /// The longest freeze that the cut may be predicted to take, e.g. 10s or 2m [default: any]
    #[arg(long, value_name = "SPAN", value_parser = parse::freeze_budget)]
    freeze_budget: Option<u32>,
    /// Wait until it is ready, or with `--cut auto` until the target serves
    #[arg(long)]
    wait: bool,
    /// Begin nothing, and tell what the move would meet
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Who {
    /// `leasehold instance cut`
    Manual,
    /// The platform, as soon as it is ready
    Auto,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Cutting {
    #[command(flatten)]
    of: Named,
    /// Cut it also where the predicted freeze is over the move's budget
    #[arg(long)]
    force: bool,
    /// Wait for the end, and tell how far it is
    #[arg(long)]
    wait: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Steer {
    #[command(flatten)]
    of: Named,
    /// Wait for the end, and tell how far it is
    #[arg(long)]
    wait: bool,
}

/// Begins a move.
pub(super) fn begin(context: &Context, api: &Api, args: Begin) -> anyhow::Result<Exit> {
    let (of, auto) = (args.of, args.cut == Who::Auto);
    let request = MoveRequest {
        region: args.region,
        cut: auto.then_some(Cut::Auto),
        freeze_budget: args.freeze_budget,
        dry_run: args.dry_run,
    };
    if args.dry_run {
        return runtime::run(rehearsal::rehearse(context, api, &of, &request));
    }
    runtime::run(async {
        let moving = api.call_about(&of.what(), |client| client.move_instance(&of.app, &of.host, &request)).await?;
        if !args.wait {
            context.output.show(&moving, |it| format!("{}: {} a move to {}", of.host, it.state, it.to))?;
            return Ok(Exit::Ok);
        }
        let until = if auto { Until::Landed } else { Until::Ready };
        wait::until(context, api, &of, newest(api, &of).await?.id, until).await
    })
}

/// Lets a ready move be cut.
pub(super) fn cut(context: &Context, api: &Api, args: &Cutting) -> anyhow::Result<Exit> {
    let of = &args.of;
    runtime::run(async {
        let ask = async |client: &wire::Client| {
            if args.force {
                client.force_cut(&of.app, &of.host).await
            } else {
                client.cut_move(&of.app, &of.host).await
            }
        };
        let moving = match api.call_about(&of.what(), ask).await {
            // Somebody else, or the platform, let it be cut, and it may land by now: it is waited for all the same.
            Err(refused)
                if args.wait && (failure::is(&refused, Code::MoveInFlight) || failure::is(&refused, Code::NoMove)) =>
            {
                let page = api.call_about(&of.what(), |client| client.moves_of(&of.app, &of.host)).await?;
                let Some(cut) = page.items.into_iter().next().filter(goes_forward) else { return Err(refused) };
                return wait::until(context, api, of, cut.id, Until::Landed).await;
            }
            asked => asked?,
        };
        if !args.wait {
            context.output.show(&moving, |it| format!("{}: {} to {}", of.host, it.state, it.to))?;
            return Ok(Exit::Ok);
        }
        wait::until(context, api, of, newest(api, of).await?.id, Until::Landed).await
    })
}

/// Whether a move is being cut, or lands.
fn goes_forward(it: &MoveView) -> bool {
    it.state == "cutting" && it.landed_at.is_none() && it.given_up_at.is_none()
}

/// Whether a move is being given up.
fn is_given_up(it: &MoveView) -> bool {
    it.state == "aborting" && it.outcome.is_none()
}

/// Gives a move up.
pub(super) fn abort(context: &Context, api: &Api, args: &Steer) -> anyhow::Result<Exit> {
    let of = &args.of;
    runtime::run(async {
        let moving = match api.call_about(&of.what(), |client| client.abort_move(&of.app, &of.host)).await {
            // Somebody else gave it up: that is waited for all the same.
            Err(refused) if args.wait && failure::is(&refused, Code::MoveInFlight) => {
                let page = api.call_about(&of.what(), |client| client.moves_of(&of.app, &of.host)).await?;
                let Some(aborting) = page.items.into_iter().next().filter(is_given_up) else { return Err(refused) };
                return wait::until(context, api, of, aborting.id, Until::Cleared).await;
            }
            asked => asked?,
        };
        if !args.wait {
            context.output.show(&moving, |it| format!("{}: {} the move to {}", of.host, it.state, it.to))?;
            return Ok(Exit::Ok);
        }
        wait::until(context, api, of, newest(api, of).await?.id, Until::Cleared).await
    })
}

/// The move that a verb was just accepted for: the newest, since one is in flight at a time.
pub(super) async fn newest(api: &Api, of: &Named) -> anyhow::Result<MoveView> {
    let page = api.call_about(&of.what(), |client| client.moves_of(&of.app, &of.host)).await?;
    page.items.into_iter().next().ok_or_else(|| {
        let message = format!("{} never moved", of.what());
        crate::exit::Ending { exit: Exit::NotFound, message }.into()
    })
}

/// Lists an instance's moves.
pub(super) fn list(context: &Context, api: &Api, of: &Named) -> anyhow::Result<()> {
    let page = runtime::run(api.call_about(&of.what(), |client| client.moves_of(&of.app, &of.host)))?;
    context.output.page(&page, "no moves", |moves| {
        table(
            &["id", "from", "to", "state", "requested", "ready", "rounds", "last round", "held up by"],
            moves.iter().map(row),
        )
    })
}

fn row(it: &MoveView) -> [String; 9] {
    let held = it.obstacle.as_ref().filter(|_| it.outcome.is_none());
    [
        it.id.to_string(),
        it.from.clone(),
        it.to.clone(),
        match it.given_up_at {
            Some(_) => "given up".to_owned(),
            None => it.outcome.clone().unwrap_or_else(|| it.state.clone()),
        },
        moment(Some(it.requested_at)),
        moment(it.ready_at),
        it.round.to_string(),
        last_round(it),
        held.map_or_else(|| "-".to_owned(), |obstacle| obstacle.code.clone()),
    ]
}

fn last_round(it: &MoveView) -> String {
    it.last.map_or_else(
        || "-".to_owned(),
        |last| format!("{} copied, {} differ", last.copied, last.differ_copies + last.differ_deletes),
    )
}

/// How far an open move is, and what holds it up.
pub(super) fn progress(it: &MoveView) -> Vec<(&'static str, String)> {
    let mut lines = vec![("rounds", it.round.to_string()), ("last round", last_round(it))];
    if it.failures > 0 {
        lines.push(("failed in a row", it.failures.to_string()));
    }
    if let Some(budget) = it.freeze_budget {
        lines.push(("freeze budget", format!("{budget} s")));
    }
    if let Some(held) = &it.obstacle {
        lines.push(("held up by", obstacle(held)));
        lines.push(("held up since", moment(held.since)));
    }
    lines
}

/// What holds something up, on one line.
pub(super) fn obstacle(held: &Obstacle) -> String {
    let permanent = if held.permanent { " (somebody must act before it goes on)" } else { "" };
    format!("{}{permanent}: {}", held.code, held.message)
}
