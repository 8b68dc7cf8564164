//! One store: an endpoint, a client, and the way that every call is made.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, Builder, Region, RequestChecksumCalculation, ResponseChecksumValidation,
    StalledStreamProtectionConfig,
};
use aws_smithy_http_client::tls::{self, rustls_provider::CryptoMode};
use backon::{ExponentialBuilder, Retryable};
use secrecy::{ExposeSecret, SecretString};

use super::count::Counters;
use super::{CopyLimits, Error, Op, RequestCounts};

/// Where a store is and who we are to it.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Base URL of a store that is not AWS, such as `http://127.0.0.1:9000`; `None` is AWS in `region`.
    pub url: Option<String>,
    /// The region that requests are signed for.
    pub region: String,
    /// `http://host/bucket/key` instead of `http://bucket.host/key`: most stores that are not AWS want it.
    pub force_path_style: bool,
    /// Who asks.
    pub credentials: Credentials,
}

/// Who asks.
#[derive(Debug, Clone)]
pub enum Credentials {
    /// A key pair from the configuration.
    Static {
        /// The public half.
        access_key: String,
        /// The secret half.
        secret_key: SecretString,
        /// For temporary keys.
        session_token: Option<SecretString>,
    },
    /// AWS's default chain: environment, profile, web identity, container, instance metadata.
    Chain,
}

/// Bounds of every call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Attempts of one call, the first included.
    pub attempts: usize,
    /// Shortest pause before the second attempt; later pauses double. Each is lengthened by up to its own length.
    pub backoff_min: Duration,
    /// Longest pause, before its jitter.
    pub backoff_max: Duration,
    /// Time for a connection.
    pub connect_timeout: Duration,
    /// Time for one attempt of anything but a copy.
    pub request_timeout: Duration,
    /// Time for one attempt of a copy or of one part: the store answers only when it has copied.
    pub copy_timeout: Duration,
    /// Largest object for one `CopyObject`, bytes. S3 allows 5 GiB; larger ones are copied in parts.
    pub copy_limit: u64,
    /// Size of a part, bytes; grows where an object would need more than 10,000 of them.
    pub part_size: u64,
    /// Parts of one object at once.
    pub parts_at_once: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            attempts: 5,
            backoff_min: Duration::from_millis(200),
            backoff_max: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            copy_timeout: Duration::from_secs(900),
            copy_limit: 5 << 30,
            part_size: 512 << 20,
            parts_at_once: 4,
        }
    }
}

/// A client of one store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ObjectStore {
    pub(super) client: Client,
    pub(super) tuning: Tuning,
    pub(super) limits: Arc<CopyLimits>,
    counters: Arc<Counters>,
}

impl ObjectStore {
    /// A client for this endpoint. Sends nothing, except that [`Credentials::Chain`] may read the environment, files
    /// and the machine's metadata service.
    pub async fn open(endpoint: &Endpoint, tuning: Tuning, limits: Arc<CopyLimits>) -> Self {
        let plain = endpoint.url.as_deref().is_some_and(|url| url.starts_with("http://"));
        let http = aws_smithy_http_client::Builder::new();
        // Loading the machine's root certificates costs tens of milliseconds that a loopback store does not need.
        let http = if plain {
            http.build_http()
        } else {
            http.tls_provider(tls::Provider::Rustls(CryptoMode::Ring)).build_https()
        };
        let config = match &endpoint.credentials {
            Credentials::Static { access_key, secret_key, session_token } => {
                Builder::new().credentials_provider(aws_sdk_s3::config::Credentials::new(
                    access_key,
                    secret_key.expose_secret(),
                    session_token.as_ref().map(|token| token.expose_secret().to_owned()),
                    None,
                    "leasehold",
                ))
            }
            Credentials::Chain => {
                let chain = aws_config::defaults(BehaviorVersion::latest())
                    .region(Region::new(endpoint.region.clone()))
                    .http_client(http.clone())
                    .load()
                    .await;
                Builder::from(&chain)
            }
        };
        let mut config =
            config.behavior_version(BehaviorVersion::latest()).region(Region::new(endpoint.region.clone()));
        config.set_endpoint_url(endpoint.url.clone());
        let config = config
            .force_path_style(endpoint.force_path_style)
            .http_client(http)
            .retry_config(RetryConfig::disabled())
            .timeout_config(TimeoutConfig::builder().connect_timeout(tuning.connect_timeout).build())
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
            .build();
        Self { client: Client::from_conf(config), tuning, limits, counters: Arc::default() }
    }

    /// The same client with counters of its own, from zero: for the figures of one pass.
    #[must_use]
    pub fn counted(&self) -> Self {
        Self { counters: Arc::default(), ..self.clone() }
    }

    /// The requests sent through this client and its clones.
    #[must_use]
    pub fn requests(&self) -> RequestCounts {
        self.counters.snapshot()
    }

    /// Makes one call: bounded attempts with jittered pauses, a time limit for each attempt, everything counted.
    pub(super) async fn call<T, F>(&self, op: Op, limit: Duration, send: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let pauses = ExponentialBuilder::default()
            .with_min_delay(self.tuning.backoff_min)
            .with_max_delay(self.tuning.backoff_max)
            .with_max_times(self.tuning.attempts.saturating_sub(1))
            .with_jitter();
        let attempt = || async {
            let result = match tokio::time::timeout(limit, send()).await {
                Ok(result) => result,
                Err(_elapsed) => Err(Error::TimedOut { op, limit }),
            };
            self.counters.count(op, result.as_ref().map_or_else(Error::outcome, |_| "ok"));
            result
        };
        attempt
            .retry(pauses)
            .when(Error::is_worth_a_retry)
            .notify(|error, pause| {
                let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
                tracing::debug!(
                    op = op.as_str(),
                    pause_ms,
                    error = error as &dyn std::error::Error,
                    "S3 request will be tried again"
                );
            })
            .await
    }
}
