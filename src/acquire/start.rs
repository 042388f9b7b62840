//! How a task gets its guard: it wants the key, waits, and takes what it is offered.

use std::time::Duration;

use tokio::time::Instant;
use tracing::Instrument;

use super::{
    attempt::Attempt, backpressure::wait_for_renewals, context::AcquireContext, done_tick, late,
    options::LeaseOptions,
};
use crate::{
    key::{EndReason, Granted, Wait, WaitEnd, Want},
    lease::Lease,
    model::{Error, Held, Key, WaitPolicy},
    retry, rules,
    telemetry::AcquireSpan,
};

/// Whether an acquire that does not wait sends its request again after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retries {
    /// A few times.
    Some,
    /// Never, not even when no answer comes. A set then acquires its keys one after the other, and would have to wait
    /// for a lease that the repeated request was granted.
    None,
}

/// Acquires one key. The minimum hold and the maximum hold apply as soon as the caller has the lease.
pub(super) async fn acquire(
    options: LeaseOptions,
    key: Result<Key, Error>,
    wait_policy: WaitPolicy,
) -> Result<Attempt, Error> {
    let (min_hold, max_hold) = (options.min_hold, options.max_hold);
    let end = acquire_without_holds(options, key, wait_policy, Retries::Some).await;
    if let Ok(Attempt::Acquired(lease)) = &end {
        lease.set_holds(min_hold, max_hold, lease.state().granted_at());
    }
    end
}

/// Acquires one key, and leaves it to the caller to set the minimum hold and the maximum hold. If another key of a set
/// is not granted, the set releases this key and requests it again later, and a minimum hold would make it wait for its
/// own key. The time in which a set waits for its other keys does not count for the maximum hold.
pub(super) async fn acquire_without_holds(
    options: LeaseOptions,
    key: Result<Key, Error>,
    wait_policy: WaitPolicy,
    retries: Retries,
) -> Result<Attempt, Error> {
    let waits = wait_policy != WaitPolicy::None;
    let mut span = AcquireSpan::begin(key.as_ref().ok(), options.fields(), waits);
    let (context, keep_alive) = (options.context.clone(), options.keep_alive);
    let mut end = ask(&options, key.clone(), (wait_policy, retries), &mut span).await;
    while let Ok(Attempt::Acquired(lease)) = &end
        && keep_alive
        && late::is_late(lease, Instant::now())
    {
        // Boxed, because few grants are late.
        let renewing = Box::pin(late::renew(lease)).instrument(span.span());
        let Err(error) = renewing.await else {
            break;
        };
        let is_asked_again = late::is_to_be_asked_again(&error, wait_policy, span.since());
        end = Err(error);
        if is_asked_again {
            end = ask(&options, key.clone(), (wait_policy, retries), &mut span).await;
        }
    }
    give_to_caller(&context, end, keep_alive, span)
}

/// Waits for a guard of a key.
async fn ask(
    options: &LeaseOptions,
    key: Result<Key, Error>,
    (wait_policy, retries): (WaitPolicy, Retries),
    span: &mut AcquireSpan,
) -> Result<Attempt, Error> {
    let (context, key, since) = (&options.context, key?, span.since());
    let wait = wait(wait_policy, retries, since);
    let mut want = options.want(key.clone(), since, wait)?;
    context.keys.begin_use()?;
    if options.waits_for_renewals {
        let slowing = wait_for_renewals(context, &key, want.request.ttl, wait_policy, since);
        slowing.instrument(span.span()).await;
    }
    let is_behind =
        matches!(wait, Wait::Until(_) | Wait::Endless) && context.keys.has_waiters(&key);
    if is_behind && let Some(done) = read_tick(context, &want, retry::LONGEST_PAUSE).await {
        return Err(done);
    }
    note_likely_held(context, &mut want);
    let waiting = context.keys.enter(want.clone()).end();
    let WaitEnd {
        outcome,
        ahead,
        was_behind,
    } = waiting.instrument(span.span()).await;
    span.set_ahead(ahead);
    match outcome {
        Ok(guard) => Ok(Attempt::Acquired(granted(context, &key, guard).await)),
        Err(why) => {
            if was_behind {
                let limit = context.keys.call_timeout().min(want.request.ttl);
                if let Some(done) = read_tick(context, &want, limit).await {
                    return Err(done);
                }
            }
            match why {
                EndReason::Failed(error) => Err(error),
                EndReason::Held(held) => refused(context, &want, wait_policy, held),
            }
        }
    }
}

async fn granted(context: &AcquireContext, key: &Key, guard: Granted) -> Lease {
    context.likely_held.lock().remove(key);
    let is_first = guard.is_first;
    let lease = Lease::new(context.keys.clone(), guard);
    if !is_first {
        // A task that gets the key from memory again and again waits for nothing. On a runtime with one thread, nothing
        // else would run, not even the task that learns that another process waits for the key.
        tokio::task::consume_budget().await;
    }
    lease
}

/// What an acquire that was refused because of these holders returns.
fn refused(
    context: &AcquireContext,
    want: &Want,
    wait_policy: WaitPolicy,
    held: Held,
) -> Result<Attempt, Error> {
    let now = Instant::now();
    if matches!(want.wait, Wait::No { .. })
        && let Some(until) = now.checked_add(held.expires_in())
    {
        let mut likely_held = context.likely_held.lock();
        likely_held.insert(held.key().clone(), until, now);
    }
    if rules::is_full(&held, &want.request) {
        let key = want.request.key.clone();
        return Err(Error::TooManyHolders { key });
    }
    match wait_policy {
        WaitPolicy::None => Ok(Attempt::Held(held)),
        WaitPolicy::For(_) | WaitPolicy::Endless => Err(Error::WaitTimedOut {
            waited: now.saturating_duration_since(want.since),
            held,
        }),
    }
}

/// A request for a key that was held a moment ago is likely to be refused.
fn note_likely_held(context: &AcquireContext, want: &mut Want) {
    let is_likely_held = || {
        let likely_held = context.likely_held.lock();
        likely_held.contains(&want.request.key, want.since)
    };
    if matches!(want.wait, Wait::No { .. }) && is_likely_held() {
        std::sync::Arc::make_mut(&mut want.request).likely_held = true;
    }
}

/// The error that the tick of an acquire must not run, if it is done.
async fn read_tick(context: &AcquireContext, want: &Want, limit: Duration) -> Option<Error> {
    let request = &want.request;
    done_tick::read(&context.keys, &request.key, request.tick, limit).await
}

fn wait(wait_policy: WaitPolicy, retries: Retries, since: Instant) -> Wait {
    match wait_policy {
        WaitPolicy::None | WaitPolicy::For(Duration::ZERO) => Wait::No {
            repeats: retries == Retries::Some,
        },
        WaitPolicy::For(wait) => Wait::Until(retry::wait_end(since, wait)),
        WaitPolicy::Endless => Wait::Endless,
    }
}

/// Reports the outcome, and gives the lease to the caller.
fn give_to_caller(
    context: &AcquireContext,
    mut end: Result<Attempt, Error>,
    keep_alive: bool,
    span: AcquireSpan,
) -> Result<Attempt, Error> {
    let now = Instant::now();
    if let Ok(Attempt::Acquired(lease)) = &end
        && let Err(error) = check_live_and_keep(context, lease, keep_alive, now)
    {
        end = Err(error);
    }
    match &end {
        Ok(Attempt::Acquired(lease)) => span.granted(lease.state().fields(), lease.owner(), now),
        Ok(Attempt::Held(held)) => span.refused(held, now),
        Err(error) => span.failed(error, now),
    }
    end
}

/// Checks that the lease is still live when the caller gets it, and starts its renewals. The lease has expired if the
/// caller's future was not polled for too long.
fn check_live_and_keep(
    context: &AcquireContext,
    lease: &Lease,
    keep_alive: bool,
    now: Instant,
) -> Result<(), Error> {
    // Renewals begin only now. Otherwise the key would stay held for ever if the caller's future is never polled again.
    let is_given = lease.is_live_at(now) && (!keep_alive || lease.keep().is_ok());
    // A close may have ended the lease, or is about to.
    context.keys.lifecycle.check()?;
    if is_given {
        return Ok(());
    }
    Err(Error::NotTaken {
        key: lease.key().clone(),
        ttl: lease.ttl(),
    })
}
