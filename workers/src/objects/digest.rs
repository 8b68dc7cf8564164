//! The digest of one object: for a proof, never for a copy.

use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::{Error, ObjectStore, Op};

impl ObjectStore {
    /// SHA-256 of an object, hexadecimal, and its length in bytes. Its bytes are read and kept nowhere; `limit` is for all of
    /// them.
    ///
    /// # Errors
    /// The store's.
    pub async fn digest(&self, bucket: &str, key: &str, limit: Duration) -> Result<(String, u64), Error> {
        let request = self.client.get_object().bucket(bucket).key(key);
        self.call(Op::Get, limit, || async {
            let answer = request.clone().send().await.map_err(|error| Error::from_sdk(Op::Get, error))?;
            let (mut body, mut hasher, mut size) = (answer.body, Sha256::new(), 0);
            let broken = |error: aws_sdk_s3::primitives::ByteStreamError| Error::Unreachable {
                op: Op::Get,
                source: Box::new(error),
            };
            while let Some(bytes) = body.try_next().await.map_err(broken)? {
                hasher.update(&bytes);
                size += bytes.len() as u64;
            }
            Ok((hex::encode(hasher.finalize()), size))
        })
        .await
    }
}
