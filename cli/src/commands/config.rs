//! `leasehold config`

use serde_json::json;

use super::Context;
use crate::exit::Exit;
use crate::output::table;
use crate::settings::reference;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Read the file, the variables and every bound; show each value with its source
    #[command(after_help = "Example: leasehold --config /etc/leasehold.toml config check")]
    Check,
    /// Print docs/configuration.md
    #[command(hide = true)]
    Reference,
}

pub(crate) fn run(context: &Context, command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Reference => context.output.line(&reference::page())?,
        Command::Check => {
            let rows = reference::effective(context.sources(Vec::new()))?;
            let as_json: Vec<_> = rows
                .iter()
                .map(|(setting, value, source)| json!({"setting": setting.key, "value": value, "source": source}))
                .collect();
            context.output.show(&as_json, |_| {
                table(
                    &["setting", "value", "source"],
                    rows.iter().map(|(setting, value, source)| [setting.key, value, source]),
                )
            })?;
        }
    }
    Ok(Exit::Ok)
}
