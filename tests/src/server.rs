//! The PostgreSQL that a run's test processes share.
//!
//! nextest runs every test in a process of its own. Its set-up script (`test-services setup`) starts one server before
//! the first of them and tells its URL in the environment; it ends with nextest itself, however that ends. A test
//! process that finds no URL (plain `cargo test`) starts a server for itself, which dies with it.
//! Each run has a fresh cluster: nothing of an earlier schema or of a killed test can leak into it.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use sandbox::postgres::{Options, Postgres};
use sqlx::{Connection as _, PgConnection};
use tokio::sync::OnceCell;

/// Where the set-up script tells the server's URL.
pub const URL_VARIABLE: &str = "LEASEHOLD_TEST_SERVER";
/// The database that every test's database is a copy of.
pub const TEMPLATE: &str = "leasehold_template";
/// The folders of all clusters: world-searchable, since PostgreSQL refuses to run as root.
const CLUSTERS: &str = "/var/tmp";
const PREFIX: &str = "leasehold-test-postgres-";

/// Only what tests shift is replaced: the function keeps its name, its volatility and its callers.
const TEST_CLOCK: &str = r"
    create table lh_test_clock (shift interval not null);
    insert into lh_test_clock values (interval '0');
    create or replace function lh_now() returns timestamptz
        language sql volatile parallel safe
        as $$ select clock_timestamp() + (select shift from lh_test_clock) $$;
";

/// The URL of the shared server's maintenance database.
///
/// # Panics
/// When there is none and none can be started: no test can run then.
pub async fn url() -> &'static str {
    static OWN: OnceCell<(String, Option<Postgres>)> = OnceCell::const_new();
    let (url, _) = OWN
        .get_or_init(|| async {
            match variable(URL_VARIABLE) {
                Some(url) => (url, None),
                None => {
                    let server = start(std::process::id()).await.expect("a PostgreSQL for this test process");
                    (server.url(), Some(server))
                }
            }
        })
        .await;
    url
}

/// Starts a server for the process `owner` and makes the template. The caller keeps the handle as long as it is needed.
///
/// # Errors
/// Whatever kept PostgreSQL from starting or the migrations from running.
pub async fn start(owner: u32) -> anyhow::Result<Postgres> {
    if let Some(launcher) = launcher() {
        sandbox::exec::set_launcher(launcher);
    }
    remove_abandoned();
    let dir = Path::new(CLUSTERS).join(format!("{PREFIX}{owner}"));
    let server = Postgres::start(Options { dir, durable: false, keep: false }).await?;
    make_template(&server).await.context("make the template database")?;
    Ok(server)
}

/// The program of ours that starts children for tests: beside the test binaries' folder.
#[must_use]
pub fn launcher() -> Option<PathBuf> {
    let here = std::env::current_exe().ok()?;
    here.ancestors().skip(1).take(2).map(|folder| folder.join("test-services")).find(|path| path.is_file())
}

/// A variable of the environment, where it is set and not empty.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "tests are told by nextest through the environment")]
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

async fn make_template(server: &Postgres) -> anyhow::Result<()> {
    let mut admin = PgConnection::connect(&server.url()).await?;
    sqlx::query("create database leasehold_template").execute(&mut admin).await?;
    let pool = domain::db::connect(&server.url_for(TEMPLATE), 1).await?;
    domain::db::migrate(&pool).await?;
    sqlx::raw_sql(TEST_CLOCK).execute(&pool).await?;
    pool.close().await;
    // A template that somebody is connected to cannot be copied.
    sqlx::query("alter database leasehold_template is_template true allow_connections false")
        .execute(&mut admin)
        .await?;
    // A test that ends drops its database while a connection of its own may be half made: nobody drives that any more, and
    // the drop waits until the server gives it up.
    sqlx::query("alter system set authentication_timeout = '3s'").execute(&mut admin).await?;
    sqlx::query("select pg_reload_conf()").execute(&mut admin).await?;
    admin.close().await?;
    Ok(())
}

/// Removes the clusters of runs that were killed together with their servers.
fn remove_abandoned() {
    let Ok(entries) = std::fs::read_dir(CLUSTERS) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).and_then(|pid| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Another process may be removing the same one.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
