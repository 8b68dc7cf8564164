//! What every call passes before it is done: the record, key and right checks, hooks, faults.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use http::{HeaderMap, HeaderValue, StatusCode};
use s3s::auth::{S3Auth, SecretKey};
use s3s::dto::CopySource;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result, s3_error};

use super::faults::{Call, Fault};
use super::service::Service;
use super::store::Condition;
use super::{Action, Identity, keys};

/// A header between the operations and the HTTP layer, never sent: how an error shall look outside.
pub(super) const MARK: &str = "x-sandbox-fault";
/// [`MARK`]: the error goes out under status 200.
pub(super) const MARK_OK: &str = "status-200";
/// [`MARK`]: the connection is closed instead.
pub(super) const MARK_DISCONNECT: &str = "disconnect";

/// The key pairs that a server knows; they can be added and revoked while it runs.
#[derive(Debug, Default)]
pub(super) struct Identities(Mutex<HashMap<String, Identity>>);

impl Identities {
    pub(super) fn add(&self, identity: Identity) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(identity.access_key.clone(), identity);
    }

    pub(super) fn revoke(&self, access_key: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(access_key);
    }

    fn find(&self, access_key: &str) -> Option<Identity> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(access_key).cloned()
    }
}

/// Looks secrets up for the signature check, which s3s does.
pub(super) struct Auth(pub(super) std::sync::Arc<Identities>);

#[async_trait::async_trait]
impl S3Auth for Auth {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        match self.0.find(access_key) {
            Some(identity) => Ok(SecretKey::from(identity.secret_key.as_str())),
            None => Err(s3_error!(InvalidAccessKeyId)),
        }
    }
}

/// What the faults ask of the operation itself.
#[derive(Debug, Default)]
pub(super) struct Orders {
    pub(super) lose_answer: bool,
    pub(super) lose_token: bool,
    pub(super) lose_page: bool,
}

impl Orders {
    /// The answer, unless it is to be lost.
    pub(super) fn answer<T>(&self, output: T) -> S3Result<T> {
        if self.lose_answer { Err(marked("InternalError", MARK_DISCONNECT)) } else { Ok(output) }
    }
}

/// A call on its way in: built by each operation, and then passed.
pub(super) struct Entry {
    call: Call,
    needs: Vec<(Action, String)>,
}

impl Entry {
    /// A call of `op` that does `action` on a key.
    pub(super) fn key<T>(op: &'static str, request: &S3Request<T>, action: Action, bucket: &str, key: &str) -> Self {
        let access_key = request.credentials.as_ref().map(|known| known.access_key.clone()).unwrap_or_default();
        let call =
            Call { op, bucket: bucket.to_owned(), key: key.to_owned(), source: None, keys: Vec::new(), access_key };
        Self { call, needs: vec![(action, format!("{bucket}/{key}"))] }
    }

    /// A call on a bucket, or on a prefix in it.
    pub(super) fn bucket<T>(
        op: &'static str,
        request: &S3Request<T>,
        action: Action,
        bucket: &str,
        prefix: &str,
    ) -> Self {
        Self::key(op, request, action, bucket, prefix)
    }

    /// Adds the source of a copy, which needs the right to read it.
    pub(super) fn source(mut self, (bucket, key): &(String, String)) -> Self {
        self.needs.push((Action::Read, format!("{bucket}/{key}")));
        self.call.source = Some((bucket.clone(), key.clone()));
        self
    }

    /// A call that names its keys in its body; the right to each is checked one by one later.
    pub(super) fn keys(mut self, keys: Vec<String>) -> Self {
        self.needs.clear();
        self.call.keys = keys;
        self
    }
}

/// Bucket and key of a copy's source.
pub(super) fn source_of(source: &CopySource) -> S3Result<(String, String)> {
    match source {
        CopySource::Bucket { bucket, key, version_id: None } => Ok((bucket.to_string(), key.to_string())),
        CopySource::Bucket { .. } | CopySource::AccessPoint { .. } | CopySource::Outpost { .. } => {
            Err(s3_error!(NotImplemented, "a copy's source is a bucket and a key, without a version"))
        }
    }
}

impl Service {
    /// Lets a call in, or ends it here.
    ///
    /// The order is S3's: what is asked must make sense (400) before rights are looked at (403); a
    /// hook sees only calls that would be done.
    pub(super) async fn enter(&self, entry: Entry) -> S3Result<Orders> {
        let Entry { call, needs } = entry;
        self.faults.note(&call);
        let names_a_key = !matches!(call.op, "ListObjectsV2" | "ListMultipartUploads" | "DeleteObjects")
            && !call.op.ends_with("Bucket")
            && !call.op.ends_with("Buckets")
            && !call.op.starts_with("GetBucket");
        if names_a_key {
            keys::check(&call.key)?;
        }
        if let Some((_, key)) = &call.source {
            keys::check(key)?;
        }
        for key in &call.keys {
            keys::check(key)?;
        }
        for (action, path) in &needs {
            self.require(&call.access_key, *action, path)?;
        }
        self.faults.run_hooks(&call);
        let mut orders = Orders::default();
        for fault in self.faults.strike(&call) {
            match fault {
                Fault::Latency(pause) => tokio::time::sleep(pause).await,
                Fault::SlowDown => return Err(s3_error!(SlowDown, "Please reduce your request rate.")),
                Fault::Answer(code) => return Err(error_of(code)),
                Fault::ErrorInBody(code) => return Err(marked(code, MARK_OK)),
                Fault::Hang => std::future::pending::<()>().await,
                Fault::Disconnect => return Err(marked("InternalError", MARK_DISCONNECT)),
                Fault::LostAnswer => orders.lose_answer = true,
                Fault::Vanish => {
                    let (bucket, key) = call.source.clone().unwrap_or_else(|| (call.bucket.clone(), call.key.clone()));
                    self.store.delete(&bucket, &key, &Condition::default())?;
                }
                Fault::LostToken => orders.lose_token = true,
                Fault::LostPage => orders.lose_page = true,
                Fault::Hold(gate) => gate.pass().await,
                // Asked for key by key where the keys are deleted.
                Fault::KeyError(_) => {}
            }
        }
        Ok(orders)
    }

    /// Refuses with 403 unless the identity behind `access_key` may do this.
    pub(super) fn require(&self, access_key: &str, action: Action, path: &str) -> S3Result<()> {
        match self.identities.find(access_key) {
            Some(identity) if identity.allows(action, path) => Ok(()),
            Some(_) | None => Err(s3_error!(AccessDenied, "Access Denied")),
        }
    }
}

/// An error with this code and its usual status; 500 for a code that S3 does not have.
fn error_of(code: &str) -> S3Error {
    let known = S3ErrorCode::from_bytes(code.as_bytes()).unwrap_or(S3ErrorCode::InternalError);
    let mut error = S3Error::with_message(known, "injected by the sandbox");
    if error.status_code().is_none() {
        error.set_status_code(StatusCode::INTERNAL_SERVER_ERROR);
    }
    error
}

fn marked(code: &str, mark: &'static str) -> S3Error {
    let mut error = error_of(code);
    let mut headers = HeaderMap::new();
    headers.insert(MARK, HeaderValue::from_static(mark));
    error.set_headers(headers);
    error
}

/// Lets every request through to the operations, which ask the gate themselves.
pub(super) struct Open;

#[async_trait::async_trait]
impl s3s::access::S3Access for Open {
    async fn check(&self, _context: &mut s3s::access::S3AccessContext<'_>) -> S3Result<()> {
        Ok(())
    }
}
