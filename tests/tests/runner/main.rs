//! The runner on a real PostgreSQL: one suite of claims, which every engine must pass.

mod cancel;
mod drain;
mod faults;
mod hints;
mod idle;
mod inside;
mod leases;
mod logs;
mod outages;
mod outcomes;
mod service;
mod support;
mod takeover;
mod work;

use workers::runner::Engine;

/// Each claim is a test of its own for each engine.
macro_rules! on_every_engine {
    ($($module:ident::$case:ident;)*) => {$(
        mod $case {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn under_apalis() {
                $module::$case(Engine::Apalis).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn under_the_plain_loop() {
                $module::$case(Engine::Plain).await;
            }
        }
    )*};
}

on_every_engine! {
    work::jobs_run_and_complete;
    leases::a_handler_of_ten_lease_lives_runs_once;
    leases::handlers_that_block_every_thread_keep_their_leases;
    takeover::a_handler_whose_lease_was_taken_over_is_stopped_at_once;
    takeover::every_late_write_is_refused_and_kept_as_evidence;
    takeover::a_late_result_is_refused_kept_and_counted;
    leases::a_handler_is_stopped_before_its_lease_ends_when_renewals_hang;
    leases::renewals_that_fail_for_a_while_stop_nobody;
    idle::an_idle_worker_polls_and_asks_nothing_else;
    idle::a_worker_whose_slots_are_taken_still_sweeps;
    idle::a_worker_removes_the_batches_that_it_is_done_with;
    leases::a_second_start_on_the_same_host_is_another_worker;
    leases::no_transaction_is_open_while_handlers_act;
    outcomes::a_failing_job_is_tried_until_its_attempts_are_spent;
    outcomes::a_handler_chooses_its_wait;
    outcomes::a_snooze_spends_no_attempt;
    outcomes::a_handler_ends_its_job_for_good;
    outcomes::a_panic_is_a_failure_and_the_worker_lives_on;
    outcomes::undecodable_arguments_end_their_job_alone;
    outcomes::a_protected_job_is_never_discarded;
    outcomes::a_deadline_ends_an_attempt;
    outcomes::a_later_attempt_reads_the_steps_of_earlier_ones;
    outcomes::a_result_that_cannot_be_stored_runs_no_job_again;
    inside::a_job_completed_in_its_handlers_transaction_is_settled_once_with_the_change;
    inside::a_handler_that_stays_after_its_commit_is_dropped_without_a_refusal;
    inside::a_transaction_that_rolls_back_leaves_the_job_to_run_again;
    inside::a_transaction_under_a_lost_lease_commits_nothing_and_is_kept_as_evidence;
    inside::a_repeated_transaction_whose_first_answer_was_lost_changes_nothing_twice;
    inside::a_snooze_and_a_failure_inside_a_transaction_end_the_lease;
    inside::a_kind_without_the_databases_mark_is_refused;
    cancel::a_cancellation_reaches_a_running_handler_within_a_third_of_a_lease;
    cancel::a_handler_that_ignores_its_cancellation_is_dropped;
    cancel::a_handler_that_completes_all_the_same_has_completed;
    drain::a_drain_lets_handlers_end_and_begins_nothing_new;
    drain::what_outlasts_the_drain_is_snoozed_without_an_attempt;
    drain::leases_that_arrive_during_the_drain_are_handed_back;
    drain::stopping_at_once_drops_handlers_and_hands_their_leases_back;
    drain::a_loop_that_dies_spends_no_attempt;
    drain::a_worker_without_its_renewals_ends_with_an_error;
    outages::a_database_that_is_away_for_a_while_spends_no_attempt;
    outages::handlers_whose_writes_hang_keep_nobody_from_leasing_and_settling;
    service::only_the_named_queues_and_kinds_are_served;
    service::leases_held_are_bounded_while_outcomes_wait;
    service::jobs_whose_starts_are_limited_are_leased_when_there_is_a_slot_and_not_ahead;
    service::a_settlement_whose_answer_was_lost_is_recorded_once;
    service::cut_connections_lose_no_job;
    service::leasing_goes_on_after_an_outage;
    service::leasing_goes_on_at_once_where_others_held_it_up;
    service::a_place_that_others_hold_up_holds_up_no_other_queue;
    service::leases_whose_answer_was_lost_are_found_again;
    service::a_worker_stages_due_jobs_and_takes_over_from_the_dead;
    service::what_was_done_is_counted;
}
