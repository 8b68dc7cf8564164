//! Requests, counted by operation: for a report's figures and for the metric `leasehold_s3_requests_total`.

use std::sync::atomic::{AtomicU64, Ordering};

/// One S3 operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// `ListObjectsV2`.
    List,
    /// `CopyObject`.
    Copy,
    /// `HeadObject`, of the source of a multipart copy.
    Head,
    /// `CreateMultipartUpload`.
    CreateUpload,
    /// `UploadPartCopy`.
    CopyPart,
    /// `CompleteMultipartUpload`.
    CompleteUpload,
    /// `AbortMultipartUpload`.
    AbortUpload,
    /// `DeleteObjects`.
    Delete,
    /// `GetBucketVersioning` and `ListObjectVersions`.
    Versions,
    /// `GetObject`, of which the digest is taken.
    Get,
}

impl Op {
    /// All operations, in the order of [`RequestCounts`].
    pub const ALL: [Self; 10] = [
        Self::List,
        Self::Copy,
        Self::Head,
        Self::CreateUpload,
        Self::CopyPart,
        Self::CompleteUpload,
        Self::AbortUpload,
        Self::Delete,
        Self::Versions,
        Self::Get,
    ];

    /// The label in metrics and reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Copy => "copy",
            Self::Head => "head",
            Self::CreateUpload => "create_upload",
            Self::CopyPart => "copy_part",
            Self::CompleteUpload => "complete_upload",
            Self::AbortUpload => "abort_upload",
            Self::Delete => "delete",
            Self::Versions => "versions",
            Self::Get => "get",
        }
    }
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How many requests of each operation were sent, retries included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestCounts([u64; Op::ALL.len()]);

impl RequestCounts {
    /// Requests of this operation.
    #[must_use]
    pub const fn of(&self, op: Op) -> u64 {
        self.0[op as usize]
    }

    /// All requests.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl std::ops::Add for RequestCounts {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(mine, other)| *mine += other);
        self
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters([AtomicU64; Op::ALL.len()]);

impl Counters {
    pub(super) fn count(&self, op: Op, outcome: &'static str) {
        self.0[op as usize].fetch_add(1, Ordering::Relaxed);
        metrics::counter!("leasehold_s3_requests_total", "op" => op.as_str(), "outcome" => outcome).increment(1);
    }

    pub(super) fn snapshot(&self) -> RequestCounts {
        let mut counts = RequestCounts::default();
        counts.0.iter_mut().zip(&self.0).for_each(|(count, counter)| *count = counter.load(Ordering::Relaxed));
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_kept_by_operation() {
        let counters = Counters::default();
        for (n, op) in Op::ALL.into_iter().enumerate() {
            (0..=n).for_each(|_| counters.count(op, "ok"));
        }
        let counts = counters.snapshot() + RequestCounts::default();
        for (n, op) in Op::ALL.into_iter().enumerate() {
            assert_eq!(counts.of(op), n as u64 + 1, "{op}");
        }
        assert_eq!(counts.total(), 55);
    }
}
