//! Hints that something changed, for pages that stay fresh by themselves.
//!
//! # Consistency
//! A hint carries no meaning: whoever gets one asks again. There is no event table. Two short queries a second for each
//! process compare marks of what can change, only while somebody listens; all listeners share them. An id names the
//! process's start and a count, so an id of another process, or of an earlier start, is answered with `reset`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use domain::ids::KeyId;
use domain::instances::moves;
use domain::queue::{self, ChangeMarks};

/// How often the marks are compared while somebody listens.
const INTERVAL: Duration = Duration::from_secs(1);

/// What a hint is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// Jobs, queues, throughput or refused writes.
    Jobs,
    /// Workers.
    Workers,
    /// Instances and their moves.
    Moves,
}

impl Topic {
    /// Every topic.
    pub const ALL: [Self; 3] = [Self::Jobs, Self::Workers, Self::Moves];

    /// The event's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Jobs => "jobs",
            Self::Workers => "workers",
            Self::Moves => "moves",
        }
    }
}

/// How far the hints are: a count of changes, and for each topic the count at its last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    count: u64,
    last: [u64; 3],
}

impl Position {
    /// The topics that changed after `count`.
    pub fn changed_since(self, count: u64) -> impl Iterator<Item = Topic> {
        Topic::ALL.into_iter().zip(self.last).filter(move |(_, last)| *last > count).map(|(topic, _)| topic)
    }

    /// The count of changes.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.count
    }

    fn after(mut self, old: &Marks, new: &Marks) -> Self {
        let changed =
            [old.queue.jobs != new.queue.jobs, old.queue.workers != new.queue.workers, old.moves != new.moves];
        if changed.contains(&true) {
            self.count += 1;
            for (last, changed) in self.last.iter_mut().zip(changed) {
                if changed {
                    *last = self.count;
                }
            }
        }
        self
    }
}

/// What the database looked like at the last comparison.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Marks {
    queue: ChangeMarks,
    moves: String,
}

/// Where listeners stand.
#[derive(Debug)]
pub struct Hub {
    start: Uuid,
    position: watch::Sender<Position>,
    places: Arc<Semaphore>,
    shares: Shares,
}

/// How many places each key holds; a key that holds none does not stand here.
#[derive(Debug, Clone)]
struct Shares {
    most: usize,
    held: Arc<Mutex<HashMap<KeyId, usize>>>,
}

/// One place of a key's share, given back when it is dropped.
#[derive(Debug)]
struct Share {
    key: KeyId,
    shares: Shares,
}

impl Shares {
    fn take(&self, key: KeyId) -> Option<Share> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let places = held.entry(key).or_default();
        // The most is at least one, so no entry stays at none.
        (*places < self.most).then(|| {
            *places += 1;
            Share { key, shares: self.clone() }
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.shares.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(places) = held.get_mut(&self.key) {
            *places -= 1;
            if *places == 0 {
                held.remove(&self.key);
            }
        }
    }
}

/// Why there is no place for a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// The process has none left.
    Process,
    /// The key holds its whole share.
    Key,
}

/// One listener.
#[derive(Debug)]
pub struct Listener {
    /// Ends with [`watch::error::RecvError`] when the process does.
    pub position: watch::Receiver<Position>,
    _share: Share,
    _place: OwnedSemaphorePermit,
}

impl Hub {
    pub(crate) fn new(max_listeners: usize, max_of_key: usize) -> Self {
        Self {
            start: domain::entropy::uuid_v7(),
            position: watch::Sender::new(Position::default()),
            places: Arc::new(Semaphore::new(max_listeners)),
            shares: Shares { most: max_of_key.max(1), held: Arc::default() },
        }
    }

    /// A listener with this key.
    ///
    /// # Errors
    /// [`Full`] where every place is taken.
    pub fn listen(&self, key: KeyId) -> Result<Listener, Full> {
        let share = self.shares.take(key).ok_or(Full::Key)?;
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| Full::Process)?;
        Ok(Listener { position: self.position.subscribe(), _share: share, _place: place })
    }

    /// The id of the event after which `position` holds.
    #[must_use]
    pub fn id(&self, position: Position) -> String {
        format!("{}-{}", self.start.simple(), position.count)
    }

    /// The count that an id names; `None` for an id that this process did not give.
    #[must_use]
    pub fn count_of(&self, id: &str) -> Option<u64> {
        let (start, count) = id.split_once('-')?;
        let count: u64 = count.parse().ok()?;
        (start == self.start.simple().to_string() && count <= self.position.borrow().count).then_some(count)
    }
}

/// Compares the marks while somebody listens.
pub(crate) async fn run(app: crate::App, shutdown: CancellationToken) {
    let mut known: Option<Marks> = None;
    while shutdown.run_until_cancelled(tokio::time::sleep(INTERVAL)).await.is_some() {
        if app.hub().position.receiver_count() == 0 {
            known = None;
            continue;
        }
        match marks(app.pool()).await {
            Ok(new) => {
                // What changed between a first listener's page and these first marks is not known: everything did.
                let old = known.take().unwrap_or_default();
                app.hub().position.send_if_modified(|position| {
                    let after = position.after(&old, &new);
                    std::mem::replace(position, after) != after
                });
                known = Some(new);
            }
            // The pages say themselves that their figures are old.
            Err(error) => tracing::debug!(%error, "no hints while the database does not answer"),
        }
    }
}

async fn marks(pool: &sqlx::PgPool) -> Result<Marks, sqlx::Error> {
    let mut conn = domain::db::session(pool).await?;
    Ok(Marks { queue: queue::change_marks(&mut conn).await?, moves: moves::change_mark(&mut conn).await? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_that_comes_back_hears_only_what_it_missed() {
        let marks = |jobs: &str, workers: &str| Marks {
            queue: ChangeMarks { jobs: jobs.to_owned(), workers: workers.to_owned() },
            moves: String::new(),
        };
        let first = Position::default().after(&marks("a", "a"), &marks("b", "a"));
        let second = first.after(&marks("b", "a"), &marks("b", "b"));
        assert_eq!(second.changed_since(0).collect::<Vec<_>>(), [Topic::Jobs, Topic::Workers]);
        assert_eq!(second.changed_since(first.count()).collect::<Vec<_>>(), [Topic::Workers]);
        assert_eq!(second.after(&marks("b", "b"), &marks("b", "b")), second);
    }

    #[test]
    fn an_id_of_another_start_or_of_the_future_is_unknown() {
        let (hub, other) = (Hub::new(1, 1), Hub::new(1, 1));
        assert_eq!(hub.count_of(&hub.id(Position::default())), Some(0));
        assert_eq!(hub.count_of(&other.id(Position::default())), None);
        assert_eq!(hub.count_of(&hub.id(Position { count: 1, last: [1, 0, 0] })), None);
        assert_eq!(hub.count_of("x"), None);
    }
}
