//! A box of its own for tests of its activator: a folder, a bucket, the test's tenant.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::ids::RegionCode;
use rustix::process::{Pid, Signal, kill_process};
use secrecy::SecretString;
use workers::activator::{Activator, Error, Launch, Pace, Settings, started_below};
use workers::mirror::Place;
use workers::objects::{CopyLimits, Credentials, Endpoint, LimitSettings, ObjectStore, Tuning};

/// The bucket of the box.
pub const BUCKET: &str = "eu-data";

/// Where a box keeps its instances, and its store.
#[derive(Debug, Clone)]
pub struct BoxOf {
    /// The folder of the instances.
    pub folder: PathBuf,
    /// The store's URL.
    pub url: String,
    /// The box's key pair.
    pub key: [String; 2],
}

impl BoxOf {
    /// Bounds that let a test see waits end.
    #[must_use]
    pub fn settings(&self, launcher: PathBuf, litestream: PathBuf) -> Settings {
        let region = RegionCode::new("eu").expect("a region");
        let mut settings = Settings::new(self.folder.clone(), region, self.endpoint(), BUCKET, launcher);
        settings.litestream = litestream;
        settings.stop_limit = Duration::from_secs(5);
        settings.sync_limit = Duration::from_secs(3);
        settings.pace = Pace { sync_interval: Some(Duration::from_millis(100)), ..Pace::default() };
        settings.environment = BTreeMap::from([(OsString::from("PATH"), OsString::from("/usr/bin:/bin"))]);
        settings
    }

    /// The activator with these settings.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn open(&self, settings: Settings) -> Result<Activator, Error> {
        let tuning = Tuning {
            attempts: 2,
            backoff_min: Duration::from_millis(5),
            backoff_max: Duration::from_millis(20),
            request_timeout: Duration::from_secs(2),
            ..Tuning::default()
        };
        let store = ObjectStore::open(&self.endpoint(), tuning, CopyLimits::new(LimitSettings::default())).await;
        Activator::open(settings, Place { store, bucket: BUCKET.to_owned() })
    }

    fn endpoint(&self) -> Endpoint {
        let [access_key, secret_key] = self.key.clone();
        Endpoint {
            url: Some(self.url.clone()),
            region: "us-east-1".to_owned(),
            force_path_style: true,
            credentials: Credentials::Static {
                access_key,
                secret_key: SecretString::from(secret_key),
                session_token: None,
            },
        }
    }
}

/// A start that nobody asked for anew.
#[must_use]
pub fn plain(env: &BTreeMap<String, String>) -> Launch<'_> {
    Launch { env, restarts: 0 }
}

/// Kills everything that any activator started below `instances`, whatever it is: what is made to outlive its worker
/// would outlive its test, too.
pub fn kill_all(instances: &Path) {
    started_below(instances).into_iter().for_each(kill);
}

/// SIGKILL.
pub fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
    }
}
