//! An S3 client as ours are, and bounded waiting.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use sandbox::s3::{Identity, Options, Server};

/// A client without retries: one call is one request.
pub fn client(endpoint: &str, access_key: &str, secret_key: &str) -> Client {
    let config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .endpoint_url(endpoint)
        .credentials_provider(Credentials::new(access_key, secret_key, None, None, "test"))
        .force_path_style(true)
        .retry_config(RetryConfig::disabled())
        .timeout_config(TimeoutConfig::builder().operation_timeout(Duration::from_secs(30)).build())
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .build();
    Client::from_conf(config)
}

/// A server in memory with the buckets `src` and `tgt`, and its administrator's client.
pub fn server() -> (Server, Client) {
    let server = Server::start(Options { buckets: vec!["src".into(), "tgt".into()], ..Options::default() });
    let server = server.expect("start");
    let client = client(&server.endpoint(), server.access_key(), server.secret_key());
    (server, client)
}

/// A client of another identity.
pub fn client_of(endpoint: &str, identity: &Identity) -> Client {
    client(endpoint, &identity.access_key, &identity.secret_key)
}

/// The status and the S3 code with which a call was refused.
#[track_caller]
pub fn refusal<T: std::fmt::Debug, E: ProvideErrorMetadata + std::fmt::Debug>(
    result: Result<T, SdkError<E>>,
) -> (u16, String) {
    let error = result.expect_err("the call is refused");
    let status = error.raw_response().map_or(0, |response| response.status().as_u16());
    (status, error.code().unwrap_or("none").to_owned())
}

/// A copy's source as the header has it: every byte but the slashes encoded once.
pub fn source(bucket: &str, key: &str) -> String {
    let encoded: String = key
        .bytes()
        .map(|byte| {
            if byte == b'/' || byte.is_ascii_alphanumeric() {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect();
    format!("{bucket}/{encoded}")
}

/// Waits until `condition` holds; fails after a minute.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Points the crate at the launcher that was built with these tests.
pub fn use_launcher() {
    sandbox::exec::set_launcher(PathBuf::from(env!("CARGO_BIN_EXE_sandbox-exec")));
}
