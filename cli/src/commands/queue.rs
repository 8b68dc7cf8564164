//! `leasehold queue`

use wire::{KindPause, Limits, LimitsRequest, Pause, QueueLimits, Rate, Reason, Resumed};

use super::Context;
use crate::client::Api;
use crate::exit::{Ending, Exit};
use crate::failure;
use crate::output::{details, moment, or_dash, short, table};
use crate::runtime;

/// Longest cell of a table, in characters.
const CELL_CHARS: usize = 60;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the queues with what waits and runs in them, their pauses and their limits
    #[command(after_help = "Example: leasehold queue list")]
    List,
    /// Show the limits of a queue, or change what is named of them and keep the rest
    #[command(after_help = "Examples:\n  leasehold queue limit mail\n  \
        leasehold queue limit mail --running 50 --starts-per-key 10/60s --reason \"the relay's quota\"\n  \
        leasehold queue limit mail --running none --reason \"the quota is gone\"\n\n\
        Limits count on all workers together. Jobs that run already go on, also beyond a lower limit.")]
    Limit(Limit),
    /// Pause a queue, or a kind on all queues: jobs that run go on, no other begins
    #[command(after_help = "Examples:\n  leasehold queue pause mail --reason \"relay maintenance\"\n  \
        leasehold queue pause --kind system.noop --reason \"a bad release\"")]
    Pause(PauseArgs),
    /// Resume a queue, or a kind
    #[command(after_help = "Examples:\n  leasehold queue resume mail --reason \"the relay is back\"\n  \
        leasehold queue resume --kind system.noop --reason \"fixed\"")]
    Resume(ResumeArgs),
    /// List what is paused, by whom, since when and why
    #[command(after_help = "Example: leasehold queue pauses")]
    Pauses,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Limit {
    /// The queue; it need not have jobs yet
    queue: String,
    /// Jobs of the queue that run at once, or `none`
    #[arg(long, value_name = "N", value_parser = most)]
    running: Option<Most>,
    /// Jobs of each concurrency key that run at once, or `none`
    #[arg(long, value_name = "N", value_parser = most)]
    running_per_key: Option<Most>,
    /// Jobs of each concurrency key that start within a span, such as 10/60s, or `none`
    #[arg(long, value_name = "N/SPAN", value_parser = starts)]
    starts_per_key: Option<Starts>,
    /// No limit at all
    #[arg(long, conflicts_with_all = ["running", "running_per_key", "starts_per_key"])]
    none: bool,
    /// Why; kept in the audit trail
    #[arg(long)]
    reason: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["queue", "kind"]))]
pub(crate) struct What {
    /// The queue; it need not have jobs yet
    queue: Option<String>,
    /// A kind, on all queues, instead of a queue
    #[arg(long)]
    kind: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    what: What,
    /// Why; kept in the audit trail, and told by each job that the pause holds
    #[arg(long)]
    reason: String,
    /// Pause a kind although the API does not know it: for kinds that only newer workers know
    #[arg(long, requires = "kind")]
    allow_unknown_kind: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    what: What,
    /// Why it may go on; kept in the audit trail
    #[arg(long)]
    reason: String,
}

/// A number, or no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Most(Option<i64>);

/// A rate, or no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Starts(Option<Rate>);

pub(crate) fn run(context: &Context, command: Command) -> anyhow::Result<Exit> {
    let api = context.api()?;
    runtime::run(async {
        match command {
            Command::List => list(context, &api).await,
            Command::Limit(args) => limit(context, &api, args).await,
            Command::Pause(args) => pause(context, &api, args).await,
            Command::Resume(args) => resume(context, &api, args).await,
            Command::Pauses => pauses(context, &api).await,
        }
    })?;
    Ok(Exit::Ok)
}

async fn list(context: &Context, api: &Api) -> anyhow::Result<()> {
    let page = api.call(|client| client.queues()).await?;
    context.output.page(&page, "no queues", |queues| {
        table(
            &["queue", "available", "waiting", "running", "oldest due", "served", "paused", "limits"],
            queues.iter().map(|queue| {
                [
                    queue.name.clone(),
                    queue.available.to_string(),
                    queue.waiting.to_string(),
                    queue.running.to_string(),
                    moment(queue.oldest_due_at),
                    if queue.served { "yes" } else { "no live worker" }.to_owned(),
                    or_dash(&queue.paused.as_ref().map(why).unwrap_or_default()),
                    or_dash(&limits_told(&queue.limits)),
                ]
            }),
        )
    })
}

async fn limit(context: &Context, api: &Api, args: Limit) -> anyhow::Result<()> {
    let present = api.call(|client| client.limits(&args.queue)).await?;
    let asked = args.none || args.running.is_some() || args.running_per_key.is_some() || args.starts_per_key.is_some();
    if !asked {
        if args.reason.is_some() {
            return Err(usage("--reason alone changes nothing: name a limit, or --none"));
        }
        return context.output.show(&present, described);
    }
    let Some(reason) = args.reason else {
        return Err(usage("a change of limits needs --reason: whoever meets them reads it"));
    };
    let kept = |named: Option<Most>, present| named.map_or(present, |Most(most)| most);
    let request = if args.none {
        LimitsRequest { reason: Some(reason), ..LimitsRequest::default() }
    } else {
        LimitsRequest {
            running: kept(args.running, present.running),
            running_per_key: kept(args.running_per_key, present.running_per_key),
            starts_per_key: args.starts_per_key.map_or(present.starts_per_key, |Starts(rate)| rate),
            reason: Some(reason),
        }
    };
    // With the revision, what somebody else changes meanwhile is not put back.
    let set = api.call(|client| client.set_limits(&args.queue, &request, Some(present.revision))).await;
    context.output.show(&set.map_err(failure::repeatable)?, described)
}

async fn pause(context: &Context, api: &Api, args: PauseArgs) -> anyhow::Result<()> {
    let reason = Some(args.reason);
    let allow_unknown_kind = args.allow_unknown_kind;
    let pause = match (args.what.queue, args.what.kind) {
        (_, Some(kind)) => {
            let pause = KindPause { reason, allow_unknown_kind };
            api.call(|client| client.pause_kind(&kind, &pause, None)).await?.value
        }
        (queue, None) => {
            let (queue, reason) = (queue.unwrap_or_default(), Reason { reason });
            api.call(|client| client.pause_queue(&queue, &reason, None)).await?.value
        }
    };
    context.output.show(&pause, |pause| {
        let Pause { scope, name, .. } = pause;
        if pause.already {
            format!(
                "{scope} {name} is paused already, {}\n(that reason stays: resume it first to give another)",
                why(pause)
            )
        } else {
            format!("{scope} {name} is paused {}", why(pause))
        }
    })
}

async fn resume(context: &Context, api: &Api, args: ResumeArgs) -> anyhow::Result<()> {
    let reason = Reason { reason: Some(args.reason) };
    let resumed = match (args.what.queue, args.what.kind) {
        (_, Some(kind)) => api.call(|client| client.resume_kind(&kind, &reason, None)).await?.value,
        (queue, None) => {
            let queue = queue.unwrap_or_default();
            api.call(|client| client.resume_queue(&queue, &reason, None)).await?.value
        }
    };
    let Resumed { scope, name, ended } = &resumed;
    let told = match ended {
        Some(pause) => format!("{scope} {name} goes on; it was paused {}", why(pause)),
        None if context.output.is_json() => String::new(),
        None => format!("{scope} {name} was not paused{}", perhaps_meant(api, scope, name).await),
    };
    context.output.show(&resumed, |_| told)
}

/// What may have been meant instead of a queue or kind that is not paused. What this key may not look at is left out:
/// the call itself was answered.
async fn perhaps_meant(api: &Api, scope: &str, name: &str) -> String {
    let pauses = api.call(|client| client.pauses()).await.map(|page| page.items).unwrap_or_default();
    if let Some(other) = pauses.iter().find(|pause| pause.name == name && pause.scope != scope) {
        let flag = if other.scope == "kind" { "--kind " } else { "" };
        let (other_scope, why) = (&other.scope, why(other));
        return format!(
            ", but the {other_scope} of that name is, {why}\n(`leasehold queue resume {flag}{name} --reason …` resumes it)"
        );
    }
    let known = if scope == "kind" {
        api.call(|client| client.kinds()).await.map(|page| page.items.iter().any(|kind| kind.kind == name))
    } else {
        api.call(|client| client.queues()).await.map(|page| page.items.iter().any(|queue| queue.name == name))
    };
    match known {
        Ok(false) if scope == "kind" => format!(", and the API knows no kind {name}"),
        Ok(false) => format!(", and there is no queue {name}: no job, worker or limit names it"),
        Ok(true) | Err(_) => String::new(),
    }
}

async fn pauses(context: &Context, api: &Api) -> anyhow::Result<()> {
    let page = api.call(|client| client.pauses()).await?;
    context.output.page(&page, "nothing is paused", |pauses| {
        table(
            &["what", "name", "by", "since", "reason"],
            pauses.iter().map(|pause| {
                [
                    pause.scope.clone(),
                    pause.name.clone(),
                    or_dash(pause.paused_by.as_deref().unwrap_or_default()),
                    moment(Some(pause.paused_at)),
                    short(&pause.reason, CELL_CHARS),
                ]
            }),
        )
    })
}

fn why(pause: &Pause) -> String {
    let by = pause.paused_by.as_deref().map(|by| format!("by {by} ")).unwrap_or_default();
    short(&format!("{by}since {}: {}", moment(Some(pause.paused_at)), pause.reason), 2 * CELL_CHARS)
}

fn described(limits: &QueueLimits) -> String {
    let number = |n: Option<i64>| n.map_or_else(|| "no limit".to_owned(), |n| n.to_string());
    let mut lines = vec![
        ("queue", limits.queue.clone()),
        ("running", number(limits.running)),
        ("running per key", number(limits.running_per_key)),
        ("starts per key", limits.starts_per_key.map_or_else(|| "no limit".to_owned(), rate_told)),
        ("revision", limits.revision.to_string()),
    ];
    if limits.set_at.is_some() {
        lines.push(("set by", or_dash(limits.set_by.as_deref().unwrap_or_default())));
        lines.push(("set at", moment(limits.set_at)));
        lines.push(("reason", or_dash(&limits.reason)));
    }
    details(&lines)
}

fn limits_told(limits: &Limits) -> String {
    let parts = [
        limits.running.map(|n| format!("{n} at once")),
        limits.running_per_key.map(|n| format!("{n} a key at once")),
        limits.starts_per_key.map(|rate| format!("{} starts a key", rate_told(rate))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// As it can be given: the span in its largest unit that leaves no rest.
fn rate_told(rate: Rate) -> String {
    let units = [("d", 86_400), ("h", 3600), ("m", 60)];
    let (unit, seconds) = units.into_iter().find(|(_, unit)| rate.span_seconds % unit == 0).unwrap_or(("s", 1));
    format!("{}/{}{unit}", rate.starts, rate.span_seconds / seconds)
}

fn usage(message: &str) -> anyhow::Error {
    Ending { exit: Exit::Usage, message: message.to_owned() }.into()
}

fn most(text: &str) -> Result<Most, String> {
    if text == "none" {
        return Ok(Most(None));
    }
    text.parse().map(|n| Most(Some(n))).map_err(|_unsaid| "a whole number such as 50, or none".to_owned())
}

fn starts(text: &str) -> Result<Starts, String> {
    if text == "none" {
        return Ok(Starts(None));
    }
    let rate = || {
        let (starts, span) = text.split_once('/')?;
        let unit_at = span.find(|c: char| !c.is_ascii_digit())?;
        let (number, unit) = span.split_at(unit_at);
        let seconds = match unit {
            "s" => 1,
            "m" | "min" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => return None,
        };
        let span_seconds = number.parse::<i64>().ok()?.checked_mul(seconds)?;
        Some(Rate { starts: starts.parse().ok()?, span_seconds })
    };
    rate().map(|rate| Starts(Some(rate))).ok_or_else(|| {
        "so many starts within a span with its unit (s, m, h or d), such as 10/60s or 100/1h, or none".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_a_number_and_a_span_with_its_unit() {
        let read = |text| starts(text).map(|Starts(rate)| rate.map(|rate| (rate.starts, rate.span_seconds)));
        assert_eq!(read("10/60s"), Ok(Some((10, 60))));
        assert_eq!(read("5/1h"), Ok(Some((5, 3600))));
        assert_eq!(read("5/2m"), Ok(Some((5, 120))));
        assert_eq!(read("none"), Ok(None));
        for told in ["10/90s", "10/1m", "10/1h", "10/25h", "5/2d"] {
            assert_eq!(starts(told).map(|Starts(rate)| rate.map(rate_told)), Ok(Some(told.to_owned())));
        }
        assert_eq!(rate_told(Rate { starts: 10, span_seconds: 60 }), "10/1m");
        for bad in ["10", "10/60", "/60s", "10/s", "10/60x", "ten/60s", "1/9999999999999999999s", "10/-1s"] {
            let told = read(bad).expect_err(bad);
            assert!(told.contains("10/60s"), "{told}");
        }
    }
}
