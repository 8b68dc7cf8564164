//! `leasehold queue`

use super::Context;
use crate::exit::Exit;
use crate::output::{moment, table};
use crate::runtime;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the queues with what waits and runs in them
    #[command(after_help = "Example: leasehold queue list")]
    List,
}

pub(crate) fn run(context: &Context, command: Command) -> anyhow::Result<Exit> {
    let Command::List = command;
    let api = context.api()?;
    let page = runtime::run(api.call(|client| client.queues()))?;
    context.output.page(&page, "no queues", |queues| {
        table(
            &["queue", "available", "waiting", "running", "oldest due", "served"],
            queues.iter().map(|queue| {
                [
                    queue.name.clone(),
                    queue.available.to_string(),
                    queue.waiting.to_string(),
                    queue.running.to_string(),
                    moment(queue.oldest_due_at),
                    if queue.served { "yes" } else { "no live worker" }.to_owned(),
                ]
            }),
        )
    })?;
    Ok(Exit::Ok)
}
