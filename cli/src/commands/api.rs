//! `leasehold api`

use super::Context;
use crate::exit::Exit;
use crate::settings::table;
use crate::{roles, runtime};

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: LEASEHOLD_DATABASE_URL=postgres://… leasehold api --listen 127.0.0.1:7070\n\n\
    SIGTERM or Ctrl-C lets open requests end. The second ends at once.")]
pub(crate) struct Args {
    /// Where to listen [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
}

pub(crate) fn run(context: &Context, args: Args) -> anyhow::Result<Exit> {
    let settings = context.settings(vec![(&table::API_LISTEN, args.listen)])?;
    runtime::run(roles::api::run(&settings))
}
