//! `leasehold dev` and `leasehold demo`

use std::path::PathBuf;

use super::Context;
use crate::exit::{self, Ending, Exit};
use crate::settings::table;
use crate::stack::Narrator;
use crate::{demo, dev, failure, runtime};

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: leasehold dev\n\n\
    Starts a private PostgreSQL, an S3 server, the API with the dashboard, and a worker in each of two regions, all on\n\
    loopback. State is kept in the folder and taken up by the next start. Ctrl-C ends everything.\n\n\
    Its workers take node.round_interval_seconds from the settings; no other setting reaches what it starts.")]
pub(crate) struct Dev {
    /// Where everything is kept [default: .leasehold]
    #[arg(long, value_name = "PATH")]
    dir: Option<String>,
    /// The port of the API and the dashboard [default: the one of api.listen, 7070]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: leasehold demo\n\n\
    First an instance that is written to moves between two regions, and what arrived is compared with what was written.\n\
    Then 20,000 jobs run through two workers, of which one is stopped past its leases and one is killed, over a restart\n\
    of PostgreSQL: each is done once.\n\n\
    Needs PostgreSQL's server binaries and litestream, and fetches what is missing where it can. Ends with 0 when\n\
    everything was proven, and with 130 where it was interrupted. Its folder is removed then; where something failed it\n\
    is kept, until a demo that starts more than a day later removes it.")]
pub(crate) struct Demo {}

pub(crate) fn dev(context: &Context, args: Dev) -> anyhow::Result<Exit> {
    let settings = context.quiet_settings(vec![(&table::DEV_DIR, args.dir)])?;
    let dir = PathBuf::from(settings.require(&table::DEV_DIR)?);
    let listen = settings.address(&table::API_LISTEN).map(|address| address.port());
    let port = args.port.or(listen).expect("api.listen has a default");
    anyhow::ensure!(port != 0, "the API of dev needs a fixed port: give --port one, or take port 0 out of api.listen");
    let round_seconds = settings.number(&table::NODE_ROUND_INTERVAL_SECONDS);
    crate::log::start_in(&dir, &settings)?;
    let narrator = Narrator::new(context.output.is_json());
    runtime::run(dev::run(dir, port, round_seconds, &narrator)).map_err(failed)?;
    Ok(Exit::Ok)
}

pub(crate) fn demo(context: &Context, _args: &Demo) -> anyhow::Result<Exit> {
    let settings = context.quiet_settings(Vec::new())?;
    let narrator = Narrator::new(context.output.is_json());
    let proof = runtime::run(demo::run(&settings, &narrator)).map_err(failed)?;
    context.output.show(&proof, |proof| proof.told())?;
    Ok(Exit::Ok)
}

/// One code for whatever failed on the way, and one for an end that was asked for: the codes of single verbs would say
/// nothing about a tour.
fn failed(error: anyhow::Error) -> anyhow::Error {
    let message = failure::causes(&error);
    let exit = if exit::code_of(&error) == Exit::Interrupted { Exit::Interrupted } else { Exit::Failed };
    Ending { exit, message }.into()
}
