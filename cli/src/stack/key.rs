//! What a sandbox keeps in its folder for its user alone: the administrator's key, also for the next run, and where its
//! database is.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use domain::authority::{self, MadeKey, NewKey, Scopes};
use secrecy::{ExposeSecret as _, SecretString};
use sqlx::PgPool;

/// Where a sandbox in `dir` keeps its key.
pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join("dev-key")
}

/// Where a sandbox in `dir` says how to reach its database.
pub(crate) fn database_path(dir: &Path) -> PathBuf {
    dir.join("dev-database-url")
}

/// Writes the database's URL, with its password and this run's port, for the commands that go straight to it.
pub(super) fn keep_database_url(dir: &Path, url: &str) -> anyhow::Result<()> {
    let path = database_path(dir);
    write(&path, &SecretString::from(url)).with_context(|| format!("keep the database's URL in {}", path.display()))
}

/// The key that is kept in `dir` if the database still takes it, or a new one, kept there.
pub(super) async fn of_administrator(pool: &PgPool, dir: &Path) -> anyhow::Result<SecretString> {
    let path = path(dir);
    if path.exists()
        && let Ok(key) = crate::client::read_key(&path)
        && is_accepted(pool, &key).await?
    {
        return Ok(key);
    }
    let mut transaction = domain::db::begin(pool).await?;
    let made = match authority::bootstrap(&mut transaction).await {
        Ok(made) => made,
        // The database was kept and the file was not: whoever may start the sandbox may have its key.
        Err(authority::Error::AdministratorExists) => another(&mut transaction).await?,
        Err(other) => return Err(other).context("make the administrator's key"),
    };
    transaction.commit().await?;
    let key = made.secret.whole().clone();
    write(&path, &key).with_context(|| format!("keep the key in {}", path.display()))?;
    Ok(key)
}

async fn is_accepted(pool: &PgPool, key: &SecretString) -> anyhow::Result<bool> {
    let Ok(presented) = authority::Presented::parse(key) else { return Ok(false) };
    let mut conn = domain::db::session(pool).await?;
    match authority::authenticate(&mut conn, &presented).await {
        Ok(_) => Ok(true),
        Err(authority::Error::Refused(_)) => Ok(false),
        Err(other) => Err(other).context("look at the kept key"),
    }
}

async fn another(conn: &mut sqlx::PgConnection) -> anyhow::Result<MadeKey> {
    // Somebody may have revoked its key meanwhile: then the next start makes a new administrator.
    let identity = authority::administrator(conn).await?.context("no administrator has a working key: start again")?;
    let new =
        NewKey { identity, name: "sandbox".to_owned(), permissions: None, scopes: Scopes::default(), expires_at: None };
    Ok(authority::create_key(conn, &new).await?)
}

/// Writes a secret so that nobody else can ever read it: the mode is the file's from its beginning.
fn write(path: &Path, secret: &SecretString) -> std::io::Result<()> {
    let _ = std::fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{}", secret.expose_secret())?;
    file.sync_all()
}
