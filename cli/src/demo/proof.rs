//! What the demo proves, and the refusal to say more than that.

use std::path::Path;
use std::time::Duration;

use anyhow::{bail, ensure};
use chrono::{DateTime, Utc};
use sandbox::s3::Call;
use serde::Serialize;
use wire::MoveStep;

use super::journal::{Journal, size};
use super::store::{self, Rows};

/// What the restored file holds, before it is compared with anything.
#[derive(Debug)]
pub(super) struct Examined {
    integrity: String,
    rows: Rows,
}

/// What is known of the move, to compare with.
pub(super) struct Story<'a> {
    pub(super) host: &'static str,
    pub(super) from: &'static str,
    pub(super) to: &'static str,
    pub(super) journal: &'a Journal,
    /// The round that made the move ready.
    pub(super) round: &'a MoveStep,
    /// The last row acknowledged before that round began.
    pub(super) acknowledged: u64,
    /// The rows of the source, counted after the restore.
    pub(super) held: u64,
    pub(super) elapsed: Duration,
    pub(super) traffic: Traffic,
}

/// What the boxes asked of the object store.
#[derive(Debug, Clone, Copy)]
pub(super) struct Traffic {
    requests: u64,
    copies: u64,
}

/// Counts the boxes' calls, and refuses where one of them carried an object's bytes: a move copies inside the store.
///
/// # Errors
/// The first call that is neither a listing, nor a copy, nor a delete.
pub(super) fn traffic_of_boxes(record: &[Call], access_keys: &[String]) -> anyhow::Result<Traffic> {
    let mut traffic = Traffic { requests: 0, copies: 0 };
    for call in record.iter().filter(|call| access_keys.contains(&call.access_key)) {
        traffic.requests += 1;
        match call.op {
            "CopyObject" => traffic.copies += 1,
            "ListObjectsV2" | "DeleteObject" | "DeleteObjects" => {}
            // What an object above S3's limit for one copy takes.
            "HeadObject"
            | "CreateMultipartUpload"
            | "UploadPartCopy"
            | "CompleteMultipartUpload"
            | "AbortMultipartUpload" => {}
            other => {
                bail!("a box asked for {other} of {}/{}: it may only list, copy and delete", call.bucket, call.key)
            }
        }
    }
    Ok(traffic)
}

/// What was proven.
#[derive(Debug, Serialize)]
pub(crate) struct Proof {
    host: &'static str,
    from: &'static str,
    to: &'static str,
    rounds: u32,
    copied_objects: u64,
    copied_bytes: u64,
    box_requests: u64,
    copy_requests: u64,
    promoting_round: i32,
    promoting_round_started_at: DateTime<Utc>,
    acknowledged_before: u64,
    /// Rows of the restored copy: 1…n without a hole.
    pub(super) restored_rows: u64,
    source_rows: u64,
    integrity_check: String,
    elapsed_seconds: f64,
}

/// Opens the restored file and counts.
pub(super) fn examine(restored: &Path) -> rusqlite::Result<Examined> {
    let conn = store::open(restored)?;
    Ok(Examined { integrity: store::integrity(&conn)?, rows: store::rows(&conn)? })
}

impl Examined {
    /// Compares what arrived with the story of the move.
    ///
    /// # Errors
    /// The first thing that is not as it must be, with its figures.
    pub(super) fn against(self, story: Story<'_>) -> anyhow::Result<Proof> {
        check(&self, story.acknowledged, story.held)?;
        let (copied_objects, copied_bytes) = story.journal.copied();
        Ok(Proof {
            host: story.host,
            from: story.from,
            to: story.to,
            rounds: story.journal.rounds(),
            copied_objects,
            copied_bytes,
            box_requests: story.traffic.requests,
            copy_requests: story.traffic.copies,
            promoting_round: story.round.round.unwrap_or_default(),
            promoting_round_started_at: story.round.started_at,
            acknowledged_before: story.acknowledged,
            restored_rows: self.rows.last,
            source_rows: story.held,
            integrity_check: self.integrity,
            elapsed_seconds: (story.elapsed.as_secs_f64() * 10.0).round() / 10.0,
        })
    }
}

fn check(examined: &Examined, acknowledged: u64, held: u64) -> anyhow::Result<()> {
    let Examined { integrity, rows } = examined;
    ensure!(integrity == "ok", "the restored copy is damaged: {integrity}");
    ensure!(rows.are_whole(), "the restored copy's rows have a hole: {rows:?}");
    if rows.last < acknowledged {
        bail!("row {acknowledged} was acknowledged before the promoting round began, the copy ends with {}", rows.last);
    }
    ensure!(rows.last <= held, "the copy holds row {}, which the source, at {held}, has not written", rows.last);
    Ok(())
}

impl Proof {
    /// The proof for people.
    pub(crate) fn told(&self) -> String {
        format!(
            "\nProven: {host} can be cut over to {to}.\n  \
             ready       after round {promoting} of {rounds}; {objects} objects ({bytes}) copied\n  \
             remote      the boxes sent {requests} requests, {copies} of them CopyObject; no object's bytes passed through a box\n  \
             integrity   the copy in {to}, restored by litestream, passes SQLite's integrity check\n  \
             whole       its rows are 1…{restored} without a hole\n  \
             current     row {acknowledged} was the last one acknowledged before the promoting round began ({at} UTC, the database's clock)\n  \
             bounded     the source, written to all the while, held {source} rows at the end\n  \
             took        {elapsed:.1} s\n\
             An acknowledged row is one that was committed and that litestream had confirmed in {from}'s bucket.",
            host = self.host,
            to = self.to,
            from = self.from,
            promoting = self.promoting_round,
            rounds = self.rounds,
            objects = self.copied_objects,
            bytes = size(self.copied_bytes),
            requests = self.box_requests,
            copies = self.copy_requests,
            restored = self.restored_rows,
            acknowledged = self.acknowledged_before,
            at = self.promoting_round_started_at.format("%H:%M:%S%.3f"),
            source = self.source_rows,
            elapsed = self.elapsed_seconds,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examined(integrity: &str, count: u64, last: u64) -> Examined {
        Examined { integrity: integrity.to_owned(), rows: Rows { count, first: 1, last } }
    }

    #[test]
    fn a_box_that_reads_or_writes_bytes_is_found() {
        let call = |op, access_key: &str| Call {
            op,
            bucket: "b".to_owned(),
            key: "k".to_owned(),
            source: None,
            keys: Vec::new(),
            access_key: access_key.to_owned(),
        };
        let boxes = ["box".to_owned()];
        let calm = [call("ListObjectsV2", "box"), call("CopyObject", "box"), call("PutObject", "tenant")];
        let traffic = traffic_of_boxes(&calm, &boxes).expect("nothing passed through the box");
        assert_eq!((traffic.requests, traffic.copies), (2, 1));
        for op in ["GetObject", "PutObject", "UploadPart"] {
            assert!(traffic_of_boxes(&[call(op, "box")], &boxes).is_err(), "{op}");
        }
    }

    #[test]
    fn damage_holes_lost_rows_and_rows_from_nowhere_are_refused() {
        assert!(check(&examined("ok", 10, 10), 10, 10).is_ok());
        assert!(check(&examined("row 3 missing from index", 10, 10), 1, 20).is_err());
        assert!(check(&examined("ok", 9, 10), 1, 20).is_err(), "a hole");
        assert!(check(&examined("ok", 10, 10), 11, 20).is_err(), "row 11 was acknowledged");
        assert!(check(&examined("ok", 10, 10), 1, 9).is_err(), "row 10 was never written");
    }
}
