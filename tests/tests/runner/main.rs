//! The runner on a real PostgreSQL: one suite of claims, which every engine must pass.

mod support;
mod work;

use workers::runner::Engine;

/// Each claim is a test of its own for each engine.
macro_rules! on_every_engine {
    ($($case:path as $name:ident;)*) => {$(
        mod $name {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn under_apalis() {
                $case(Engine::Apalis).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn under_the_plain_loop() {
                $case(Engine::Plain).await;
            }
        }
    )*};
}

on_every_engine! {
    work::jobs_run_and_complete as jobs_run_and_complete;
}
