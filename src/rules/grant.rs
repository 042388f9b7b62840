//! The rule of an acquire: whom a key is granted to.

use chrono::{DateTime, Utc};

use super::decision::{Decision, Write, grant, holder, latest_expiry, live, next_fence};
use crate::{
    messages::{AcquireAnswer, AcquireRequest},
    model::{Access, Held, Holder, LeaseId, LockRecord, MAX_HOLDERS, Mode, after},
};

/// Grants the lease if no live holder conflicts with it and the key has a place for one more.
///
/// A live lease with the same id is granted again as it stands, which makes a repeated request
/// harmless. A refusal writes nothing: it never touches a holder's expiry. A grant drops those that
/// have expired.
///
/// A lease in whose place it is asked for, live or not, makes way in the same step. One that is not
/// there was released or taken over, which its holder has to be told: then nothing is granted.
pub fn acquire(
    record: Option<&LockRecord>,
    request: &AcquireRequest,
    now: DateTime<Utc>,
) -> Decision<AcquireAnswer> {
    let goes = request.in_place_of;
    let mut holders: Vec<_> = record
        .into_iter()
        .flat_map(|record| record.live_holders(now).cloned())
        .filter(|holder| Some(holder.lease) != goes)
        .collect();
    let mine = holders.iter().any(|holder| holder.lease == request.lease);
    let answer = match record {
        None => goes.map(|_| AcquireAnswer::Held(Held::new(request.key.clone(), Vec::new(), now))),
        Some(record) => {
            let gone = goes.is_some_and(|lease| holder(record, lease).is_none());
            let refused = gone || holders.len() >= MAX_HOLDERS || conflicts(&holders, request);
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
    // An owner that enters again goes on under its fence: what it guards is guarded already.
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

/// Whether live holders keep a request from being granted.
///
/// An exclusive one conflicts with every holder, a shared one with those that are not shared, and one
/// for permits with those that do not hold permits, and with those that hold too many of them. Holders
/// of its own owner do not count if it may enter again.
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

/// Whether a request was refused only because the key has as many live holders as it may have.
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
