//! Setting limits: what is refused, and who wins.

use domain::queue::{self, Error, Limits};

use crate::limits::{per_key, rate, running};
use crate::support::{Queue, queue_name};

/// Limits outside their bounds are refused with the field; a change that did not see the last one is refused.
#[tokio::test]
async fn limits_have_bounds_and_a_revision() {
    let q = Queue::start().await;
    let name = queue_name("default");
    let mut conn = q.conn().await;
    let untouched = queue::limits(&mut conn, &name).await.expect("the database answers");
    assert_eq!((untouched.revision, untouched.limits), (0, Limits::default()));
    let refused = [
        (running(0), "running"),
        (running(10_001), "running"),
        (per_key(1001), "running_per_key"),
        (rate(0, 60), "starts_per_key"),
        (rate(1, 0), "starts_per_key"),
        (rate(1, 86_401), "starts_per_key"),
    ];
    for (limits, wanted) in refused {
        let answer = queue::set_limits(&mut conn, &name, &limits, None, "", None).await;
        assert!(matches!(answer, Err(Error::Invalid { field, .. }) if field == wanted), "{answer:?}");
    }
    let set = queue::set_limits(&mut conn, &name, &running(4), None, "quiet", Some(0)).await.expect("unset before");
    assert_eq!((set.revision, set.limits, set.reason.as_str()), (1, running(4), "quiet"));
    let stale = queue::set_limits(&mut conn, &name, &running(5), None, "", Some(0)).await;
    assert!(matches!(stale, Err(Error::StaleLimits { expected: 0, found: 1, .. })), "{stale:?}");
    let stale = queue::set_limits(&mut conn, &queue_name("other"), &running(5), None, "", Some(3)).await;
    assert!(matches!(stale, Err(Error::StaleLimits { expected: 3, found: 0, .. })), "{stale:?}");
    let set = queue::set_limits(&mut conn, &name, &Limits::default(), None, "", Some(1)).await.expect("the last one");
    assert_eq!((set.revision, set.limits), (2, Limits::default()));
}
