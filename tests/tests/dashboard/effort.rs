//! A page costs a bounded number of statements, whatever the database holds, and its foot says how many.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tests::fleet::{APP, Fleet, HOST, to};
use tracing::Subscriber;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use crate::support::{Visitor, between, enqueue, job, lease, worker};

/// Begin, time limit, rollback: what a snapshot costs beyond its queries.
const SNAPSHOT: usize = 3;

/// Counts the statements that the driver sends, as the driver itself tells them.
#[derive(Clone, Default)]
struct Statements(Arc<AtomicUsize>);

impl<S: Subscriber> Layer<S> for Statements {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == "sqlx::query" {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[tokio::test]
async fn no_page_makes_more_queries_than_its_limit_and_each_says_how_many() {
    let statements = Statements::default();
    let subscriber = tracing_subscriber::registry().with(statements.clone());
    tracing::subscriber::set_global_default(subscriber).expect("the first in this process");
    let fleet = Fleet::with_instance().await;
    let server = &fleet.server;
    fleet.client().move_instance(APP, HOST, &to("uk")).await.expect("begun");
    let spec = worker(server, &["busy"]).await;
    let jobs: Vec<_> = (0..300).map(|i| job(if i % 2 == 0 { "busy" } else { "lonely" })).collect();
    enqueue(server, &jobs).await;
    lease(server, &spec, 50).await;
    let mut visitor = Visitor::signed_in(server).await;
    let (one, lonely) = (format!("/jobs/{}", jobs[0].id), format!("/jobs/{}", jobs[1].id));
    let pages = [
        ("/", 10),
        ("/jobs", 9),
        ("/jobs?state=running", 9),
        ("/queues", 9),
        ("/queues/busy", 10),
        (one.as_str(), 13),
        (lonely.as_str(), 14),
        ("/moves", 12),
        ("/instances", 9),
        ("/instances/acme/ledger.acme.example", 23),
    ];
    for (path, limit) in pages {
        let before = statements.0.load(Ordering::SeqCst);
        let page = visitor.get(path).await;
        let made = statements.0.load(Ordering::SeqCst) - before;
        assert_eq!(page.status, 200);
        let told: usize = between(&page.text, "UTC</span><span>", " queries").parse().expect("a number");
        assert!(told <= limit, "{path} makes {told} queries, its limit is {limit}");
        assert!(made >= told && made <= told + SNAPSHOT, "{path} says {told} and makes {made}");
    }
}
