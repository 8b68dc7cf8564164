//! What the demo proves, and the refusal to say more than that.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use chrono::{DateTime, Utc};
use sandbox::s3::Call;
use serde::Serialize;
use wire::{MoveStep, MoveView};

use super::writer::{Acknowledged, Row};
use crate::output::size;

/// What the boxes asked of the object store.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Traffic {
    pub(super) requests: u64,
    pub(super) copies: u64,
    /// Objects that were read to restore, or to prove what can be restored: the only bytes that a box reads.
    pub(super) restored_objects: u64,
}

/// Counts the boxes' calls, and refuses where one of them wrote an object's bytes, or read some beside its restores: a move
/// copies inside the store.
///
/// # Errors
/// The first call that is not a box's to make.
pub(super) fn traffic_of_boxes(record: &[Call], access_keys: &[String]) -> anyhow::Result<Traffic> {
    let mut traffic = Traffic { requests: 0, copies: 0, restored_objects: 0 };
    for call in record.iter().filter(|call| access_keys.contains(&call.access_key)) {
        traffic.requests += 1;
        match call.op {
            "CopyObject" => traffic.copies += 1,
            "ListObjectsV2" | "DeleteObject" | "DeleteObjects" | "GetBucketVersioning" => {}
            // litestream's restore, of what is the box's own by then.
            "GetObject" if call.key.starts_with("instances/") => traffic.restored_objects += 1,
            // What an object above S3's limit for one copy takes.
            "HeadObject"
            | "CreateMultipartUpload"
            | "UploadPartCopy"
            | "CompleteMultipartUpload"
            | "AbortMultipartUpload" => {}
            other => {
                bail!(
                    "a box asked for {other} of {}/{}: it may only list, copy, restore and delete",
                    call.bucket,
                    call.key
                )
            }
        }
    }
    Ok(traffic)
}

/// One leg of the journey, from the journal.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Leg {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) rounds: i32,
    pub(super) copied_objects: u64,
    pub(super) copied_bytes: u64,
    /// The newest transaction of the cut.
    pub(super) txid: String,
    /// The database at the cut, and as it was restored.
    pub(super) sha256: String,
    pub(super) bytes: u64,
    /// From the freeze until the first row that the other region acknowledged.
    pub(super) frozen_ms: u64,
    /// From the flip until the record served.
    pub(super) flip_to_served_ms: i64,
    /// When the child of the source was proven to have ended.
    pub(super) stopped_at: DateTime<Utc>,
    pub(super) flipped_at: DateTime<Utc>,
    pub(super) served_at: DateTime<Utc>,
}

impl Leg {
    /// Reads a leg from the move and its journal, oldest row first.
    ///
    /// # Errors
    /// What the journal lacks, and the first thing that is not in its order.
    pub(super) fn of(found: &MoveView, journal: &[MoveStep], frozen: Duration) -> anyhow::Result<Self> {
        let ended = |step: &str| {
            let row = journal.iter().rev().find(|row| row.step == step && row.outcome.as_deref() != Some("failed"));
            let row = row.with_context(|| format!("the journal has no {step} that went well"))?;
            Ok::<_, anyhow::Error>((row, row.ended_at.with_context(|| format!("{step} has no end"))?))
        };
        let order = ["close_route", "stop_child", "prove_tail", "final_delta", "purge", "flip", "mirror_in", "restore"];
        let mut before: Option<(&str, DateTime<Utc>)> = None;
        for step in order {
            let (row, at) = ended(step)?;
            if let Some((earlier, then)) = before {
                ensure!(row.started_at >= then, "{step} began before {earlier} had ended");
            }
            before = Some((step, at));
        }
        let tail = found.tail.clone().context("the move has no proof of its tail")?;
        let (restored, _) = ended("restore")?;
        ensure!(
            restored.evidence["sha256"] == tail.sha256.as_str(),
            "the restored file is not the one of the cut: {} and {}",
            restored.evidence["sha256"],
            tail.sha256
        );
        let (_, stopped_at) = ended("stop_child")?;
        let (_, flipped_at) = ended("flip")?;
        let served_at = found.landed_at.context("the move has not landed")?;
        ensure!(served_at >= flipped_at, "it served before it was flipped");
        let mut copied = (0, 0);
        for row in journal.iter().filter(|row| row.step == "round" || row.step == "final_delta") {
            let numbers = if row.step == "round" { &row.evidence["numbers"] } else { &row.evidence };
            copied.0 += numbers["copied"].as_u64().unwrap_or(0);
            copied.1 += numbers["copied_bytes"].as_u64().unwrap_or(0);
        }
        Ok(Self {
            from: found.from.clone(),
            to: found.to.clone(),
            rounds: found.round,
            copied_objects: copied.0,
            copied_bytes: copied.1,
            txid: tail.txid,
            sha256: tail.sha256,
            bytes: tail.size,
            frozen_ms: u64::try_from(frozen.as_millis()).unwrap_or(u64::MAX),
            flip_to_served_ms: (served_at - flipped_at).num_milliseconds(),
            stopped_at,
            flipped_at,
            served_at,
        })
    }

    fn told(&self) -> String {
        format!(
            "  {from} to {to}    {rounds} rounds, {objects} objects ({bytes}) copied; transaction {txid}\n              \
             restored to the very file of the cut, SHA-256 {sha}… ({size})\n              \
             frozen for {frozen} ms, of which {served} ms from the flip until it served",
            from = self.from,
            to = self.to,
            rounds = self.rounds,
            objects = self.copied_objects,
            bytes = size(self.copied_bytes),
            txid = self.txid.trim_start_matches('0'),
            sha = &self.sha256[..16],
            size = size(self.bytes),
            frozen = self.frozen_ms,
            served = self.flip_to_served_ms,
        )
    }
}

/// What was proven.
#[derive(Debug, Serialize)]
pub(crate) struct Proof {
    host: &'static str,
    legs: Vec<Leg>,
    /// Rows of the ledger at the end: 1…n without a hole.
    rows: u64,
    acknowledged: u64,
    refused: u64,
    rows_by_region: BTreeMap<String, u64>,
    traffic: Traffic,
    elapsed_seconds: f64,
}

/// Compares the ledger at the end with every answer that was given, and with the legs.
///
/// # Errors
/// The first thing that is not as it must be, with its figures.
pub(super) fn examine(
    host: &'static str,
    (ledger, acknowledged): (&[Row], &[Acknowledged]),
    refused: u64,
    legs: Vec<Leg>,
    traffic: Traffic,
    elapsed: Duration,
) -> anyhow::Result<Proof> {
    check(ledger, acknowledged)?;
    let mut rows_by_region = BTreeMap::new();
    for row in ledger {
        *rows_by_region.entry(row.region.clone()).or_default() += 1;
    }
    Ok(Proof {
        host,
        rows: ledger.len() as u64,
        acknowledged: acknowledged.len() as u64,
        refused,
        rows_by_region,
        legs,
        traffic,
        elapsed_seconds: (elapsed.as_secs_f64() * 10.0).round() / 10.0,
    })
}

fn check(ledger: &[Row], acknowledged: &[Acknowledged]) -> anyhow::Result<()> {
    for (row, n) in ledger.iter().zip(1..) {
        ensure!(row.n == n, "the ledger has a hole: row {} where {n} belongs", row.n);
    }
    ensure!(!acknowledged.is_empty(), "nothing was acknowledged, so nothing can be proven");
    let mut last = 0;
    for told in acknowledged {
        ensure!(told.n > last, "row {} was acknowledged after row {last}", told.n);
        last = told.n;
        let index = usize::try_from(told.n - 1).unwrap_or(usize::MAX);
        let Some(row) = ledger.get(index) else {
            bail!("row {} ({:?}) was acknowledged by {} and is lost", told.n, told.note, told.region);
        };
        ensure!(
            row.note == told.note && row.region == told.region,
            "row {} was acknowledged as {:?} by {}, and is {:?} by {}",
            told.n,
            told.note,
            told.region,
            row.note,
            row.region
        );
    }
    // One writer at a time: a region's rows never stand among another's later than the next region's first.
    let mut turns: Vec<&str> = ledger.iter().map(|row| row.region.as_str()).collect();
    turns.dedup();
    ensure!(turns.len() <= 3, "the regions took turns more often than the instance moved: {turns:?}");
    Ok(())
}

impl Proof {
    /// The proof for people.
    pub(crate) fn told(&self) -> String {
        let legs: Vec<String> = self.legs.iter().map(Leg::told).collect();
        let by_region: Vec<String> =
            self.rows_by_region.iter().map(|(region, rows)| format!("{rows} by {region}")).collect();
        format!(
            "\nProven: {host} moved there and back, and nothing was lost.\n{legs}\n  \
             whole       its {rows} rows are 1…{rows} without a hole ({by_region})\n  \
             kept        each of the {acknowledged} acknowledged rows is there, in order; {refused} tries were refused meanwhile, and sent again\n  \
             one writer  each source's process was proven to have ended before the flip, each target served after it\n  \
             remote      the boxes sent {requests} requests, {copies} of them CopyObject; the only bytes they read were those of {restored} objects, to restore and to prove\n  \
             took        {elapsed:.1} s\n\
             An acknowledged row is one that the application had committed when it answered.",
            host = self.host,
            legs = legs.join("\n"),
            rows = self.rows,
            by_region = by_region.join(", "),
            acknowledged = self.acknowledged,
            refused = self.refused,
            requests = self.traffic.requests,
            copies = self.traffic.copies,
            restored = self.traffic.restored_objects,
            elapsed = self.elapsed_seconds,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_box_that_writes_bytes_or_reads_what_it_does_not_restore_is_found() {
        let call = |op, key: &str, access_key: &str| Call {
            op,
            bucket: "b".to_owned(),
            key: key.to_owned(),
            source: None,
            keys: Vec::new(),
            access_key: access_key.to_owned(),
        };
        let boxes = ["box".to_owned()];
        let calm = [
            call("ListObjectsV2", "", "box"),
            call("CopyObject", "k", "box"),
            call("PutObject", "k", "tenant"),
            call("GetObject", "instances/h/0000/x", "box"),
        ];
        let traffic = traffic_of_boxes(&calm, &boxes).expect("nothing passed through the box");
        assert_eq!((traffic.requests, traffic.copies, traffic.restored_objects), (3, 1, 1));
        for (op, key) in [("GetObject", "moves/h/0000/x"), ("PutObject", "instances/h/x"), ("UploadPart", "k")] {
            assert!(traffic_of_boxes(&[call(op, key, "box")], &boxes).is_err(), "{op}");
        }
    }

    #[test]
    fn holes_lost_rows_other_rows_and_two_writers_are_refused() {
        let row = |n: u64, region: &str| Row { n, note: format!("entry {n}"), region: region.to_owned() };
        let told = |n: u64, region: &str| Acknowledged {
            n,
            note: format!("entry {n}"),
            region: region.to_owned(),
            at: Instant::now(),
        };
        let ledger = [row(1, "eu"), row(2, "eu"), row(3, "uk"), row(4, "eu")];
        assert!(check(&ledger, &[told(1, "eu"), told(3, "uk"), told(4, "eu")]).is_ok());
        assert!(check(&ledger, &[]).is_err(), "nothing acknowledged");
        assert!(check(&[row(1, "eu"), row(3, "eu")], &[told(1, "eu")]).is_err(), "a hole");
        assert!(check(&ledger, &[told(5, "eu")]).is_err(), "a lost row");
        assert!(check(&ledger, &[told(3, "eu")]).is_err(), "another region's");
        assert!(check(&ledger, &[told(2, "eu"), told(1, "eu")]).is_err(), "out of order");
        let both = [row(1, "eu"), row(2, "uk"), row(3, "eu"), row(4, "uk")];
        assert!(check(&both, &[told(1, "eu")]).is_err(), "two writers");
    }
}
