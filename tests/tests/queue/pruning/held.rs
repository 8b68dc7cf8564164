//! Pruning beside others: who holds a job, a table, a row or the place.

use std::time::Duration;

use domain::doctor::{self, Verdict};
use domain::ids::JobId;
use domain::queue::{self, Fate, JobState, PruneStep, Retention};
use sqlx::{Connection as _, Executor as _, PgConnection};

use super::{DAY, ended, exists, parts, pass, prune, sql};
use crate::support::{Queue, cancelled, completed, discarded};

#[tokio::test]
async fn a_job_that_somebody_holds_outlives_its_time_until_it_is_let_go() {
    let queue = Queue::start().await;
    let [held, other] = [ended(&queue, completed()).await, ended(&queue, completed()).await];
    hold(&mut *queue.conn().await, held).await;
    pass(&queue, 40).await;
    let kept = Retention { refused_writes: 60 * DAY, ..Retention::default() };
    prune(&queue, &kept, 1).await;
    assert!(exists(&queue, held).await && parts(&queue, held).await == [1; 5]);
    assert!(!exists(&queue, other).await);
    sql(&queue, "delete from prune_holds").await;
    pass(&queue, 2).await;
    prune(&queue, &kept, 1).await;
    assert!(!exists(&queue, held).await && parts(&queue, held).await == [0; 5]);
}

/// *The blocked row*: somebody holds a job and has not committed yet when it is to be pruned, alone or with its whole day.
#[tokio::test]
async fn a_job_that_is_being_held_at_that_moment_outlives_its_time() {
    for whole_day in [true, false] {
        let queue = Queue::start().await;
        let held = ended(&queue, completed()).await;
        if !whole_day {
            ended(&queue, discarded()).await;
        }
        pass(&queue, 9).await;
        let mut session = queue.db.session().await;
        let mut holder = session.begin().await.expect("a transaction");
        hold(&mut holder, held).await;
        let step = queue::prune_step(&mut *queue.conn().await, &Retention::default(), 100).await.expect("answers");
        assert_eq!(step, PruneStep { held: true, ..PruneStep::default() }, "nobody is passed by");

        // The commit comes while a step waits for it, or between two that do.
        let pool = queue.db.pool_of(1).await;
        let pruning = tokio::spawn(async move { until_let(&mut pool.acquire().await.expect("one")).await });
        queue.db.until_blocked().await;
        assert!(finds(&mut holder, held).await, "whoever holds it finds it");
        holder.commit().await.expect("it is held");
        pruning.await.expect("it ends");
        prune(&queue, &Retention::default(), 100).await;
        assert!(exists(&queue, held).await && parts(&queue, held).await == [1; 5], "{whole_day}");
    }
}

/// The other order: the step was first, so whoever holds the job then learns that it is gone.
#[tokio::test]
async fn whoever_holds_a_job_that_is_being_pruned_finds_it_gone() {
    let queue = Queue::start().await;
    let gone = ended(&queue, completed()).await;
    // Its day is walked row by row: the deletes alone keep nobody from reading.
    ended(&queue, discarded()).await;
    pass(&queue, 9).await;
    let mut session = queue.db.session().await;
    let mut pruning = session.begin().await.expect("a transaction");
    let step = queue::prune_step(&mut pruning, &Retention::default(), 100).await.expect("answers");
    assert_eq!((step.pruned.days, step.pruned.jobs.len()), (0, 1));
    stand_still(&mut pruning).await;
    let pool = queue.db.pool_of(1).await;
    let holding = tokio::spawn(async move {
        let mut conn = pool.acquire().await.expect("one");
        let mut holder = conn.begin().await.expect("a transaction");
        hold(&mut holder, gone).await;
        finds(&mut holder, gone).await
    });
    queue.db.until_blocked().await;
    pruning.commit().await.expect("it is gone");
    assert!(!holding.await.expect("it ends"));
}

/// Steps until one is not held up: each waits for a moment alone.
async fn until_let(conn: &mut PgConnection) -> PruneStep {
    loop {
        let step = queue::prune_step(&mut *conn, &Retention::default(), 100).await.expect("answers");
        if !step.held {
            return step;
        }
    }
}

/// Lets a step's transaction stand open for as long as the test needs: by itself it ends after two seconds.
async fn stand_still(conn: &mut PgConnection) {
    conn.execute("set local idle_in_transaction_session_timeout = 0").await.expect("it may stand");
}

/// As everybody does who needs a job's row: the hold first, then the look.
async fn hold(conn: &mut PgConnection, id: JobId) {
    let sql = "insert into prune_holds (job_id, holder, at) values ($1, 'a proof', lh_now())";
    sqlx::query(sql).bind(id.0).execute(conn).await.expect("held");
}

async fn finds(conn: &mut PgConnection, id: JobId) -> bool {
    let sql = "select exists (select from jobs_finished where id = $1)";
    sqlx::query_scalar(sql).bind(id.0).fetch_one(conn).await.expect("answers")
}

/// A reader of the finished jobs keeps a day from leaving. Pruning gives up at once, and a settlement that comes meanwhile
/// is held up by its try alone.
#[tokio::test]
async fn pruning_waits_for_no_reader_and_holds_up_no_settlement() {
    let queue = Queue::start().await;
    let old = ended(&queue, completed()).await;
    pass(&queue, 9).await;
    queue.enqueue().await;
    let lease = queue.lease().await.lease;
    let mut reader = queue.db.session().await;
    reader.execute("begin; select count(*) from jobs_finished").await.expect("a reader");

    let kept = Retention::default();
    let step = queue::prune_step(&mut *queue.conn().await, &kept, 100).await.expect("answers");
    assert_eq!(step, PruneStep { held: true, ..PruneStep::default() }, "the day's table is held");
    assert!(exists(&queue, old).await);

    // Somebody tries again and again, and is waiting for the reader when the settlement comes.
    let pool = queue.db.pool_of(1).await;
    let trying = tokio::spawn(async move {
        loop {
            let step = queue::prune_step(&mut pool.acquire().await.expect("one"), &Retention::default(), 100).await;
            assert!(step.expect("answers").held);
        }
    });
    queue.db.until_blocked().await;
    let began = std::time::Instant::now();
    assert_eq!(queue.complete(lease).await, Fate::Settled(JobState::Completed));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    trying.abort();
    assert!(trying.await.is_err_and(|end| end.is_cancelled()), "it was held up all the time");
    reader.execute("commit").await.expect("it ends");
    prune(&queue, &kept, 100).await;
    assert!(!exists(&queue, old).await);
}

/// Whoever reads without a pause keeps a day from ever leaving: since when is kept until it has left.
#[tokio::test]
async fn a_day_that_cannot_leave_is_told_with_its_beginning_until_it_has_left() {
    let queue = Queue::start().await;
    ended(&queue, completed()).await;
    let day = queue.db.clock().now().await.date_naive();
    pass(&queue, 9).await;
    let mut reader = queue.db.session().await;
    let since = async || queue::overview(&mut *queue.conn().await).await.expect("the overview").day_late_since;
    let told = async || {
        let report = doctor::examine(queue.db.pool()).await;
        let check = report.checks.into_iter().find(|check| check.name == "pruning").expect("it is looked at");
        let Verdict::Checked(findings) = check.verdict else { panic!("{:?}", check.verdict) };
        findings
    };
    assert_eq!(since().await, None);
    let mut began = None;
    for _ in 0..2 {
        reader.execute("begin; select count(*) from jobs_finished").await.expect("a reader");
        let step = queue::prune_step(&mut *queue.conn().await, &Retention::default(), 100).await.expect("answers");
        assert!(step.held);
        let since = since().await.expect("it is late");
        assert_eq!(*began.get_or_insert(since), since, "since the first try");
        reader.execute("commit").await.expect("it ends");
        assert_eq!(told().await, [], "a report takes its time");
        queue.db.clock().advance(Duration::from_secs(1900)).await;
    }
    let findings = told().await;
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].facts["day"], day.to_string());
    let began = began.expect("a moment").format("%Y-%m-%d %H:%M");
    assert!(findings[0].what.contains(&format!("of {day} are to leave since {began} UTC")), "{findings:?}");
    // And perhaps the next one, which became due meanwhile.
    assert!(prune(&queue, &Retention::default(), 100).await.days >= 1);
    assert_eq!((since().await, told().await), (None, vec![]));
}

/// *The blocked row*: an operator brings a job back at the moment at which it is to be pruned.
#[tokio::test]
async fn a_job_that_is_brought_back_meanwhile_keeps_its_parts() {
    let queue = Queue::start().await;
    let back = ended(&queue, cancelled()).await;
    let stays = ended(&queue, discarded()).await;
    pass(&queue, 16).await;
    let mut session = queue.db.session().await;
    let mut operator = session.begin().await.expect("a transaction");
    queue::retry(&mut operator, back, None).await.expect("brought back");
    let pool = queue.db.pool_of(1).await;
    let pruning = tokio::spawn(async move { until_let(&mut pool.acquire().await.expect("one")).await });
    queue.db.until_blocked().await;
    operator.commit().await.expect("it is live again");
    let step = pruning.await.expect("it ends");
    assert!(step.more && step.pruned.jobs.is_empty(), "{step:?}");
    prune(&queue, &Retention::default(), 100).await;
    assert_eq!(queue.job(back).await.state, JobState::Available);
    assert!(parts(&queue, back).await.iter().all(|rows| *rows > 0) && exists(&queue, stays).await);
}

/// While one session takes a step, another takes none and waits for nothing.
#[tokio::test]
async fn one_session_prunes_at_a_time_and_no_other_waits_for_it() {
    let queue = Queue::start().await;
    ended(&queue, completed()).await;
    pass(&queue, 9).await;
    let mut session = queue.db.session().await;
    let mut first = session.begin().await.expect("a transaction");
    let step = queue::prune_step(&mut first, &Retention::default(), 100).await.expect("answers");
    assert!(step.more && step.pruned.days == 1, "{step:?}");
    stand_still(&mut first).await;
    let other = queue::prune_step(&mut *queue.conn().await, &Retention::default(), 100).await.expect("answers");
    assert_eq!(other, PruneStep { held: true, ..PruneStep::default() });
    // A step that is cut leaves everything as it was, its place included.
    first.rollback().await.expect("it is cut");
    assert_eq!(prune(&queue, &Retention::default(), 100).await.jobs.len(), 1);
}
