//! Connections that are cut in the middle of a request, or of its answer after the server has committed.

use domain::queue::JobState;
use serde_json::json;
use tests::proxy::{Cut, Proxy};
use tests::trials::{chance, trials};
use tests::wait::until;

use crate::support::{Bench, PATIENCE};

/// Words of the statement that completes, of the one that records every other outcome, and of the one that adds a step.
const COMPLETES: &str = "$3::jsonb[]) as a(id, fence, result)";
const SETTLES: &str = "as a(id, fence, outcome, result, error, after_ms)";
const STEPS: &str = "insert into job_steps";

/// Case (l): the outcome commits, its answer is lost, and the worker asks again. It is told that it has done it: nothing is
/// recorded twice, nothing is evidence of a loss, and the handler does not run again for it.
#[tokio::test]
async fn a_worker_whose_answer_was_lost_after_the_commit_has_done_its_job_once() {
    for engine in ["apalis", "plain"] {
        let bench = Bench::start().await;
        let proxy = Proxy::before(bench.db.url()).await;
        let worker = bench.worker_at(engine, engine, &proxy.url(bench.db.url()), &[]);
        let mut completed = 0;
        // Not a byte; a few; all but the last one.
        for bytes in [0, 40, usize::MAX] {
            for (first, words, runs) in [("complete", COMPLETES, 1), ("snooze", SETTLES, 2), ("fail", SETTLES, 2)] {
                for cut in [Cut::Answer(bytes), Cut::Request(bytes)] {
                    let before = proxy.cuts();
                    proxy.cut(words, cut);
                    let id = bench.enqueue("test.ends", json!({"first": first})).await;
                    let done = bench.until_state(id, JobState::Completed).await;
                    let what = format!("{engine}, {first}, {cut:?}");
                    until("the connection was cut", PATIENCE, || async { (proxy.cuts() > before).then_some(()) }).await;
                    assert_eq!(proxy.cuts(), before + 1, "{what}: and once");
                    assert_eq!(done.result.expect("a result")["runs"], json!(runs), "{what}: no run too many");
                    assert_eq!(done.attempt, if first == "fail" { 2 } else { 1 }, "{what}");
                    assert_eq!(done.interruptions, 0, "{what}");
                    let tried: Vec<_> = bench.attempts(id).await.into_iter().map(|a| (a.outcome, a.passes)).collect();
                    let wanted = match first {
                        "complete" => vec![],
                        "snooze" => vec![("snoozed".to_owned(), 1)],
                        _ => vec![("failed".to_owned(), 1)],
                    };
                    assert_eq!(tried, wanted, "{what}: recorded once");
                    assert_eq!(bench.evidence(id).await, [], "{what}: nobody was late");
                    completed += 1;
                }
            }
        }
        assert!(worker.stop().await.success());
        let counted: Option<i64> =
            sqlx::query_scalar("select sum(total)::bigint from throughput where outcome = 'completed'")
                .fetch_one(bench.db.pool())
                .await
                .expect("the database answers");
        assert_eq!(counted, Some(completed), "each is counted once");
    }
}

/// The same at bytes of chance: a step or a completion is cut anywhere, on its way there or back, and is made once.
#[tokio::test]
async fn a_connection_that_is_cut_at_any_byte_doubles_no_step_and_no_completion() {
    let bench = Bench::start().await;
    let proxy = Proxy::before(bench.db.url()).await;
    let worker = bench.worker_at("worker", "apalis", &proxy.url(bench.db.url()), &[]);
    for trial in 0..trials() {
        let mut chance = chance(trial);
        let words = if chance.bool() { STEPS } else { COMPLETES };
        let bytes = chance.usize(0..300);
        let cut = if chance.bool() { Cut::Answer(bytes) } else { Cut::Request(bytes) };
        proxy.cut(words, cut);
        let id = bench.enqueue("test.ends", json!({})).await;
        let done = bench.until_state(id, JobState::Completed).await;
        let what = format!("trial {trial}, {words}, {cut:?}");
        until("the connection was cut", PATIENCE, || async { (proxy.cuts() > trial).then_some(()) }).await;
        assert_eq!(done.result.expect("a result")["runs"], json!(1), "{what}: it ran once");
        assert_eq!(bench.steps(id).await.len(), 1, "{what}: the step was made once");
        assert_eq!((done.attempt, done.interruptions), (1, 0), "{what}");
        assert_eq!(bench.evidence(id).await, [], "{what}: nobody was late");
    }
    assert!(worker.stop().await.success());
}
