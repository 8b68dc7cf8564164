//! The wall clock of a worker, stepped while it works.

use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::queue::{self, JobState};
use sandbox::exec::Spawn;
use serde_json::json;
use tests::wait::until;

use crate::support::{Bench, LEASE, PATIENCE};

/// Builds the library that a process's wall clock is stepped with.
async fn stepped_clock(folder: &Path) -> PathBuf {
    let library = folder.join("clock.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fence/clock.c");
    Spawn::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(source)
        .arg("-ldl")
        .run(PATIENCE)
        .await
        .and_then(|finished| finished.success())
        .expect("a C compiler, as SQLite needs one");
    library
}

/// Case (m), Q-003: an hour forward, two hours back, in the middle of a job. The step is reported, and nobody's lease
/// ends earlier or later for it.
#[tokio::test]
async fn a_worker_whose_clock_is_stepped_keeps_its_lease_and_is_reported() {
    let bench = Bench::start().await;
    let library = stepped_clock(bench.file("until").parent().expect("a folder")).await;
    let (go_on, step) = (bench.file("until"), bench.file("step"));
    std::fs::write(&step, "0").expect("a file");
    let env: [(&str, &Path); 2] = [("LD_PRELOAD", &library), ("STEP_FILE", &step)];
    let stepped = bench.worker_at("stepped", "apalis", bench.db.url(), &env);
    let id = bench.enqueue("test.tick", json!({"until": go_on})).await;
    let held = bench.until_running(id).await;
    // Whoever would be glad of the job.
    let rival = bench.worker("rival", "plain");
    bench.until_registered(2).await;
    for seconds in [3600, -3600] {
        std::fs::write(&step, seconds.to_string()).expect("a file");
        until("the step is reported", PATIENCE, || async {
            let seen = queue::worker(&mut *bench.conn().await, held.worker).await.expect("the database answers");
            let skew = seen.and_then(|worker| worker.clock_skew_ms)?;
            ((skew - seconds * 1000).abs() < 60_000).then_some(())
        })
        .await;
        let reported_at = bench.db.clock().now().await;
        until("the lease is renewed beyond another of its lives", PATIENCE, || async {
            let lease = bench.lease_of(id).await.expect("it is never without its holder");
            assert_eq!(lease.fence, held.fence, "{seconds}: nobody takes it over");
            let ahead = (lease.expires_at - reported_at).to_std().unwrap_or_default();
            assert!(lease.expires_at < bench.db.clock().now().await + LEASE + Duration::from_secs(1));
            (ahead > LEASE * 2).then_some(())
        })
        .await;
    }
    std::fs::write(&go_on, "").expect("a file");
    let done = bench.until_state(id, JobState::Completed).await;
    assert_eq!(done.result, Some(json!({"pid": stepped.pid()})));
    assert_eq!((done.fence, done.attempt, done.interruptions), (held.fence, 1, 0));
    let finished = done.finished_at.expect("it is over");
    let now = bench.db.clock().now().await;
    assert!((now - finished).abs().to_std().expect("a span") < PATIENCE, "by the database's clock");
    assert_eq!(bench.evidence(id).await, []);
    for worker in [stepped, rival] {
        assert!(worker.stop().await.success());
    }
}
