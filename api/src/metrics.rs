//! Figures for Prometheus: counted in the process, and asked of the database when they are read.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use domain::clock::Timestamp;
use domain::queue::{self, Overview, QueueView};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

/// Bounds of the histogram of request times, in seconds.
const BUCKETS: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];
/// Bounds of the histograms of jobs, whose handlers may run for hours, in seconds.
const JOB_BUCKETS: [f64; 11] = [0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 120.0, 600.0, 1800.0, 7200.0, 28800.0];
/// How often the observations of histograms are folded into their buckets where nobody reads the figures.
const UPKEEP: Duration = Duration::from_secs(5);
/// How often what was enqueued is added to the counters by minute.
const FLUSH: Duration = Duration::from_secs(1);
/// Most queue and kind pairs that wait to be added while the database is away; what is beyond is not counted.
const MAX_PAIRS: usize = 10_000;

/// The recorder of this process, installed at the first call.
///
/// # Panics
/// When another recorder was installed before: a process has one, and it is this one.
#[must_use]
pub fn handle() -> PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    let install = || {
        PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)
            .and_then(|builder| jobs_buckets(builder, "leasehold_job_run_seconds"))
            .and_then(|builder| jobs_buckets(builder, "leasehold_job_wait_seconds"))
            .and_then(PrometheusBuilder::install_recorder)
            .expect("the process has no other metrics recorder")
    };
    HANDLE.get_or_init(install).clone()
}

fn jobs_buckets(builder: PrometheusBuilder, name: &str) -> Result<PrometheusBuilder, BuildError> {
    builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), &JOB_BUCKETS)
}

/// Folds observations until `shutdown`: a recorder that nobody reads keeps each of them.
pub(crate) async fn keep_up(handle: PrometheusHandle, shutdown: CancellationToken) {
    while shutdown.run_until_cancelled(tokio::time::sleep(UPKEEP)).await.is_some() {
        handle.run_upkeep();
    }
}

/// Counts a request.
pub(crate) fn request(method: &str, route: &str, status: u16, elapsed: Duration) {
    let labels = [("method", method_label(method)), ("route", route.to_owned()), ("status", status.to_string())];
    metrics::counter!("leasehold_http_requests_total", &labels).increment(1);
    let labels = [("method", method_label(method)), ("route", route.to_owned())];
    metrics::histogram!("leasehold_http_request_seconds", &labels).record(elapsed.as_secs_f64());
}

/// A caller can invent methods without end: those beyond HTTP's common ones share one label.
fn method_label(method: &str) -> String {
    match method {
        "GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS" => method.to_owned(),
        _ => "other".to_owned(),
    }
}

/// What the database says now, in Prometheus's text form.
pub(crate) fn of_database(overview: &Overview, queues: &[QueueView]) -> String {
    let mut text = String::new();
    let age = |since: Option<Timestamp>| {
        since.map_or(0.0, |at| (overview.now - at).to_std().map_or(0.0, |age| age.as_secs_f64()))
    };
    let singles = [
        ("leasehold_oldest_due_age_seconds", "Age of the oldest due job of all queues.", age(overview.oldest_due_at)),
        ("leasehold_leases_live", "Leased jobs of all workers.", as_f64(overview.running)),
        ("leasehold_leases_expired", "Leases past their expiry that nobody rescued yet.", as_f64(overview.expired)),
        ("leasehold_fenced_writes_last_hour", "Writes that the fence refused.", as_f64(overview.refused_last_hour)),
        ("leasehold_workers_live", "Live workers.", as_f64(overview.workers_live)),
        ("leasehold_workers_silent", "Workers that went silent within a day.", as_f64(overview.workers_silent)),
        (
            "leasehold_prune_late_seconds",
            "How long a day of finished jobs cannot leave because others hold its table; 0 where none is late.",
            age(overview.day_late_since),
        ),
    ];
    for (name, help, value) in singles {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
    }
    let depth = [
        ("leasehold_queue_available", "Due jobs, counted up to 10000.", (|q| q.available) as fn(&QueueView) -> i64),
        ("leasehold_queue_waiting", "Jobs that wait for their time, among the first 10000 of all queues.", |q| {
            q.waiting
        }),
        ("leasehold_queue_running", "Leased jobs of the queue.", |q| q.running),
        ("leasehold_queue_paused", "Whether an operator paused the queue.", |q| i64::from(q.pause.is_some())),
    ];
    for (name, help, figure) in depth {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
        for queue in queues {
            // A queue's name has letters, digits, dots, dashes and underscores only: nothing to escape.
            let _ = writeln!(text, "{name}{{queue=\"{}\"}} {}", queue.name, figure(queue));
        }
    }
    let name = "leasehold_queue_running_limit";
    let _ = writeln!(
        text,
        "# HELP {name} Jobs of the queue that may run at once, where that is limited.\n# TYPE {name} gauge"
    );
    for queue in queues {
        if let Some(most) = queue.limits.running {
            let _ = writeln!(text, "{name}{{queue=\"{}\"}} {most}", queue.name);
        }
    }
    text
}

/// Counts are far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
const fn as_f64(count: i64) -> f64 {
    count as f64
}

/// Jobs that this process enqueued since the last flush, by queue and kind.
#[derive(Debug, Default)]
pub struct Enqueued {
    counts: Mutex<HashMap<(String, String), i64>>,
}

impl Enqueued {
    /// Counts jobs that were committed.
    pub fn add(&self, queue: &str, kind: &str, total: i64) {
        metrics::counter!("leasehold_jobs_enqueued_total", "queue" => queue.to_owned(), "kind" => kind.to_owned())
            .increment(total.unsigned_abs());
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() < MAX_PAIRS {
            *counts.entry((queue.to_owned(), kind.to_owned())).or_default() += total;
        }
    }

    fn take(&self) -> Vec<(String, String, String, i64)> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.drain().map(|((queue, kind), total)| (queue, kind, "enqueued".to_owned(), total)).collect()
    }

    fn put_back(&self, taken: Vec<(String, String, String, i64)>) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        for (queue, kind, _, total) in taken {
            *counts.entry((queue, kind)).or_default() += total;
        }
    }

    async fn flush(&self, pool: &PgPool) {
        let taken = self.take();
        if taken.is_empty() {
            return;
        }
        let added = async {
            let mut conn = domain::db::session(pool).await?;
            queue::add_throughput(&mut conn, &taken).await?;
            conn.done(()).await
        };
        if let Err(error) = added.await {
            tracing::debug!(%error, "the counters by minute wait for the database");
            self.put_back(taken);
        }
    }
}

/// Adds what was enqueued to the counters by minute once a second, and a last time at the end.
pub(crate) async fn flush_enqueued(app: crate::App, shutdown: CancellationToken) {
    while shutdown.run_until_cancelled(tokio::time::sleep(FLUSH)).await.is_some() {
        app.enqueued().flush(app.pool()).await;
    }
    app.enqueued().flush(app.pool()).await;
}
