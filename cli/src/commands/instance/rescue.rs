//! Operators' verbs for nights when a region is gone.

use wire::{PointRequest, UnstickRequest};

use super::Named;
use crate::client::Api;
use crate::commands::Context;
use crate::exit::Exit;
use crate::runtime;

pub(super) const POINT_HELP: &str = "Example:\n  leasehold instance point acme ledger.acme.example eu --confirm ledger.acme.example --reason \"uk is gone\"\n\n\
    Its boxes restore what the region's bucket holds of it; where that is nothing, `leasehold instance why` says so, and it is not\n\
    begun anew. What was written elsewhere since is lost. It is refused while a move is in flight and while a box that lives serves the\n\
    instance; a box that is silent counts as dead, so end its machine first. docs/runbooks/moves.md says when this is right.";

pub(super) const UNSTICK_HELP: &str = "Example:\n  leasehold instance unstick acme ledger.acme.example --confirm ledger.acme.example --reason \"its process hangs\"\n\n\
    The move is aborted and the source serves again. Once the cut has begun to delete the source's database it is refused:\n\
    then there is no way back but the landing's.";

#[derive(Debug, clap::Args)]
pub(crate) struct Point {
    #[command(flatten)]
    of: Named,
    /// The region's code
    region: String,
    #[command(flatten)]
    sure: Sure,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Unstick {
    #[command(flatten)]
    of: Named,
    #[command(flatten)]
    sure: Sure,
}

/// What such a verb wants beside its name.
#[derive(Debug, clap::Args)]
struct Sure {
    /// The instance's host, typed once more
    #[arg(long, value_name = "HOST")]
    confirm: String,
    /// Why; it stands in the audit trail
    #[arg(long)]
    reason: String,
}

pub(super) fn point(context: &Context, api: &Api, args: Point) -> anyhow::Result<Exit> {
    let Point { of, region, sure } = args;
    let request = PointRequest { region, host: sure.confirm, reason: sure.reason };
    let done = runtime::run(api.call_about(&of.what(), |client| client.point_instance(&of.app, &of.host, &request)))?;
    context.output.show(&done, |it| {
        let given_up = it.given_up.as_ref().map_or_else(String::new, |given_up| {
            format!(
                "\nThe landing of move {} is given up: its cut had proven transaction {}.",
                given_up.move_id, given_up.txid
            )
        });
        format!("{}: pointed from {} to {}; its boxes land what they have of it{given_up}", of.host, it.from, it.to)
    })?;
    Ok(Exit::Ok)
}

pub(super) fn unstick(context: &Context, api: &Api, args: Unstick) -> anyhow::Result<Exit> {
    let Unstick { of, sure } = args;
    let request = UnstickRequest { host: sure.confirm, reason: sure.reason };
    let moving = runtime::run(api.call_about(&of.what(), |client| client.unstick_move(&of.app, &of.host, &request)))?;
    context.output.show(&moving, |it| {
        format!("{}: the move to {} is {}, and the source serves again", of.host, it.to, it.state)
    })?;
    Ok(Exit::Ok)
}
