//! `leasehold region`

use wire::RegionRequest;

use super::Context;
use crate::exit::Exit;
use crate::output::table;
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
    /// Define or change a region
    #[command(
        after_help = "Example: leasehold region set eu --name Europe --armed --data-bucket acme-eu --data-bucket-region eu-central-1"
    )]
    Set(Set),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Set {
    /// The region's code
    code: String,
    /// Its name for people
    #[arg(long)]
    name: String,
    /// Instances may be created in it and moved to it
    #[arg(long)]
    armed: bool,
    /// Armed, but hidden from pickers
    #[arg(long)]
    dormant: bool,
    /// Mark it as the region of the control plane itself; decides nothing
    #[arg(long)]
    home: bool,
    /// Mark it as the one that a picker may offer first; an instance still names its region
    #[arg(long)]
    default: bool,
    /// The bucket of its instances' data
    #[arg(long, value_name = "BUCKET")]
    data_bucket: String,
    /// That bucket's own region, as the object store names it
    #[arg(long, value_name = "REGION")]
    data_bucket_region: String,
}

pub(crate) fn run(context: &Context, command: Command) -> anyhow::Result<Exit> {
    let api = context.api()?;
    match command {
        Command::List { app } => {
            let page = runtime::run(async {
                match &app {
                    Some(app) => api.call(|client| client.app_regions(app)).await,
                    None => api.call(|client| client.regions()).await,
                }
            })?;
            context.output.page(&page, "no regions", |regions| {
                let yes = |flag: bool| if flag { "yes" } else { "no" }.to_owned();
                table(
                    &["code", "name", "armed", "can host", "home", "default"],
                    regions.iter().map(|it| {
                        [
                            it.code.clone(),
                            it.name.clone(),
                            yes(it.armed),
                            yes(it.can_host),
                            yes(it.home),
                            yes(it.default),
                        ]
                    }),
                )
            })?;
        }
        Command::Set(set) => {
            let request = RegionRequest {
                name: set.name,
                armed: set.armed,
                dormant: set.dormant,
                home: set.home,
                default: set.default,
                data_bucket: set.data_bucket,
                data_bucket_region: set.data_bucket_region,
            };
            let region = runtime::run(api.call(|client| client.put_region(&set.code, &request)))?;
            context.output.show(&region, |region| format!("{}  {}", region.code, region.name))?;
        }
    }
    Ok(Exit::Ok)
}
