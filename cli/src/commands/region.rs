//! `leasehold region`

use wire::{Region, RegionRequest};

use super::Context;
use crate::exit::{Ending, Exit};
use crate::failure;
use crate::output::{or_dash, table};
use crate::runtime;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the regions; with an application, those to which its instances may move
    #[command(after_help = "Example: leasehold region list --app acme")]
    List {
        /// The application
        #[arg(long)]
        app: Option<String>,
    },
    /// Define a region, or change what is named of one and keep the rest
    #[command(
        after_help = "Examples:\n  leasehold region set eu --name Europe --armed --data-bucket acme-eu --data-bucket-region eu-central-1\n  \
        leasehold region set eu --armed=false\n\n\
        A new region needs --name, --data-bucket and --data-bucket-region."
    )]
    Set(Set),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Set {
    /// The region's code
    code: String,
    /// Its name for people
    #[arg(long)]
    name: Option<String>,
    /// Instances may be created in it and moved to it
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    armed: Option<bool>,
    /// Armed, but hidden from pickers
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    dormant: Option<bool>,
    /// Mark it as the region of the control plane itself; decides nothing
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    home: Option<bool>,
    /// Mark it as the one that a picker may offer first; an instance still names its region
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    default: Option<bool>,
    /// The bucket of its instances' data
    #[arg(long, value_name = "BUCKET")]
    data_bucket: Option<String>,
    /// That bucket's own region, as the object store names it
    #[arg(long, value_name = "REGION")]
    data_bucket_region: Option<String>,
}

pub(crate) fn run(context: &Context, command: Command) -> anyhow::Result<Exit> {
    let api = context.api()?;
    match command {
        Command::List { app } => {
            let page = runtime::run(async {
                match &app {
                    Some(app) => api.call_about(&format!("application {app}"), |client| client.app_regions(app)).await,
                    None => api.call(|client| client.regions()).await,
                }
            })?;
            context.output.page(&page, "no regions", |regions| {
                let yes = |flag: bool| if flag { "yes" } else { "no" }.to_owned();
                table(
                    &["code", "name", "armed", "can host", "home", "default", "config key"],
                    regions.iter().map(|it| {
                        [
                            it.code.clone(),
                            it.name.clone(),
                            yes(it.armed),
                            yes(it.can_host),
                            yes(it.home),
                            yes(it.default),
                            or_dash(&it.config_key.join(" ")),
                        ]
                    }),
                )
            })?;
        }
        Command::Set(set) => {
            let region = runtime::run(async {
                let present =
                    api.call(|client| client.regions()).await?.items.into_iter().find(|it| it.code == set.code);
                // With the serial, what somebody else changes meanwhile is not put back.
                let (code, serial) = (set.code.clone(), present.as_ref().and_then(|it| it.serial));
                let request = changed(set, present)?;
                match serial {
                    Some(serial) => {
                        let changed = api.call(|client| client.change_region(&code, &request, serial)).await;
                        changed.map_err(failure::repeatable)
                    }
                    None => api.call(|client| client.put_region(&code, &request)).await,
                }
            })?;
            context.output.show(&region, |region| format!("{}  {}", region.code, region.name))?;
        }
    }
    Ok(Exit::Ok)
}

/// What is named, and of the rest what the region has; a new one is neither armed nor marked.
fn changed(set: Set, present: Option<Region>) -> anyhow::Result<RegionRequest> {
    let (name, armed, dormant, home, default, bucket, bucket_region) = match present {
        Some(it) => {
            let dormant = it.dormant.unwrap_or_default();
            (Some(it.name), it.armed, dormant, it.home, it.default, it.data_bucket, it.data_bucket_region)
        }
        None => (None, false, false, false, false, None, None),
    };
    let needed = |named: Option<String>, present: Option<String>, flag: &str| {
        named.or(present).ok_or_else(|| Ending {
            exit: Exit::Usage,
            message: format!("there is no region {} that one could change: a new one needs {flag}", set.code),
        })
    };
    Ok(RegionRequest {
        name: needed(set.name, name, "--name")?,
        armed: set.armed.unwrap_or(armed),
        dormant: set.dormant.unwrap_or(dormant),
        home: set.home.unwrap_or(home),
        default: set.default.unwrap_or(default),
        data_bucket: needed(set.data_bucket, bucket, "--data-bucket")?,
        data_bucket_region: needed(set.data_bucket_region, bucket_region, "--data-bucket-region")?,
    })
}
