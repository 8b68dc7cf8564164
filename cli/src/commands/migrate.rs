//! `leasehold migrate`

use serde_json::json;

use super::Context;
use crate::exit::Exit;
use crate::{database, runtime};

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: LEASEHOLD_DATABASE_URL=postgres://… leasehold migrate")]
pub(crate) struct Args {}

pub(crate) fn run(context: &Context, _args: &Args) -> anyhow::Result<Exit> {
    let settings = context.settings(Vec::new())?;
    runtime::run(async {
        let pool = database::connect(&settings).await?;
        domain::db::migrate(&pool).await?;
        Ok(())
    })?;
    let version = domain::db::known_version();
    context.output.show(&json!({"schema_version": version}), |_| format!("the schema is at version {version}"))?;
    Ok(Exit::Ok)
}
