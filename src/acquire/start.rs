//! How a task gets its guard: it wants the key, waits, and takes what it is offered.
//!
//! The answer that grants a lease may take so long that the lease is due for its renewal. A lease that is kept alive is
//! then renewed before its caller gets it, so that work does not begin on what is left of the ttl. The caller renews it,
//! and not the renewal task: a lease that the task renews stays held for as long as the guard lives, also if nobody polls
//! the caller's future any more.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};
use tracing::Instrument;

use super::{
    options::{AcquireContext, LeaseOptions},
    take_over,
};
use crate::{
    key::{Granted, Want},
    lease::Lease,
    lease_state::timing,
    messages::OwnLeases,
    model::{Error, Held, Key, LossReason, WaitPolicy},
    retry, rules,
    telemetry::{self, AcquireSpan},
};

/// The answer to [`Leases::try_acquire`](crate::Leases::try_acquire), which has an example, and to
/// [`TryAcquire::with`](crate::TryAcquire::with).
#[derive(Debug)]
#[must_use = "a lease that is dropped is released at once"]
pub enum Attempt<T = Lease> {
    /// The lease was granted. This is the lease, or what the work under it returned.
    Acquired(T),
    /// The key was not granted. [`Held`] names the holders, and says how many processes wait.
    Held(Held),
}

impl Attempt {
    /// Returns the lease. An acquire that waits reports a held key as an error and never as `Held`, so `Held` becomes
    /// that error here.
    pub(crate) fn acquired(self) -> Result<Lease, Error> {
        match self {
            Self::Acquired(lease) => Ok(lease),
            Self::Held(held) => Err(Error::WaitTimedOut {
                waited: Duration::ZERO,
                held,
            }),
        }
    }
}

/// Acquires one key. The minimum hold and the maximum hold apply as soon as the caller has the lease.
///
/// A set sets them itself. If another key of it is not granted, it releases this key and requests it again later, and a
/// minimum hold would make it wait for its own key. The time in which it waits for its other keys does not count for the
/// maximum hold.
pub(super) async fn acquire(
    options: LeaseOptions,
    key: Result<Key, Error>,
) -> Result<Attempt, Error> {
    let waits = options.wait_policy != WaitPolicy::None;
    let mut span = AcquireSpan::begin(key.as_ref().ok(), options.fields(), waits);
    let mut end = loop {
        let end = ask(&options, key.clone(), &mut span).await;
        let Ok(Attempt::Acquired(lease)) = &end else {
            break end;
        };
        if !options.keep_alive || !is_late(lease, Instant::now()) {
            break end;
        }
        // Boxed, because few grants are late.
        let renewing = Box::pin(renew_late(lease)).instrument(span.span());
        let Err(error) = renewing.await else {
            break end;
        };
        if !is_to_be_asked_again(&error, options.wait_policy, span.since()) {
            break Err(error);
        }
    };
    let now = Instant::now();
    if let Ok(Attempt::Acquired(lease)) = &end
        && let Err(error) = check_live_and_keep(&options, lease, now)
    {
        end = Err(error);
    }
    match &end {
        Ok(Attempt::Acquired(lease)) => {
            span.granted(lease.state.fields(), lease.owner(), now);
            if !options.is_of_set {
                lease.set_holds(options.holds(), lease.state.times.granted_at);
            }
        }
        Ok(Attempt::Held(held)) => span.refused(held, now),
        Err(error) => span.failed(error, now),
    }
    end
}

/// Waits for a guard of a key.
async fn ask(
    options: &LeaseOptions,
    key: Result<Key, Error>,
    span: &mut AcquireSpan,
) -> Result<Attempt, Error> {
    let (context, key, since) = (&options.context, key?, span.since());
    let mut want = options.want(key.clone(), since)?;
    context.keys.begin_use()?;
    if matches!(want.request.own_leases, OwnLeases::TakenOver(_)) {
        let found = take_over::leases_of_owner(context, &key, &want.request.owner);
        let found = found.instrument(span.span()).await?;
        Arc::make_mut(&mut want.request).own_leases = OwnLeases::TakenOver(found);
    }
    // A set has waited for late renewals before, once for all of its keys.
    if options.keep_alive && !options.is_of_set {
        let slowing = wait_for_renewals(options, &key, want.request.ttl, since);
        slowing.instrument(span.span()).await;
    }
    if want.waits()
        && context.keys.has_waiters(&key)
        && let Some(done) = read_tick(context, &want, retry::LONGEST_PAUSE).await
    {
        return Err(done);
    }
    // A request for a key that was held a moment ago is likely to be refused.
    if !want.waits() && context.likely_held.lock().contains(&key, since) {
        Arc::make_mut(&mut want.request).likely_held = true;
    }
    let waiting = context.keys.enter(want.clone()).end();
    let end = waiting.instrument(span.span()).await;
    span.set_ahead(end.ahead);
    let why = match end.outcome {
        Ok(guard) => return Ok(Attempt::Acquired(granted(context, &key, guard).await)),
        Err(why) => context.keys.end_reason(why),
    };
    if end.was_behind {
        let limit = context.keys.call_timeout().min(want.request.ttl);
        if let Some(done) = read_tick(context, &want, limit).await {
            return Err(done);
        }
    }
    refused(options, &want, why?)
}

/// Waits while the renewals of this handle are late, because one more lease to renew would delay them further. The wait
/// lasts a third of the ttl at most.
pub(super) async fn wait_for_renewals(
    options: &LeaseOptions,
    key: &Key,
    ttl: Duration,
    since: Instant,
) {
    let longest = ttl / 3;
    let limit = match options.wait_policy {
        WaitPolicy::For(wait) => longest.min(wait),
        WaitPolicy::None | WaitPolicy::Endless => longest,
    };
    let renewals = &options.context.keys.renewals;
    if renewals.wait_while_late(limit).await {
        telemetry::slowed_down(key, since.elapsed());
    }
}

/// Reads whether the tick of an acquire that waits behind other tasks of its process is done: the answers to these do not
/// say so. Returns [why](rules::not_due) it must not run. `None` if it is due, if there is no tick, or if the read fails
/// within the limit.
async fn read_tick(context: &AcquireContext, want: &Want, limit: Duration) -> Option<Error> {
    let (tick, key) = (want.request.tick?, &want.request.key);
    let (keys, of) = (&context.keys, key.clone());
    let read = keys.call("inspect", limit, async move |store| {
        store.inspect(&of).await
    });
    rules::not_due(&read.await.ok()??.done?, tick, key)
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
fn refused(options: &LeaseOptions, want: &Want, held: Held) -> Result<Attempt, Error> {
    let now = Instant::now();
    if !want.waits()
        && let Some(until) = now.checked_add(held.expires_in())
    {
        let mut likely_held = options.context.likely_held.lock();
        likely_held.insert(held.key().clone(), until, now);
    }
    if rules::is_full(&held, &want.request) {
        let key = want.request.key.clone();
        return Err(Error::TooManyHolders { key });
    }
    match options.wait_policy {
        WaitPolicy::None => Ok(Attempt::Held(held)),
        WaitPolicy::For(_) | WaitPolicy::Endless => Err(Error::WaitTimedOut {
            waited: now.saturating_duration_since(want.since),
            held,
        }),
    }
}

/// Checks that the lease is still live when the caller gets it, and starts its renewals. The lease has expired if the
/// caller's future was not polled for too long.
fn check_live_and_keep(options: &LeaseOptions, lease: &Lease, now: Instant) -> Result<(), Error> {
    // Renewals begin only now. Otherwise the key would stay held for ever if the caller's future is never polled again.
    let is_kept = || !options.keep_alive || lease.keys.keep(&lease.state).is_ok();
    let is_given = lease.state.is_live(now) && is_kept();
    // A close may have ended the lease, or is about to.
    options.context.keys.lifecycle.check()?;
    if is_given {
        return Ok(());
    }
    Err(Error::NotTaken {
        key: lease.key().clone(),
        ttl: lease.ttl(),
    })
}

/// Whether the lease is live, and due for its renewal before the caller has it.
fn is_late(lease: &Lease, now: Instant) -> bool {
    lease.state.is_live(now) && lease.state.stored().next_renewal(now) <= now
}

/// Renews a lease that is [late](is_late). Fails if the lease is lost, or cannot be renewed.
///
/// A renewal without an answer is sent again, as in the background, and an answer that comes later still counts. A store
/// that is slower than the renewals of such a ttl need would never give the whole ttl, so after a ttl the caller gets
/// what is left.
async fn renew_late(lease: &Lease) -> Result<(), Error> {
    let (start, ttl) = (Instant::now(), lease.ttl());
    while is_late(lease, Instant::now()) && start.elapsed() < ttl {
        let renewal = timeout(timing::response_timeout(ttl), lease.renew());
        if let Ok(Err(error)) = renewal.await {
            return Err(not_given(error, lease));
        }
    }
    let live = lease.ensure_live(Instant::now());
    live.map_err(|error| not_given(error, lease))
}

/// The error for a caller that does not get its lease.
fn not_given(error: Error, lease: &Lease) -> Error {
    match error {
        Error::Lost { reason, key } => match reason {
            LossReason::Closed => Error::Closed,
            LossReason::Unreachable(error) => *error,
            LossReason::Expired => Error::TimedOut {
                store: lease.keys.store.name(),
                operation: "renew",
                limit: lease.ttl(),
            },
            LossReason::TakenOver | LossReason::HeldTooLong => Error::Lost { reason, key },
        },
        error => error,
    }
}

/// Whether an acquire that waits goes on after this error of a renewal.
fn is_to_be_asked_again(error: &Error, wait_policy: WaitPolicy, since: Instant) -> bool {
    let is_over = match wait_policy {
        WaitPolicy::None => true,
        WaitPolicy::For(wait) => retry::wait_end(since, wait) <= Instant::now(),
        WaitPolicy::Endless => false,
    };
    !is_over && (error.is_retryable() || matches!(error, Error::Lost { .. }))
}
