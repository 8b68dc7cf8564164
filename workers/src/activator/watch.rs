//! Whether what is served is replicated, as litestream itself says: when everything that it knew of was last in S3.
//!
//! # Consistency
//! Only what runs here is asked, through its control socket: no request reaches the store. What is told is that the answer
//! has changed or has not, so no clock is compared with another.
//!
//! # Deliberately absent
//! A retry where the store is away: litestream goes on trying by itself.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use domain::db;
use domain::ids::{Host, NodeId};
use domain::instances::moves::Obstacle;
use domain::instances::{self, NOT_REPLICATED};
use futures::StreamExt as _;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use super::{Activator, Error, process};
use crate::chain::chain;

/// Questions at once.
const AT_ONCE: usize = 8;
/// Looks within the time after which a replica that stands still is told.
const LOOKS: u32 = 6;
/// How much of a line of the log a message carries, characters.
const LOGGED: usize = 400;
/// The longest time between two looks.
const LONGEST: Duration = Duration::from_secs(10);

/// What litestream said of one host, and since when.
#[derive(Debug)]
struct Said {
    last: Option<String>,
    since: Instant,
    told: Option<Told>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Replicated,
    Silent,
}

/// What is known of the replicas of a box's running instances. Pure.
#[derive(Debug, Default)]
struct Watch {
    hosts: HashMap<Host, Said>,
}

impl Watch {
    /// Takes one answer; says what is to be told, until [`Watch::told`] notes that it was.
    fn observe(&mut self, host: &Host, last: Option<String>, now: Instant, limit: Duration) -> Option<Told> {
        let said =
            self.hosts.entry(host.clone()).or_insert_with(|| Said { last: last.clone(), since: now, told: None });
        let news = if last.is_some() && last != said.last {
            (said.last, said.since) = (last, now);
            Told::Replicated
        } else if now.duration_since(said.since) >= limit {
            Told::Silent
        } else {
            return None;
        };
        (said.told != Some(news)).then_some(news)
    }

    fn told(&mut self, host: &Host, told: Told) {
        if let Some(said) = self.hosts.get_mut(host) {
            said.told = Some(told);
        }
    }

    /// Forgets who does not run any more: the next start begins anew.
    fn retain(&mut self, running: &[Host]) {
        self.hosts.retain(|host, _| running.contains(host));
    }

    fn is_silent(&self, host: &Host) -> bool {
        self.hosts.get(host).is_some_and(|said| said.told == Some(Told::Silent))
    }

    fn silent(&self) -> usize {
        self.hosts.keys().filter(|host| self.is_silent(host)).count()
    }
}

/// Tells on the routes of a box which of its running instances are not replicated, until told to stop.
pub(super) async fn watch(pool: PgPool, node: NodeId, activator: Activator, stop: CancellationToken) {
    let limit = activator.inner.settings.unreplicated_after;
    let pause = (limit / LOOKS).min(LONGEST);
    let mut watch = Watch::default();
    while stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
        let looked = stop.run_until_cancelled(look(&mut watch, &pool, node, &activator)).await;
        if let Some(Err(error)) = looked {
            tracing::debug!(node.id = %node, error = %chain(&*error), "what is replicated is not told yet");
        }
        #[expect(clippy::cast_precision_loss, reason = "a box has far fewer instances than 2^53")]
        metrics::gauge!("leasehold_instances_not_replicated").set(watch.silent() as f64);
    }
}

async fn look(watch: &mut Watch, pool: &PgPool, node: NodeId, activator: &Activator) -> anyhow::Result<()> {
    let limit = activator.inner.settings.unreplicated_after;
    let looking = activator.clone();
    let running = tokio::task::spawn_blocking(move || looking.with_database()).await??;
    watch.retain(&running);
    let answers = running.into_iter().map(async |host| {
        let last = activator.last_upload(&host).await;
        (host, last)
    });
    let answers: Vec<_> = futures::stream::iter(answers).buffer_unordered(AT_ONCE).collect().await;
    for (host, last) in answers {
        let last = last.unwrap_or_else(|error| {
            tracing::debug!(host = %host, error = %chain(&error), "litestream does not say what is replicated");
            None
        });
        let news = watch.observe(&host, last, Instant::now(), limit);
        if (news == Some(Told::Silent) || news.is_none() && watch.is_silent(&host))
            && let Err(error) = activator.mend(&host).await
        {
            tracing::warn!(host = %host, error = %chain(&error), "litestream's own files are not mended");
        }
        let Some(told) = news else { continue };
        let obstacle = (told == Told::Silent).then(|| {
            let message = format!(
                "nothing of what it writes was uploaded for {} s; litestream's log ends: {}",
                limit.as_secs(),
                activator.end_of_log(&host)
            );
            Obstacle::passing(NOT_REPLICATED, message)
        });
        let mut conn = db::session(pool).await?;
        let new = instances::note_replication(&mut conn, node, &host, obstacle.as_ref()).await?;
        conn.done(()).await?;
        watch.told(&host, told);
        match obstacle {
            Some(obstacle) => tracing::warn!(host = %host, code = NOT_REPLICATED, "{}", obstacle.message),
            None if new => tracing::info!(host = %host, "it is replicated again"),
            None => {}
        }
    }
    Ok(())
}

impl Activator {
    /// The hosts whose children run and have a database.
    fn with_database(&self) -> Result<Vec<Host>, Error> {
        let running = self.hosts()?.into_iter().filter(|host| self.running(host).is_some());
        Ok(running.filter(|host| self.has_database(host).unwrap_or_default()).collect())
    }

    /// When litestream says that everything of a host was uploaded last, in its own words.
    async fn last_upload(&self, host: &Host) -> Result<Option<String>, Error> {
        let files = self.files(host);
        self.litestream(host, &files).last_upload().await
    }

    /// What litestream logged last of a host.
    fn end_of_log(&self, host: &Host) -> String {
        let tail = process::tail(&self.files(host).litestream_log());
        let line = tail.lines().last().unwrap_or("nothing is logged");
        line.chars().take(LOGGED).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn host() -> Host {
        Host::new("a.example").unwrap()
    }

    fn at(second: u64) -> Option<String> {
        Some(format!("2026-03-14T03:00:{second:02}Z"))
    }

    #[test]
    fn an_answer_that_stands_still_is_told_once_and_so_is_its_end() {
        let (mut watch, host, start) = (Watch::default(), host(), Instant::now());
        let mut look = |last: Option<String>, after: u64| {
            let now = start + Duration::from_secs(after);
            let told = watch.observe(&host, last, now, LIMIT);
            told.inspect(|told| watch.told(&host, *told))
        };
        assert_eq!(look(at(0), 0), None, "one answer alone says nothing");
        assert_eq!(look(at(5), 10), Some(Told::Replicated), "what an earlier worker told is taken back");
        assert_eq!(look(at(9), 20), None);
        assert_eq!(look(at(9), 79), None);
        assert_eq!(look(at(9), 80), Some(Told::Silent));
        assert_eq!(look(None, 90), None, "told already");
        assert_eq!(look(at(9), 100), None, "the same answer after none is no upload");
        assert_eq!(
            look(at(0), 110),
            Some(Told::Replicated),
            "another answer is one, also of a clock that was set back"
        );
    }

    #[test]
    fn what_could_not_be_told_is_told_at_the_next_look() {
        let (mut watch, host, start) = (Watch::default(), host(), Instant::now());
        assert_eq!(watch.observe(&host, None, start, LIMIT), None);
        for _ in 0..2 {
            assert_eq!(watch.observe(&host, None, start + LIMIT, LIMIT), Some(Told::Silent));
        }
        watch.told(&host, Told::Silent);
        assert_eq!((watch.observe(&host, None, start + LIMIT, LIMIT), watch.silent()), (None, 1));
    }

    #[test]
    fn a_host_that_ran_before_has_its_whole_time_again() {
        let (mut watch, host, start) = (Watch::default(), host(), Instant::now());
        watch.observe(&host, at(0), start, LIMIT);
        watch.retain(&[]);
        assert_eq!(watch.observe(&host, at(0), start + LIMIT, LIMIT), None);
    }
}
