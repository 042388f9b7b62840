//! A lease that was granted from memory, and the lease in the store that stands behind it.
//!
//! Invariants:
//!
//! - A lease that was granted from memory is live only while the lease behind it is. It ends at its own ttl too, unless
//!   it is kept alive.
//! - The time in which the machine is suspended counts (`status.rs`): the server's clock goes on meanwhile.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use super::{GrantTerms, LeaseState, status::Status};
use crate::{
    messages::AcquireRequest,
    model::{Fence, Held, Holder, Mode, after},
    telemetry,
};

impl LeaseState {
    /// The guard that a task gets at this instant under a lease, with this fence. The first one counts from the grant.
    pub(crate) fn guard(
        (lease, fence, is_first): (Arc<Self>, Fence, bool),
        request: Arc<AcquireRequest>,
        now: Instant,
    ) -> Arc<Self> {
        let until = now + request.ttl;
        let terms = GrantTerms {
            request,
            clock_margin: Duration::ZERO,
            asked_once: true,
        };
        let mut times = lease.times;
        times.since = now;
        if !is_first {
            (times.acquired_at, times.granted_at) = (lease.server_time(now), now);
        }
        let status = Status::new(until, terms.request.access.mode(), fence, Duration::MAX);
        let guard = Self::with(terms, status, times, Some(lease.clone()));
        let guard = Arc::new(guard);
        let mut guards = lease.guards.lock();
        guards.retain(|guard| guard.strong_count() > 0);
        guards.push(Arc::downgrade(&guard));
        drop(guards);
        guard
    }

    /// The guards under a lease that still exist.
    pub(crate) fn guards(&self) -> Vec<Arc<Self>> {
        let guards = self.guards.lock();
        guards.iter().filter_map(Weak::upgrade).collect()
    }

    /// Reports the losses of the guards under a lease whose holders have not looked.
    pub(crate) fn check_guards(&self) {
        telemetry::for_each(self.guards(), |guard| guard.check_loss());
    }

    /// When a guard outlives its own ttl: now, if it is lost.
    pub(crate) fn own_end(&self, now: Instant) -> Instant {
        now + self.state.borrow().validity.remaining(now)
    }

    /// The lease in the store: the one behind this one if this one was granted from memory.
    pub(crate) fn stored(self: &Arc<Self>) -> &Arc<Self> {
        self.backing.as_ref().unwrap_or(self)
    }

    /// Whether this is a guard, under a lease in the store.
    pub(crate) fn is_guard(&self) -> bool {
        self.backing.is_some()
    }

    /// Extends a guard: it lives for another ttl, or if it is kept alive, for as long as its lease does. Returns whether
    /// it is live.
    pub(crate) fn extend(&self, keeps_alive: bool, now: Instant) -> bool {
        // This is later than any deadline of a lease in the store.
        const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
        let until = now + if keeps_alive { FAR } else { self.ttl() };
        let mut is_live = self.is_live(now);
        if is_live {
            self.state
                .send_modify(|state| is_live = state.validity.renewed(until, now).is_ok());
        }
        is_live
    }

    /// Ends a lease that was granted from memory after its ttl, because it is not kept alive any more.
    pub(crate) fn shorten(&self, now: Instant) {
        let until = now + self.ttl();
        self.state
            .send_modify(|state| state.validity.shorten(until));
    }

    /// The time of the server at this instant, as far as this process can tell it.
    pub(crate) fn server_time(&self, now: Instant) -> DateTime<Utc> {
        let since = now.saturating_duration_since(self.times.granted_at);
        after(self.times.acquired_at, since)
    }

    /// The lease as an answer of the store would show it. `at` is the time of the server now.
    pub(crate) fn shown(&self, at: DateTime<Utc>, now: Instant) -> Holder {
        let request = self.request();
        let until = after(at, self.remaining(now));
        let (owner, since) = (request.owner.clone(), self.acquired_at());
        let mut holder = Holder::exclusive(request.lease, owner, self.fence(), since, until);
        holder.mode = self.mode();
        holder.note = request.note.clone();
        holder
    }

    /// The refusal that another request is answered with while this lease holds the key, as far as this process can
    /// tell.
    pub(crate) fn refusal(&self, now: Instant) -> Held {
        let at = self.server_time(now);
        Held::new(self.key().clone(), vec![self.shown(at, now)], at)
    }

    /// Sets the mode, and the fence of an upgrade, after a conversion of the lease in the store.
    pub(crate) fn converted_to(&self, mode: Mode, fence: Fence) {
        self.state.send_modify(|state| {
            if mode == Mode::Exclusive {
                state.fence = state.fence.max(fence);
            }
            state.mode = mode;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        messages::{Grant, RenewAnswer},
        model::{Error, Key, LeaseId, LossReason},
        runtime::suspension::{self, SentAt},
    };

    const SECOND: Duration = Duration::from_secs(1);

    fn request(ttl: Duration) -> Arc<AcquireRequest> {
        let key = Key::new("k").unwrap();
        Arc::new(AcquireRequest::exclusive(
            key,
            LeaseId::random(),
            "me".into(),
            ttl,
        ))
    }

    fn stored(ttl: Duration, instant: Instant, suspended: Duration) -> Arc<LeaseState> {
        let terms = GrantTerms {
            request: request(ttl),
            clock_margin: Duration::ZERO,
            asked_once: true,
        };
        let at = DateTime::UNIX_EPOCH;
        let grant = Grant {
            is_awaited: false,
            fence: Fence::new(9),
            acquired_at: at,
            expires_at: after(at, ttl),
            now: at,
        };
        let sent = SentAt { instant, suspended };
        Arc::new(LeaseState::new(terms, &grant, sent).unwrap())
    }

    fn guard(
        backing: &Arc<LeaseState>,
        request: Arc<AcquireRequest>,
        fence: i64,
        now: Instant,
    ) -> Arc<LeaseState> {
        let of = (backing.clone(), Fence::new(fence), false);
        LeaseState::guard(of, request, now)
    }

    #[test]
    fn it_ends_with_its_own_ttl_or_with_the_lease_behind_it() {
        let now = Instant::now();
        let backing = stored(10 * SECOND, now, suspension::total());
        let short = guard(&backing, request(SECOND), 1, now);
        assert!(short.is_live(now) && !short.is_live(now + SECOND));
        let long = guard(&backing, request(60 * SECOND), 2, now);
        assert!(long.is_live(now + 9 * SECOND) && !long.is_live(now + 10 * SECOND));
        assert!(long.remaining(now) <= 10 * SECOND && long.deadline() <= now + 10 * SECOND);
        assert!(!short.extend(false, now + SECOND), "it stays lost");

        let backing = stored(10 * SECOND, now, suspension::total());
        let kept = guard(&backing, request(SECOND), 1, now);
        assert!(kept.extend(false, now) && kept.extend(true, now));
        assert!(kept.is_live(now + 9 * SECOND) && !kept.is_live(now + 10 * SECOND));

        let backing = stored(10 * SECOND, now, suspension::total());
        let long = guard(&backing, request(60 * SECOND), 2, now);
        backing.lose(LossReason::TakenOver);
        let loss = long.loss(now);
        assert!(matches!(loss, Some(LossReason::TakenOver)), "{loss:?}");
        assert!(!long.extend(false, now));
    }

    /// The store renews the lease.
    fn renew(backing: &LeaseState, sent: SentAt) -> Result<(), Error> {
        let at = DateTime::UNIX_EPOCH;
        let grant = Grant {
            is_awaited: false,
            fence: Fence::new(9),
            acquired_at: at,
            expires_at: after(at, 10 * SECOND),
            now: at,
        };
        let renewed = RenewAnswer::Renewed(grant);
        backing.apply_renewal(sent, Ok(renewed))
    }

    /// The machine was suspended for longer than the lease had left, and a renewal succeeds after that.
    #[test]
    fn a_renewal_does_not_bring_a_lease_back_that_was_over() {
        let total = suspension::total();
        for (suspended, is_live) in [(600 * SECOND, true), (1_200 * SECOND, false)] {
            let backing = stored(1_000 * SECOND, Instant::now(), total);
            let sent = SentAt {
                instant: Instant::now(),
                suspended: total + suspended,
            };
            assert_eq!(renew(&backing, sent).is_ok(), is_live);
            let now = Instant::now();
            assert_eq!(backing.is_live(now), is_live);
            assert_eq!(backing.loss(now).is_none(), is_live);
            assert_eq!(backing.remaining(now) > Duration::ZERO, is_live);
            assert_eq!(backing.deadline() > Instant::now(), is_live);
        }
    }

    #[test]
    fn a_suspension_since_the_grant_shortens_it() {
        let now = Instant::now();
        let at_grant = 100 * SECOND;
        let backing = stored(10 * SECOND, now, at_grant);
        let live = |total| !backing.remaining_after(now + 3 * SECOND, total).is_zero();
        assert!(live(at_grant) && live(at_grant + 6 * SECOND));
        assert!(!live(at_grant + 7 * SECOND));
    }

    #[test]
    fn a_renewal_after_a_suspension_makes_good_for_it() {
        let now = Instant::now();
        let total = suspension::total();
        let backing = stored(10 * SECOND, now, total);
        let live = |at: Duration, total| !backing.remaining_after(now + at, total).is_zero();
        assert!(live(3 * SECOND, total + 6 * SECOND));
        let sent = SentAt {
            instant: now + 3 * SECOND,
            suspended: total + 6 * SECOND,
        };
        renew(&backing, sent).unwrap();
        assert!(live(12 * SECOND, total + 6 * SECOND));
        assert!(!live(12 * SECOND, total + 7 * SECOND));
    }
}
