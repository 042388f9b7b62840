//! The rules of jobs that run once a tick: which tick is done.
//!
//! Invariants:
//!
//! - No lease is granted for a tick that is done, or that is older than one that is.
//! - A tick is done by the release of the live lease that was granted for it, and in no other way. So of two leases for a
//!   tick the later one is granted only if nothing was done under the earlier one.

use chrono::{DateTime, Utc};

use super::decision::{Decision, Write, free_from, live};
use crate::{
    messages::{AcquireAnswer, AcquireRequest, DoneTick, ReleaseAnswer, ReleaseRequest},
    model::{Done, Error, LastDone, LockRecord, after},
};

/// Why a request for a tick is not to be granted; `None` if its tick is not done, or the request is for none.
///
/// # Errors
///
/// The answer is [`Error::OtherTickKind`] if the tick cannot be compared with the one that is done, and
/// [`Error::NotALock`] if the document does not tell which one that is.
pub(super) fn refusal(
    record: &LockRecord,
    request: &AcquireRequest,
) -> Option<Result<AcquireAnswer, Error>> {
    let tick = request.tick?;
    match &record.done {
        LastDone::Nothing => None,
        LastDone::Tick(done) if done.tick < tick => None,
        LastDone::Tick(done) if done.tick >= tick => Some(Ok(AcquireAnswer::Done(done.clone()))),
        LastDone::Tick(done) => Some(Err(Error::OtherTickKind {
            key: request.key.clone(),
            tick,
            done: done.tick,
        })),
        LastDone::Unreadable => Some(Err(Error::NotALock {
            key: request.key.clone(),
            problem: "its field done makes no sense".to_owned(),
        })),
    }
}

/// Removes a live lease from the holders, and writes down the tick that was done under it. A lease that has expired stays
/// as it is, and so does what is done. The same if a later tick is done: leases that share the key may be for several.
pub(super) fn release_done(
    record: Option<&LockRecord>,
    request: &ReleaseRequest,
    DoneTick { tick, kept_for }: DoneTick,
    now: DateTime<Utc>,
) -> Decision<ReleaseAnswer> {
    let is_before =
        |record: &&LockRecord| !matches!(&record.done, LastDone::Tick(done) if done.tick > tick);
    let found = record.filter(is_before);
    let found = found.and_then(|record| Some((record, live(record, request.lease, now)?)));
    let Some((record, mine)) = found else {
        return Decision {
            write: Write::Keep,
            answer: answer_release_done(record, request),
        };
    };
    let mut released = record.clone();
    released.holders.retain(|it| it.lease != request.lease);
    released.expires_at = free_from(record, &released.holders, now);
    let by = (mine.lease, mine.owner.clone());
    let until = after(now, kept_for);
    // What an earlier caller was promised holds: the older ticks are done by this one.
    let until = match &record.done {
        LastDone::Tick(before) => until.max(before.until),
        LastDone::Nothing | LastDone::Unreadable => until,
    };
    released.done = LastDone::Tick(Done::new(tick, by, now, until));
    Decision {
        write: Write::Put(released),
        answer: ReleaseAnswer::Released,
    }
}

/// Reads the answer to a release with a tick that was done from the document as the operation left it.
///
/// A repeated release does not find its lease any more. It finds what the first one wrote, unless a later tick was done
/// since.
pub fn answer_release_done(record: Option<&LockRecord>, request: &ReleaseRequest) -> ReleaseAnswer {
    let wanted = request.done.map(|done| (request.lease, done.tick));
    match record.map(|record| &record.done) {
        Some(LastDone::Tick(done)) if Some((done.lease, done.tick)) == wanted => {
            ReleaseAnswer::Released
        }
        _ => ReleaseAnswer::NotHeld,
    }
}
