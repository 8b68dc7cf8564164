//! The words of the schema and the words of the program are the same.

use std::collections::BTreeSet;

use domain::instances::RouteStatus;
use domain::instances::moves::Outcome;
use domain::queue::JobState;

use crate::support::Queue;

async fn words(q: &Queue, table: &str, constraint: &str) -> BTreeSet<String> {
    let definition: String = sqlx::query_scalar(
        "select pg_get_constraintdef(oid) from pg_constraint where conname = $1 and conrelid = $2::regclass",
    )
    .bind(constraint)
    .bind(table)
    .fetch_one(q.db.pool())
    .await
    .expect("the constraint exists");
    definition.split('\'').skip(1).step_by(2).map(str::to_owned).collect()
}

#[tokio::test]
async fn the_checks_of_the_schema_name_the_states_of_the_program() {
    let q = Queue::start().await;
    let (mut live, mut over) = (BTreeSet::new(), BTreeSet::new());
    for state in JobState::ALL {
        let words = if state.is_final() { &mut over } else { &mut live };
        words.insert(state.as_str().to_owned());
    }
    assert_eq!(words(&q, "jobs", "jobs_state_check").await, live);
    assert_eq!(words(&q, "jobs_finished", "jobs_finished_state_check").await, over);
    let all = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(words(&q, "moves", "moves_outcome_check").await, all(&Outcome::ALL.map(Outcome::as_str)));
    assert_eq!(words(&q, "routes", "routes_status_check").await, all(&RouteStatus::ALL.map(RouteStatus::as_str)));
}

/// Q-023 stands on this: the unique index has no state in its predicate, since every row of `jobs` is live.
#[tokio::test]
async fn the_unique_index_covers_every_live_state() {
    let q = Queue::start().await;
    let definition: String = sqlx::query_scalar("select indexdef from pg_indexes where indexname = 'jobs_unique_key'")
        .fetch_one(q.db.pool())
        .await
        .expect("the index exists");
    assert!(definition.starts_with("CREATE UNIQUE INDEX"), "{definition}");
    let (_, predicate) = definition.split_once(" WHERE ").expect("it is partial");
    assert_eq!(predicate, "(unique_key IS NOT NULL)");
}
