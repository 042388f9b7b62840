//! The rule of an acquire: when a lease is granted.

use chrono::{DateTime, Utc};

use super::decision::{Decision, Write, grant, holder, latest_expiry, live, next_fence};
use crate::{
    messages::{AcquireAnswer, AcquireRequest},
    model::{Access, Held, Holder, LeaseId, LockRecord, MAX_HOLDERS, Mode, after},
};

/// Grants the lease if no live holder conflicts with it and the key has fewer than [`MAX_HOLDERS`] live holders.
///
/// If the lease is a live holder already, the answer is its grant, unchanged. So a repeated request is harmless. A
/// refusal writes nothing, so it never changes a holder's expiry. A grant removes the expired holders.
///
/// A grant also removes the lease that the request [replaces](AcquireRequest#structfield.in_place_of), live or not.
/// If that lease is not among the holders, it was released or taken over. Then the request is refused, so that the
/// client which wanted to hand the key on learns of the loss.
pub fn acquire(
    record: Option<&LockRecord>,
    request: &AcquireRequest,
    now: DateTime<Utc>,
) -> Decision<AcquireAnswer> {
    let replaced = request.in_place_of;
    let mut holders: Vec<_> = record
        .into_iter()
        .flat_map(|record| record.live_holders(now).cloned())
        .filter(|holder| Some(holder.lease) != replaced)
        .collect();
    let mine = holders.iter().any(|holder| holder.lease == request.lease);
    let answer = match record {
        None => {
            replaced.map(|_| AcquireAnswer::Held(Held::new(request.key.clone(), Vec::new(), now)))
        }
        Some(record) => {
            let is_gone = replaced.is_some_and(|lease| holder(record, lease).is_none());
            let refused = is_gone || holders.len() >= MAX_HOLDERS || conflicts(&holders, request);
            (mine || refused).then(|| answer_acquire(record, request.lease, now))
        }
    };
    if let Some(answer) = answer {
        return Decision {
            write: Write::Keep,
            answer,
        };
    }
    let newest = record.map(|record| record.fence);
    // A reentrant grant has the fence of the owner's other lease: resources have seen that fence already, and no other
    // owner held the key in between.
    let own = holders.iter().filter(|holder| is_own(holder, request));
    let own = own.map(|holder| holder.fence).max();
    let fence = own.unwrap_or_else(|| next_fence(newest, now));
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

/// Whether live holders conflict with a request.
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
pub fn answer_acquire(record: &LockRecord, lease: LeaseId, now: DateTime<Utc>) -> AcquireAnswer {
    match live(record, lease, now) {
        Some(holder) => AcquireAnswer::Granted(grant(holder, now)),
        None => AcquireAnswer::Held(Held::new(
            record.key.clone(),
            record.live_holders(now).cloned().collect(),
            now,
        )),
    }
}
