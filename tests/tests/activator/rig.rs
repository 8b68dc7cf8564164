//! One box with its server.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::ids::Host;
use rusqlite::Connection;
use sandbox::s3::{Options, Server};
use tempfile::TempDir;
use tests::activator::{BUCKET, BoxOf};
use workers::activator::{Activator, Settings, Started};

/// A box, and a server that has its bucket. Whatever it started is gone with it.
pub struct Rig {
    pub server: Server,
    pub folder: TempDir,
    pub settings: Settings,
    pub activator: Activator,
}

impl Rig {
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let server = Server::start(Options { buckets: vec![BUCKET.to_owned()], ..Options::default() });
        let server = server.expect("start the S3 server");
        let folder = tempfile::tempdir().expect("a folder");
        let of = box_of(&server, folder.path());
        let tenant = PathBuf::from(env!("CARGO_BIN_EXE_test-tenant"));
        let litestream = sandbox::tools::find_litestream().expect("find litestream");
        let mut settings = of.settings(tenant.clone(), litestream);
        settings.exec = Some(vec![tenant.into(), "serve".into()]);
        change(&mut settings);
        let activator = of.open(settings.clone()).await.expect("open");
        Self { server, folder, settings, activator }
    }

    /// Another worker on the same folder, after the first one's end.
    pub async fn reopen(&mut self) {
        self.activator = box_of(&self.server, self.folder.path()).open(self.settings.clone()).await.expect("open");
    }

    pub async fn run(&self, host: &Host, env: &[(&str, &str)]) -> Started {
        self.activator.start(host, tests::activator::plain(&environment(env)), async { Ok(true) }).await.expect("start")
    }

    /// A host whose tenant has written a while, and is down; litestream goes on.
    pub async fn written(&self, host: &Host) {
        self.run(host, &[("TENANT_WRITES", "1")]).await;
        self.until_rows(host, 30).await;
        self.activator.stop_child(host).await.expect("stop");
    }

    pub async fn until_rows(&self, host: &Host, rows: u64) {
        let database = self.path(host, "app.db");
        tests::wait::until("rows", Duration::from_secs(30), || async {
            (database.exists() && try_rows(&database).is_some_and(|n| n >= rows)).then_some(())
        })
        .await;
    }

    pub fn path(&self, host: &Host, name: &str) -> PathBuf {
        self.folder.path().join("instances").join(host.as_str()).join(name)
    }

    /// Damages the newest file that litestream has of its own on this box; it is down.
    pub fn damage_newest_own(&self, host: &Host) {
        let newest = self.own_files(host).pop().expect("a file");
        let mut bytes = std::fs::read(&newest).expect("the file");
        let middle = bytes.len() / 2;
        bytes[middle..].fill(0);
        std::fs::write(&newest, bytes).expect("damaged");
    }

    /// litestream's own raw files, oldest first; none before it began.
    pub fn own_files(&self, host: &Host) -> Vec<PathBuf> {
        let folder = std::fs::read_dir(self.path(host, ".app.db-litestream/ltx/0"));
        let mut files: Vec<_> = folder.into_iter().flatten().map(|entry| entry.expect("an entry").path()).collect();
        files.sort();
        files
    }

    /// The tail is proven, and what is restored of it has every row. The child is down.
    pub async fn proves_every_row(&self, host: &Host) {
        let tail = self.activator.prove_tail(host).await.expect("a proof");
        let restored = self.activator.restore(host, &format!("instances/{host}"), &tail.txid).await.expect("restore");
        assert_eq!((&restored.sha256, restored.size), (&tail.sha256, tail.size));
        assert_eq!(rows(&restored.path), rows(&self.path(host, "app.db")));
    }

    /// Keys of the replica.
    pub fn replica(&self, host: &Host) -> Vec<String> {
        self.server.objects().keys(BUCKET, &format!("instances/{host}/"))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        tests::activator::kill_all(&self.folder.path().join("instances"));
    }
}

pub fn box_of(server: &Server, folder: &Path) -> BoxOf {
    let key = [server.access_key().to_owned(), server.secret_key().to_owned()];
    BoxOf { folder: folder.join("instances"), url: server.endpoint(), key }
}

pub fn host(name: &str) -> Host {
    Host::new(name).expect("a host")
}

pub fn environment(env: &[(&str, &str)]) -> BTreeMap<String, String> {
    env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// What the test's tenant tells of its environment.
pub fn told(address: SocketAddr) -> BTreeMap<String, String> {
    let mut text = String::new();
    TcpStream::connect(address).expect("connect").read_to_string(&mut text).expect("read");
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn try_rows(database: &Path) -> Option<u64> {
    let conn = Connection::open_with_flags(database, rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE).ok()?;
    let (count, last): (u64, u64) = conn
        .query_row("select count(*), coalesce(max(n), 0) from entries", [], |row| Ok((row.get(0)?, row.get(1)?)))
        .ok()?;
    assert_eq!(count, last, "rows are 1 to n without a hole");
    Some(count)
}

/// The rows of a database, which are 1 to n without a hole.
pub fn rows(database: &Path) -> u64 {
    try_rows(database).expect("a database of the test's tenant")
}
