//! Pruning: what is past goes, in small steps, and nothing else does.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::audit::{self, Actor, Event};
use domain::ids::{JobId, Kind};
use domain::lease::Lease;
use domain::queue::{self, Fate, JobState, Leased, NewJob, Operation, Outcome, Prunable, Pruned, Retention};
use serde_json::json;
use sqlx::Executor as _;

use crate::support::{LEASE, Queue, cancelled, completed, discarded, job, kind, worker};

mod held;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Lets days pass, each of which has its partition, as where a worker keeps the queue up.
async fn pass(queue: &Queue, days: u16) {
    assert!(queue::ensure_partitions(&mut *queue.conn().await, days + 2).await.expect("answers"));
    queue.db.clock().advance(DAY * u32::from(days)).await;
}

/// A job that ended so, with an attempt, a step, a log line and a refused write.
async fn ended(queue: &Queue, outcome: Outcome) -> JobId {
    ended_as(queue, job(), outcome).await
}

async fn ended_as(queue: &Queue, job: NewJob, outcome: Outcome) -> JobId {
    let id = queue.enqueue_as(job).await;
    let first = lease(queue).await;
    queue.settle(first, Outcome::Snoozed { after: Duration::ZERO }).await;
    let second = lease(queue).await;
    let mut conn = queue.conn().await;
    queue::append_step(&mut conn, second, "copied", &json!(1), &json!({})).await.expect("a step");
    queue::append_log(&mut conn, second, "info", "copied").await.expect("a line");
    queue::note_refused(&mut conn, first, None, Operation::Step).await.expect("evidence");
    queue.settle(second, outcome).await;
    id
}

async fn lease(queue: &Queue) -> Lease {
    let mut spec = worker();
    spec.kinds.push((Kind::new("test.other").expect("a name"), LEASE));
    let leased: Vec<Leased> = queue::lease_next(&mut *queue.conn().await, &spec, 1, &[]).await.expect("answers");
    leased.first().expect("a job is due").lease
}

/// Takes steps of `batch` rows until nothing is left to do.
async fn prune(queue: &Queue, kept: &Retention, batch: u16) -> Pruned {
    let mut pruned = Pruned::default();
    for _ in 0..500 {
        let step = queue::prune_step(&mut *queue.conn().await, kept, batch).await.expect("answers");
        pruned.add(step.pruned);
        // A statement whose asker is gone may be at its place for a moment longer.
        if !step.more && !step.held {
            return pruned;
        }
    }
    panic!("pruning does not end: {pruned:?}");
}

async fn prunable(queue: &Queue, kept: &Retention) -> Prunable {
    queue::prunable(&mut *queue.conn().await, kept).await.expect("answers")
}

/// Rows of the tables that belong to jobs, by job.
async fn parts(queue: &Queue, id: JobId) -> Vec<i64> {
    let mut parts = Vec::new();
    for table in ["job_attempts", "job_steps", "job_logs", "fenced_writes", "fenced_write_totals"] {
        let sql = format!("select count(*) from {table} where job_id = $1");
        let rows = sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).bind(id.0).fetch_one(queue.db.pool()).await;
        parts.push(rows.expect("a count"));
    }
    parts
}

async fn exists(queue: &Queue, id: JobId) -> bool {
    queue::get(&mut *queue.conn().await, id).await.expect("answers").is_some()
}

/// The days that still have a partition.
async fn partitions(queue: &Queue) -> Vec<String> {
    sqlx::query_scalar(
        "select inhrelid::regclass::text from pg_inherits where inhparent = 'jobs_finished'::regclass order by 1",
    )
    .fetch_all(queue.db.pool())
    .await
    .expect("the catalogue")
}

async fn sql(queue: &Queue, statement: &'static str) {
    (&mut *queue.conn().await).execute(statement).await.expect("a valid statement");
}

/// One job of each end. They leave on the 8th, the 15th and the 31st day behind their own, with everything that is theirs
/// and nothing that is another's.
#[tokio::test]
async fn jobs_leave_by_their_end_and_take_their_parts_along_and_those_within_their_time_stay_whole() {
    let queue = Queue::start().await;
    // Evidence goes with its job here, and not before it.
    let kept = Retention { refused_writes: 60 * DAY, ..Retention::default() };
    let ids = [ended(&queue, completed()).await, ended(&queue, cancelled()).await, ended(&queue, discarded()).await];
    let present = async || {
        let mut present = Vec::new();
        for id in ids {
            let (exists, parts) = (exists(&queue, id).await, parts(&queue, id).await);
            assert!(parts.iter().all(|rows| (*rows > 0) == exists), "{parts:?}");
            present.push(exists);
        }
        present
    };
    // The last day on which each is still there, and what is left on the next.
    for (days, left) in [(7, [true; 3]), (1, [false, true, true]), (7, [false, false, true]), (16, [false; 3])] {
        pass(&queue, days - 1).await;
        let before = present().await;
        prune(&queue, &kept, 2).await;
        assert_eq!(present().await, before, "a day early");
        pass(&queue, 1).await;
        prune(&queue, &kept, 2).await;
        assert_eq!(present().await, left, "after {days} more days");
    }
}

#[tokio::test]
async fn a_dry_run_tells_by_day_end_and_kind_what_is_then_pruned_and_changes_nothing() {
    let queue = Queue::start().await;
    let other = Kind::new("test.other").expect("a name");
    for _ in 0..3 {
        for outcome in [completed(), completed(), cancelled(), discarded()] {
            ended(&queue, outcome.clone()).await;
            ended_as(&queue, NewJob { kind: other.clone(), ..job() }, outcome).await;
        }
        pass(&queue, 1).await;
    }
    queue::add_throughput(&mut *queue.conn().await, &[("q".into(), "k".into(), "completed".into(), 1)])
        .await
        .expect("counted");
    queue::register_worker(&mut *queue.conn().await, &worker(), "box", 7, "1", None, 8).await.expect("registered");
    // A kind that is kept for a shorter time, and one day that is still within the others'.
    let kept = Retention { kinds: vec![(other, 2 * HOUR)], throughput: HOUR, ..Retention::default() };
    pass(&queue, 7).await;

    let before = queue.dump().await;
    let told = prunable(&queue, &kept).await;
    assert_eq!(queue.dump().await, before);
    let rows: i64 = told.jobs.iter().map(|it| it.rows).sum();
    assert_eq!((rows, told.beyond.len()), (3 * 4 + 2 * 3, 0), "all of one kind, of the other what completed: {told:?}");
    let act = Event {
        actor: Actor::System,
        action: "queue.prune",
        subject_kind: "queue",
        subject: "*".to_owned(),
        reason: Some("the disk"),
        detail: json!({}),
    };
    queue::begin_pruning(&mut *queue.conn().await, &kept, &act).await.expect("begun");
    let pruned = prune(&queue, &kept, 3).await;
    assert_eq!(pruned.jobs, told.jobs);
    assert_eq!((pruned.workers, pruned.throughput), (told.workers, told.throughput));
    assert_eq!((told.workers, told.throughput), (1, 1));
    assert_eq!(prunable(&queue, &kept).await, Prunable::default());
    let acts = audit::list(&mut *queue.conn().await, &audit::Filter::default(), 10).await.expect("answers");
    assert_eq!((acts[0].action.as_str(), acts[0].reason.as_deref(), acts.len()), ("queue.prune", Some("the disk"), 1));
}

/// Two days: of one nothing is kept, of the other a discarded job is.
#[tokio::test]
async fn a_day_leaves_as_a_whole_only_when_nothing_of_it_is_kept() {
    let queue = Queue::start().await;
    let whole = [ended(&queue, completed()).await, ended(&queue, completed()).await];
    pass(&queue, 1).await;
    let gone = ended(&queue, completed()).await;
    let stays = ended(&queue, discarded()).await;
    pass(&queue, 8).await;
    let all = partitions(&queue).await;

    let pruned = prune(&queue, &Retention::default(), 1).await;
    assert_eq!((pruned.days, pruned.jobs.len()), (1, 2), "{pruned:?}");
    let mut left = partitions(&queue).await;
    assert_eq!(left.len(), all.len() - 1, "one day left");
    assert!(!left.contains(&all[0]) && left.contains(&all[1]), "the first: {left:?} of {all:?}");
    for id in [whole[0], whole[1], gone] {
        assert!(!exists(&queue, id).await && parts(&queue, id).await == [0; 5]);
    }
    assert!(exists(&queue, stays).await && parts(&queue, stays).await == [1; 5]);

    // Its day leaves when its own time is over.
    pass(&queue, 31).await;
    prune(&queue, &Retention::default(), 1).await;
    left = partitions(&queue).await;
    assert!(!left.contains(&all[1]) && !exists(&queue, stays).await, "{left:?}");
    let waiting: i64 =
        sqlx::query_scalar("select count(*) from jobs_leaving").fetch_one(queue.db.pool()).await.expect("a count");
    assert_eq!(waiting, 0);
}

/// Between two ends of retentions a day is not read: its mark says as of when it was walked.
#[tokio::test]
async fn a_day_is_walked_again_only_when_another_time_ends_or_an_operator_asks() {
    let queue = Queue::start().await;
    let stays = ended(&queue, discarded()).await;
    ended(&queue, completed()).await;
    pass(&queue, 9).await;
    let kept = Retention::default();
    assert_eq!(prune(&queue, &kept, 10).await.jobs.len(), 1);
    // Under shorter times than its walk knew, which only a walk that begins anew looks for.
    let shorter = Retention { discarded: 2 * HOUR, ..kept };
    assert_eq!(prune(&queue, &shorter, 10).await, Pruned::default());
    assert_eq!(prunable(&queue, &shorter).await.jobs.len(), 1);
    let act = Event {
        actor: Actor::System,
        action: "queue.prune",
        subject_kind: "queue",
        subject: "*".to_owned(),
        reason: None,
        detail: json!({}),
    };
    queue::begin_pruning(&mut *queue.conn().await, &shorter, &act).await.expect("begun");
    assert_eq!(prune(&queue, &shorter, 10).await.jobs[0].state, JobState::Discarded);
    assert!(!exists(&queue, stays).await);
}

/// Nobody made partitions for a while: the rows of those days lie in the default partition.
#[tokio::test]
async fn rows_without_a_day_of_their_own_leave_one_by_one() {
    let queue = Queue::start().await;
    queue.db.clock().advance(20 * DAY).await;
    let mut ids = Vec::new();
    for outcome in [completed(), discarded(), completed()] {
        ids.push(ended(&queue, outcome).await);
    }
    queue.db.clock().advance(8 * DAY).await;
    let pruned = prune(&queue, &Retention::default(), 2).await;
    let undated: BTreeMap<JobState, i64> =
        pruned.jobs.iter().filter(|it| it.day.is_none()).map(|it| (it.state, it.rows)).collect();
    assert_eq!(undated, BTreeMap::from([(JobState::Completed, 2)]));
    assert!(exists(&queue, ids[1]).await && parts(&queue, ids[1]).await == [1; 5]);
    assert!(!exists(&queue, ids[2]).await && parts(&queue, ids[2]).await == [0; 5]);
}

/// the shortest time is far longer than any lease, and less is refused.
#[tokio::test]
async fn already_done_is_told_until_the_shortest_retention_is_over() {
    let queue = Queue::start().await;
    queue.enqueue().await;
    let lease = queue.lease().await.lease;
    queue.complete(lease).await;
    let shortest = Retention {
        completed: queue::MIN_RETENTION,
        cancelled: queue::MIN_RETENTION,
        discarded: queue::MIN_RETENTION,
        ..Retention::default()
    };
    queue.db.clock().advance(queue::MIN_RETENTION - Duration::from_secs(1)).await;
    prune(&queue, &shortest, 100).await;
    assert_eq!(queue.complete(lease).await, Fate::Already);
    let shorter = Retention { completed: queue::MIN_RETENTION - Duration::from_secs(1), ..shortest };
    let refused = queue::prune_step(&mut *queue.conn().await, &shorter, 100).await.expect_err("refused");
    assert!(matches!(refused, queue::Error::Invalid { field: "completed", .. }), "{refused:?}");
    assert!(queue::prunable(&mut *queue.conn().await, &shorter).await.is_err());
}

#[tokio::test]
async fn workers_counts_and_evidence_leave_when_they_are_old_and_not_before() {
    let queue = Queue::start().await;
    let mut conn = queue.conn().await;
    let [gone, holds, lives] = [worker(), worker(), worker()];
    for spec in [&gone, &holds, &lives] {
        queue::register_worker(&mut conn, spec, "box", 7, "1", None, 8).await.expect("registered");
    }
    queue::stop_worker(&mut conn, gone.worker).await.expect("stopped");
    let id = queue.enqueue().await;
    let held = queue::lease_next(&mut conn, &holds, 1, &[]).await.expect("leased").remove(0).lease;
    queue::note_refused(&mut conn, held, None, Operation::Step).await.expect("evidence");
    queue::add_throughput(&mut conn, &[("q".into(), "k".into(), "completed".into(), 1)]).await.expect("counted");
    let kept = Retention { throughput: 7 * DAY, refused_writes: 7 * DAY, ..Retention::default() };

    pass(&queue, 6).await;
    assert_eq!(prune(&queue, &kept, 100).await, Pruned::default());
    queue::seen_worker(&mut conn, lives.worker, None).await.expect("seen");
    pass(&queue, 2).await;
    let told = prunable(&queue, &kept).await;
    let pruned = prune(&queue, &kept, 100).await;
    assert_eq!((told.workers, told.throughput, told.refused_writes), (1, 1, 1));
    assert_eq!((pruned.workers, pruned.throughput, pruned.refused_writes), (1, 1, 1));
    assert_eq!(parts(&queue, id).await, [0; 5], "the count of the lease's refusals goes with the last of them");
    for (spec, stays) in [(gone, false), (holds, true), (lives, true)] {
        assert_eq!(queue::worker(&mut conn, spec.worker).await.expect("answers").is_some(), stays);
    }
    assert_eq!(kind().as_str(), "test.work");
}
