//! The rule of an acquire: when a lease is granted.

use chrono::{DateTime, Utc};

use super::{
    decision::{Decision, grant, last_of_next, latest_expiry, live, no_next_fence},
    done, turn,
};
use crate::{
    messages::{AcquireAnswer, AcquireRequest, OwnLeases},
    model::{Access, Error, Held, Holder, LastDone, LockRecord, MAX_HOLDERS, Mode, after},
};

/// Grants the lease if no live holder conflicts with it, the key has fewer than [`MAX_HOLDERS`] live holders, and no
/// process that waits for the key comes first.
///
/// A lease that is a live holder already is granted again, unchanged, so a repeated request is harmless. A grant
/// removes the expired holders, and the places that no longer count. A refusal writes nothing but the
/// [place](crate::store::Turn::InTurn) of its process, so it never changes the expiry of a holder.
///
/// **The queue.** A process comes first if its place is before that of the request, and its lease would conflict with
/// the request. A request without a place comes after all places. While nobody holds the key, the places keep it only
/// for a short time ([`turn`]), so that a process that has died blocks nobody. These requests ignore the queue: one
/// that is [barging](crate::store::Turn::Barging), and that of an owner that has the key and enters again or takes it over.
///
/// **Ticks.** A request for a [tick](AcquireRequest#structfield.tick) is refused if that tick or a later one is done,
/// even if the key is free. It then takes no place.
///
/// **Take-over.** A grant to a request that [takes over](crate::store::OwnLeases::TakenOver) some leases
/// removes them, so that a later renewal or release does not find them, and has a new fence.
///
/// **Fences.** A grant takes as many fences in a row as the request [asks for](AcquireRequest#structfield.fences), and
/// has the last of them.
///
/// # Errors
///
/// The answer is [`Error::NotALock`] for a key that has no [fence](last_of_next) left for the request, unless the lease
/// is live already; and for a request with a tick if the document does not tell which tick is done. It is
/// [`Error::OtherTickKind`] if the two ticks cannot be compared.
pub fn acquire(
    record: Option<&LockRecord>,
    request: &AcquireRequest,
    now: DateTime<Utc>,
) -> Decision<Result<AcquireAnswer, Error>> {
    let mut holders: Vec<_> = record
        .into_iter()
        .flat_map(|record| record.live_holders(now).cloned())
        .collect();
    let mine = holders.iter().any(|holder| holder.lease == request.lease);
    let others = record.filter(|_| !mine);
    if let Some(answer) = others.and_then(|it| done::refusal(it, request)) {
        return Decision::keep(answer);
    }
    let newest = record.map(|record| record.fence);
    let next = last_of_next(newest, request.fences, now);
    if let Some(record) = record {
        let refused = holders.len() >= MAX_HOLDERS
            || conflicts(&holders, request)
            || turn::outlook(record, request, now).is_behind;
        if refused && !mine && next.is_some() {
            return refuse(record, request, now);
        }
        if mine || refused {
            return Decision::keep(answer_acquire(record, request, now));
        }
    }
    let Some(next) = next else {
        return Decision::keep(Err(no_next_fence(&request.key)));
    };
    if matches!(request.own_leases, OwnLeases::TakenOver(_)) {
        holders.retain(|holder| !request.is_own(holder));
    }
    // An owner that enters again keeps its fence: the resources that it protects have seen that one.
    let own = holders.iter().filter(|holder| request.is_own(holder));
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
    let mut granted = LockRecord::new(request.key.clone(), newest, holders, expires_at);
    granted.done = record.map_or_else(LastDone::default, |it| it.done.clone());
    granted.waiters = record.map_or_else(Vec::new, |it| turn::leave_place(it, request, now));
    Decision::put(granted, |granted| answer_acquire(granted, request, now))
}

fn refuse(
    record: &LockRecord,
    request: &AcquireRequest,
    now: DateTime<Utc>,
) -> Decision<Result<AcquireAnswer, Error>> {
    let Some(waiters) = turn::take_place(record, request, now) else {
        return Decision::keep(answer_acquire(record, request, now));
    };
    let mut record = record.clone();
    record.waiters = waiters;
    Decision::put(record, |record| answer_acquire(record, request, now))
}

/// Whether live holders conflict with a request.
///
/// An exclusive request conflicts with each holder, and a shared request with each holder that is not shared. A request
/// for permits conflicts with each holder of another mode, and with all holders together if they leave too few permits.
/// Holders of its own owner do not count if the request enters beside them or takes them over.
fn conflicts(live: &[Holder], request: &AcquireRequest) -> bool {
    let mut others = live.iter().filter(|holder| !request.is_own(holder));
    match request.access {
        Access::Exclusive => others.next().is_some(),
        Access::Shared => others.any(|holder| holder.mode != Mode::Shared),
        Access::Permits(permits) => {
            let taken = others.try_fold(0_i64, |taken, holder| {
                let permits = (holder.mode == Mode::Permits).then_some(holder.permits)?;
                taken.checked_add(permits)
            });
            let wanted = taken.and_then(|taken| taken.checked_add(permits.n()));
            wanted.is_none_or(|wanted| wanted > permits.of())
        }
    }
}

/// Whether a request was refused only because the key has [`MAX_HOLDERS`] live holders.
pub fn is_full(held: &Held, request: &AcquireRequest) -> bool {
    let live = held.holders();
    live.len() >= MAX_HOLDERS && !conflicts(live, request)
}

/// Reads the answer to an acquire from the document, as the operation left it.
///
/// # Errors
///
/// The same as for [`acquire`].
pub fn answer_acquire(
    record: &LockRecord,
    request: &AcquireRequest,
    now: DateTime<Utc>,
) -> Result<AcquireAnswer, Error> {
    match live(record, request.lease, now) {
        Some(holder) => {
            let mut grant = grant(holder, now);
            grant.is_awaited = record.live_places(now).next().is_some();
            Ok(AcquireAnswer::Granted(grant))
        }
        None => done::refusal(record, request).unwrap_or_else(|| {
            if last_of_next(Some(record.fence), request.fences, now).is_none() {
                return Err(no_next_fence(&record.key));
            }
            let held = turn::outlook(record, request, now).held(record, now);
            Ok(AcquireAnswer::Held(held))
        }),
    }
}
