//! `leasehold key`

use secrecy::ExposeSecret as _;
use serde_json::json;

use super::Context;
use crate::exit::Exit;
use crate::{database, runtime};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Make the first administrator's key, straight in the database; only while there is no administrator
    #[command(after_help = "Example: LEASEHOLD_DATABASE_URL=postgres://… leasehold key bootstrap > admin.key\n\n\
        The key is printed once and kept nowhere. It works until it is revoked.")]
    Bootstrap,
}

pub(crate) fn run(context: &Context, command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Bootstrap => bootstrap(context),
    }
}

fn bootstrap(context: &Context) -> anyhow::Result<Exit> {
    let settings = context.settings(Vec::new())?;
    let made = runtime::run(async {
        let pool = database::connect(&settings).await?;
        domain::db::check_schema(&pool).await?;
        let mut transaction = pool.begin().await?;
        let made = domain::authority::bootstrap(&mut transaction).await?;
        transaction.commit().await?;
        Ok(made)
    })?;
    // The one place that shows a secret: its receiver asked for it, and it is kept nowhere.
    let key = made.secret.whole().expose_secret();
    context.output.show(&json!({"id": made.id, "identity": made.identity, "key": key}), |_| key.to_owned())?;
    Ok(Exit::Ok)
}
