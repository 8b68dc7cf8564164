//! `leasehold worker`: alone it is the role, with a verb it looks at the workers.

use super::Context;
use crate::exit::Exit;
use crate::output::{moment, or_dash, table};
use crate::settings::table as settings;
use crate::{roles, runtime};

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  leasehold worker --queues default,mail --concurrency 32\n  \
        leasehold worker --node box-eu-1 --region eu --data-dir /var/lib/leasehold --data-bucket acme-eu \
        --data-bucket-region eu-central-1\n\n\
        SIGTERM or Ctrl-C drains: running jobs get their time, nothing new is leased. The second ends at once."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// The queues that are served, separated by commas [default: default]
    #[arg(long, value_name = "NAMES")]
    queues: Option<String>,
    /// The kinds that are run, separated by commas [default: all]
    #[arg(long, value_name = "NAMES")]
    kinds: Option<String>,
    /// Jobs that run at once [default: 8]
    #[arg(long, value_name = "N")]
    concurrency: Option<String>,
    /// How long running jobs may take to end after SIGTERM [default: 25]
    #[arg(long, value_name = "SECONDS")]
    drain_seconds: Option<String>,
    /// Where its figures for Prometheus are served [default: nowhere]
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<String>,
    /// Do the work of this box
    #[arg(long, value_name = "IDENTITY")]
    node: Option<String>,
    /// The code of the region that the box stands in
    #[arg(long, value_name = "CODE")]
    region: Option<String>,
    /// The folder of everything that the box keeps
    #[arg(long, value_name = "PATH")]
    data_dir: Option<String>,
    /// The region's data bucket
    #[arg(long, value_name = "BUCKET")]
    data_bucket: Option<String>,
    /// That bucket's own region, as the object store names it
    #[arg(long, value_name = "REGION")]
    data_bucket_region: Option<String>,
    /// The object store [default: AWS]
    #[arg(long, value_name = "URL")]
    s3_endpoint: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// List the workers of the last day, live ones first
    #[command(after_help = "Example: leasehold worker list")]
    List,
}

pub(crate) fn run(context: &Context, args: Args) -> anyhow::Result<Exit> {
    match args.verb {
        Some(Verb::List) => list(context),
        None => {
            let settings = context.settings(vec![
                (&settings::WORKER_QUEUES, args.queues),
                (&settings::WORKER_KINDS, args.kinds),
                (&settings::WORKER_CONCURRENCY, args.concurrency),
                (&settings::WORKER_DRAIN_SECONDS, args.drain_seconds),
                (&settings::WORKER_METRICS_LISTEN, args.metrics_listen),
                (&settings::NODE_IDENTITY, args.node),
                (&settings::NODE_REGION, args.region),
                (&settings::NODE_DATA_DIR, args.data_dir),
                (&settings::NODE_DATA_BUCKET, args.data_bucket),
                (&settings::NODE_DATA_BUCKET_REGION, args.data_bucket_region),
                (&settings::S3_ENDPOINT, args.s3_endpoint),
            ])?;
            runtime::run(roles::worker::run(&settings))
        }
    }
}

fn list(context: &Context) -> anyhow::Result<Exit> {
    let api = context.api()?;
    let mut page = runtime::run(api.call(|client| client.workers()))?;
    // Stable: within the live ones and the others, the API's own order stays.
    page.items.sort_by_key(|worker| !matches!(worker.state.as_str(), "live" | "draining"));
    context.output.page(&page, "no workers within the last day", |workers| {
        table(
            &["id", "state", "node", "host", "pid", "queues", "running", "seen", "version"],
            workers.iter().map(|worker| {
                [
                    worker.id.to_string(),
                    worker.state.clone(),
                    or_dash(worker.node.as_deref().unwrap_or_default()),
                    worker.host.clone(),
                    worker.pid.to_string(),
                    worker.queues.join(", "),
                    format!("{}/{}", worker.running, worker.concurrency),
                    moment(Some(worker.seen_at)),
                    worker.version.clone(),
                ]
            }),
        )
    })?;
    Ok(Exit::Ok)
}
