//! Two buckets on one server, and a mirror between them.

use std::time::Duration;

use sandbox::s3::{Fault, Options, Server};
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;
use workers::mirror::{KeyJournal, Mirror, MirrorError, Pair, PassReport, Place, Settings, Unobserved};
use workers::objects::{CopyLimits, Credentials, Endpoint, LimitSettings, ObjectStore, Tuning};

/// The bucket that instances live in.
pub const SOURCE: &str = "eu-data";
/// The bucket that they move to.
pub const TARGET: &str = "uk-data";

/// Bounds that let a test see retries end.
pub fn quick() -> Tuning {
    Tuning {
        attempts: 3,
        backoff_min: Duration::from_millis(5),
        backoff_max: Duration::from_millis(20),
        ..Tuning::default()
    }
}

/// The same, for servers that never answer.
pub fn impatient() -> Tuning {
    Tuning { request_timeout: Duration::from_secs(1), copy_timeout: Duration::from_secs(1), ..quick() }
}

/// A client of an S3 server on loopback.
pub async fn open(url: &str, access_key: &str, secret_key: &str, tuning: Tuning) -> ObjectStore {
    let credentials = Credentials::Static {
        access_key: access_key.to_owned(),
        secret_key: SecretString::from(secret_key.to_owned()),
        session_token: None,
    };
    let endpoint =
        Endpoint { url: Some(url.to_owned()), region: "us-east-1".to_owned(), force_path_style: true, credentials };
    ObjectStore::open(&endpoint, tuning, CopyLimits::new(LimitSettings::default())).await
}

/// The sandbox's server with two buckets.
pub struct Rig {
    pub server: Server,
    pub store: ObjectStore,
}

impl Rig {
    pub async fn start() -> Self {
        Self::tuned(quick()).await
    }

    /// With time limits that fit the fault.
    pub async fn for_fault(fault: &Fault) -> Self {
        Self::tuned(if matches!(fault, Fault::Hang) { impatient() } else { quick() }).await
    }

    pub async fn tuned(tuning: Tuning) -> Self {
        let buckets = vec![SOURCE.to_owned(), TARGET.to_owned()];
        let server = Server::start(Options { buckets, ..Options::default() }).expect("start the S3 server");
        let store = open(&server.endpoint(), server.access_key(), server.secret_key(), tuning).await;
        Self { server, store }
    }

    /// A mirror of one instance.
    pub fn mirror(&self, host: &str) -> Mirror {
        self.mirror_of(Pair::of_instance(host).expect("a host that may be in a key"))
    }

    pub fn mirror_of(&self, pair: Pair) -> Mirror {
        mirror_of(&self.store, pair)
    }

    /// Puts an object of an instance's replica.
    pub fn put(&self, host: &str, suffix: &str, bytes: &[u8]) {
        self.server.objects().put(SOURCE, &format!("instances/{host}/{suffix}"), bytes);
    }

    /// Puts a replica of `keys` raw files behind one snapshot.
    pub fn put_replica(&self, host: &str, keys: u64) {
        self.put(host, &ltx(9, 1, 10), b"snapshot");
        for txid in 11..10 + keys {
            self.put(host, &ltx(0, txid, txid), format!("raw {txid}").as_bytes());
        }
    }

    /// Keys and bytes below the instance's prefix, or below its staging.
    pub fn content(&self, bucket: &str, prefix: &str) -> Vec<(String, Vec<u8>)> {
        let objects = self.server.objects();
        let keys = objects.keys(bucket, prefix).into_iter();
        keys.map(|key| (key[prefix.len()..].to_owned(), objects.get(bucket, &key).expect("listed"))).collect()
    }

    /// The suffixes that are staged for a host.
    pub fn staged(&self, host: &str) -> Vec<String> {
        self.content(TARGET, &format!("moves/{host}/")).into_iter().map(|(key, _)| key).collect()
    }

    /// Both sides hold the same keys with the same bytes.
    #[track_caller]
    pub fn assert_mirrored(&self, host: &str) {
        let source = self.content(SOURCE, &format!("instances/{host}/"));
        assert!(!source.is_empty(), "a replica of {host}");
        assert!(source == self.content(TARGET, &format!("moves/{host}/")), "the staging of {host} differs");
    }

    /// Calls of one operation since the record was reset.
    pub fn calls(&self, op: &str) -> u64 {
        self.server.faults().calls(op)
    }
}

/// A mirror between the two buckets of one server.
pub fn mirror_of(store: &ObjectStore, pair: Pair) -> Mirror {
    let place = |bucket: &str| Place { store: store.clone(), bucket: bucket.to_owned() };
    Mirror { source: place(SOURCE), target: place(TARGET), pairs: vec![pair], settings: settings() }
}

/// Bounds under which a cancelled pass ends at once.
pub fn settings() -> Settings {
    Settings { cancel_grace: Duration::from_millis(200), ..Settings::default() }
}

/// One pass that nobody watches or cancels.
pub async fn pass(mirror: &Mirror, journal: &dyn KeyJournal) -> Result<PassReport, MirrorError> {
    mirror.pass(journal, &Unobserved, &CancellationToken::new()).await
}

/// The key of a replica's object behind the prefix.
pub fn ltx(level: u8, min: u64, max: u64) -> String {
    format!("{level:04x}/{min:016x}-{max:016x}.ltx")
}
