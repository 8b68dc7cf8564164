//! litestream's configuration.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::Options;
use crate::exec::Spawn;

/// The longest path of a Unix socket, with some room.
const MAX_SOCKET_PATH: usize = 100;

/// A place in S3 where a replica is.
#[derive(Debug, Clone)]
pub struct Replica {
    /// The endpoint's URL.
    pub endpoint: String,
    /// The bucket.
    pub bucket: String,
    /// The prefix, without a slash at the end.
    pub prefix: String,
    /// The access key.
    pub access_key: String,
    /// The secret key.
    pub secret_key: String,
}

impl Replica {
    pub(super) fn config(&self) -> serde_json::Value {
        json!({
            "type": "s3",
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "bucket": self.bucket,
            "path": self.prefix,
            "force-path-style": true,
        })
    }

    pub(super) fn environment(&self, spawn: Spawn) -> Spawn {
        spawn.env("LITESTREAM_ACCESS_KEY_ID", &self.access_key).env("LITESTREAM_SECRET_ACCESS_KEY", &self.secret_key)
    }
}

/// How fast the daemon works. The default is litestream's own, except for the sync interval.
#[derive(Debug, Clone, Default)]
pub struct Pace {
    /// How often changes are uploaded; litestream's own default is a second.
    pub sync_interval: Option<Duration>,
    /// The first compaction's interval.
    pub compaction_interval: Option<Duration>,
    /// How long raw files stay after their compaction.
    pub l0_retention: Option<Duration>,
    /// How often snapshots are made.
    pub snapshot_interval: Option<Duration>,
    /// How long snapshots stay.
    pub snapshot_retention: Option<Duration>,
}

/// Written as JSON, which is YAML: nothing needs quoting rules of its own.
pub(super) fn configuration(options: &Options, socket: &Path) -> serde_json::Value {
    let pace = &options.pace;
    let text = |duration: Duration| format!("{}ms", duration.as_millis());
    let mut replica = options.replica.config();
    if let Some(interval) = pace.sync_interval {
        replica["sync-interval"] = json!(text(interval));
    }
    let mut config = json!({
        "socket": { "enabled": true, "path": socket, "permissions": 0o600 },
        "dbs": [{ "path": options.db, "replica": replica }],
    });
    if let Some(interval) = pace.compaction_interval {
        config["levels"] = json!([{ "interval": text(interval) }]);
    }
    if let Some(retention) = pace.l0_retention {
        config["l0-retention"] = json!(text(retention));
        config["l0-retention-check-interval"] = json!(text(retention.min(Duration::from_secs(15))));
    }
    let mut snapshot = serde_json::Map::new();
    if let Some(interval) = pace.snapshot_interval {
        snapshot.insert("interval".to_owned(), json!(text(interval)));
    }
    if let Some(retention) = pace.snapshot_retention {
        snapshot.insert("retention".to_owned(), json!(text(retention)));
    }
    if !snapshot.is_empty() {
        config["snapshot"] = snapshot.into();
    }
    config
}

/// The control socket: in the folder, or, where that path is too long for a socket, in the temporary one.
pub(super) fn socket_in(dir: &Path) -> PathBuf {
    let socket = dir.join("litestream.sock");
    if socket.as_os_str().len() < MAX_SOCKET_PATH {
        return socket;
    }
    let digest = hex::encode(Sha256::digest(dir.as_os_str().as_encoded_bytes()));
    std::env::temp_dir().join(format!("leasehold-litestream-{}.sock", &digest[..16]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_names_replica_socket_and_pace_and_no_secret() {
        let replica = Replica {
            endpoint: "http://127.0.0.1:1".to_owned(),
            bucket: "b".to_owned(),
            prefix: "instances/h".to_owned(),
            access_key: "AK".to_owned(),
            secret_key: "SECRET".to_owned(),
        };
        let pace = Pace { sync_interval: Some(Duration::from_millis(100)), ..Pace::default() };
        let options = Options { db: "/d/app.db".into(), replica, dir: "/d".into(), pace };
        let config = configuration(&options, Path::new("/d/s.sock"));
        assert_eq!(config["socket"]["enabled"], true);
        assert_eq!(config["dbs"][0]["replica"]["path"], "instances/h");
        assert_eq!(config["dbs"][0]["replica"]["sync-interval"], "100ms");
        assert!(config.get("snapshot").is_none());
        assert!(!config.to_string().contains("SECRET"));
    }
}
