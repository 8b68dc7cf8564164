//! Whether what is served is replicated: when litestream says that everything that it knew of was last in S3, and whether it
//! knows of everything, by the files beside the database.
//!
//! # Consistency
//! Only what runs here is asked, through its control socket: no request reaches the store. What counts is that the answer
//! has changed or has not, and that the log of SQLite is newer than litestream's own newest file: times are compared only
//! with others of the same machine, and how long it lasts is measured.
//!
//! # Cancellation
//! Mending is a task of its own, one a host: no host waits for another's.
//!
//! # Deliberately absent
//! A retry where the store is away: litestream goes on trying by itself. What litestream logs: it may quote what a tenant's
//! credentials command printed, and stays on the box.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use domain::db;
use domain::ids::{Host, NodeId};
use domain::instances::moves::Obstacle;
use domain::instances::plan::{ReplicaKey, Txid};
use domain::instances::{self, NOT_REPLICATED};
use futures::StreamExt as _;
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Activator, Error};
use crate::chain::chain;

/// Questions at once.
const AT_ONCE: usize = 8;
/// Looks within the time after which a replica that stands still is told.
const LOOKS: u32 = 6;
/// The longest time between two looks.
const LONGEST: Duration = Duration::from_secs(10);

/// How often the pause between two mends of a host doubles: with a limit of a minute, to about an hour.
const MOST_DOUBLED: u32 = 7;

/// What is seen of one host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Seen {
    /// When litestream says that everything was uploaded last, in its own words.
    last: Option<String>,
    /// The newest transaction that litestream took in of SQLite's log, by its own files.
    taken: Option<Txid>,
    /// Whether that log was written since.
    behind: bool,
    /// Whether litestream complains of a file of its own.
    complains: bool,
}

/// What is known of one host, and since when nothing changed.
#[derive(Debug)]
struct Known {
    last: Option<String>,
    taken: Option<Txid>,
    since: Instant,
    /// Whether the route was last told that it is replicated; `None` where nothing was told.
    told: Option<bool>,
    /// The highest transaction that litestream ever took in.
    highest: Option<Txid>,
    /// When its files were mended last, and how often without much of a pause.
    mended: Option<(Instant, u32)>,
}

/// What is known of the replicas of a box's running instances. Pure.
#[derive(Debug, Default)]
struct Watch {
    hosts: HashMap<Host, Known>,
}

impl Watch {
    /// Takes what is seen of a host; says whether it is replicated, where that can be said.
    fn observe(&mut self, host: &Host, seen: &Seen, now: Instant, limit: Duration) -> Option<bool> {
        let begins = || Known {
            last: seen.last.clone(),
            taken: seen.taken,
            since: now,
            told: None,
            highest: None,
            mended: None,
        };
        let known = self.hosts.entry(host.clone()).or_insert_with(begins);
        // Whoever is written all the time is always a little behind: but it goes on.
        let takes_in = !seen.behind || seen.taken != known.taken;
        if takes_in && seen.last.is_some() && seen.last != known.last {
            (known.last, known.taken, known.since) = (seen.last.clone(), seen.taken, now);
            return Some(true);
        }
        (now.duration_since(known.since) >= limit).then_some(false)
    }

    /// Whether that is to be told: that it is not is told at every look, since others clear the route; that it is, once.
    fn is_news(&self, host: &Host, replicated: bool) -> bool {
        !replicated || self.hosts.get(host).is_some_and(|known| known.told != Some(true))
    }

    /// Whether the files of a host are to be mended now. They are where litestream complains of them, and where its count went
    /// back: then it began anew by itself, without asking the replica, and takes numbers for uploaded that this had before. Each
    /// mend uploads the whole database, so one that helps for no longer than its pause doubles the next.
    fn mends(&mut self, host: &Host, seen: &Seen, now: Instant, limit: Duration) -> bool {
        let Some(known) = self.hosts.get_mut(host) else { return false };
        let went_back = seen.taken < known.highest;
        known.highest = known.highest.max(seen.taken);
        if !(seen.complains || went_back) {
            return false;
        }
        let pause = |mends: u32| limit * 2_u32.pow(mends.min(MOST_DOUBLED).saturating_sub(1));
        let mends = match known.mended {
            None => 1,
            Some((at, mends)) if now.duration_since(at) < pause(mends) => return false,
            Some((at, mends)) if now.duration_since(at) < 2 * pause(mends) => mends + 1,
            Some(_) => 1,
        };
        (known.mended, known.highest) = (Some((now, mends)), None);
        true
    }

    /// Notes what the route was told; returns whether it was told the opposite, or nothing, before.
    fn told(&mut self, host: &Host, replicated: bool) -> bool {
        self.hosts.get_mut(host).is_some_and(|known| known.told.replace(replicated) != Some(replicated))
    }

    /// Forgets who does not run any more: the next start begins anew.
    fn retain(&mut self, running: &HashMap<Host, Seen>) {
        self.hosts.retain(|host, _| running.contains_key(host));
    }

    fn silent(&self, now: Instant, limit: Duration) -> usize {
        self.hosts.values().filter(|known| now.duration_since(known.since) >= limit).count()
    }
}

/// Tells on the routes of a box which of its running instances are not replicated, and mends litestream's own files, until
/// told to stop.
pub(super) async fn watch(pool: PgPool, node: NodeId, activator: Activator, stop: CancellationToken) {
    let limit = activator.inner.settings.unreplicated_after;
    let pause = (limit / LOOKS).min(LONGEST);
    let (mut watch, mut mending) = (Watch::default(), JoinSet::new());
    while stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
        while mending.try_join_next().is_some() {}
        let looked = stop.run_until_cancelled(look(&mut watch, &mut mending, &pool, node, &activator)).await;
        if let Some(Err(error)) = looked {
            tracing::warn!(node.id = %node, error = %chain(&*error), "what is replicated cannot be looked at");
        }
        #[expect(clippy::cast_precision_loss, reason = "a box has far fewer instances than 2^53")]
        metrics::gauge!("leasehold_instances_not_replicated").set(watch.silent(Instant::now(), limit) as f64);
    }
}

async fn look(
    watch: &mut Watch,
    mending: &mut JoinSet<()>,
    pool: &PgPool,
    node: NodeId,
    activator: &Activator,
) -> anyhow::Result<()> {
    let limit = activator.inner.settings.unreplicated_after;
    let looking = activator.clone();
    let found = tokio::task::spawn_blocking(move || looking.found()).await??;
    watch.retain(&found);
    let seen = found.into_iter().map(async |(host, seen)| {
        let last = activator.last_upload(&host).await;
        (host, Seen { last, ..seen })
    });
    let seen: Vec<_> = futures::stream::iter(seen).buffer_unordered(AT_ONCE).collect().await;
    let mut news = Vec::new();
    for (host, seen) in seen {
        let now = Instant::now();
        let replicated = watch.observe(&host, &seen, now, limit);
        if watch.mends(&host, &seen, now, limit) {
            let (activator, host) = (activator.clone(), host.clone());
            mending.spawn(async move {
                if let Err(error) = activator.mend(&host).await {
                    tracing::warn!(host = %host, error = %chain(&error), "litestream's own files are not mended");
                }
            });
        }
        news.extend(replicated.filter(|replicated| watch.is_news(&host, *replicated)).map(|told| (host, told)));
    }
    for (host, replicated) in news {
        match tell(pool, node, &host, replicated, limit).await {
            Ok(()) if watch.told(&host, replicated) && !replicated => {
                tracing::warn!(host = %host, code = NOT_REPLICATED, "nothing of it is uploaded: see litestream's log");
            }
            Ok(()) => {}
            // The next look tells it.
            Err(error) => tracing::debug!(host = %host, error = %chain(&*error), "what is replicated is not told yet"),
        }
    }
    Ok(())
}

async fn tell(pool: &PgPool, node: NodeId, host: &Host, replicated: bool, limit: Duration) -> anyhow::Result<()> {
    let obstacle = (!replicated).then(|| {
        let message = format!("nothing of what it writes was uploaded for {} s", limit.as_secs());
        Obstacle::passing(NOT_REPLICATED, message)
    });
    let mut conn = db::session(pool).await?;
    let new = instances::note_replication(&mut conn, node, host, obstacle.as_ref()).await?;
    conn.done(()).await?;
    if new && replicated {
        tracing::info!(host = %host, "it is replicated again");
    }
    Ok(())
}

impl Activator {
    /// The hosts whose children run and have a database, and what their files tell. Blocks.
    fn found(&self) -> Result<HashMap<Host, Seen>, Error> {
        let running = self.hosts()?.into_iter().filter(|host| self.running(host).is_some());
        let kept = running.filter(|host| self.has_database(host).unwrap_or_default());
        Ok(kept
            .map(|host| {
                let (taken, behind) = self.taken_in(&host);
                let seen = Seen { last: None, taken, behind, complains: self.complains(&host) };
                (host, seen)
            })
            .collect())
    }

    async fn last_upload(&self, host: &Host) -> Option<String> {
        let files = self.files(host);
        let last = self.litestream(host, &files).last_upload().await;
        last.unwrap_or_else(|error| {
            tracing::debug!(host = %host, error = %chain(&error), "litestream does not say what is replicated");
            None
        })
    }

    /// What litestream took in, by its own newest file, and whether SQLite's log was written since: what it says of uploads is
    /// of what it took in.
    fn taken_in(&self, host: &Host) -> (Option<Txid>, bool) {
        let files = self.files(host);
        let written = |path: &Path| std::fs::metadata(path).and_then(|about| about.modified()).ok();
        let own = std::fs::read_dir(files.raw("")).into_iter().flatten().flatten();
        let own = own.filter_map(|entry| Some((ReplicaKey::of_raw(entry.file_name().to_str()?)?.max, entry.path())));
        match own.max() {
            Some((taken, path)) => (Some(taken), written(&files.log_of_sqlite()) > written(&path)),
            None => (None, files.log_of_sqlite().exists()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn host() -> Host {
        Host::new("a.example").unwrap()
    }

    fn seen(second: u64) -> Seen {
        Seen { last: Some(format!("2026-03-14T03:00:{second:02}Z")), ..Seen::default() }
    }

    #[test]
    fn an_answer_that_stands_still_is_no_upload_and_neither_is_one_about_older_writes() {
        let (mut watch, host, start) = (Watch::default(), host(), Instant::now());
        let mut look = |seen: Seen, after: u64| watch.observe(&host, &seen, start + Duration::from_secs(after), LIMIT);
        assert_eq!(look(seen(0), 0), None, "one answer alone says nothing");
        assert_eq!(look(seen(5), 10), Some(true));
        assert_eq!(look(seen(9), 20), Some(true));
        assert_eq!(look(seen(9), 79), None);
        assert_eq!(look(seen(9), 80), Some(false));
        assert_eq!(look(Seen::default(), 90), Some(false));
        assert_eq!(look(seen(9), 100), Some(false), "the same answer after none is no upload");
        assert_eq!(look(seen(0), 110), Some(true), "another answer is one, also of a clock that was set back");
        let behind = |second, taken| Seen { taken: Some(Txid(taken)), behind: true, ..seen(second) };
        assert_eq!(look(behind(5, 1), 120), Some(true), "it takes in what is written all the time");
        for (second, after) in [(10, 130), (20, 140), (30, 179)] {
            assert_eq!(look(behind(second, 1), after), None, "its answers go on, without what was written since");
        }
        assert_eq!(look(behind(40, 1), 180), Some(false));
        assert_eq!(look(behind(50, 2), 190), Some(true));
    }

    #[test]
    fn that_nothing_is_uploaded_is_told_at_every_look_and_that_it_is_once() {
        let (mut watch, host, start) = (Watch::default(), host(), Instant::now());
        assert_eq!(watch.observe(&host, &seen(0), start, LIMIT), None);
        assert!(watch.is_news(&host, true), "what an earlier worker told is taken back");
        assert!(watch.told(&host, true) && !watch.is_news(&host, true));
        for first in [true, false] {
            assert_eq!(watch.observe(&host, &seen(0), start + LIMIT, LIMIT), Some(false));
            assert!(watch.is_news(&host, false));
            assert_eq!(watch.told(&host, false), first);
        }
        assert!(watch.is_news(&host, true));
        assert_eq!((watch.silent(start, LIMIT), watch.silent(start + LIMIT, LIMIT)), (0, 1));
    }

    #[test]
    fn a_host_is_mended_less_and_less_often_and_one_that_ran_before_has_its_whole_time_again() {
        let (mut watch, host, start) = (Watch::default(), host(), Instant::now());
        watch.observe(&host, &seen(0), start, LIMIT);
        let mut mends = |seen: Seen, after| watch.mends(&host, &seen, start + Duration::from_secs(after), LIMIT);
        let complains = || Seen { complains: true, ..seen(0) };
        let tries =
            [(0, true), (59, false), (60, true), (179, false), (180, true), (419, false), (420, true), (2000, true)];
        for (after, wanted) in tries {
            assert_eq!(mends(complains(), after), wanted, "{after}");
        }
        assert!(mends(complains(), 2060), "after a long pause the next is short again");
        let at = |txid| Seen { taken: Some(Txid(txid)), ..seen(0) };
        for txid in [7, 8, 8] {
            assert!(!mends(at(txid), 3000));
        }
        assert!(mends(at(7), 3001), "its count went back");
        assert!(!mends(at(1), 3100), "it begins anew");
        assert!(mends(seen(0), 3101), "its files are gone");
        watch.retain(&HashMap::new());
        assert_eq!(watch.observe(&host, &seen(0), start + LIMIT, LIMIT), None);
    }
}
