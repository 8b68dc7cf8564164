//! Dry runs: what a box foresees is what a move then does, and nothing is changed by looking.

use std::time::Duration;

use domain::ids::{JobId, QueueName};
use domain::instances::moves::Wish;
use domain::instances::moves::policy::Verdict;
use domain::instances::moves::rehearsal::{self, Amount, FirstRound, Look, Rehearsal, Report};
use domain::instances::{self, Refusal};
use sandbox::s3::{Fault, Rule};
use workers::node::NodeConfig;

use crate::support::{Fleet, HOST, app, host, ltx};

/// What only jobs write: a look is one.
const OF_JOBS: [&str; 6] = ["jobs", "jobs_finished", "job_attempts", "job_logs", "lease_batches", "throughput"];

impl Fleet {
    async fn rehearse(&self, to: &str) -> Rehearsal {
        let told = rehearsal::rehearse(&mut *self.conn().await, &app(), &host(HOST), to, Wish::default()).await;
        told.expect("a dry run is answered")
    }

    async fn look(&self, id: JobId) -> Look {
        let found = rehearsal::look(&mut *self.conn().await, &app(), &host(HOST), id).await;
        found.expect("the database answers").expect("a look").1
    }

    /// Asks for a dry run to uk, lets eu look, and tells what it found.
    async fn looked(&self) -> Report {
        let told = self.rehearse("uk").await;
        assert_eq!(told.refusal(), None, "{told:?}");
        let job = told.look.expect("a box looks").job;
        assert!(matches!(self.look(job).await, Look::Waiting(_)));
        self.run(&self.eu).await.result();
        match self.look(job).await {
            Look::Told(report) => *report,
            other @ (Look::Waiting(_) | Look::Failed(_)) => panic!("told, not {other:?}"),
        }
    }
}

/// What is small is copied whole, what is larger in parts.
fn in_parts(config: NodeConfig) -> NodeConfig {
    let tuning = workers::objects::Tuning { copy_limit: 64, part_size: 50, ..config.tuning };
    NodeConfig { tuning, ..config }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dry_run_foresees_is_what_the_first_round_does_and_looking_changes_nothing() {
    let fleet = Fleet::start_with(in_parts).await;
    fleet.s3.set_min_part(1);
    fleet.place(HOST).await;
    fleet.put(HOST, &ltx(9, 1, 10), &[7; 160]);
    for txid in 11..=14 {
        fleet.put(HOST, &ltx(0, txid, txid), b"raw");
    }
    // What takes no part in a move is not counted, and what an earlier one left is told, with the delete that it costs.
    fleet.put(HOST, "lock.json", b"a lease");
    let objects = fleet.s3.objects();
    for (suffix, bytes) in [(ltx(9, 1, 10), &[7; 160][..]), (ltx(0, 3, 3), b"of an older life")] {
        objects.put("uk-data", &format!("moves/{HOST}/{suffix}"), bytes);
    }
    let world = async || {
        let everything = |bucket| fleet.content(bucket, "");
        (fleet.dump_without(&OF_JOBS).await, everything("eu-data"), everything("uk-data"))
    };
    let before = world().await;
    fleet.s3.faults().reset_record();
    let report = fleet.looked().await;
    assert_eq!(world().await, before, "no record, no serial, no move, no journal, no object");
    let calls = fleet.s3.faults().record();
    assert!(calls.iter().all(|call| call.op == "ListObjectsV2"), "it lists and does nothing else: {calls:?}");
    assert_eq!(report.requests, u64::try_from(calls.len()).expect("few"));
    assert_eq!((report.identity.as_str(), report.node), ("eu-1", fleet.eu.id()));
    assert_eq!((report.source, report.newest_txid), (Some(Amount { keys: 5, bytes: 172 }), Some(14)));
    assert_eq!(report.staged, Some(Amount { keys: 2, bytes: 176 }));
    assert_eq!(report.obstacle, None);
    let first = report.first_round.expect("nothing holds it up");
    // Two listings, four copies, one in parts (its head, its beginning, four parts, its end), a delete, two listings.
    assert_eq!(first, FirstRound { copies: Amount { keys: 5, bytes: 172 }, deletes: 1, requests: 2 + 4 + 7 + 1 + 2 });

    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    fleet.run(&fleet.eu).await.snoozed();
    let status = fleet.read_move(id).await.status;
    let round = status.last.unwrap_or_else(|| panic!("its numbers: {status:?}"));
    assert_eq!(
        (round.copied, round.copied_bytes, round.deleted),
        (first.copies.keys, first.copies.bytes, first.deletes)
    );
    assert_eq!(round.requests, first.requests, "as many as were foreseen");
    assert!(fleet.is_mirrored_but_for(HOST, "lock.json"));
}

impl Fleet {
    fn is_mirrored_but_for(&self, host: &str, left_out: &str) -> bool {
        let source = self.content("eu-data", &format!("instances/{host}/")).into_iter();
        let source: Vec<_> = source.filter(|(suffix, _)| suffix != left_out).collect();
        source == self.content("uk-data", &format!("moves/{host}/"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_would_hold_the_first_round_up_is_told_with_what_is_known_all_the_same() {
    let fleet = Fleet::with_instance().await;
    let faults = fleet.s3.faults();
    faults.add(Rule::on("ListObjectsV2", Fault::Answer("AccessDenied")).bucket("uk-data"));
    let report = fleet.looked().await;
    let obstacle = report.obstacle.expect("held up");
    assert_eq!((obstacle.code.as_str(), obstacle.permanent), ("target_forbidden", true));
    assert_eq!(report.source.map(|it| it.keys), Some(5), "the replica can be listed");
    assert_eq!((report.staged, report.first_round), (None, None));
    faults.clear();
    faults.add(Rule::on("ListObjectsV2", Fault::Answer("AccessDenied")).bucket("eu-data"));
    let report = fleet.looked().await;
    assert_eq!(report.obstacle.map(|it| it.code).as_deref(), Some("source_unreadable"));
    assert_eq!((report.source, report.staged, report.first_round), (None, None, None), "not known is not zero");
    faults.clear();
    for (key, _) in fleet.content("eu-data", "") {
        fleet.s3.objects().delete("eu-data", &key);
    }
    let report = fleet.looked().await;
    assert_eq!(report.obstacle.map(|it| it.code).as_deref(), Some("source_empty"));
    assert_eq!((report.source, report.first_round), (Some(Amount::default()), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_is_shared_while_it_goes_on_and_one_whose_box_lost_the_route_says_so() {
    let fleet = Fleet::with_instance().await;
    let first = fleet.rehearse("uk").await.look.expect("a box looks").job;
    let second = fleet.rehearse("uk").await.look.expect("a box looks").job;
    assert_eq!(first, second, "who asks meanwhile shares it");
    let leased = fleet.lease(&fleet.eu).await.expect("a look is due");
    fleet.sql("update routes set status = 'moving'").await;
    let lease = leased.lease;
    let done = fleet.handle(&fleet.eu, leased).await;
    fleet.settle(lease, &done).await;
    let Look::Told(report) = fleet.look(first).await else { panic!("told") };
    assert_eq!(report.obstacle.map(|it| it.code).as_deref(), Some("out_of_scope"));
    fleet.sql("update routes set status = 'serving'").await;
    let third = fleet.rehearse("uk").await.look.expect("a box looks").job;
    assert_ne!(third, first, "a look that is over is made anew");
    // A look of another instance, and a job that is no look, are nobody's.
    let nobody = rehearsal::look(&mut *fleet.conn().await, &app(), &host("other.example"), third).await;
    assert_eq!(nobody.expect("an answer"), None);
    let started = fleet.start_move(HOST).await.expect("a look stands in no move's way");
    let no_look = rehearsal::look(&mut *fleet.conn().await, &app(), &host(HOST), started.job).await;
    assert_eq!(no_look.expect("an answer"), None);
    let told = fleet.rehearse("uk").await;
    assert_eq!(told.refusal().map(Refusal::code), Some("move_in_flight"));
    assert!(told.look.is_some(), "what it would copy is told all the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_that_waits_for_a_dead_box_does_not_stand_for_that_of_the_box_that_serves_later() {
    let fleet = Fleet::with_instance().await;
    let waiting = fleet.rehearse("uk").await.look.expect("a box looks");
    assert_eq!(waiting.queue, QueueName::of_node(fleet.eu.id()));
    // It dies before it has looked, and another one serves the instance.
    let other = fleet.register(fleet.config("eu-2", "eu")).await.expect("another box");
    fleet.sql("update routes set node_id = (select id from nodes where identity = 'eu-2')").await;
    let look = fleet.rehearse("uk").await.look.expect("the other box looks");
    assert_ne!(look.job, waiting.job);
    assert_eq!(look.queue, QueueName::of_node(other.id()));
    fleet.run(&other).await.result();
    let Look::Told(report) = fleet.look(look.job).await else { panic!("told") };
    assert_eq!((report.identity.as_str(), report.obstacle), ("eu-2", None));
    assert!(matches!(fleet.look(waiting.job).await, Look::Waiting(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_gate_that_refuses_is_told_at_once_beside_the_boxes_that_could_land_it() {
    let fleet = Fleet::with_instance().await;
    let told = fleet.rehearse("uk").await;
    let boxes: Vec<(&str, bool, bool)> =
        told.boxes.iter().map(|node| (node.identity.as_str(), node.live, node.capabilities.exec)).collect();
    assert_eq!((boxes, told.prediction.clone()), (vec![("uk-1", true, true)], None));
    fleet.run(&fleet.eu).await.result();
    // Uk is disarmed and its box silent, the instance is pinned to a pool, and its route is being retired.
    fleet
        .sql(
            "update regions set armed = false where code = 'uk'; update instances set pool = 'gold', hibernate = false",
        )
        .await;
    fleet.sql("update nodes set seen_at = seen_at - interval '1 hour' where region = 'uk'").await;
    fleet.sql("update routes set status = 'moving'").await;
    let told = fleet.rehearse("uk").await;
    let refused: Vec<&str> = told
        .gates
        .iter()
        .filter_map(|gate| match &gate.verdict {
            Verdict::Refused(refusal) => Some(refusal.code()),
            Verdict::Passed | Verdict::Unasked => None,
        })
        .collect();
    assert_eq!(
        refused,
        ["pool_not_movable", "hibernate_required", "region_unarmed", "region_cannot_host", "not_placed"]
    );
    assert_eq!(told.refusal(), Some(&Fleet::refusal(fleet.start_move(HOST).await)), "the first is a real move's");
    assert_eq!((told.boxes[0].live, told.look), (false, None));
    let nowhere = fleet.rehearse("mars").await;
    assert!(nowhere.gates.iter().any(|gate| gate.name == "region_known" && gate.verdict != Verdict::Passed));
    assert_eq!((nowhere.boxes.len(), nowhere.look), (0, None));
    let budget = Wish { freeze_budget: Some(Duration::ZERO), ..Wish::default() };
    let wrong = rehearsal::rehearse(&mut *fleet.conn().await, &app(), &host(HOST), "uk", budget).await;
    assert!(matches!(wrong, Err(instances::Error::Invalid { field: "freeze_budget", .. })), "{wrong:?}");
}
