//! Every setting, one row each.

use super::Bounds;

/// The sections of docs/configuration.md, by the first word of a setting's name.
pub(crate) const SECTIONS: [(&str, &str); 9] = [
    ("", "The API that commands speak to"),
    ("log", "Logs"),
    ("database", "The database"),
    ("api", "`leasehold api`"),
    ("worker", "`leasehold worker`"),
    ("node", "A box: `leasehold worker` with a node"),
    ("s3", "The object store of a box"),
    ("prune", "Pruning: `leasehold worker` and `leasehold prune`"),
    ("dev", "`leasehold dev`"),
];

/// One setting.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Its name in the file, with the section before a dot. Numbers end in their unit.
    pub(crate) key: &'static str,
    /// What it accepts.
    pub(crate) bounds: Bounds,
    /// What it is where nobody sets it.
    pub(crate) default: Option<&'static str>,
    /// The flag of the role that it belongs to, if it has one.
    pub(crate) flag: Option<&'static str>,
    /// Whether it is never shown.
    pub(crate) secret: bool,
    /// What it does, in one or two sentences.
    pub(crate) help: &'static str,
}

impl Setting {
    const fn new(key: &'static str, bounds: Bounds, help: &'static str) -> Self {
        Self { key, bounds, default: None, flag: None, secret: false, help }
    }

    const fn or(mut self, default: &'static str) -> Self {
        self.default = Some(default);
        self
    }

    const fn flag(mut self, flag: &'static str) -> Self {
        self.flag = Some(flag);
        self
    }

    const fn secret(mut self) -> Self {
        self.secret = true;
        self
    }

    /// Its environment variable.
    pub(crate) fn variable(&self) -> String {
        format!("LEASEHOLD_{}", self.key.replace('.', "_").to_uppercase())
    }

    /// Its section in the file; empty for the names without one.
    pub(crate) fn section(&self) -> &'static str {
        self.key.split_once('.').map_or("", |(section, _)| section)
    }
}

/// Hours that something is kept: an hour to ten years. Never less: a settlement that is repeated must find what it came to.
const KEPT: Bounds = Bounds::Number(1, 87_600);

macro_rules! settings {
    ($($name:ident = $setting:expr;)*) => {
        $(#[doc = concat!("See the row's own help: ", stringify!($name))] pub(crate) static $name: Setting = $setting;)*
        /// Every setting, in the order in which they are documented.
        pub(crate) static ALL: &[&Setting] = &[$(&$name),*];
    };
}

settings! {
    URL = Setting::new("url", Bounds::Url(&["http", "https"]), "Where the API is.").or("http://127.0.0.1:7070");
    KEY = Setting::new("key", Bounds::Text, "The API key that commands present. Rather use `key_file`.").secret();
    KEY_FILE = Setting::new("key_file", Bounds::Path, "A file that holds the API key and nothing else; read where `key` is not set.");
    TIMEOUT_SECONDS = Setting::new("timeout_seconds", Bounds::Number(1, 600), "How long a command waits for an answer of the API.").or("30");

    LOG_FORMAT = Setting::new("log.format", Bounds::Choice(&["auto", "human", "json"]), "How log lines are written to stderr; `auto` writes for people on a terminal and JSON otherwise.").or("auto");
    LOG_FILTER = Setting::new("log.filter", Bounds::Text, "Which log lines are written: a level, or levels by module such as `info,workers=debug`.").or("info,sqlx=warn");

    DATABASE_URL = Setting::new("database.url", Bounds::Url(&["postgres", "postgresql"]), "The PostgreSQL database. Read by the roles `api`, `worker` and `migrate`, by `doctor`, `prune` and `key bootstrap`; other commands never touch it.").secret();
    DATABASE_MAX_CONNECTIONS = Setting::new("database.max_connections", Bounds::Number(2, 500), "Connections that one process opens at most.").or("16");
    DATABASE_POOLER = Setting::new("database.pooler", Bounds::Choice(&["none", "transaction"]), "What stands between this program and PostgreSQL. With `transaction`, a pooler such as PgBouncer that lends a session for one transaction: nothing is kept in a session, workers do not listen for hints, and timeouts are the role's; see docs/pgbouncer.md.").or("none");
    DATABASE_HINTS = Setting::new("database.hints", Bounds::Switch, "Whether idle workers hear of new jobs at once: whoever makes a job due notifies after its commit, and a worker listens on one connection more. Behind a transaction pooler it notifies and does not listen. With false, jobs wait for the next poll, a quarter of a second at most while somebody idles.").or("true");

    API_LISTEN = Setting::new("api.listen", Bounds::Address, "Where the API and the dashboard listen. Give port 0 for a free one; the chosen one is logged.").or("127.0.0.1:7070").flag("listen");
    API_REQUEST_TIMEOUT_SECONDS = Setting::new("api.request_timeout_seconds", Bounds::Number(1, 600), "Longest time of a request that is no stream.").or("30");
    API_RATE_PER_SECOND = Setting::new("api.rate_per_second", Bounds::Number(1, 100_000), "Requests a second that one key may send in the long run, and one address without a key, and one with keys that were not accepted lately.").or("200");
    API_RATE_BURST = Setting::new("api.rate_burst", Bounds::Number(1, 100_000), "Requests that one key, or one address of those, may send at once.").or("400");
    API_MAX_CONNECTIONS = Setting::new("api.max_connections", Bounds::Number(1, 100_000), "Connections that are open at once; more wait to be accepted.").or("1024");
    API_MAX_LISTENERS = Setting::new("api.max_listeners", Bounds::Number(1, 100_000), "Streams of events that are open at once.").or("256");
    API_METRICS_PUBLIC = Setting::new("api.metrics_public", Bounds::Switch, "Whether `GET /metrics` needs no key: only where the port is private.").or("false");
    API_SECURE_COOKIES = Setting::new("api.secure_cookies", Bounds::Switch, "Whether the dashboard's session cookie is sent over TLS alone: true behind a proxy that ends TLS.").or("false");
    API_PUBLIC_URL = Setting::new("api.public_url", Bounds::Url(&["http", "https"]), "Where machines reach this API, as one that enrols is told. Where it is not set, tokens say that it is missing.");
    API_CERTIFICATE_SHA256 = Setting::new("api.certificate_sha256", Bounds::Text, "SHA-256 of the certificate that is shown there, 64 hexadecimal digits, perhaps with colons: a machine that enrols accepts no other. The API itself speaks plain HTTP: it is the certificate of the proxy before it. Where it is not set, tokens say that it is missing.");
    API_DRAIN_SECONDS = Setting::new("api.drain_seconds", Bounds::Number(1, 600), "How long open requests may take to end after SIGTERM.").or("10");

    WORKER_QUEUES = Setting::new("worker.queues", Bounds::List, "The queues that are served. A box serves its own queue as well.").or("default").flag("queues");
    WORKER_KINDS = Setting::new("worker.kinds", Bounds::List, "The kinds that are run; all that the program knows where none is named.").flag("kinds");
    WORKER_CONCURRENCY = Setting::new("worker.concurrency", Bounds::Number(1, 512), "Jobs that run at once.").or("8").flag("concurrency");
    WORKER_DRAIN_SECONDS = Setting::new("worker.drain_seconds", Bounds::Number(1, 3600), "How long running jobs may take to end after SIGTERM; what still runs then is handed to another worker.").or("25").flag("drain-seconds");
    WORKER_METRICS_LISTEN = Setting::new("worker.metrics_listen", Bounds::Address, "Where the worker serves its figures for Prometheus, on `/metrics`, and whether it lives, on `/healthz`, to whoever can reach the address: loopback, or a private network. Off where it is not set. Give port 0 for a free one; the chosen one is logged.").flag("metrics-listen");

    NODE_IDENTITY = Setting::new("node.identity", Bounds::Text, "The box's identity. With it the worker does the work of this box.").flag("node");
    NODE_REGION = Setting::new("node.region", Bounds::Text, "The code of the region that the box stands in.").flag("region");
    NODE_DATA_DIR = Setting::new("node.data_dir", Bounds::Path, "The folder of everything that the box keeps. One worker at a time uses it.").flag("data-dir");
    NODE_DATA_BUCKET = Setting::new("node.data_bucket", Bounds::Text, "The region's data bucket.").flag("data-bucket");
    NODE_DATA_BUCKET_REGION = Setting::new("node.data_bucket_region", Bounds::Text, "The object store's own name for the place of that bucket, such as `eu-central-1`.").flag("data-bucket-region");

    NODE_EXEC = Setting::new("node.exec", Bounds::List, "The program that the box runs for each of its instances, and its arguments. It gets `LEASEHOLD_HOST`, `LEASEHOLD_DATABASE` (its SQLite file), `LEASEHOLD_LISTEN` (the address to serve HTTP on) and `CARLOS_REGION`, and ends on SIGTERM. A box without one hosts nothing: it takes no landing, and what it has already stays parked.");
    NODE_LITESTREAM = Setting::new("node.litestream", Bounds::Path, "litestream 0.5 or later, which replicates the instances' databases: a path, or a name on `PATH`. A box that finds none says so and hosts nothing: it takes no landing, starts nothing and cuts nothing, and mirrors what it had.").or("litestream");
    NODE_CREDENTIALS_COMMAND = Setting::new("node.credentials_command", Bounds::List, "A program and its arguments that give litestream a key of one instance: called with the host as its last argument, it answers as AWS's `credential_process` does, with a key limited to `instances/<host>/`, and is called again when that key expires. Where it is not set, litestream uses the key of the box.");

    NODE_CONFIG_KEY = Setting::new("node.config_key", Bounds::Path, "A file of age identities, as `age-keygen` writes it, that only its owner may read: with them the box opens the sealed values of instances' environments, and publishes to whom values are sealed. Read once, at the start. What runs as the worker's user can read it too, the instances' program included. Where it is not set, the box leaves a landing with sealed values to a box of its region that holds one.");

    NODE_ROUND_INTERVAL_SECONDS = Setting::new("node.round_interval_seconds", Bounds::Number(1, 3600), "The wait between two rounds of a move.").or("30");

    S3_ENDPOINT = Setting::new("s3.endpoint", Bounds::Url(&["http", "https"]), "The object store, buckets by path; AWS where it is not set. `{region}` in it stands for the region of the bucket that is spoken to.").flag("s3-endpoint");
    S3_ACCESS_KEY_ID = Setting::new("s3.access_key_id", Bounds::Text, "The access key; without one, AWS's default chain: environment, profile, web identity, container, instance.").secret();
    S3_SECRET_ACCESS_KEY = Setting::new("s3.secret_access_key", Bounds::Text, "The secret access key.").secret();

    PRUNE_BY_WORKERS = Setting::new("prune.by_workers", Bounds::Switch, "Whether workers remove what is over and past its time; `leasehold prune` does whenever it is run.").or("true");
    PRUNE_COMPLETED_HOURS = Setting::new("prune.completed_hours", KEPT, "How long completed jobs are kept, at least: they go with their day, in UTC, up to a day later. A kind may have a time of its own for all its jobs. After a shorter time was set, run `leasehold prune` once: workers look at a day only when a time ends for it.").or("168");
    PRUNE_CANCELLED_HOURS = Setting::new("prune.cancelled_hours", KEPT, "The same for cancelled jobs.").or("336");
    PRUNE_DISCARDED_HOURS = Setting::new("prune.discarded_hours", KEPT, "The same for discarded jobs.").or("720");
    PRUNE_WORKERS_HOURS = Setting::new("prune.workers_hours", KEPT, "How long workers are kept after they were last heard.").or("168");
    PRUNE_THROUGHPUT_HOURS = Setting::new("prune.throughput_hours", KEPT, "How long the counts by minute are kept.").or("720");
    PRUNE_REFUSED_WRITES_HOURS = Setting::new("prune.refused_writes_hours", KEPT, "How long refused writes are kept whose jobs are still there.").or("720");

    DEV_DIR = Setting::new("dev.dir", Bounds::Path, "Where `leasehold dev` keeps its database, buckets, logs and key.").or(".leasehold").flag("dir");
}

/// Variables that are read, but are no settings of the file: what they steer is needed before it, or
/// by other parts of the program.
pub(crate) const OUTSIDE_VARIABLES: [(&str, &str); 3] = [
    (
        "LEASEHOLD_CONFIG",
        "The configuration file, as `--config`. `leasehold.toml` in the working folder is read where neither is given and it is there.",
    ),
    (
        "LEASEHOLD_TOOLS_DIR",
        "Where `leasehold dev`, `leasehold demo` and tests keep the tools that they fetch; `.tools` in the project otherwise.",
    ),
    (
        "LEASEHOLD_LAUNCHER",
        "The executable that starts the children of `leasehold dev`, `leasehold demo` and tests; this program otherwise.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_unique_name_a_section_and_a_default_within_its_bounds() {
        for (index, setting) in ALL.iter().enumerate() {
            assert!(ALL[..index].iter().all(|other| other.key != setting.key), "{} stands twice", setting.key);
            assert!(SECTIONS.iter().any(|(name, _)| *name == setting.section()), "{} has no section", setting.key);
            let accepted = setting.default.is_none_or(|text| setting.bounds.parse(text).is_some());
            assert!(accepted, "{}: its default is not within its bounds", setting.key);
            assert!(setting.help.ends_with('.') && setting.help.len() > 10, "{} has no help", setting.key);
        }
    }

    #[test]
    fn no_secret_has_a_flag_or_a_default() {
        for setting in ALL.iter().filter(|setting| setting.secret) {
            assert!(setting.flag.is_none() && setting.default.is_none(), "{}", setting.key);
        }
    }

    #[test]
    fn numbers_name_their_unit_unless_they_count() {
        const COUNTS: [&str; 6] = [
            "database.max_connections",
            "worker.concurrency",
            "api.rate_per_second",
            "api.rate_burst",
            "api.max_connections",
            "api.max_listeners",
        ];
        for setting in ALL.iter().filter(|setting| matches!(setting.bounds, Bounds::Number(..))) {
            let has_unit = ["_hours", "_seconds", "_ms", "_bytes"].iter().any(|unit| setting.key.ends_with(unit));
            assert!(has_unit || COUNTS.contains(&setting.key), "{}", setting.key);
        }
    }
}
