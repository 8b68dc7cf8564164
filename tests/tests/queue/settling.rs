use std::time::Duration;

use domain::lease::{Fence, Lease};
use domain::queue::{self, Error, Fate, JobState, Outcome, Settlement};
use serde_json::json;

use crate::support::{Queue, cancelled, completed, discarded, failed, job, snoozed};

/// Q-005, case (l): the settlement committed, its answer was lost, the worker asks again.
#[tokio::test]
async fn a_repeated_settlement_is_answered_as_already_done() {
    let q = Queue::start().await;
    for outcome in [completed(), failed(), snoozed(60), snoozed(0), discarded(), cancelled(), Outcome::Released] {
        let id = q.enqueue().await;
        let held = q.lease().await.lease;
        assert!(matches!(q.settle(held, outcome.clone()).await, Fate::Settled(_)), "{outcome:?}");
        let before = q.dump().await;
        assert_eq!(q.settle(held, outcome.clone()).await, Fate::Already, "{outcome:?}");
        assert_eq!(q.complete(held).await, Fate::Already, "whatever is asked: this lease has ended");
        assert_eq!(q.dump().await, before, "asking again changes nothing");
        if !q.job(id).await.state.is_final() {
            queue::cancel(&mut *q.conn().await, id, "out of the way", None).await.expect("cancelled");
        }
    }
}

/// "already" is the answer to the lease that did it, also when others came after it; all others are lost.
#[tokio::test]
async fn already_done_is_told_to_the_doer_alone() {
    let q = Queue::start().await;
    q.enqueue().await;
    let rescued = q.lease().await.lease;
    q.expire_and_rescue().await;
    let failed_once = q.lease().await.lease;
    q.settle(failed_once, failed()).await;
    q.db.clock().advance(Duration::from_secs(11)).await;
    q.stage().await;
    let last = q.lease().await.lease;
    assert_eq!(q.settle(failed_once, failed()).await, Fate::Already, "while a successor runs");
    assert_eq!(q.complete(last).await, Fate::Settled(JobState::Completed));
    assert_eq!(q.settle(failed_once, failed()).await, Fate::Already, "after the successor finished");
    assert_eq!(q.complete(last).await, Fate::Already);
    assert_eq!(q.complete(rescued).await, Fate::Lost, "its lease was taken; it never settled");
    let invented = Lease { job: last.job, fence: Fence(last.fence.0 + 1) };
    assert_eq!(q.complete(invented).await, Fate::Lost);
}

/// Q-005 after an operator brought the job back: the discarding lease is still told that it did it.
#[tokio::test]
async fn already_done_survives_an_operators_retry() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    let first = q.lease().await.lease;
    q.settle(first, discarded()).await;
    queue::retry(&mut *q.conn().await, id, None).await.expect("brought back");
    let second = q.lease().await.lease;
    assert_eq!(q.complete(second).await, Fate::Settled(JobState::Completed));
    assert_eq!(q.settle(first, discarded()).await, Fate::Already);
    let attempts = queue::attempts(&mut *q.conn().await, id).await.expect("attempts");
    assert_eq!(
        attempts.iter().map(|a| (a.outcome.as_str(), a.last_fence)).collect::<Vec<_>>(),
        [("failed", first.fence)]
    );
}

/// Q-007, case (n).
#[tokio::test]
async fn one_stale_item_stops_none_of_a_batch() {
    let q = Queue::start().await;
    let stale_job = q.enqueue().await;
    let stale = q.lease().await.lease;
    q.expire_and_rescue().await;
    let successor = q.lease().await.lease;
    assert_eq!(successor.job, stale_job);
    for _ in 0..6 {
        q.enqueue().await;
    }
    let held = q.lease_up_to(6).await;
    let outcomes = [completed(), failed(), snoozed(5), discarded(), cancelled(), Outcome::Released];
    let mut asked: Vec<Settlement> =
        held.iter().zip(outcomes).map(|(leased, outcome)| Settlement { lease: leased.lease, outcome }).collect();
    asked.insert(3, Settlement { lease: stale, outcome: completed() });
    let fates = queue::settle(&mut *q.conn().await, &asked).await.expect("the database answers");
    use JobState::{Available, Cancelled, Completed, Discarded, Retryable, Scheduled};
    let settled = Fate::Settled;
    assert_eq!(
        fates,
        [
            settled(Completed),
            settled(Retryable),
            settled(Scheduled),
            Fate::Lost,
            settled(Discarded),
            settled(Cancelled),
            settled(Available),
        ]
    );
    assert_eq!(q.complete(successor).await, Fate::Settled(Completed));
}

#[tokio::test]
async fn a_lease_asked_twice_in_one_call_ends_once_as_first_asked() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    let lease = q.lease().await.lease;
    let asked = [Settlement { lease, outcome: completed() }, Settlement { lease, outcome: failed() }];
    let fates = queue::settle(&mut *q.conn().await, &asked).await.expect("the database answers");
    assert_eq!(fates[0], Fate::Settled(JobState::Completed));
    assert_eq!(q.job(id).await.state, JobState::Completed);
    assert_eq!(q.job(id).await.result, Some(json!({"ok": true})));
}

/// failures spend attempts, snoozes and hand-backs do not; the last failure discards.
#[tokio::test]
async fn only_failures_spend_attempts() {
    let q = Queue::start().await;
    let mut wanted = job();
    wanted.max_attempts = 2;
    let id = q.enqueue_as(wanted).await;
    for (outcome, state, attempts) in [
        (snoozed(5), JobState::Scheduled, 0),
        (Outcome::Released, JobState::Available, 0),
        (failed(), JobState::Retryable, 1),
        (snoozed(5), JobState::Scheduled, 1),
        (failed(), JobState::Discarded, 2),
    ] {
        q.db.clock().advance(Duration::from_secs(11)).await;
        q.stage().await;
        let lease = q.lease().await.lease;
        assert_eq!(q.settle(lease, outcome).await, Fate::Settled(state));
        assert_eq!(q.job(id).await.attempt, attempts);
    }
    assert_eq!(q.job(id).await.last_error, Some(json!({"code": "boom", "message": "it broke"})));
}

/// a job that snoozes all day has one row of it, not thousands.
#[tokio::test]
async fn the_passes_of_a_snoozing_job_fold_into_one_attempt() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    let mut fences = Vec::new();
    for _ in 0..5 {
        let lease = q.lease().await.lease;
        fences.push(lease.fence);
        q.settle(lease, snoozed(1)).await;
        q.db.clock().advance(Duration::from_secs(2)).await;
        q.stage().await;
    }
    let attempts = queue::attempts(&mut *q.conn().await, id).await.expect("attempts");
    assert_eq!(attempts.len(), 1);
    assert_eq!((attempts[0].passes, attempts[0].first_fence, attempts[0].last_fence), (5, fences[0], fences[4]));
}

/// A protected job is never thrown away: its failure past the last attempt and its handler's giving up only wait.
#[tokio::test]
async fn a_protected_job_is_never_discarded() {
    let q = Queue::start().await;
    let mut wanted = job();
    wanted.protected = true;
    wanted.max_attempts = 1;
    wanted.max_interruptions = 1;
    let id = q.enqueue_as(wanted).await;
    for outcome in [failed(), failed(), discarded()] {
        let lease = q.lease().await.lease;
        assert_eq!(q.settle(lease, outcome).await, Fate::Settled(JobState::Retryable));
        q.db.clock().advance(Duration::from_secs(61)).await;
        q.stage().await;
    }
    for _ in 0..3 {
        q.lease().await;
        q.expire_and_rescue().await;
        assert_eq!(q.job(id).await.state, JobState::Available);
    }
}

/// A handler writes lines from several tasks at once; none is lost and none fails.
#[tokio::test]
async fn log_lines_and_steps_written_at_once_all_arrive() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    let lease = q.lease().await.lease;
    let lines: Vec<_> = (0..40)
        .map(|n| {
            let pool = q.db.pool().clone();
            tokio::spawn(async move {
                let mut conn = pool.acquire().await.expect("a connection");
                queue::append_log(&mut conn, lease, "info", &format!("line {n}")).await.expect("a line");
                queue::append_step(&mut conn, lease, "s", &json!(n), &json!({})).await.expect("a step");
            })
        })
        .collect();
    for line in lines {
        line.await.expect("written");
    }
    let log = queue::logs(&mut *q.conn().await, id).await.expect("the log");
    let steps = queue::steps(&mut *q.conn().await, id).await.expect("the steps");
    assert_eq!(log.iter().map(|l| l.seq).collect::<Vec<_>>(), (1..=40).collect::<Vec<_>>());
    assert_eq!(steps.iter().map(|s| s.seq).collect::<Vec<_>>(), (1..=40).collect::<Vec<_>>());
    assert!(log.iter().chain([]).all(|l| l.fence == lease.fence) && steps.iter().all(|s| s.fence == lease.fence));
}

/// A job's log keeps its newest thousand lines.
#[tokio::test]
async fn a_jobs_log_keeps_its_newest_thousand_lines() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    let lease = q.lease().await.lease;
    let mut conn = q.conn().await;
    for n in 1..=1005 {
        queue::append_log(&mut conn, lease, "info", &format!("line {n}")).await.expect("a line");
    }
    let log = queue::logs(&mut conn, id).await.expect("the log");
    assert_eq!((log.len(), log[0].line.as_str(), log[999].line.as_str()), (1000, "line 6", "line 1005"));
}

/// what one attempt recorded, the next one reads, numbered on.
#[tokio::test]
async fn a_later_attempt_reads_the_steps_of_an_earlier_one() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    for n in 1..=3 {
        let lease = q.lease().await.lease;
        queue::append_step(&mut *q.conn().await, lease, "copy", &json!({"at": n}), &json!({})).await.expect("a step");
        q.expire_and_rescue().await;
        let steps = queue::steps(&mut *q.conn().await, id).await.expect("the steps");
        assert_eq!(steps.len(), n);
        assert_eq!(steps[n - 1].cursor, json!({"at": n}));
        assert_eq!(usize::try_from(steps[n - 1].seq), Ok(n));
    }
}

/// A step whose answer was lost is recorded again: it is the same step, until another follows or another holds the job.
#[tokio::test]
async fn the_last_step_again_is_no_second_one() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    let mut conn = q.conn().await;
    let lease = q.lease().await.lease;
    let kept = async |conn: &mut sqlx::PgConnection| {
        let steps = queue::steps(conn, id).await.expect("the steps");
        steps.into_iter().map(|step| (step.name, step.cursor)).collect::<Vec<_>>()
    };
    let one = ("copy".to_owned(), json!({"at": 1}));
    for _ in 0..3 {
        queue::append_step(&mut conn, lease, "copy", &json!({"at": 1}), &json!({})).await.expect("a step");
    }
    assert_eq!(kept(&mut conn).await, std::slice::from_ref(&one));
    queue::append_step(&mut conn, lease, "copy", &json!({"at": 2}), &json!({})).await.expect("another cursor");
    queue::append_step(&mut conn, lease, "check", &json!({"at": 2}), &json!({})).await.expect("another name");
    queue::append_step(&mut conn, lease, "copy", &json!({"at": 1}), &json!({})).await.expect("not the last one");
    assert_eq!(kept(&mut conn).await.len(), 4);

    q.expire_and_rescue().await;
    let late = queue::append_step(&mut conn, lease, "copy", &json!({"at": 1}), &json!({})).await;
    assert!(matches!(late, Err(Error::LeaseLost(_))), "a repetition is under the fence too: {late:?}");
    let next = q.lease().await.lease;
    queue::append_step(&mut conn, next, "copy", &json!({"at": 1}), &json!({})).await.expect("another holder's");
    assert_eq!(kept(&mut conn).await.len(), 5);
}

/// the passes of a snoozing job fold into one row, and each of their holders is still told that it did it;
/// one whose lease was taken away between them is not.
#[tokio::test]
async fn already_done_is_told_for_every_folded_pass() {
    let q = Queue::start().await;
    q.enqueue().await;
    let mut passes = Vec::new();
    let mut taken = None;
    for turn in 0..4 {
        if turn == 2 {
            taken = Some(q.lease().await.lease);
            q.expire_and_rescue().await;
        }
        let lease = q.lease().await.lease;
        q.settle(lease, snoozed(1)).await;
        passes.push(lease);
        q.db.clock().advance(Duration::from_secs(2)).await;
        q.stage().await;
    }
    let running = q.lease().await.lease;
    for lease in &passes {
        assert_eq!(q.settle(*lease, snoozed(1)).await, Fate::Already);
    }
    assert_eq!(q.complete(taken.expect("one was taken")).await, Fate::Lost);
    assert_eq!(q.complete(running).await, Fate::Settled(JobState::Completed));
}
