//! The rule of an acquire: when a lease is granted.

use chrono::{DateTime, Utc};

use super::decision::{
    Decision, Write, grant, holder, is_last, latest_expiry, live, next_fence, no_next_fence,
};
use crate::{
    messages::{AcquireAnswer, AcquireRequest},
    model::{Access, Error, Held, Holder, LeaseId, LockRecord, MAX_HOLDERS, Mode, after},
};

/// Grants the lease if no live holder conflicts with it and the key has fewer than [`MAX_HOLDERS`] live holders.
///
/// If the lease is a live holder already, the answer is its grant, unchanged. So a repeated request is harmless. A
/// refusal writes nothing, so it never changes a holder's expiry. A grant removes the expired holders.
///
/// The lease to [replace](AcquireRequest::in_place_of), live or not, goes in the same step. If it is not there, it was
/// released or taken over. Its holder has to be told, so nothing is granted then.
///
/// # Errors
///
/// The answer is [`Error::NotALock`] for a key that has had the [last fence](next_fence), unless the lease is live.
pub fn acquire(
    record: Option<&LockRecord>,
    request: &AcquireRequest,
    now: DateTime<Utc>,
) -> Decision<Result<AcquireAnswer, Error>> {
    let replaced = request.in_place_of;
    let mut holders: Vec<_> = record
        .into_iter()
        .flat_map(|record| record.live_holders(now).cloned())
        .filter(|holder| Some(holder.lease) != replaced)
        .collect();
    let mine = holders.iter().any(|holder| holder.lease == request.lease);
    let answer = match record {
        None => replaced.map(|_| {
            Ok(AcquireAnswer::Held(Held::new(
                request.key.clone(),
                Vec::new(),
                now,
            )))
        }),
        Some(record) => {
            let is_gone = replaced.is_some_and(|lease| holder(record, lease).is_none());
            let refused = is_gone || holders.len() >= MAX_HOLDERS || conflicts(&holders, request);
            (mine || refused).then(|| answer_acquire(record, request.lease, now))
        }
    };
    let newest = record.map(|record| record.fence);
    let next = next_fence(newest, now).ok_or_else(|| no_next_fence(&request.key));
    let next = match (answer, next) {
        (Some(answer), _) => return kept(answer),
        (None, Err(error)) => return kept(Err(error)),
        (None, Ok(next)) => next,
    };
    // An owner that enters again goes on under its fence: what it guards is guarded already.
    let own = holders.iter().filter(|holder| is_own(holder, request));
    let own = own.map(|holder| holder.fence).max();
    let fence = own.unwrap_or(next);
    let mut holder = Holder::exclusive(
        request.lease,
        request.owner.clone(),
        fence,
        now,
        after(now, request.ttl),
    );
    holder.mode = request.access.mode();
    holder.permits = request.access.permits();
    holder.note = request.note.clone();
    holders.push(holder);
    let newest = newest.map_or(fence, |newest| newest.max(fence));
    let expires_at = latest_expiry(&holders, now);
    let granted = LockRecord::new(request.key.clone(), newest, holders, expires_at);
    Decision {
        answer: answer_acquire(&granted, request.lease, now),
        write: Write::Put(granted),
    }
}

fn kept(answer: Result<AcquireAnswer, Error>) -> Decision<Result<AcquireAnswer, Error>> {
    let write = Write::Keep;
    Decision { write, answer }
}

/// Whether live holders keep a request from being granted.
///
/// An exclusive request conflicts with each holder, and a shared request with each holder that is not shared. A
/// request for permits conflicts with each holder of another mode, and with holders that have left too few permits.
/// Holders of the request's own owner do not count if the request is reentrant.
fn conflicts(live: &[Holder], request: &AcquireRequest) -> bool {
    let mut others = live.iter().filter(|holder| !is_own(holder, request));
    match request.access {
        Access::Exclusive => others.next().is_some(),
        Access::Shared => others.any(|holder| holder.mode != Mode::Shared),
        Access::Permits { n, of } => {
            let taken = others.try_fold(0_i64, |taken, holder| {
                let permits = (holder.mode == Mode::Permits).then_some(holder.permits)?;
                taken.checked_add(permits)
            });
            let wanted = taken.and_then(|taken| taken.checked_add(n));
            wanted.is_none_or(|wanted| wanted > of)
        }
    }
}

/// Whether a request was refused only because the key has [`MAX_HOLDERS`] live holders.
pub fn is_full(held: &Held, request: &AcquireRequest) -> bool {
    let live = held.holders();
    live.len() >= MAX_HOLDERS && !conflicts(live, request)
}

fn is_own(holder: &Holder, request: &AcquireRequest) -> bool {
    request.reentrant && holder.owner == request.owner
}

/// Reads the answer to an acquire from the document as the operation left it.
///
/// # Errors
///
/// As the answer to [`acquire`].
pub fn answer_acquire(
    record: &LockRecord,
    lease: LeaseId,
    now: DateTime<Utc>,
) -> Result<AcquireAnswer, Error> {
    match live(record, lease, now) {
        Some(holder) => Ok(AcquireAnswer::Granted(grant(holder, now))),
        None if is_last(record.fence) => Err(no_next_fence(&record.key)),
        None => Ok(AcquireAnswer::Held(Held::new(
            record.key.clone(),
            record.live_holders(now).cloned().collect(),
            now,
        ))),
    }
}
