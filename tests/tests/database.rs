//! The tests' own support: what every other test stands on.

use std::time::Duration;

use tests::db::Database;

#[tokio::test]
async fn every_test_has_a_database_of_its_own_with_the_newest_schema() {
    let (one, two) = tokio::join!(Database::start(), Database::start());
    domain::db::check_schema(one.pool()).await.expect("one's schema is current");
    domain::db::check_schema(two.pool()).await.expect("two's schema is current");
    assert_ne!(one.url(), two.url());
}

#[tokio::test]
async fn the_database_clock_moves_for_every_session_and_runs_on() {
    let db = Database::start().await;
    let before = db.clock().now().await;
    db.clock().advance(Duration::from_secs(3600)).await;
    let other = db.pool_of(1).await;
    let mut conn = other.acquire().await.expect("a connection");
    let after = domain::clock::now(&mut conn).await.expect("the clock");
    let moved = (after - before).to_std().expect("time goes forward");
    assert!(moved >= Duration::from_secs(3600) && moved < Duration::from_secs(3660), "{moved:?}");
    assert!(domain::clock::now(&mut conn).await.expect("the clock") > after);
}

#[tokio::test]
async fn a_dropped_database_is_gone() {
    let db = Database::start().await;
    let url = db.url().to_owned();
    drop(db);
    assert!(domain::db::connect(&url, 1).await.is_err());
}
