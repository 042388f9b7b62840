//! Steps and checks that many of the properties share.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, SubsecRound, Utc};
use tokio::time::{Instant, sleep};

use super::{FIRST_TTL, LOOK, Outcome, PATIENCE, SHORT, Violation, violation};
use leasehold::{
    Error, Held, Holder, Key, Lease, LockState, Store,
    jobs::Done,
    store::{
        AcquireAnswer, AcquireRequest, Grant, LeaseId, ReleaseRequest, RenewAnswer, RenewRequest,
    },
};

/// A key that no other test uses.
pub(super) fn fresh_key(name: &str) -> Result<Key, Violation> {
    Ok(Key::new(format!("{name} {}", LeaseId::random()))?)
}

pub(super) fn request(key: &Key, owner: &str, ttl: Duration) -> AcquireRequest {
    AcquireRequest::exclusive(key.clone(), LeaseId::random(), owner.into(), ttl)
}

pub(super) async fn granted(
    store: &Arc<dyn Store>,
    request: &AcquireRequest,
) -> Result<Grant, Violation> {
    match store.acquire(request).await? {
        AcquireAnswer::Granted(grant) => Ok(grant),
        AcquireAnswer::Held(held) => violation(format!(
            "{} was refused a free key, held by {}",
            request.owner,
            held.owner()
        )),
        AcquireAnswer::Done(done) => no_tick(&done),
    }
}

pub(super) async fn refused(
    store: &Arc<dyn Store>,
    request: &AcquireRequest,
) -> Result<Held, Violation> {
    match store.acquire(request).await? {
        AcquireAnswer::Held(held) => Ok(held),
        AcquireAnswer::Granted(_) => violation(format!(
            "{} was granted a key that another holds",
            request.owner
        )),
        AcquireAnswer::Done(done) => no_tick(&done),
    }
}

/// Fails: only a request with a tick may be answered that a tick is done.
pub(super) fn no_tick<T>(done: &Done) -> Result<T, Violation> {
    violation(format!("a request for no tick was told that {done}"))
}

pub(super) async fn release(store: &Arc<dyn Store>, lease: &AcquireRequest) -> Outcome {
    let request = ReleaseRequest::new(lease.key.clone(), lease.lease);
    store.release(&request).await?;
    Ok(())
}

/// The answer to one renewal.
pub(super) async fn renew(
    store: &Arc<dyn Store>,
    key: &Key,
    lease: LeaseId,
    ttl: Duration,
) -> Result<RenewAnswer, Violation> {
    let request = [RenewRequest::new(key.clone(), lease, ttl)];
    match store.renew(&request).await?.pop() {
        Some(answer) => Ok(answer?),
        None => violation("a renewal has no answer"),
    }
}

/// The state of a key that must have a document.
pub(super) async fn state(store: &Arc<dyn Store>, key: &Key) -> Result<LockState, Violation> {
    match store.inspect(key).await? {
        Some(state) => Ok(state),
        None => violation(format!("{key} has no document")),
    }
}

/// The only live holder of a key.
pub(super) async fn sole_holder(store: &Arc<dyn Store>, key: &Key) -> Result<Holder, Violation> {
    let mut holders = state(store, key).await?.holders;
    match (holders.pop(), holders.is_empty()) {
        (Some(holder), true) => Ok(holder),
        (last, _) => violation(format!(
            "expected one live holder, found {}",
            holders.len() + usize::from(last.is_some())
        )),
    }
}

/// The time that comes this long after another one, at the resolution of the stores.
pub(super) fn after(at: DateTime<Utc>, by: Duration) -> DateTime<Utc> {
    (at + by).trunc_subsecs(3)
}

/// The time from one moment to another; zero if the other is not later.
pub(super) fn between(from: DateTime<Utc>, to: DateTime<Utc>) -> Duration {
    (to - from).to_std().unwrap_or_default()
}

/// Whether a lease lived for as long as a property needed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lived {
    LongEnough,
    /// The lease ended before that: the machine, or the server, was slower than the lease lived.
    TooShort,
}

/// Tries a property with longer and longer leases, until a lease lives long enough.
pub(super) async fn with_time_enough(
    attempt: impl AsyncFn(Duration) -> Result<Lived, Violation>,
) -> Outcome {
    let mut ttl = FIRST_TTL;
    while ttl < PATIENCE {
        if attempt(ttl).await? == Lived::LongEnough {
            return Ok(());
        }
        ttl *= 4;
    }
    violation(format!("no lease for less than {ttl:?} lived long enough"))
}

/// The lease, unless its grant came too late to be useful.
pub(super) fn in_time(acquired: Result<Lease, Error>) -> Result<Option<Lease>, Violation> {
    match acquired {
        Ok(lease) => Ok(Some(lease)),
        Err(Error::TimedOut { .. } | Error::NotTaken { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Waits until the server says that the key has no live holder.
pub(super) async fn until_free(store: &Arc<dyn Store>, key: &Key) -> Outcome {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if store
            .inspect(key)
            .await?
            .is_none_or(|state| state.is_free())
        {
            return Ok(());
        }
        sleep(LOOK).await;
    }
    violation(format!("{key} was not free after {PATIENCE:?}"))
}

/// Waits until a process has a place for the key.
pub(super) async fn until_waited_for(store: &Arc<dyn Store>, key: &Key) -> Outcome {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        let state = store.inspect(key).await?;
        if state.is_some_and(|state| !state.waiters.is_empty()) {
            return Ok(());
        }
        sleep(LOOK).await;
    }
    violation(format!("nobody had a place for {key} after {PATIENCE:?}"))
}

/// A key whose lease has expired and was not released, and the request of that lease.
pub(super) async fn expired(
    store: &Arc<dyn Store>,
    name: &str,
    owner: &str,
) -> Result<(AcquireRequest, Grant), Violation> {
    let request = request(&fresh_key(name)?, owner, SHORT);
    let grant = granted(store, &request).await?;
    until_free(store, &request.key).await?;
    Ok((request, grant))
}
