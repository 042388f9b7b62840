//! An acquire of a key whose lease stays with this process: it is granted from memory, or the lease goes back first.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{attempt::Attempt, context::AcquireContext, done_tick, options::LeaseOptions};
use crate::{
    lease::Lease,
    model::{Error, Held, Key, WaitPolicy},
    retry, rules,
    sticky::{Fit, LocalAnswer, Stay},
    telemetry::{self, StayEndReason},
};

/// Acquires a key whose lease stays here. `None` if the store has to be asked.
pub(super) async fn acquire(
    options: &LeaseOptions,
    key: &Key,
    wait_policy: WaitPolicy,
    since: Instant,
) -> Option<Result<Attempt, Error>> {
    let context = &options.context;
    let registry = &context.registry;
    let until = match wait_policy {
        WaitPolicy::None | WaitPolicy::For(Duration::ZERO) => Some(since),
        WaitPolicy::For(wait) => Some(retry::wait_end(since, wait)),
        WaitPolicy::Endless => None,
    };
    let ended = || {
        let enters = options.reentrant.then_some(since);
        enters.and_then(|now| registry.stays.in_use(key, now))
    };
    let stay = match registry.stays.get(key).or_else(ended) {
        Some(stay) => Ok(stay),
        None => Err(registry.stays.going_back(key)?),
    };
    // The task that looks after the key, and releases it, may have ended with its runtime.
    if let Err(error) = registry.renewals.ensure_running() {
        return Some(Err(error));
    }
    let stay = match stay {
        Ok(stay) => stay,
        Err(gone) => {
            // Until the lease is released, the store would refuse this acquire because of its own process.
            registry.until_released(&gone, until).await;
            registry.stays.get(key)?
        }
    };
    let access = match &options.access {
        Ok(access) => *access,
        Err(error) => return Some(Err(error.clone())),
    };
    match stay.fit(options.wanted(access)) {
        // The task comes after those that wait in the queue of the key since before its lease began to stay.
        Fit::Local if until != Some(since) && !options.reentrant => {
            if registry.queues.has_waiters(key) {
                return None;
            }
        }
        Fit::Local => {}
        Fit::Beside => return None,
        Fit::After => {
            if let Err(error) = options.request(key.clone()) {
                return Some(Err(error));
            }
            // A task that waits comes after those that wait in memory. An owner that may have the key does not wait for
            // tasks that wait for it.
            let waits = until != Some(since) && !options.reentrant;
            let read_tick = |limit| done_tick::read(registry, key, options.tick, limit);
            if waits
                && stay.idle_since().is_none()
                && let Some(done) = read_tick(retry::LONGEST_PAUSE).await
            {
                return Some(Err(done));
            }
            let turn = if waits {
                stay.wait_for_turn(until).await
            } else {
                Ok(None)
            };
            let turn = match turn {
                Ok(turn) => turn,
                Err(held) => {
                    let done = read_tick(registry.call_timeout.min(options.ttl)).await;
                    let error = done.unwrap_or_else(|| waited_in_vain(since, held));
                    return Some(Err(error));
                }
            };
            let why = StayEndReason::DocumentNeeded;
            registry.end_stay_now(&stay, why, until).await;
            drop(turn);
            return None;
        }
    }
    let request = match options.request_under(key.clone(), stay.stored().id()) {
        Ok(request) => request,
        Err(error) => return Some(Err(error)),
    };
    // A task that gets the key from memory again and again waits for nothing. On a runtime with one thread, nothing else
    // would run, not even the task that learns that another process waits for the key.
    tokio::task::consume_budget().await;
    let now = Instant::now();
    let entry = match until {
        Some(until) if until <= now => stay.try_enter(request.clone(), now),
        until => stay.enter(request.clone(), until).await,
    };
    let held = match entered(context, &stay, entry, until).await? {
        Ok(lease) => return Some(Ok(Attempt::Acquired(lease))),
        Err(held) => held,
    };
    Some(match wait_policy {
        _ if rules::is_full(&held, &request) => Err(Error::TooManyHolders { key: key.clone() }),
        WaitPolicy::None => Ok(Attempt::Held(held)),
        WaitPolicy::For(_) | WaitPolicy::Endless => Err(waited_in_vain(since, held)),
    })
}

fn waited_in_vain(since: Instant, held: Held) -> Error {
    Error::WaitTimedOut {
        waited: since.elapsed(),
        held,
    }
}

/// The guard of a lease that was granted from memory. `None` if the lease in the store does not stay any more: it then
/// goes back first, which takes until `until` at most.
pub(super) async fn entered(
    context: &AcquireContext,
    stay: &Arc<Stay>,
    entry: LocalAnswer,
    until: Option<Instant>,
) -> Option<Result<Lease, Held>> {
    let registry = &context.registry;
    match entry {
        LocalAnswer::Granted(state) => {
            // The guard comes before the event, so that it gives up the lease if the subscriber panics.
            let lease = Lease::local(registry.clone(), stay.clone(), state);
            telemetry::granted_from_memory(lease.state().fields());
            Some(Ok(lease))
        }
        LocalAnswer::Busy(held) => Some(Err(held)),
        LocalAnswer::StoreNeeded => {
            let why = StayEndReason::DocumentNeeded;
            registry.end_stay_now(stay, why, until).await;
            None
        }
    }
}
