//! `LeaseState`: until when one lease is valid in this process, and how it ends. The guard, the renewal task and the
//! release of a lease share its state.
//!
//! - `validity.rs` says until when a holder may count on the lease, `status.rs` adds how it ended and what telemetry
//!   was told, and the lease holds its status in a channel (`tokio::sync::watch`). Both are pure.
//! - This file changes the status by the answers of the store. `end.rs` ends the lease, reports its loss, and waits for
//!   it, for guards, cancellation tokens and `with`.
//! - `conversions.rs` and `convert.rs` have its upgrades and downgrades.
//! - `backing.rs` ties the guard of a task to the lease in the store that it is under (`src/key/holding.rs`).
//! - `timing.rs` has the times of renewals as parts of the ttl.
//!
//! Invariants:
//!
//! - A lease that is lost stays lost, for the first reason.
//! - The first call that ends a lease decides how it ends, and only the caller of that call releases it.
//! - The state reports a loss to telemetry at most once, and never after the end.
//! - No event is made under the lock of the status, because the subscriber is code of the application.

mod backing;
mod conversions;
mod convert;
mod end;
mod status;
pub(crate) mod timing;
mod validity;

use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use chrono::{DateTime, Utc};
use tokio::{
    sync::{Mutex, watch::Sender},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

pub(crate) use self::{
    conversions::{Opposites, Unanswered},
    status::{Ended, EndedBefore},
};
use self::{
    status::{ReleaseTerms, Status},
    validity::{deadline, granted_at},
};
use crate::{
    messages::{AcquireRequest, Grant, KnownGrant, RenewAnswer, RenewRequest},
    model::{Error, Fence, Key, LeaseId, LossReason, Mode},
    runtime::suspension::{self, SentAt},
    telemetry::{self, LeaseFields},
};

/// The request that was granted, and how it was sent.
pub(crate) struct GrantTerms {
    pub(crate) request: Arc<AcquireRequest>,
    pub(crate) clock_margin: Duration,
    /// Whether only one acquire request with this lease id was ever sent. If so, no late request can be granted the
    /// same lease again.
    pub(crate) asked_once: bool,
}

/// When a lease was granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrantTimes {
    /// On the server's clock.
    pub(crate) acquired_at: DateTime<Utc>,
    /// On the clock of this process. The maximum hold counts from here.
    pub(crate) granted_at: Instant,
    /// When the answer was applied. The hold time that telemetry reports counts from here.
    pub(crate) since: Instant,
}

pub(crate) struct LeaseState {
    number: LeaseNumber,
    terms: GrantTerms,
    /// The lease in the store, if this one is the guard of a task.
    backing: Option<Arc<LeaseState>>,
    pub(crate) times: GrantTimes,
    state: Sender<Status>,
    /// The guards under the lease, if it is one in the store.
    guards: parking_lot::Mutex<Vec<Weak<LeaseState>>>,
    /// The call that converts the lease has this lock.
    pub(crate) converting: Mutex<()>,
    /// The parent of all cancellation tokens of the lease. The first call that needs a token sets it.
    pub(crate) token: OnceLock<CancellationToken>,
}

impl LeaseState {
    /// The state of a lease whose request was sent at `sent`. `None` if the answer took so long that the lease has
    /// already expired in this process.
    pub(crate) fn new(terms: GrantTerms, grant: &Grant, sent: SentAt) -> Option<Self> {
        let until = deadline(sent.instant, grant, terms.request.ttl, terms.clock_margin);
        let mode = terms.request.access.mode();
        let status = Status::new(until, mode, grant.fence, sent.suspended);
        let since = Instant::now();
        let times = GrantTimes {
            acquired_at: grant.acquired_at,
            granted_at: granted_at(sent.instant, grant),
            since,
        };
        let state = Self::with(terms, status, times, None);
        state.is_live(since).then_some(state)
    }

    fn with(
        terms: GrantTerms,
        status: Status,
        times: GrantTimes,
        backing: Option<Arc<Self>>,
    ) -> Self {
        Self {
            number: LeaseNumber::next(),
            terms,
            backing,
            times,
            state: Sender::new(status),
            guards: parking_lot::Mutex::default(),
            converting: Mutex::new(()),
            token: OnceLock::new(),
        }
    }

    pub(crate) fn request(&self) -> &Arc<AcquireRequest> {
        &self.terms.request
    }

    pub(crate) fn key(&self) -> &Key {
        &self.request().key
    }

    pub(crate) fn number(&self) -> LeaseNumber {
        self.number
    }

    pub(crate) fn id(&self) -> LeaseId {
        self.request().lease
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.request().ttl
    }

    pub(crate) fn acquired_at(&self) -> DateTime<Utc> {
        self.times.acquired_at
    }

    pub(crate) fn mode(&self) -> Mode {
        self.state.borrow().mode
    }

    pub(crate) fn fence(&self) -> Fence {
        self.state.borrow().fence
    }

    pub(crate) fn mode_and_fence(&self) -> (Mode, Fence) {
        let state = self.state.borrow();
        (state.mode, state.fence)
    }

    /// Whether a grant with this fence is the grant of this lease. After a takeover, a late acquire request may have
    /// been granted the same lease id again, with another fence. While an upgrade is unanswered, another fence may be
    /// the fence of the upgrade.
    #[cfg(all(feature = "mongodb", feature = "fencing"))]
    pub(crate) fn is_own(&self, fence: Fence) -> bool {
        let state = self.state.borrow();
        fence == state.fence || state.conversions.upgrades > 0
    }

    pub(crate) fn is_live(&self, now: Instant) -> bool {
        !self.remaining(now).is_zero()
    }

    pub(crate) fn loss(&self, now: Instant) -> Option<LossReason> {
        let loss = self.state.borrow().loss(now, suspension::total());
        loss.or_else(|| self.backing.as_ref()?.loss(now))
    }

    pub(crate) fn remaining(&self, now: Instant) -> Duration {
        self.remaining_after(now, suspension::total())
    }

    /// How long its holder may count on it, if the machine was suspended for this long in all.
    pub(crate) fn remaining_after(&self, now: Instant, suspended: Duration) -> Duration {
        let own = self.state.borrow().remaining(now, suspended);
        let backing = self.backing.as_ref();
        backing.map_or(own, |it| own.min(it.remaining_after(now, suspended)))
    }

    /// The instant at which the lease is lost, if the machine is not suspended any more until then.
    pub(crate) fn deadline(&self) -> Instant {
        let own = self.state.borrow().deadline(suspension::total());
        let backing = self.backing.as_ref();
        backing.map_or(own, |it| own.min(it.deadline()))
    }

    /// The fields of the spans and events of this lease.
    pub(crate) fn fields(&self) -> LeaseFields<'_> {
        LeaseFields {
            key: self.key(),
            lease: self.id(),
            fence: self.fence(),
            ttl: self.ttl(),
        }
    }

    pub(crate) fn lost_error(&self, reason: LossReason) -> Error {
        Error::Lost {
            key: self.key().clone(),
            reason,
        }
    }

    /// The renewal that is sent now.
    pub(crate) fn begin_renewal(&self) -> RenewRequest {
        let request = RenewRequest::new(self.key().clone(), self.id(), self.ttl());
        let state = self.state.borrow();
        let is_unchanged = state.mode == Mode::Exclusive && !state.conversions.upgraded;
        if !self.terms.asked_once || !is_unchanged {
            return request;
        }
        request.known(KnownGrant {
            fence: state.fence,
            acquired_at: self.times.acquired_at,
        })
    }

    /// Whether the lease is kept alive, is live, and was not given up. Only such a lease is renewed.
    pub(crate) fn is_kept_alive(&self) -> bool {
        self.is_kept() && !self.has_ended() && self.is_live(Instant::now())
    }

    /// Whether the lease lasts until its maximum hold is over. If so, it is not renewed in the background, because a
    /// renewal would only keep the key held on the server for longer.
    pub(crate) fn reaches_end(&self) -> bool {
        self.state.borrow().validity.reaches_end()
    }

    /// Whether the lease in the store is renewed in the background.
    pub(crate) fn is_kept(&self) -> bool {
        self.state.borrow().is_kept
    }

    /// Sets whether the lease is renewed in the background.
    pub(crate) fn keep(&self, kept: bool) {
        self.set(|state| state.is_kept = kept);
    }

    /// When the lease is to be renewed next: a third of its ttl after the last request that granted or renewed it was
    /// sent, or `now` if that time has passed. If no renewal can extend the lease any more, its deadline.
    pub(crate) fn next_renewal(&self, now: Instant) -> Instant {
        if self.reaches_end() {
            return self.deadline();
        }
        let left = self.remaining(now) + self.terms.clock_margin;
        now + left.saturating_sub(timing::left_when_due(self.ttl()))
    }

    /// Changes the status without waking the tasks that wait for a change of it.
    fn set(&self, change: impl FnOnce(&mut Status)) {
        self.state.send_if_modified(|state| {
            change(state);
            false
        });
    }

    /// Records why a renewal that is due is not sent. If the lease expires, this is the reason of its loss. The error
    /// of an earlier renewal that failed stays.
    pub(crate) fn record_delay(&self, why: impl FnOnce() -> Error) {
        self.set(|state| {
            if state.validity.trouble.is_none() {
                state.validity.failed(why(), Instant::now());
            }
        });
    }

    /// Records that a renewal failed.
    pub(crate) fn failed(&self, error: Error) {
        // The result is the error that was passed in.
        let _ = self.apply_renewal(SentAt::now(), Err(error));
    }

    /// Applies the answer to a renewal that was sent at `sent`.
    pub(crate) fn apply_renewal(
        &self,
        sent: SentAt,
        answer: Result<RenewAnswer, Error>,
    ) -> Result<(), Error> {
        let mut outcome = Ok(());
        let (mut left, mut loss, mut risk) = (Duration::ZERO, None, false);
        self.state.send_modify(|state| {
            let now = Instant::now();
            state.end_if_over(now, suspension::total().max(sent.suspended));
            left = state.validity.remaining(now);
            outcome = self.judge_renewal(state, sent, answer, now);
            if outcome.is_ok() {
                // The next risk is reported again.
                state.reported.risk = false;
                // Answers may arrive in another order than their requests were sent.
                state.suspended = state.suspended.max(sent.suspended);
            }
            loss = state.take_unreported_loss(state.validity.loss(now));
            risk = state.take_unreported_risk(self.ttl(), now);
        });
        match &outcome {
            Ok(()) => telemetry::renewed(self.fields(), left),
            Err(error) => {
                let left = self.remaining(Instant::now());
                telemetry::renewal_failed(self.fields(), left, error);
            }
        }
        self.report_loss(loss);
        if risk {
            telemetry::at_risk(self.fields(), self.remaining(Instant::now()));
        }
        outcome
    }

    /// What a renewal with this answer changes.
    fn judge_renewal(
        &self,
        state: &mut Status,
        sent: SentAt,
        answer: Result<RenewAnswer, Error>,
        now: Instant,
    ) -> Result<(), Error> {
        let lost = |reason| Err(self.lost_error(reason));
        match answer {
            Ok(RenewAnswer::Renewed(grant)) if state.is_own_renewal(grant.fence) => {
                let until = deadline(sent.instant, &grant, self.ttl(), self.terms.clock_margin);
                state.validity.renewed(until, now).or_else(lost)
            }
            Ok(RenewAnswer::Expired) => lost(state.validity.lose(LossReason::Expired, now)),
            Ok(RenewAnswer::Renewed(_) | RenewAnswer::TakenOver) => {
                lost(state.validity.lose(LossReason::TakenOver, now))
            }
            Err(error) => {
                state.validity.failed(error.clone(), now);
                Err(error)
            }
        }
    }

    /// What the release of the lease depends on.
    pub(crate) fn release_terms(&self) -> ReleaseTerms {
        self.state.borrow().release
    }

    /// Changes what the release of the lease depends on.
    pub(crate) fn set_release_terms(&self, change: impl FnOnce(&mut ReleaseTerms)) {
        self.set(|state| change(&mut state.release));
    }

    /// Sets the maximum hold that the caller requested, counted from `from`. This is called when the caller gets the
    /// lease.
    pub(crate) fn set_max_hold(&self, max_hold: Option<Duration>, from: Instant) {
        // If an `Instant` cannot express the end, the lease has no maximum hold.
        if let Some(end) = max_hold.and_then(|time| from.checked_add(time)) {
            self.state
                .send_modify(|state| state.validity.limit(end, Instant::now()));
        }
    }

    /// When the maximum hold is over. `None` if the lease has none.
    pub(crate) fn max_hold_deadline(&self) -> Option<Instant> {
        self.state.borrow().validity.end
    }
}

/// The number of a [`LeaseState`]. The lease id cannot be used for that: a ticket can be resumed twice, and then two states
/// have the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LeaseNumber(u64);

impl LeaseNumber {
    /// A number that no other state of this process has.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
