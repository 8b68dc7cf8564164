//! Waiting on conditions, never on time.

use std::time::{Duration, Instant};

/// Pause between two looks at a condition.
const POLL: Duration = Duration::from_millis(10);

/// Looks again and again until `condition` gives a value, and returns it.
///
/// # Panics
/// When it has given none within `limit`: `what` says which condition never held.
pub async fn until<T, F, Fut>(what: &str, limit: Duration, mut condition: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(Instant::now() < deadline, "waited {limit:?} in vain: {what}");
        tokio::time::sleep(POLL).await;
    }
}
