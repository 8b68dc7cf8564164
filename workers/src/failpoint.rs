//! Named points at every effect, where a test can hold, count or kill what runs through.
//!
//! Compiled to nothing without the feature `failpoints`, which no shipped binary enables. The registry is one a
//! process, so tests that share a process tell their points apart by the detail (a host, a key).

#[cfg(feature = "failpoints")]
pub use armed::{Gate, SpecError, arm_from_spec, gate, gate_next, hit};

/// Marks an effect. Does nothing in this build.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
#[allow(clippy::unused_async)]
pub async fn hit(_name: &'static str, _detail: &str) {}

#[cfg(feature = "failpoints")]
mod armed {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex, PoisonError};

    use tokio::sync::{Semaphore, watch};

    /// Points are few: a test arms one or two.
    static ARMED: Mutex<Vec<Arc<Point>>> = Mutex::new(Vec::new());

    #[derive(Debug)]
    struct Point {
        name: String,
        detail: String,
        action: Action,
    }

    #[derive(Debug)]
    enum Action {
        /// Hold hits, those up to `last`, until the gate allows them.
        Hold { permits: Semaphore, arrived: watch::Sender<usize>, held: AtomicUsize, last: usize },
        /// Abort the process at this hit, counted from 1.
        Abort { at: usize, hits: AtomicUsize },
    }

    /// Marks an effect: a test may hold the caller here for ever, or end the process.
    pub async fn hit(name: &'static str, detail: &str) {
        let matching: Vec<Arc<Point>> = {
            let points = ARMED.lock().unwrap_or_else(PoisonError::into_inner);
            points.iter().filter(|p| p.name == name && detail.contains(&p.detail)).cloned().collect()
        };
        for point in matching {
            match &point.action {
                Action::Hold { permits, arrived, held, last } => {
                    let mut count = 0;
                    arrived.send_modify(|arrived| {
                        *arrived += 1;
                        count = *arrived;
                    });
                    if count > *last {
                        continue;
                    }
                    // A closed gate lets everybody pass.
                    match permits.try_acquire() {
                        Ok(permit) => permit.forget(),
                        Err(_) => {
                            held.fetch_add(1, Ordering::SeqCst);
                            let permit = permits.acquire().await;
                            held.fetch_sub(1, Ordering::SeqCst);
                            if let Ok(permit) = permit {
                                permit.forget();
                            }
                        }
                    }
                }
                Action::Abort { at, hits } => {
                    if hits.fetch_add(1, Ordering::SeqCst) + 1 == *at {
                        std::process::abort();
                    }
                }
            }
        }
    }

    /// A point that holds whoever comes through. Dropping it opens it.
    #[derive(Debug)]
    pub struct Gate {
        point: Arc<Point>,
    }

    /// Holds every hit of `name` whose detail contains `detail`, after letting the first `pass` through.
    #[must_use]
    pub fn gate(name: &str, detail: &str, pass: usize) -> Gate {
        hold(name, detail, pass, usize::MAX)
    }

    /// Holds the next hit alone; whoever comes through after it is not held.
    #[must_use]
    pub fn gate_next(name: &str, detail: &str) -> Gate {
        hold(name, detail, 0, 1)
    }

    fn hold(name: &str, detail: &str, pass: usize, last: usize) -> Gate {
        let (permits, arrived) = (Semaphore::new(pass), watch::Sender::new(0));
        let action = Action::Hold { permits, arrived, held: AtomicUsize::new(0), last };
        let point = Arc::new(Point { name: name.to_owned(), detail: detail.to_owned(), action });
        ARMED.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&point));
        Gate { point }
    }

    impl Gate {
        /// Waits until this many hits have arrived, those that passed included.
        pub async fn arrived(&self, hits: usize) {
            if let Action::Hold { arrived, .. } = &self.point.action {
                // The sender lives in the point that we hold, so the wait cannot fail.
                let _ = arrived.subscribe().wait_for(|count| *count >= hits).await;
            }
        }

        /// How many hits have arrived.
        #[must_use]
        pub fn hits(&self) -> usize {
            match &self.point.action {
                Action::Hold { arrived, .. } => *arrived.borrow(),
                Action::Abort { hits, .. } => hits.load(Ordering::SeqCst),
            }
        }

        /// Whether somebody is held right now.
        #[must_use]
        pub fn is_holding(&self) -> bool {
            match &self.point.action {
                Action::Hold { held, .. } => held.load(Ordering::SeqCst) > 0,
                Action::Abort { .. } => false,
            }
        }

        /// Lets this many more hits pass.
        pub fn allow(&self, hits: usize) {
            if let Action::Hold { permits, .. } = &self.point.action {
                permits.add_permits(hits);
            }
        }
    }

    impl Drop for Gate {
        fn drop(&mut self) {
            ARMED.lock().unwrap_or_else(PoisonError::into_inner).retain(|point| !Arc::ptr_eq(point, &self.point));
            if let Action::Hold { permits, .. } = &self.point.action {
                permits.close();
            }
        }
    }

    /// A line that names no action this registry knows.
    #[derive(Debug, thiserror::Error)]
    #[error("a failpoint is written name[:detail]=abort@n, not {0:?}")]
    pub struct SpecError(String);

    /// Arms the points of a line such as `mirror.after_copy=abort@17,objects.after_part:a.example=abort@1`, for the
    /// rest of the process. How a test's worker binary is told where to die.
    ///
    /// # Errors
    /// A part that is not of this form; nothing is armed then.
    pub fn arm_from_spec(spec: &str) -> Result<(), SpecError> {
        let points: Result<Vec<Arc<Point>>, SpecError> =
            spec.split(',').filter(|part| !part.is_empty()).map(|part| parse(part).map(Arc::new)).collect();
        ARMED.lock().unwrap_or_else(PoisonError::into_inner).extend(points?);
        Ok(())
    }

    fn parse(part: &str) -> Result<Point, SpecError> {
        let bad = || SpecError(part.to_owned());
        let (place, at) = part.split_once("=abort@").ok_or_else(bad)?;
        let at = at.parse().ok().filter(|at| *at > 0).ok_or_else(bad)?;
        let (name, detail) = place.split_once(':').unwrap_or((place, ""));
        let action = Action::Abort { at, hits: AtomicUsize::new(0) };
        Ok(Point { name: name.to_owned(), detail: detail.to_owned(), action })
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_spec_names_point_detail_and_hit() {
            let point = parse("mirror.after_copy:a.example=abort@17").unwrap();
            assert_eq!((point.name.as_str(), point.detail.as_str()), ("mirror.after_copy", "a.example"));
            assert!(matches!(point.action, Action::Abort { at: 17, .. }));
            for bad in ["x", "x=abort", "x=abort@0", "x=abort@y", "x=stop@1"] {
                assert!(parse(bad).is_err(), "{bad}");
            }
        }

        #[tokio::test]
        async fn a_gate_holds_what_it_names_and_opens_when_dropped() {
            let gate = gate("test.point", "held", 1);
            hit("test.point", "other").await;
            hit("test.point", "held: passes").await;
            let held = tokio::spawn(hit("test.point", "held: waits"));
            gate.arrived(2).await;
            assert!(!held.is_finished());
            drop(gate);
            held.await.unwrap();
        }

        #[tokio::test]
        async fn a_gate_of_the_next_hit_holds_no_other() {
            let gate = gate_next("test.next", "");
            let held = tokio::spawn(hit("test.next", "first"));
            gate.arrived(1).await;
            hit("test.next", "second").await;
            assert!(gate.is_holding());
            drop(gate);
            held.await.unwrap();
        }
    }
}
