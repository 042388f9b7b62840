//! The rules of jobs that run once per tick: which tick is done.
//!
//! Invariants:
//!
//! - No lease is granted for a tick that is done, or for an older one. [`not_due`] alone says which of the two it is.
//! - Only the release of a live lease marks its tick as done. So of two leases for one tick, the later one is granted
//!   only if the tick was not done under the earlier one.

use std::cmp::Ordering;

use chrono::{DateTime, Utc};

use super::decision::{Decision, free_from, live};
use crate::{
    messages::{AcquireAnswer, AcquireRequest, DoneTick, ReleaseAnswer, ReleaseRequest},
    model::{Done, Error, Key, LastDone, LockRecord, Tick, after},
};

/// Why a request for a tick must not be granted; `None` if its tick is not done, or if the request has no tick.
///
/// # Errors
///
/// [`Error::OtherTickKind`] if the tick cannot be compared with the done one, and [`Error::NotALock`] if the document
/// does not tell which tick is done.
pub(super) fn refusal(
    record: &LockRecord,
    request: &AcquireRequest,
) -> Option<Result<AcquireAnswer, Error>> {
    let tick = request.tick?;
    match &record.done {
        LastDone::Nothing => None,
        LastDone::Tick(done) => match not_due(done, tick, &request.key)? {
            Error::Done(done) | Error::Superseded { done, .. } => {
                Some(Ok(AcquireAnswer::Done(done)))
            }
            error => Some(Err(error)),
        },
        LastDone::Unreadable => {
            let problem = "its field done makes no sense";
            Some(Err(Error::not_a_lock(&request.key, problem)))
        }
    }
}

/// Why a tick of this key must not run, when `done` is the newest one that is done: it is that tick, it is older, or
/// it cannot be compared. `None` if it is newer.
///
/// A document has only the newest done tick. So of an older one nobody knows whether it ran.
pub(crate) fn not_due(done: &Done, tick: Tick, key: &Key) -> Option<Error> {
    match tick.partial_cmp(&done.tick) {
        Some(Ordering::Greater) => None,
        Some(Ordering::Equal) => Some(Error::Done(done.clone())),
        Some(Ordering::Less) => Some(Error::Superseded {
            tick,
            done: done.clone(),
        }),
        None => Some(Error::OtherTickKind {
            key: key.clone(),
            tick,
            done: done.tick,
        }),
    }
}

/// Removes a live lease from the holders, and writes the tick that was done under it.
///
/// A lease that has expired stays as it is, and so does the done tick. The same is true if a later tick is done: leases
/// that share the key may be for different ticks.
pub(super) fn release_done(
    record: Option<&LockRecord>,
    request: &ReleaseRequest,
    DoneTick { tick, kept_for }: DoneTick,
    now: DateTime<Utc>,
) -> Decision<ReleaseAnswer> {
    let is_later = |done: &Done| done.tick > tick;
    let found = record.filter(|record| !record.done.tick().is_some_and(is_later));
    let found = found.and_then(|record| Some((record, live(record, request.lease, now)?)));
    let Some((record, mine)) = found else {
        return Decision::keep(answer_release_done(record, request));
    };
    let mut released = record.clone();
    released.holders.retain(|it| it.lease != request.lease);
    released.expires_at = free_from(record, &released.holders, now);
    let by = (mine.lease, mine.owner.clone());
    let until = after(now, kept_for);
    // The new tick includes the older ones, so the time that was promised for an older tick still holds.
    let before = record.done.tick().map_or(until, |before| before.until);
    let until = until.max(before);
    released.done = LastDone::Tick(Done::new(tick, by, now, until));
    Decision::put(released, |_| ReleaseAnswer::Released)
}

/// Reads the answer to a release with a done tick from the document, as the operation left it.
///
/// A repeated release no longer finds its lease. It finds what the first one wrote, unless a later tick was done since.
pub fn answer_release_done(record: Option<&LockRecord>, request: &ReleaseRequest) -> ReleaseAnswer {
    let wanted = request.done_tick().map(|done| (request.lease, done.tick));
    let done = record.and_then(|record| record.done.tick());
    match done.map(|done| (done.lease, done.tick)) {
        Some(written) if Some(written) == wanted => ReleaseAnswer::Released,
        _ => ReleaseAnswer::NotHeld,
    }
}
