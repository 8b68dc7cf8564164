//! `leasehold completions`

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::Cli;
use crate::exit::Exit;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: leasehold completions bash > /etc/bash_completion.d/leasehold")]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    clap_complete::generate(args.shell, &mut Cli::command(), "leasehold", &mut std::io::stdout().lock());
    Ok(Exit::Ok)
}
