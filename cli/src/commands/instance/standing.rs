//! `leasehold instance park|wake|restart|why`

use wire::{InstanceReason, InstanceWhy};

use super::{Context, Named};
use crate::client::Api;
use crate::output::moment;
use crate::runtime;

/// Parks an instance, or lets it run again.
pub(super) fn park(context: &Context, api: &Api, of: &Named, parked: bool) -> anyhow::Result<()> {
    let record = runtime::run(api.call_about(&of.what(), async |client: &wire::Client| {
        if parked {
            client.park_instance(&of.app, &of.host).await
        } else {
            client.wake_instance(&of.app, &of.host).await
        }
    }))?;
    context.output.show(&record, |it| {
        let told = if it.parked { "parked: its box stops it" } else { "awake: its box starts it" };
        format!("{}: {told}", it.host)
    })
}

#[derive(Debug, clap::Args)]
pub(crate) struct Restart {
    #[command(flatten)]
    of: Named,
    /// Refuse where the record is not at this revision
    #[arg(long, value_name = "N")]
    if_revision: Option<i64>,
}

/// Has an instance's process end and another start.
pub(super) fn restart(context: &Context, api: &Api, args: &Restart) -> anyhow::Result<()> {
    let of = &args.of;
    let ask = async |client: &wire::Client| client.restart_instance(&of.app, &of.host, args.if_revision).await;
    let record = runtime::run(api.call_about(&of.what(), ask))?;
    context.output.show(&record, |it| {
        let told = if it.parked {
            "it is parked, and starts when it is woken"
        } else {
            "its box ends its process and starts another"
        };
        format!("{}: {told}", it.host)
    })
}

/// Tells why an instance is where it is.
pub(super) fn why(context: &Context, api: &Api, of: &Named) -> anyhow::Result<()> {
    let why = runtime::run(api.call_about(&of.what(), |client| client.instance_why(&of.app, &of.host)))?;
    context.output.show(&why, told)
}

/// One reason a paragraph, the one to act on first.
fn told(why: &InstanceWhy) -> String {
    why.reasons.iter().map(reason).collect::<Vec<_>>().join("\n")
}

/// One reason, and what to do about it below.
pub(super) fn reason(it: &InstanceReason) -> String {
    let since = it.since.map_or_else(String::new, |at| format!(" (since {})", moment(Some(at))));
    let until = it.until.map_or_else(String::new, |at| format!(" It is looked at again at {}.", moment(Some(at))));
    let todo = it.todo.as_ref().map_or_else(String::new, |todo| format!("\n  -> {todo}"));
    format!("{}{since}{until}{todo}", it.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_told_with_its_time_and_below_it_what_to_do() {
        let it = InstanceReason {
            code: "child_hangs".to_owned(),
            message: "Process 4711 does not end.".to_owned(),
            todo: Some("End it.".to_owned()),
            permanent: true,
            since: "2026-03-14T03:00:00Z".parse().ok(),
            until: "2026-03-14T03:00:02Z".parse().ok(),
            job_id: None,
        };
        assert_eq!(
            reason(&it),
            "Process 4711 does not end. (since 2026-03-14 03:00:00) It is looked at again at 2026-03-14 03:00:02.\n  -> End it."
        );
    }
}
