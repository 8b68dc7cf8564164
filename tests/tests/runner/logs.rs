//! What the log of a worker says of a job, and what it never says.

use std::io::Write;
use std::sync::{Arc, Mutex};

use domain::queue::{JobState, KindSpec, NewJob};
use serde_json::json;
use tests::db::Database;
use workers::jobs::{Job as _, system_sleep};
use workers::runner::{Engine, JobError};

use crate::support::{Running, act, config, enqueue, kind, until_state};

/// Where the test's log goes.
#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no holder panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn the_log_tells_the_code_of_a_failure_and_nothing_of_what_the_job_is_about() {
    let buffer = Buffer::default();
    let writer = buffer.clone();
    // The test runs on one thread, and so do the worker's loops: the subscriber is the thread's own.
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let db = Database::start().await;
    let failing = KindSpec { max_attempts: 2, ..kind("test.act") };
    let mut registry = act(failing.clone(), |args, _| async move {
        Err(JobError::from(anyhow::anyhow!("cannot charge {}", args["card"])))
    });
    registry.add(system_sleep::Sleep);
    let failed = enqueue(&db, &NewJob::new(&failing, json!({"card": "4111-payload"}))).await;
    let undecodable = enqueue(&db, &NewJob::new(&system_sleep::Sleep::spec(), json!({"ms": "4111-payload"}))).await;
    let worker = Running::start(&db, registry, config(Engine::default()));

    for id in [failed, undecodable] {
        let error = until_state(&db, id, JobState::Discarded).await.last_error.expect("it says why");
        assert!(error["message"].as_str().expect("a text").contains("4111-payload"), "for people: {error}");
    }
    worker.stop().await;

    let text = String::from_utf8_lossy(&buffer.0.lock().expect("no holder panics")).into_owned();
    for told in ["job failed", "job ended without success", r#"code="failed""#, r#"code="bad_args""#] {
        assert!(text.contains(told), "{told} is told");
    }
    let quoting: Vec<&str> = text.lines().filter(|line| line.contains("4111-payload")).collect();
    assert!(quoting.is_empty(), "{quoting:#?}");
}
