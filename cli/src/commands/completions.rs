//! `leasehold completions`

use std::io::{self, Write as _};

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
    // Into memory first: the generator panics on a reader that went away.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "leasehold", &mut script);
    let mut out = io::stdout().lock();
    match out.write_all(&script).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        Ok(()) | Err(_) => Ok(Exit::Ok),
    }
}
