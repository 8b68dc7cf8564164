//! SeaweedFS with three regions' buckets and a box each, under the documents as they are shipped.

use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::{BehaviorVersion, Builder, Credentials, Region};
use aws_sdk_s3::primitives::ByteStream;
use sandbox::Identity;
use sandbox::seaweed::{Options, Weed};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::module::folder;

/// The region that moves an instance away, the one that it goes to, and one that has no part in it.
pub const BUCKETS: [&str; 3] = ["eu-data", "uk-data", "us-data"];
/// How the first region's own documents are filled.
pub const OWN: [(&str, &str); 1] = [("data_bucket_arn", "arn:aws:s3:::eu-data")];

/// A document with its names filled in.
pub fn rendered(name: &str, values: &[(&str, &str)]) -> Value {
    let path = folder().join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let filled = values.iter().fold(text, |text, (name, value)| text.replace(&format!("${{{name}}}"), value));
    assert!(!filled.contains("${"), "{name} has a name that nobody filled:\n{filled}");
    serde_json::from_str(&filled).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Several documents as one.
pub fn document(parts: &[Value]) -> Value {
    let statements = parts.iter().flat_map(|part| part["Statement"].as_array().expect("statements").clone());
    json!({ "Version": "2012-10-17", "Statement": statements.collect::<Vec<_>>() })
}

/// The policy of a box whose region keeps its data in `own` and moves instances to `siblings`.
pub fn policy(own: &str, siblings: &[&str], versioned: bool) -> Value {
    let arn = format!("arn:aws:s3:::{own}");
    let own = [("data_bucket_arn", arn.as_str())];
    let mut parts = vec![rendered("policies/own.json", &own)];
    if versioned {
        parts.push(rendered("policies/versions.json", &own));
    }
    for (n, bucket) in siblings.iter().enumerate() {
        let (n, arn) = (n.to_string(), format!("arn:aws:s3:::{bucket}"));
        let staging = format!("{arn}/moves/*");
        let values = [("n", n.as_str()), ("sibling_staging_arn", &staging), ("sibling_bucket_arn", &arn)];
        parts.push(rendered("policies/sibling.json", &values));
    }
    document(&parts)
}

/// A running server with the boxes of two regions.
pub struct Stand {
    pub weed: Weed,
    /// A box of the first region, which moves to the second.
    pub source: Identity,
    /// A box of the second region, which moves nowhere.
    pub target: Identity,
    pub admin: Client,
    _folder: TempDir,
}

impl Stand {
    pub async fn start(source: Value, target: Value) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let source = Identity::under_policy("source", "SOURCEKEY", "source-secret", source);
        let target = Identity::under_policy("target", "TARGETKEY", "target-secret", target);
        let options = Options {
            dir: folder.path().to_owned(),
            buckets: BUCKETS.map(str::to_owned).to_vec(),
            identities: vec![source.clone(), target.clone()],
        };
        let weed = Weed::start(options).await.expect("start SeaweedFS");
        let admin = client(&weed.endpoint(), weed.admin());
        Self { weed, source, target, admin, _folder: folder }
    }

    pub async fn put(&self, bucket: &str, key: &str, bytes: &[u8]) {
        let put = self.admin.put_object().bucket(bucket).key(key).body(ByteStream::from(bytes.to_vec()));
        put.send().await.expect("put");
    }

    /// Keys and bytes below a prefix.
    pub async fn content(&self, bucket: &str, prefix: &str) -> Vec<(String, Vec<u8>)> {
        let mut all = Vec::new();
        let mut pages = self.admin.list_objects_v2().bucket(bucket).prefix(prefix).into_paginator().send();
        while let Some(page) = pages.next().await {
            for object in page.expect("list").contents.unwrap_or_default() {
                let key = object.key.expect("a key");
                let got = self.admin.get_object().bucket(bucket).key(&key).send().await.expect("get");
                all.push((key[prefix.len()..].to_owned(), got.body.collect().await.expect("read").to_vec()));
            }
        }
        all
    }
}

/// One call is one request.
pub fn client(endpoint: &str, who: &Identity) -> Client {
    let config = Builder::new()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .endpoint_url(endpoint)
        .force_path_style(true)
        .retry_config(RetryConfig::disabled())
        .credentials_provider(Credentials::new(&who.access_key, &who.secret_key, None, None, "test"))
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .build();
    Client::from_conf(config)
}
