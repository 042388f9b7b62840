//! The rules of a lease after its grant: renewal, conversion and release.

use chrono::{DateTime, Utc};

use super::{
    decision::{
        Decision, free_from, grant, holder, latest_expiry, live, next_fence, no_next_fence,
    },
    done,
};
use crate::{
    messages::{
        ConvertAnswer, ConvertRequest, MinHold, ReleaseAnswer, ReleaseRequest, RenewAnswer,
        RenewRequest,
    },
    model::{Conversion, Error, Held, Holder, LeaseId, LockRecord, Mode, after},
};

/// Renews a live lease: it lives for its ttl from now on, or longer if its expiry is later already.
///
/// If two renewals are under way at once, the store may carry out the older one last. By then the holder may have the
/// answer to the newer one and rely on its expiry, so the older one must not move the expiry back.
pub fn renew(
    record: Option<&LockRecord>,
    request: &RenewRequest,
    now: DateTime<Utc>,
) -> Decision<RenewAnswer> {
    let Some(record) = record.filter(|record| live(record, request.lease, now).is_some()) else {
        return Decision::keep(answer_renew(record, request.lease, now));
    };
    let mut renewed = record.clone();
    for holder in &mut renewed.holders {
        if holder.lease == request.lease {
            holder.expires_at = holder.expires_at.max(after(now, request.ttl));
        }
    }
    renewed.expires_at = latest_expiry(&renewed.holders, now);
    Decision::put(renewed, |renewed| {
        answer_renew(Some(renewed), request.lease, now)
    })
}

/// Reads the answer to a renewal from the document, as the operation left it.
///
/// The number of changed documents, which databases report, does not decide: a renewal in the same millisecond as the
/// grant changes nothing, and the lease is renewed nevertheless.
pub fn answer_renew(
    record: Option<&LockRecord>,
    lease: LeaseId,
    now: DateTime<Utc>,
) -> RenewAnswer {
    let holder = record.and_then(|record| holder(record, lease));
    match (record, holder) {
        (_, Some(holder)) if holder.is_live(now) => RenewAnswer::Renewed(grant(holder, now)),
        // Without a document, the lease expired so long ago that the document was cleaned up.
        (_, Some(_)) | (None, None) => RenewAnswer::Expired,
        (Some(_), None) => RenewAnswer::TakenOver,
    }
}

/// Makes a live lease shared, or exclusive if no other holder is live.
///
/// An upgrade gives the lease a new fence, because later readers may have shown their greater fences to the resource.
///
/// A request that names a fence changes only a lease with this fence: it may be carried out after later conversions.
///
/// # Errors
///
/// The answer to an upgrade is [`Error::NotALock`] if there is no [next fence](next_fence), unless the lease is
/// exclusive already.
pub fn convert(
    record: Option<&LockRecord>,
    request: &ConvertRequest,
    now: DateTime<Utc>,
) -> Decision<Result<ConvertAnswer, Error>> {
    let unchanged = || Decision::keep(answer_convert(record, request, now));
    let Some(found) = record else {
        return unchanged();
    };
    let mut converted = found.clone();
    let others = found
        .live_holders(now)
        .any(|holder| holder.lease != request.lease);
    let fence = next_fence(Some(found.fence), now);
    let mine = converted
        .holders
        .iter_mut()
        .find(|holder| holder.lease == request.lease && holder.is_live(now))
        .filter(|holder| request.is_of(holder));
    let Some(mine) = mine else {
        return unchanged();
    };
    match (request.conversion, mine.mode, fence) {
        (Conversion::Downgrade, Mode::Exclusive, _) => mine.mode = Mode::Shared,
        (Conversion::Upgrade, Mode::Shared, Some(fence)) if !others => {
            (mine.mode, mine.fence) = (Mode::Exclusive, fence);
            converted.fence = fence;
            // All other holders have expired.
            let is_mine = |holder: &Holder| holder.lease == request.lease;
            converted.holders.retain(is_mine);
        }
        _ => return unchanged(),
    }
    Decision::put(converted, |converted| {
        answer_convert(Some(converted), request, now)
    })
}

/// Reads the answer to a conversion from the document, as the operation left it.
///
/// # Errors
///
/// The same as for [`convert`].
pub fn answer_convert(
    record: Option<&LockRecord>,
    request: &ConvertRequest,
    now: DateTime<Utc>,
) -> Result<ConvertAnswer, Error> {
    let mine = record.and_then(|record| holder(record, request.lease));
    let mode = mine.map(|holder| holder.mode);
    Ok(match (record, answer_renew(record, request.lease, now)) {
        (_, RenewAnswer::Expired) => ConvertAnswer::Expired,
        (None, _) | (_, RenewAnswer::TakenOver) => ConvertAnswer::TakenOver,
        (_, RenewAnswer::Renewed(grant)) if mode == Some(request.conversion.mode()) => {
            ConvertAnswer::Converted(grant)
        }
        (_, RenewAnswer::Renewed(grant)) if !mine.is_some_and(|mine| request.is_of(mine)) => {
            ConvertAnswer::OtherFence(grant)
        }
        (Some(record), _)
            if request.conversion == Conversion::Upgrade
                && next_fence(Some(record.fence), now).is_none() =>
        {
            return Err(no_next_fence(&record.key));
        }
        (Some(record), _) => {
            let mut others: Vec<_> = record.live_holders(now).cloned().collect();
            others.retain(|holder| holder.lease != request.lease);
            ConvertAnswer::Held(Held::new(record.key.clone(), others, now))
        }
    })
}

/// Removes one lease from the holders. The other holders and the fence stay as they are.
///
/// If the lease is live and its minimum hold is not over, the holder stays until the minimum hold ends, under a lease
/// id that no other request names. An expired lease is removed too. Only a release with a tick that [was
/// done](crate::store::ReleaseKind::Done) leaves an expired lease as it is.
pub fn release(
    record: Option<&LockRecord>,
    request: &ReleaseRequest,
    now: DateTime<Utc>,
) -> Decision<ReleaseAnswer> {
    if let Some(tick) = request.done_tick() {
        return done::release_done(record, request, tick, now);
    }
    let Some(record) = record.filter(|record| holder(record, request.lease).is_some()) else {
        return Decision::keep(ReleaseAnswer::NotHeld);
    };
    let mut released = record.clone();
    released.holders.retain_mut(|holder| {
        if holder.lease != request.lease {
            return true;
        }
        let Some(MinHold { time, placeholder }) = request.minimum_hold() else {
            return false;
        };
        let until = after(holder.acquired_at, time);
        let stays = holder.is_live(now) && until > now;
        if stays {
            (holder.lease, holder.expires_at) = (placeholder, until);
        }
        stays
    });
    released.expires_at = free_from(record, &released.holders, now);
    Decision::put(released, |_| ReleaseAnswer::Released)
}
