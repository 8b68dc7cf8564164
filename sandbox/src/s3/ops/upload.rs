//! Bytes that a client sends: read to the end, counted, and compared with what it said of them.

use futures::StreamExt as _;
use s3s::checksum::ChecksumHasher;
use s3s::dto::{Checksum, ChecksumAlgorithm, StreamingBlob};
use s3s::{S3Error, S3Result, TrailingHeaders, s3_error};

use crate::s3::body::Written;
use crate::s3::service::Service;

/// What a client said of the bytes that it sends.
#[derive(Debug, Default)]
pub(super) struct Claims {
    pub(super) content_md5: Option<String>,
    pub(super) algorithm: Option<ChecksumAlgorithm>,
    pub(super) sums: Checksum,
    pub(super) trailers: Option<TrailingHeaders>,
}

impl Claims {
    /// A hasher for every checksum that is claimed, or announced for the trailer.
    fn hasher(&self) -> ChecksumHasher {
        let announced = |name: &str| self.algorithm.as_ref().is_some_and(|algorithm| algorithm.as_str() == name);
        let mut hasher = ChecksumHasher::default();
        if self.sums.checksum_crc32.is_some() || announced(ChecksumAlgorithm::CRC32) {
            hasher.crc32 = Some(Default::default());
        }
        if self.sums.checksum_crc32c.is_some() || announced(ChecksumAlgorithm::CRC32C) {
            hasher.crc32c = Some(Default::default());
        }
        if self.sums.checksum_crc64nvme.is_some() || announced(ChecksumAlgorithm::CRC64NVME) {
            hasher.crc64nvme = Some(Default::default());
        }
        if self.sums.checksum_sha1.is_some() || announced(ChecksumAlgorithm::SHA1) {
            hasher.sha1 = Some(Default::default());
        }
        if self.sums.checksum_sha256.is_some() || announced(ChecksumAlgorithm::SHA256) {
            hasher.sha256 = Some(Default::default());
        }
        hasher
    }

    /// Adds what came in the trailer, which is complete only once the body was read.
    fn take_trailers(&mut self) {
        let Some(trailers) = self.trailers.as_ref().and_then(TrailingHeaders::take) else { return };
        let value = |name: &str| trailers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let sums = &mut self.sums;
        for (claim, name) in [
            (&mut sums.checksum_crc32, "x-amz-checksum-crc32"),
            (&mut sums.checksum_crc32c, "x-amz-checksum-crc32c"),
            (&mut sums.checksum_crc64nvme, "x-amz-checksum-crc64nvme"),
            (&mut sums.checksum_sha1, "x-amz-checksum-sha1"),
            (&mut sums.checksum_sha256, "x-amz-checksum-sha256"),
        ] {
            if let Some(value) = value(name) {
                *claim = Some(value);
            }
        }
    }

    /// Refuses bytes that are not the ones the client spoke of.
    fn check(&self, written: &Written) -> S3Result<()> {
        let (said, got) = (&self.sums, &written.sums);
        for (said, got) in [
            (&said.checksum_crc32, &got.checksum_crc32),
            (&said.checksum_crc32c, &got.checksum_crc32c),
            (&said.checksum_crc64nvme, &got.checksum_crc64nvme),
            (&said.checksum_sha1, &got.checksum_sha1),
            (&said.checksum_sha256, &got.checksum_sha256),
        ] {
            if said.is_some() && said != got {
                return Err(s3_error!(BadDigest, "the checksum does not match the content"));
            }
        }
        match &self.content_md5 {
            Some(said) if *said != base64(&written.md5) => Err(s3_error!(BadDigest, "Content-MD5 does not match")),
            Some(_) | None => Ok(()),
        }
    }
}

impl Service {
    /// Reads a client's bytes into a body.
    pub(super) async fn receive(&self, blob: Option<StreamingBlob>, mut claims: Claims) -> S3Result<Written> {
        let mut writer = self.store.vault.writer(claims.hasher()).map_err(S3Error::internal_error)?;
        if let Some(mut blob) = blob {
            while let Some(chunk) = blob.next().await {
                let chunk = chunk.map_err(|error| S3Error::with_source(s3s::S3ErrorCode::IncompleteBody, error))?;
                self.faults.count_in(chunk.len() as u64);
                writer.write(&chunk).map_err(S3Error::internal_error)?;
            }
        }
        claims.take_trailers();
        let written = writer.finish();
        claims.check(&written)?;
        Ok(written)
    }
}

/// Standard base64 with padding, for the one header that has it.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    bytes
        .chunks(3)
        .flat_map(|chunk| {
            let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
            let joined = byte(0) << 16 | byte(1) << 8 | byte(2);
            let sign = move |at: usize| char::from(ALPHABET[(joined >> (18 - 6 * at) & 63) as usize]);
            (0..4).map(move |at| if at <= chunk.len() { sign(at) } else { '=' })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn base64_pads() {
        assert_eq!(
            ["", "f", "fo", "foo", "foob"].map(|text| super::base64(text.as_bytes())),
            ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]
        );
    }
}
