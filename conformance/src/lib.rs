//! The test suite that every store must pass, for authors of stores.
//!
//! Each property is a function of two clients of the same store. [`conformance_suite!`] makes a test of each property,
//! so that no store can leave one out. Only [`a_key_has_a_bounded_number_of_holders`] is not in it, because it takes
//! long: call it by itself.
//!
//! ```
//! use leasehold::MemoryStore;
//! use leasehold_conformance::Clients;
//!
//! async fn connect() -> Clients {
//!     let store = MemoryStore::new();
//!     Clients::new(store.clone(), store)
//! }
//!
//! leasehold_conformance::conformance_suite!(connect);
//!
//! mod on_threads {
//! // The rest of the arguments goes to `#[tokio::test]`.
//!     leasehold_conformance::conformance_suite!(super::connect, flavor = "multi_thread");
//! }
//! # fn main() {}
//! ```
//!
//! # What a store gives the suite
//!
//! - A function that connects [`Clients`]. It is called once for each test.
//! - A place of its own for each test (a collection, an index, a file), because some of the properties purge.
//! - The server's own clock. A property judges time by the server's answers, and sleeps only between two checks. So no
//!   property fails because the machine or the server is slow.
//!
//! A property returns a [`Violation`] instead of panicking, so that a test of the suite can show that it catches a
//! broken store:
//!
//! ```
//! use leasehold::MemoryStore;
//! use leasehold_conformance::{Clients, the_fence_always_rises};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), leasehold_conformance::Violation> {
//! let store = MemoryStore::new();
//! let clients = Clients::new(store.clone(), store);
//! the_fence_always_rises(&clients).await
//! # }
//! ```

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod batch;
mod cleanup;
mod conversions;
mod crowd;
mod exclusion;
mod expiry;
mod fence;
mod guard;
mod holding;
mod input;
mod limits;
mod listing;
mod look;
mod modes;
mod once;
mod renewals;
mod seeds;
mod steps;
mod sticky;
mod turn;

use std::{fmt, sync::Arc, time::Duration};

use self::steps::{
    Lived, after, between, expired, fresh_key, granted, in_time, no_tick, refused, release, renew,
    request, sole_holder, state, until_free, with_time_enough,
};
pub use self::{
    batch::{a_batch_does_what_its_requests_say, racing_batches_share_no_key},
    cleanup::{
        a_fence_ahead_of_the_clock_outlives_a_clean_up,
        clean_up_racing_with_takeover_removes_no_live_lock, purge_removes_only_what_is_long_dead,
        remove_expired_removes_only_what_is_dead,
    },
    conversions::a_late_conversion_undoes_no_later_one,
    crowd::a_key_has_a_bounded_number_of_holders,
    exclusion::{
        a_loser_never_extends_the_expiry, a_loser_writes_nothing,
        a_repeated_request_is_granted_once, critical_sections_never_overlap,
        of_32_racing_tasks_one_wins,
    },
    expiry::{
        a_renewal_counts_from_now, a_renewal_never_shortens_a_lease, a_stale_release_is_refused,
        a_stale_renewal_is_refused, many_renewals_go_in_one_call,
        takeover_only_after_expiry_on_the_servers_clock,
    },
    fence::{
        a_grant_takes_as_many_fences_as_it_asks_for, an_evicted_lease_is_no_holder_any_more,
        an_eviction_frees_the_key, the_fence_always_rises,
    },
    guard::{
        a_detached_lease_stays_until_its_ttl_is_over, a_dropped_acquire_leaves_no_lock,
        a_dropped_lease_is_released, a_lease_is_over_for_its_holder_first,
        a_released_key_is_free_at_once, a_waiter_gets_the_lock_after_its_release,
        a_waiter_gives_up_in_time,
    },
    holding::{
        a_close_releases_everything, a_kept_lease_outlives_its_ttl,
        a_kept_lease_that_is_evicted_is_lost, a_waiter_that_goes_away_holds_up_nobody,
        waiters_of_one_process_take_turns, work_under_a_lease_holds_the_key_until_it_ends,
    },
    input::{bad_input_is_refused_and_nothing_is_stored, odd_keys_are_just_text},
    limits::{
        a_full_limiter_says_so, a_limiter_and_a_lock_may_have_one_key,
        a_limiter_with_other_terms_goes_on, a_peek_takes_nothing,
        a_purge_forgets_no_window_that_counts, a_repeated_request_takes_its_permits_once,
        a_smaller_burst_gives_nothing_back, a_window_never_has_more_permits_than_its_limit,
        an_answer_says_what_is_left, permits_given_back_are_free_again,
        permits_that_belong_together_are_granted_together, smooth_permits_come_one_after_the_other,
        waiting_tasks_get_what_the_windows_have,
    },
    listing::{
        a_list_shows_what_its_filter_describes, pages_show_every_lock_that_stays_once,
        releasing_an_owner_frees_all_of_its_locks,
    },
    look::a_look_tells_whether_a_lease_is_held,
    modes::{
        a_lease_goes_on_in_another_process, a_minimum_hold_outlasts_the_release,
        a_reader_that_has_expired_is_told_so_after_another_has_left,
        a_reader_that_is_gone_blocks_nobody, a_set_waits_in_turn_for_one_key_at_a_time,
        an_owner_enters_again, an_owner_takes_over_its_own_leases,
        leases_are_upgraded_and_downgraded, many_readers_and_a_writer_all_get_the_key,
        opposite_orders_do_not_deadlock, permits_are_never_more_than_there_are,
        readers_and_a_writer_take_turns, several_keys_are_taken_all_or_none,
    },
    once::{
        a_clean_up_waits_for_what_is_done, a_list_shows_what_is_done,
        a_repeated_release_finds_the_tick_that_it_wrote, a_tick_that_is_done_is_not_granted_again,
        a_tick_that_is_done_is_not_waited_for, a_tick_that_was_not_done_is_granted_to_the_next,
        nothing_is_done_under_a_lease_that_is_lost, of_8_clients_one_does_a_tick,
        of_8_jobs_one_runs, ticks_of_different_kinds_are_not_compared,
        what_is_done_outlives_what_happens_to_the_key,
    },
    renewals::renewals_of_known_grants_tell_the_live_from_the_dead,
    seeds::{a_slow_holder_releases_late, two_contenders_see_an_expired_lock},
    sticky::{
        a_key_that_stays_goes_to_a_process_that_waits,
        a_key_that_stays_is_granted_to_nobody_after_an_eviction,
    },
    turn::{
        a_batch_keeps_the_queue, a_key_has_a_bounded_number_of_places,
        a_key_is_kept_from_the_release_of_its_last_holder,
        a_nested_request_waits_behind_who_waits_for_its_lease,
        a_place_counts_for_as_long_as_was_told, a_place_is_for_one_key, a_place_is_given_back,
        a_place_lasts_while_its_process_asks, a_place_tells_who_waits,
        a_process_that_is_gone_blocks_nobody, a_reader_queues_behind_a_writer,
        a_refusal_without_a_place_writes_nothing, a_store_tells_which_keys_are_waited_for,
        all_that_go_on_asking_are_granted_the_key, an_owner_does_not_queue_behind_itself,
        an_upgrade_does_not_queue, permits_queue_behind_a_large_request,
        processes_are_granted_a_key_in_the_order_in_which_they_came,
        renewals_and_evictions_keep_the_places, who_passes_the_queue_leaves_it_as_it_is,
    },
};
use leasehold::{Error, Store};

/// Makes a test of every property of the [suite](crate), except [`a_key_has_a_bounded_number_of_holders`]. That one
/// writes a thousand documents, large ones at the end: call it once for a store.
///
/// The first argument is the name of an async function without parameters that returns [`Clients`](crate::Clients).
/// Further arguments go to `#[tokio::test]`. The calling crate must depend on tokio, with its macros.
#[macro_export]
macro_rules! conformance_suite {
    ($connect:path $(, $($runtime:tt)*)?) => {
        $crate::conformance_suite! {
            @tests ($connect) ($($($runtime)*)?)
            of_32_racing_tasks_one_wins
            critical_sections_never_overlap
            a_repeated_request_is_granted_once
            a_loser_never_extends_the_expiry
            a_loser_writes_nothing
            takeover_only_after_expiry_on_the_servers_clock
            a_stale_release_is_refused
            a_stale_renewal_is_refused
            a_renewal_counts_from_now
            a_renewal_never_shortens_a_lease
            many_renewals_go_in_one_call
            renewals_of_known_grants_tell_the_live_from_the_dead
            the_fence_always_rises
            a_grant_takes_as_many_fences_as_it_asks_for
            an_eviction_frees_the_key
            an_evicted_lease_is_no_holder_any_more
            remove_expired_removes_only_what_is_dead
            clean_up_racing_with_takeover_removes_no_live_lock
            purge_removes_only_what_is_long_dead
            a_fence_ahead_of_the_clock_outlives_a_clean_up
            odd_keys_are_just_text
            a_list_shows_what_its_filter_describes
            pages_show_every_lock_that_stays_once
            releasing_an_owner_frees_all_of_its_locks
            bad_input_is_refused_and_nothing_is_stored
            two_contenders_see_an_expired_lock
            a_slow_holder_releases_late
            a_released_key_is_free_at_once
            a_waiter_gets_the_lock_after_its_release
            a_waiter_gives_up_in_time
            a_dropped_lease_is_released
            a_dropped_acquire_leaves_no_lock
            a_detached_lease_stays_until_its_ttl_is_over
            a_lease_is_over_for_its_holder_first
            a_kept_lease_outlives_its_ttl
            a_kept_lease_that_is_evicted_is_lost
            work_under_a_lease_holds_the_key_until_it_ends
            waiters_of_one_process_take_turns
            a_waiter_that_goes_away_holds_up_nobody
            a_close_releases_everything
            readers_and_a_writer_take_turns
            many_readers_and_a_writer_all_get_the_key
            a_reader_that_has_expired_is_told_so_after_another_has_left
            a_reader_that_is_gone_blocks_nobody
            permits_are_never_more_than_there_are
            an_owner_enters_again
            an_owner_takes_over_its_own_leases
            leases_are_upgraded_and_downgraded
            a_late_conversion_undoes_no_later_one
            several_keys_are_taken_all_or_none
            a_set_waits_in_turn_for_one_key_at_a_time
            opposite_orders_do_not_deadlock
            a_minimum_hold_outlasts_the_release
            a_lease_goes_on_in_another_process
            a_batch_does_what_its_requests_say
            racing_batches_share_no_key
            a_window_never_has_more_permits_than_its_limit
            permits_that_belong_together_are_granted_together
            an_answer_says_what_is_left
            a_peek_takes_nothing
            permits_given_back_are_free_again
            a_repeated_request_takes_its_permits_once
            smooth_permits_come_one_after_the_other
            a_smaller_burst_gives_nothing_back
            a_limiter_with_other_terms_goes_on
            a_limiter_and_a_lock_may_have_one_key
            a_purge_forgets_no_window_that_counts
            waiting_tasks_get_what_the_windows_have
            a_full_limiter_says_so
            processes_are_granted_a_key_in_the_order_in_which_they_came
            a_place_tells_who_waits
            a_place_lasts_while_its_process_asks
            a_reader_queues_behind_a_writer
            a_key_is_kept_from_the_release_of_its_last_holder
            a_place_counts_for_as_long_as_was_told
            permits_queue_behind_a_large_request
            a_process_that_is_gone_blocks_nobody
            a_place_is_given_back
            an_upgrade_does_not_queue
            renewals_and_evictions_keep_the_places
            a_place_is_for_one_key
            an_owner_does_not_queue_behind_itself
            a_nested_request_waits_behind_who_waits_for_its_lease
            who_passes_the_queue_leaves_it_as_it_is
            a_key_has_a_bounded_number_of_places
            a_refusal_without_a_place_writes_nothing
            a_store_tells_which_keys_are_waited_for
            a_look_tells_whether_a_lease_is_held
            a_key_that_stays_goes_to_a_process_that_waits
            a_key_that_stays_is_granted_to_nobody_after_an_eviction
            a_batch_keeps_the_queue
            all_that_go_on_asking_are_granted_the_key
            a_tick_that_is_done_is_not_granted_again
            ticks_of_different_kinds_are_not_compared
            a_tick_that_is_done_is_not_waited_for
            nothing_is_done_under_a_lease_that_is_lost
            a_repeated_release_finds_the_tick_that_it_wrote
            a_tick_that_was_not_done_is_granted_to_the_next
            what_is_done_outlives_what_happens_to_the_key
            a_clean_up_waits_for_what_is_done
            a_list_shows_what_is_done
            of_8_clients_one_does_a_tick
            of_8_jobs_one_runs
        }
    };
    (@tests ($connect:path) $runtime:tt $($property:ident)*) => {
        $($crate::conformance_suite! { @test $connect, $runtime, $property })*
    };
    (@test $connect:path, ($($runtime:tt)*), $property:ident) => {
        #[tokio::test($($runtime)*)]
        async fn $property() {
            let clients = $connect().await;
            if let Err(violation) = $crate::$property(&clients).await {
                panic!("{violation}");
            }
        }
    };
}

/// A time to live that outlasts any property.
const LONG: Duration = Duration::from_secs(600);
/// A time to live whose end a property waits for. No property depends on how fast a client acts after a grant.
const SHORT: Duration = Duration::from_millis(300);
/// How long a property waits for something that must happen. The limit only ends a wait that would never end.
const PATIENCE: Duration = Duration::from_secs(180);
/// The first time to live that a property tries for a lease that must stay live during its steps.
const FIRST_TTL: Duration = Duration::from_secs(1);
/// The pause between two checks.
const LOOK: Duration = Duration::from_millis(5);

/// Two clients of the same store, as two processes would have them. They must share the locks, and nothing else.
#[derive(Clone, Debug)]
pub struct Clients {
    first: Arc<dyn Store>,
    second: Arc<dyn Store>,
}

impl Clients {
    /// Makes the two clients that a property uses.
    pub fn new(first: impl Store, second: impl Store) -> Self {
        Self {
            first: Arc::new(first),
            second: Arc::new(second),
        }
    }

    /// The client for the task with this number: tasks use the two clients alternately.
    fn of_task(&self, number: usize) -> Arc<dyn Store> {
        match number % 2 {
            0 => self.first.clone(),
            _ => self.second.clone(),
        }
    }
}

/// How a store violated a property, as a text for people.
#[derive(Debug)]
pub struct Violation(String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}

impl From<Error> for Violation {
    fn from(error: Error) -> Self {
        let mut text = format!("an operation failed: {error}");
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text.push_str(&format!(": {cause}"));
            source = cause.source();
        }
        Self(text)
    }
}

impl From<tokio::task::JoinError> for Violation {
    fn from(error: tokio::task::JoinError) -> Self {
        Self(format!("a task ended badly: {error}"))
    }
}

/// The result of a property.
pub type Outcome = Result<(), Violation>;

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::Violation(format!($($message)+)));
        }
    };
}
use ensure;

fn violation<T>(message: impl Into<String>) -> Result<T, Violation> {
    Err(Violation(message.into()))
}
