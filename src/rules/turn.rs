//! The queue of the processes that wait for a key: which process comes first, and how long a free key is kept for the
//! queue.
//!
//! Invariants:
//!
//! - A request is refused while a conflicting place is ahead of it. For this, the places ahead count as if they had
//!   been granted the key already.
//! - A place counts until the time by which its process must have asked again. So a process that has died delays the
//!   processes behind it for a bounded time. On a free key, all places together keep it for at most [`MAX_BIND_TIME`].

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::decision::Decision;
use crate::{
    messages::{AcquireRequest, InTurn, Turn},
    model::{
        Access, Held, LeaseId, LockRecord, MAX_PLACE_TIME, MAX_PLACES, Mode, Place, after, between,
    },
};

/// The longest time for which a free key is kept for all places together.
pub const MAX_BIND_TIME: Duration = Duration::from_secs(4);

/// A refusal writes a place again, for longer, only if at least this much of its time has passed.
pub const WORTH_A_WRITE: Duration = Duration::from_millis(250);

/// What the places ahead of a request mean for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outlook {
    /// How many places are ahead.
    pub(super) ahead: usize,
    /// How many times the key changes hands before it is the turn of the request.
    turns: usize,
    /// Whether the places keep the key from the request.
    pub(super) is_behind: bool,
    /// How long they still keep it if the key is free.
    pub(super) binds_for: Duration,
}

impl Outlook {
    /// The answer to a request that is refused with these live holders.
    pub(super) fn held(self, record: &LockRecord, now: DateTime<Utc>) -> Held {
        let live = record.live_holders(now).cloned().collect();
        Held::new(record.key.clone(), live, now)
            .behind(self.ahead, self.binds_for)
            .in_turns(self.turns)
    }
}

/// What the places of this record mean for this request.
pub(super) fn outlook(
    record: &LockRecord,
    request: &AcquireRequest,
    now: DateTime<Utc>,
) -> Outlook {
    let is_free = record.live_holders(now).next().is_none();
    let before = before(record, request, now);
    let binds_for = if is_free {
        binds_for(&before, record.expires_at, now)
    } else {
        Duration::ZERO
    };
    Outlook {
        ahead: ahead(record, request, now).count(),
        turns: turns(ahead(record, request, now), request.access.mode()),
        is_behind: !before.is_empty() && (!is_free || binds_for > Duration::ZERO),
        binds_for,
    }
}

/// The places that count and stand before that of this request. A request without a place comes after all of them.
fn ahead<'a>(
    record: &'a LockRecord,
    request: &AcquireRequest,
    now: DateTime<Utc>,
) -> impl Iterator<Item = &'a Place> {
    let mine = request.turn.waiter();
    let is_other = move |place: &&Place| Some(place.waiter) != mine;
    record.live_places(now).take_while(is_other)
}

/// How many times the key changes hands until all of these places have had it, before a request of this mode.
/// Consecutive readers hold it at the same time, and so do the readers right before a shared request.
fn turns<'a>(places: impl Iterator<Item = &'a Place>, mode: Mode) -> usize {
    let (mut turns, mut is_shared) = (0, false);
    for place in places {
        let is_beside = is_shared && place.mode == Mode::Shared;
        is_shared = place.mode == Mode::Shared;
        turns += usize::from(!is_beside);
    }
    turns - usize::from(is_shared && mode == Mode::Shared)
}

/// The places that must be granted the key before the request.
///
/// There are none for a barging request, and for an owner that has the key and enters again or takes it over, which would otherwise wait for processes
/// that wait for it.
fn before<'a>(
    record: &'a LockRecord,
    request: &AcquireRequest,
    now: DateTime<Utc>,
) -> Vec<&'a Place> {
    let is_own = |owner: &str| request.is_reentrant() && *owner == *request.owner;
    let has_own = record
        .live_holders(now)
        .any(|holder| request.is_own(holder));
    if request.turn == Turn::Barging || has_own {
        return Vec::new();
    }
    let others = ahead(record, request, now).filter(|place| !is_own(&place.owner));
    match request.access {
        Access::Exclusive => others.collect(),
        Access::Shared => others.filter(|place| place.mode != Mode::Shared).collect(),
        Access::Permits(wanted) => {
            let others: Vec<_> = others.collect();
            let taken = record.live_holders(now).map(|holder| holder.permits);
            let mut all = taken.chain(others.iter().map(|place| place.permits));
            let sum = all.try_fold(wanted.n(), |sum, permits| sum.checked_add(permits));
            let is_permits = |place: &&Place| place.mode == Mode::Permits;
            let have_room =
                others.iter().all(is_permits) && sum.is_some_and(|sum| sum <= wanted.of());
            if have_room { Vec::new() } else { others }
        }
    }
}

/// How long these places still keep a key that is free since `free_since`.
///
/// The time of a request may be slightly before `free_since`, because the request has waited in the server for the
/// change that freed the key. Such a time counts as `free_since`. If `free_since` is further ahead, the clock stepped
/// back: nobody knows since when the key is free, so the places do not keep it.
fn binds_for(places: &[&Place], free_since: DateTime<Utc>, now: DateTime<Utc>) -> Duration {
    if free_since > after(now, MAX_BIND_TIME) {
        return Duration::ZERO;
    }
    let end = after(free_since.min(now), MAX_BIND_TIME);
    let last = places.iter().map(|place| place.until).max();
    last.map_or(Duration::ZERO, |last| between(now, last.min(end)))
}

/// The places after a refusal: the place of the request is added at the end, or its time is extended. `None` if nothing
/// is to be written.
///
/// A place whose time would hardly change ([`long_enough`]) is not written again, so that most refusals write nothing.
pub(super) fn take_place(
    record: &LockRecord,
    request: &AcquireRequest,
    now: DateTime<Utc>,
) -> Option<Vec<Place>> {
    let Turn::InTurn(InTurn {
        waiter, counts_for, ..
    }) = request.turn
    else {
        return None;
    };
    let (mode, permits) = (request.access.mode(), request.access.permits());
    let owner = request.owner.clone();
    let counts_for = counts_for.min(MAX_PLACE_TIME);
    let until = after(now, counts_for);
    let mut places: Vec<_> = record.live_places(now).cloned().collect();
    let is_mine = |place: &Place| place.waiter == waiter;
    let is_kept = |place: &Place| {
        let is_same = (place.mode, place.permits, &place.owner) == (mode, permits, &owner);
        is_mine(place) && is_same && place.until >= after(now, long_enough(counts_for))
    };
    if places.iter().any(is_kept) {
        return None;
    }
    if places.iter().any(is_mine) {
        // There is one, unless a person has copied it.
        for mine in places.iter_mut().filter(|place| is_mine(place)) {
            // The process was told that the place counts until then.
            let until = until.max(mine.until);
            (mine.mode, mine.permits, mine.owner, mine.until) =
                (mode, permits, owner.clone(), until);
        }
    } else if places.len() < MAX_PLACES {
        places.push(Place::new(waiter, owner, (mode, permits), now, until));
    } else {
        return None;
    }
    Some(places)
}

/// How much of its time a place must have left so that it is not written again: all but 250 ms, or all but a third if
/// that is less.
pub(crate) fn long_enough(counts_for: Duration) -> Duration {
    counts_for
        .saturating_sub(WORTH_A_WRITE)
        .max(counts_for * 2 / 3)
}

/// Removes the place of a process, and with it the places that no longer count. Writes nothing if the process has no
/// place.
pub fn leave(record: Option<&LockRecord>, waiter: LeaseId, now: DateTime<Utc>) -> Decision<()> {
    let mine = |place: &Place| place.waiter == waiter;
    let Some(record) = record.filter(|record| record.waiters.iter().any(mine)) else {
        return Decision::keep(());
    };
    let mut left = record.clone();
    left.waiters
        .retain(|place| place.is_live(now) && !mine(place));
    Decision::put(left, |_| ())
}

/// The places after a grant: those that count, without the place of the request, unless it is to stay. Places ahead
/// that conflict with the request did not take the key in time, so they are removed.
pub(super) fn leave_place(
    record: &LockRecord,
    request: &AcquireRequest,
    now: DateTime<Utc>,
) -> Vec<Place> {
    let late: Vec<_> = before(record, request, now)
        .iter()
        .map(|place| place.waiter)
        .collect();
    let mine = request.turn.waiter();
    let stays = |place: &&Place| Some(place.waiter) != mine && !late.contains(&place.waiter);
    record.live_places(now).filter(stays).cloned().collect()
}
