//! The queue of the processes that wait for a key.
//!
//! In these properties a [`LeaseId`] stands for a process. On a key that has a holder, a place counts until its end.
//! On a free key, the places keep the key for a short time only. So if the server's clock says that an attempt came too
//! late for that, the property makes the attempt again.

/// The answer. If it came too late, the attempt ends, and is made again.
macro_rules! or_too_late {
    ($answer:expr) => {
        match $answer {
            Some(answer) => answer,
            None => return Ok(Lived::TooShort),
        }
    };
}

mod before_all;
mod nested;
mod order;
mod places;
mod waited_for;

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use tokio::time::{Instant, sleep};

pub use self::{
    before_all::{
        an_owner_does_not_queue_behind_itself, an_upgrade_does_not_queue,
        who_passes_the_queue_leaves_it_as_it_is,
    },
    nested::a_nested_request_waits_behind_who_waits_for_its_lease,
    order::{
        a_batch_keeps_the_queue, a_key_is_kept_from_the_release_of_its_last_holder,
        a_reader_queues_behind_a_writer, all_that_go_on_asking_are_granted_the_key,
        permits_queue_behind_a_large_request,
        processes_are_granted_a_key_in_the_order_in_which_they_came,
    },
    places::{
        a_key_has_a_bounded_number_of_places, a_place_counts_for_as_long_as_was_told,
        a_place_is_for_one_key, a_place_is_given_back, a_place_lasts_while_its_process_asks,
        a_place_tells_who_waits, a_process_that_is_gone_blocks_nobody,
        a_refusal_without_a_place_writes_nothing, renewals_and_evictions_keep_the_places,
    },
    waited_for::a_store_tells_which_keys_are_waited_for,
};
use super::{
    LONG, Lived, Outcome, PATIENCE, SHORT, Violation, after, ensure, no_tick, release, request,
    state, violation,
};
use leasehold::{
    Held, Key, LockState, Store,
    rules::turn::MAX_BIND_TIME,
    store::{AcquireAnswer, AcquireRequest, Grant, LeaseId, Turn},
};

/// How long the places that a property needs count.
const STAYS: Duration = Duration::from_secs(30);

/// The request of a process that waits.
fn waiting(key: &Key, waiter: LeaseId) -> AcquireRequest {
    request(key, &format!("process {waiter}"), LONG).turn(Turn::in_turn(waiter, STAYS))
}

fn processes<const N: usize>() -> [LeaseId; N] {
    [(); N].map(|()| LeaseId::random())
}

fn waiters(state: &LockState) -> Vec<LeaseId> {
    state.waiters.iter().map(|place| place.waiter).collect()
}

/// Until when all the places in this state count.
fn binding(seen: &LockState) -> DateTime<Utc> {
    let ends = seen.waiters.iter().map(|place| place.until);
    ends.min().unwrap_or(seen.now)
}

/// Until when they all keep the key if it is released after this state was seen.
fn binding_if_free(seen: &LockState) -> DateTime<Utc> {
    binding(seen).min(after(seen.now, MAX_BIND_TIME))
}

/// The refusal of a request that must be refused until this time, because others come first. `None` if it was made
/// later.
async fn behind(
    store: &Arc<dyn Store>,
    request: &AcquireRequest,
    until: DateTime<Utc>,
) -> Result<Option<Held>, Violation> {
    match store.acquire(request).await? {
        AcquireAnswer::Held(held) => Ok(Some(held)),
        AcquireAnswer::Granted(grant) if grant.acquired_at < until => violation(format!(
            "{} was granted the key at {}, and others come first until {until}",
            request.owner, grant.acquired_at
        )),
        AcquireAnswer::Granted(_) => Ok(None),
        AcquireAnswer::Done(done) => no_tick(&done),
    }
}

/// The grant of a request that must come first until this time. `None` if it was refused later.
async fn comes_first(
    store: &Arc<dyn Store>,
    request: &AcquireRequest,
    until: DateTime<Utc>,
) -> Result<Option<Grant>, Violation> {
    match store.acquire(request).await? {
        AcquireAnswer::Granted(grant) => Ok(Some(grant)),
        AcquireAnswer::Held(held) => {
            let now = state(store, &request.key).await?.now;
            ensure!(
                now >= until,
                "at {now} {} was answered {held:?}, and it comes first until {until}",
                request.owner
            );
            Ok(None)
        }
        AcquireAnswer::Done(done) => no_tick(&done),
    }
}

/// Makes an attempt again and again, until it comes in time.
async fn in_time(attempt: impl AsyncFn() -> Result<Lived, Violation>) -> Outcome {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if attempt().await? == Lived::LongEnough {
            return Ok(());
        }
        sleep(SHORT).await;
    }
    violation("no attempt came in time")
}
