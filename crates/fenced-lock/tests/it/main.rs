//! The lock: one contract for every backend, and what is particular to etcd, against real servers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::incompatible_msrv, reason = "tests run on the Rust of the workspace")]
#![allow(clippy::large_futures, reason = "the stack of a test has room for them")]

mod contract;
mod etcd;
mod examples;
#[path = "../../src/tests/faulty.rs"]
#[allow(dead_code, reason = "the unit tests use all of it")]
mod faulty;
mod file;
mod lab;
mod members;
mod options;
mod outside;
mod package;
mod permissions;
mod pooler;
mod postgres;
mod postgres_advisory;
mod promises;
mod redis;
mod redlock;
mod silent;
mod zookeeper;

use contract::{basics, cancellation, loss, polling, queueing, reentry, resilience};
use postgres::LockKind;

/// Runs these tests of the contract against a backend, in a module of this name. `$lab` is `None` where the server is not
/// installed.
macro_rules! contract {
    ($module:ident, $attribute:meta, $lab:expr; $($area:ident: $($test:ident)*;)*) => {
        mod $module {
            use super::*;
            $($(
                #[$attribute]
                async fn $test() {
                    if let Some(lab) = $lab {
                        $area::$test(&lab).await;
                    }
                }
            )*)*
        }
    };
}

/// The same, with the tests for every lock with tokens and a queue, and with further tests.
macro_rules! contract_with {
    ($module:ident, $attribute:meta, $lab:expr; $($more:tt)*) => {
        contract! {
            $module, $attribute, $lab;
            basics:
                a_later_grant_has_a_larger_token
                any_label_will_do
                one_holder_at_a_time
                try_takes_a_free_lock_only
                closing_releases_everything
                any_name_will_do;
            queueing:
                a_hundred_waiters_are_served_in_their_order
                the_queue_can_be_seen
                a_hand_over_goes_to_the_next_and_comes_back
                a_hand_over_with_entries_left_keeps_the_lock;
            reentry:
                an_owner_enters_again
                another_owner_waits;
            cancellation:
                a_caller_that_goes_away_leaves_no_claim
                many_aborted_at_any_moment_leave_no_claim;
            polling:
                a_request_that_nobody_polls_delays_nobody
                a_handle_that_nobody_polls_delays_nobody;
            loss:
                a_revoked_lease_is_told_to_holder_and_waiters
                a_deleted_claim_is_told_to_its_holder
                queueing_on_a_revoked_lease_loses_the_session
                a_deleted_waiter_is_told_and_the_others_go_on
                a_lost_hold_is_of_no_use
                an_owner_takes_the_lock_anew_after_a_loss
                a_session_lost_here_is_closed_there
                the_longest_hold_ends
                a_keeper_locks_beyond_a_loss;
            $($more)*
        }
    };
}

/// The same, with the whole contract, and with these tests of resilience.
macro_rules! whole_contract {
    ($module:ident, $attribute:meta, $lab:expr; $($resilience:ident)*; $(polling: $($polling:ident)*)?) => {
        contract_with! {
            $module, $attribute, $lab;
            basics: an_unused_session_closes_by_itself;
            queueing: contention_is_known_to_the_holder a_standby_asks_for_no_turn;
            loss: a_revoked_lease_grants_nothing_while_unlocking;
            resilience: $($resilience)*;
            $(polling: $($polling)*;)?
        }
    };
}

/// The same, for a service with one server, which can be cut off, killed and watched; with more tests of resilience and polling.
macro_rules! server_contract {
    ($module:ident, $lab:expr; $($more:ident)*; $($polling:ident)*) => {
        whole_contract!(
            $module, tokio::test(flavor = "multi_thread", worker_threads = 2), $lab;
            a_stopped_holder_can_write_late
            a_grant_is_pushed
            the_way_to_the_service_is_measured
            forked_processes_exclude_each_other
            an_open_that_was_given_up_leaves_no_session
            a_cut_connection_hides_nothing
            a_far_service_is_reached_again
            a_silent_connection_hides_no_grant
            a_lost_answer_is_asked_for_again
            a_server_killed_and_started_again
            silence_means_loss_in_time
            an_error_leaves_its_cause_to_its_source
            a_hundred_waiters_make_few_requests
            a_thousand_names_cost_no_requests
            $($more)*;
            polling:
                the_runtime_of_the_first_caller_may_end
                looks_of_a_busy_runtime_delay_nobody
                $($polling)*
        );
    };
}

whole_contract!(on_memory, tokio::test(start_paused = true), Some(lab::MemoryLab::default());
    a_claim_of_another_process_is_withdrawn;);
server_contract!(
    on_etcd,
    Some(lab::EtcdLab::shared().await);
    a_lost_request_is_sent_again
    many_long_names_outlive_a_reconnect
    a_killed_holder_is_succeeded
    a_claim_of_another_process_is_withdrawn;
    a_look_at_a_broken_connection_delays_nobody
);
whole_contract!(
    on_file,
    tokio::test(flavor = "multi_thread", worker_threads = 2),
    Some(file::FileLab::new());
    forked_processes_exclude_each_other
    a_killed_holder_is_succeeded;
    polling: the_runtime_of_the_first_caller_may_end
);
server_contract!(
    on_postgres,
    postgres::PostgresLab::shared(LockKind::Queue).await;
    a_claim_of_another_process_is_withdrawn;
);
server_contract!(
    on_redis,
    Some(redis::RedisLab::shared().await);
    a_lost_request_is_sent_again
    a_claim_of_another_process_is_withdrawn;
    a_look_at_a_broken_connection_delays_nobody
);
server_contract!(
    on_zookeeper,
    zookeeper::ZooKeeperLab::shared().await;
    many_long_names_outlive_a_reconnect;
);

// The tests for a lock without order, tokens or a queue that can be seen.
contract! {
    on_redlock, tokio::test(flavor = "multi_thread", worker_threads = 2), Some(redlock::RedlockLab::shared().await);
    basics:
        any_label_will_do
        one_holder_at_a_time
        try_takes_a_free_lock_only
        any_name_will_do;
    queueing:
        a_hand_over_with_entries_left_keeps_the_lock;
    reentry:
        an_owner_enters_again
        another_owner_waits;
    cancellation:
        many_aborted_at_any_moment_leave_no_claim;
    polling:
        a_request_that_nobody_polls_delays_nobody
        a_handle_that_nobody_polls_delays_nobody
        looks_of_a_busy_runtime_delay_nobody;
    loss:
        a_deleted_claim_is_told_to_its_holder
        a_session_lost_here_is_closed_there;
    resilience:
        a_stopped_holder_can_write_late
        forked_processes_exclude_each_other;
}

// All tests but three. A holder does not learn that others wait. A session's claims do not end at one moment: their connections
// end one by one, and a claim can be granted in between. No other client can renew a session, so a test outside of the contract
// shows that an unused session closes.
contract_with! {
    on_postgres_advisory, tokio::test(flavor = "multi_thread", worker_threads = 2),
    postgres::PostgresLab::shared(LockKind::Advisory).await;
    resilience:
        a_stopped_holder_can_write_late
        forked_processes_exclude_each_other
        a_killed_holder_is_succeeded
        a_grant_is_pushed
        the_way_to_the_service_is_measured;
    polling:
        the_runtime_of_the_first_caller_may_end
        looks_of_a_busy_runtime_delay_nobody;
}
