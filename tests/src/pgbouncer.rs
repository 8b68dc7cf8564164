//! A private PgBouncer before the tests' PostgreSQL: transaction mode, few sessions, on a free port.

use std::fmt::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::PathBuf;
use std::str::FromStr as _;
use std::time::Duration;

use sandbox::exec::{NOBODY, Running, Spawn};
use sandbox::ports;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};

use crate::db::Database;
use crate::wait::until;

/// How long a start may take.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Sessions of the server that all its clients share.
pub const SESSIONS: i64 = 4;

/// A running PgBouncer; killed when dropped.
#[derive(Debug)]
pub struct PgBouncer {
    url: String,
    _running: Running,
    _folder: tempfile::TempDir,
}

impl PgBouncer {
    /// Starts one before the database's server, which it enters as the user of the database's own URL.
    ///
    /// # Panics
    /// When PgBouncer is not installed, or does not start.
    pub async fn before(db: &Database) -> Self {
        Self::entering(db, db.url()).await
    }

    /// Starts one that enters the server with this URL's user.
    ///
    /// # Panics
    /// When PgBouncer is not installed, or does not start.
    pub async fn entering(db: &Database, url: &str) -> Self {
        let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"]
            .map(PathBuf::from)
            .into_iter()
            .find(|path| path.is_file())
            .expect("PgBouncer is installed (on Debian: apt-get install pgbouncer)");
        // It refuses to be root, and becomes whoever owns its folder.
        let uid = rustix::process::geteuid().is_root().then_some(NOBODY);
        let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
        let config = folder.path().join("pgbouncer.ini");
        let port = ports::free_port().expect("a free port");
        std::fs::write(&config, configuration(url, port)).expect("its configuration");
        for path in [folder.path(), config.as_path()] {
            chown(path, uid, uid).expect("its owner");
        }
        std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o600)).expect("the owner's alone");
        let log = folder.path().join("log");
        let running = Spawn::new(program).arg(&config).uid(uid).log_file(&log).start().expect("PgBouncer starts");
        let name = db.url().rsplit_once('/').map(|(_, name)| name).expect("a URL has a path");
        let url = format!("postgres://anybody@127.0.0.1:{port}/{name}");
        // A bare client of PostgreSQL's own sends a parameter that PgBouncer refuses; ours must not.
        let options = PgConnectOptions::from_str(&url).expect("a URL").extra_float_digits(None);
        until("PgBouncer answers", START_LIMIT, || async {
            assert!(running.status().is_none(), "PgBouncer ended: {}", running.log_tail());
            options.connect().await.ok()
        })
        .await
        .close()
        .await
        .expect("it says goodbye");
        Self { url, _running: running, _folder: folder }
    }

    /// The database behind it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A pool through it, as the product makes them.
    ///
    /// # Panics
    /// Never: the URL is its own.
    #[must_use]
    pub fn pool(&self, connections: u32) -> sqlx::PgPool {
        domain::db::connect_lazy_through(&self.url, connections, domain::db::Pooler::Transaction).expect("a URL")
    }
}

fn configuration(url: &str, port: u16) -> String {
    let (entry, place) = url.trim_start_matches("postgres://").split_once('@').expect("a URL with a user");
    let (user, password) = entry.split_once(':').expect("a user with a password");
    let (address, _) = place.split_once('/').expect("a URL with a path");
    let (host, server_port) = address.split_once(':').expect("a URL with a port");
    let mut text = String::new();
    let _ = writeln!(text, "[databases]\n* = host={host} port={server_port} user={user} password={password}");
    let _ = writeln!(text, "[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =");
    let _ = writeln!(text, "auth_type = any\npool_mode = transaction\ndefault_pool_size = {SESSIONS}");
    let _ = writeln!(text, "max_client_conn = 500\nserver_tls_sslmode = disable");
    text
}
