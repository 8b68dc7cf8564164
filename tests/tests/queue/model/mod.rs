//! Random histories against a model of the queue that fits in memory: seeded, shrinking, compared after every step.

mod calls;
mod history;
mod reference;
mod steps;

use std::cell::RefCell;
use std::collections::BTreeSet;

use domain::queue::JobState;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use tests::server::variable;

use crate::support::Queue;
use history::Player;

/// Histories in an ordinary run; `LEASEHOLD_MODEL_CASES` asks for more.
const CASES: u32 = 120;
/// How long a history is, in steps.
const STEPS: std::ops::Range<usize> = 20..90;

/// Every answer and every row is what the model says, whatever the order of leases, renewals, outcomes, rescues,
/// cancels, retries and jumps of the clock; and the walk sees exactly the edges that the program names.
#[test]
fn random_histories_end_as_the_model_says() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let q = runtime.block_on(Queue::start());
    let edges = RefCell::new(BTreeSet::new());
    let cases = variable("LEASEHOLD_MODEL_CASES").and_then(|n| n.parse().ok()).unwrap_or(CASES);
    // The same histories in every run, unless another seed is asked for: what fails, fails again.
    let seed: u64 = variable("LEASEHOLD_MODEL_SEED").and_then(|n| n.parse().ok()).unwrap_or(1);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let outcome = runner.run(&proptest::collection::vec(steps::step(), STEPS), |steps| {
        let played: Result<BTreeSet<_>, String> = runtime.block_on(async {
            let mut player = Player::start(&q).await;
            for (at, step) in steps.iter().enumerate() {
                player.play(step).await.map_err(|why| format!("step {at}, {step:?}: {why}"))?;
            }
            Ok(player.edges)
        });
        edges.borrow_mut().extend(played.map_err(TestCaseError::fail)?);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("seed {seed}: {failure}");
    }
    let named: BTreeSet<_> =
        JobState::ALL.into_iter().flat_map(|to| to.entered_from().iter().map(move |from| (*from, to))).collect();
    assert_eq!(edges.into_inner(), named, "the edges that were walked, and those that the program names");
}
