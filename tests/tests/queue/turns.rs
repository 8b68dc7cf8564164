//! Turns: jobs that carry a concurrency key are leased key by key, whatever the backlog of any of them.

use domain::queue::{self, Limits, NewJob};

use crate::poller::Poller;
use crate::support::{Queue, job, queue_name};

async fn enqueue(q: &Queue, key: &str, n: usize, priority: i16) {
    let jobs: Vec<NewJob> = (0..n)
        .map(|_| {
            let mut job = if key.is_empty() { job() } else { job().keyed(key) };
            job.priority = priority;
            job
        })
        .collect();
    for part in jobs.chunks(1000) {
        queue::enqueue_many(&mut *q.conn().await, part).await.expect("valid jobs");
    }
}

/// One tenant's backlog of thousands does not stand before another's one job.
#[tokio::test]
async fn the_one_job_of_a_key_does_not_wait_for_the_thousands_of_another() {
    let q = Queue::start().await;
    enqueue(&q, "big", 3000, 0).await;
    enqueue(&q, "small", 1, 0).await;
    assert_eq!(Poller::new().keys(&q, 1, 3).await, ["big", "small", "big"]);
    enqueue(&q, "late", 1, 0).await;
    let keys = Poller::new().keys(&q, 20, 1).await;
    assert!(keys.len() == 20 && keys.contains(&"late".to_owned()), "{keys:?}");
}

/// Key after key, around and around, one job or many at a time.
#[tokio::test]
async fn keys_are_served_in_turn() {
    let q = Queue::start().await;
    for key in ["c", "a", "b"] {
        enqueue(&q, key, 6, 0).await;
    }
    let mut one = Poller::new();
    assert_eq!(one.keys(&q, 1, 7).await, ["a", "b", "c", "a", "b", "c", "a"]);
    assert_eq!(one.keys(&q, 2, 2).await, ["b", "c", "a", "b"], "from where it stood");
    assert_eq!(one.keys(&q, 5, 1).await, ["c", "a", "b", "c", "a"]);
    assert_eq!(one.keys(&q, 5, 2).await, ["b", "c"], "what is left");
}

/// Turns are taken within one priority; within a key the oldest comes first.
#[tokio::test]
async fn priority_comes_before_turns_and_age_within_a_key() {
    let q = Queue::start().await;
    enqueue(&q, "a", 3, 5).await;
    enqueue(&q, "b", 1, 5).await;
    enqueue(&q, "b", 2, -5).await;
    let mut poller = Poller::new();
    assert_eq!(poller.keys(&q, 1, 4).await, ["b", "b", "a", "b"]);
    let rest = poller.lease(&q, 10).await;
    let ids: Vec<_> = rest.iter().map(|leased| leased.lease.job).collect();
    let mut by_age = ids.clone();
    by_age.sort();
    assert_eq!((ids.len(), &ids), (2, &by_age));
}

/// Jobs with and without a key take turns with each other, so neither backlog hides the other.
#[tokio::test]
async fn jobs_with_and_without_a_key_take_turns() {
    let q = Queue::start().await;
    enqueue(&q, "", 50, 0).await;
    enqueue(&q, "a", 50, 0).await;
    let mut poller = Poller::new();
    // The first poll learns that there are keys.
    assert_eq!(poller.keys(&q, 1, 1).await, [""]);
    poller.look(&q).await;
    let keys = poller.keys(&q, 1, 8).await;
    let keyed = keys.iter().filter(|key| *key == "a").count();
    assert_eq!(keyed, 4, "{keys:?}");
    let keys = poller.keys(&q, 10, 1).await;
    assert_eq!(keys.iter().filter(|key| *key == "a").count(), 5, "{keys:?}");
    let mut alone = Poller::new();
    let rest = alone.keys(&q, 100, 2).await;
    assert_eq!(rest.len(), 100 - 19, "neither waits where the other is done: {rest:?}");
}

/// Queues that one worker serves take turns too, also where their keys have the same names.
#[tokio::test]
async fn queues_with_the_same_keys_take_turns() {
    let q = Queue::start().await;
    let names = ["one", "two", "three"];
    for name in names {
        let jobs: Vec<NewJob> = (0..6).map(|i| job().on(queue_name(name)).keyed(["x", "y"][i % 2])).collect();
        queue::enqueue_many(&mut *q.conn().await, &jobs).await.expect("valid jobs");
    }
    let mut poller = Poller::new();
    poller.worker.queues = names.map(queue_name).to_vec();
    let mut served = Vec::new();
    for _ in 0..6 {
        let job = poller.lease(&q, 1).await.remove(0);
        served.push(format!("{} {}", job.queue.as_str(), job.concurrency_key.unwrap_or_default()));
    }
    served.sort();
    assert_eq!(served, ["one x", "one y", "three x", "three y", "two x", "two y"], "each key of each queue once");
}

/// A key with room is found behind any number of keys that are at their limits, part by part.
#[tokio::test]
async fn a_key_with_room_is_found_behind_many_that_are_at_their_limits() {
    const BLOCKED: usize = 300;
    let q = Queue::start().await;
    let limits = Limits { running_per_key: Some(1), ..Limits::default() };
    queue::set_limits(&mut *q.conn().await, &queue_name("default"), &limits, None, "", None).await.expect("limits");
    for key in 0..BLOCKED {
        enqueue(&q, &format!("k{key:04}"), 2, 0).await;
    }
    assert_eq!(Poller::new().keys(&q, 500, 3).await.len(), BLOCKED);
    enqueue(&q, "z", 2, 0).await;
    let mut poller = Poller::new();
    let mut polls = 0;
    let found = loop {
        polls += 1;
        let polled = poller.poll(&q, 1).await;
        match polled.leased.first() {
            Some(job) => break job.concurrency_key.clone(),
            None => assert!(polled.more && polls < 20, "it looked at a part, says so, and goes on behind it"),
        }
    };
    assert_eq!(found.as_deref(), Some("z"));
    assert!(polls <= 5, "{polls} polls");
}
