//! A bare holder, without the runner's self-stop: whatever it tries after its lease was taken meets the fence alone.

use std::process::ExitStatus;

use domain::queue::JobState;
use sandbox::exec::Signal;
use serde_json::{Value, json};

use crate::support::{Bench, Process, rows};

const WRITES: [&str; 9] =
    ["renew", "progress", "step", "log", "enqueue_child", "snooze", "fail", "release", "complete"];

/// A holder that was stopped past its lease, while the job is still `running` under it.
async fn stopped_holder(bench: &Bench) -> (Process, domain::ids::JobId, domain::lease::Lease) {
    let id = bench.enqueue("test.tick", json!({})).await;
    let holder = bench.holder("zombie");
    let held = bench.until_running(id).await;
    holder.signal(Signal::STOP);
    bench.until_stopped(&holder).await;
    (holder, id, domain::lease::Lease { job: id, fence: held.fence })
}

/// Wakes the holder and returns what each of its writes was answered, and how it ended.
async fn wake(bench: &Bench, holder: &Process) -> (Value, ExitStatus) {
    std::fs::write(bench.file("go"), "").expect("a file");
    holder.signal(Signal::CONT);
    let status = holder.ended().await;
    let told = std::fs::read_to_string(bench.file("answer")).unwrap_or_else(|_| panic!("no answer: {}", holder.log()));
    (serde_json::from_str(&told).expect("JSON"), status)
}

fn all(accepted: bool) -> Value {
    WRITES.iter().map(|what| ((*what).to_owned(), Value::from(accepted))).collect::<serde_json::Map<_, _>>().into()
}

/// The control: nobody took the lease over, so each write of the woken process is accepted (the last three as
/// "already done", since the first outcome ended the lease).
#[tokio::test]
async fn a_woken_process_whose_lease_nobody_took_writes_as_before() {
    let bench = Bench::start().await;
    let (holder, _, _) = stopped_holder(&bench).await;
    let (told, status) = wake(&bench, &holder).await;
    assert_eq!((told, status.code()), (all(true), Some(0)));
}

/// Case (c): a SIGSTOP past the lease, a rescue, a SIGCONT.
#[tokio::test]
async fn a_woken_process_whose_job_is_back_in_the_queue_is_refused_everything() {
    let bench = Bench::start().await;
    let (holder, id, _) = stopped_holder(&bench).await;
    bench.expire_and_rescue().await;
    refused(&bench, &holder).await;
    assert_eq!(bench.job(id).await.state, JobState::Available);
}

/// Cases (a), (d), (e), (f): the successor runs.
#[tokio::test]
async fn a_woken_process_whose_successor_runs_is_refused_everything() {
    let bench = Bench::start().await;
    let (holder, id, stale) = stopped_holder(&bench).await;
    bench.expire_and_rescue().await;
    let successor = bench.lease_here().await;
    assert!(successor.lease.job == id && successor.lease.fence > stale.fence);
    refused(&bench, &holder).await;
    assert_eq!(bench.lease_of(id).await.expect("it runs").fence, successor.lease.fence);
}

/// Case (b): the successor has finished.
#[tokio::test]
async fn a_woken_process_whose_successor_finished_is_refused_everything() {
    let bench = Bench::start().await;
    let (holder, id, _) = stopped_holder(&bench).await;
    bench.expire_and_rescue().await;
    let successor = bench.lease_here().await;
    bench.complete(successor.lease, json!("the successor's")).await;
    refused(&bench, &holder).await;
    assert_eq!(bench.job(id).await.result, Some(json!("the successor's")));
}

async fn refused(bench: &Bench, holder: &Process) {
    let before = rows(&bench.db).await;
    let (told, status) = wake(bench, holder).await;
    assert_eq!(told, all(false), "each write is refused and told so");
    assert_eq!(status.code(), Some(3));
    assert_eq!(rows(&bench.db).await, before, "not a row has changed");
}
