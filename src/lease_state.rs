//! `LeaseState`: until when one lease is valid in this process, and how it ends. The guard, the renewal task and the
//! release of a lease share its state.
//!
//! - `validity.rs` says until when a holder may count on the lease, `status.rs` adds how it ended and what telemetry
//!   was told, and the lease holds its status in a channel (`tokio::sync::watch`). Both are pure.
//! - This file changes the status by the answers of the store, and reports a loss. `end.rs` ends the lease.
//! - `waits.rs` waits for a loss, for guards, cancellation tokens and `with`.
//! - `conversions.rs` and `convert.rs` have its upgrades and downgrades.
//! - `backing.rs` ties the guard of a task to the lease in the store that it is under (`src/key/holding.rs`).
//! - `timing.rs` has the times of renewals as parts of the ttl, `holds.rs` the minimum and the maximum hold,
//!   and `number.rs` the number of a lease in this process.
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
mod holds;
mod number;
mod status;
pub(crate) mod timing;
mod validity;
mod waits;

use std::{
    sync::{Arc, OnceLock, Weak},
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
    number::LeaseNumber,
    status::{EndReason, Ended, EndedBefore},
};
use self::{
    status::Status,
    validity::{Validity, deadline, granted_at},
};
use crate::{
    messages::{AcquireRequest, Grant, KnownGrant, RenewAnswer, RenewRequest},
    model::{Error, Fence, Key, LeaseId, LossReason, Mode},
    runtime::suspension::{self, SentAt},
    telemetry::{self, LeaseFields},
};

/// The request that was granted, and how it was sent.
#[derive(Debug)]
pub(crate) struct GrantTerms {
    pub(crate) request: Arc<AcquireRequest>,
    pub(crate) clock_margin: Duration,
    /// Whether only one acquire request with this lease id was ever sent. If so, no late request can be granted the
    /// same lease again.
    pub(crate) asked_once: bool,
}

/// When a lease was granted.
#[derive(Clone, Copy, Debug)]
struct GrantTimes {
    /// On the server's clock.
    acquired_at: DateTime<Utc>,
    /// On the clock of this process. The maximum hold counts from here.
    granted_at: Instant,
    /// When the answer was applied. The hold time that telemetry reports counts from here.
    since: Instant,
}

#[derive(Debug)]
pub(crate) struct LeaseState {
    number: LeaseNumber,
    terms: GrantTerms,
    /// The lease in the store, if this one is the guard of a task.
    backing: Option<Arc<LeaseState>>,
    granted: GrantTimes,
    state: Sender<Status>,
    /// The guards under the lease, if it is one in the store.
    guards: parking_lot::Mutex<Vec<Weak<LeaseState>>>,
    /// The call that converts the lease has this lock.
    converting: Mutex<()>,
    /// The parent of all cancellation tokens of the lease. The first call that needs a token sets it.
    pub(crate) token: OnceLock<CancellationToken>,
}

impl LeaseState {
    /// The state of a lease whose request was sent at `sent`. `None` if the answer took so long that the lease has
    /// already expired in this process.
    pub(crate) fn new(terms: GrantTerms, grant: &Grant, sent: SentAt) -> Option<Self> {
        let until = deadline(sent.instant, grant, terms.request.ttl, terms.clock_margin);
        let (validity, mode) = (Validity::until(until), terms.request.access.mode());
        let status = Status::new(validity, mode, grant.fence, sent.suspended);
        let since = Instant::now();
        let counted = status.counted(since, suspension::total());
        if !status.validity.is_live(counted) {
            return None;
        }
        let at = GrantTimes {
            acquired_at: grant.acquired_at,
            granted_at: granted_at(sent.instant, grant),
            since,
        };
        Some(Self::with(LeaseNumber::next(), terms, (status, at), None))
    }

    fn with(
        number: LeaseNumber,
        terms: GrantTerms,
        (status, granted): (Status, GrantTimes),
        backing: Option<Arc<Self>>,
    ) -> Self {
        Self {
            number,
            terms,
            backing,
            granted,
            state: Sender::new(status),
            guards: parking_lot::Mutex::default(),
            converting: Mutex::new(()),
            token: OnceLock::new(),
        }
    }

    pub(crate) fn request(&self) -> &AcquireRequest {
        &self.terms.request
    }

    pub(crate) fn shared_request(&self) -> Arc<AcquireRequest> {
        self.terms.request.clone()
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
        self.granted.acquired_at
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
    #[cfg(feature = "mongodb")]
    pub(crate) fn is_own(&self, fence: Fence) -> bool {
        let state = self.state.borrow();
        fence == state.fence || state.conversions.upgrade_is_unanswered()
    }

    pub(crate) fn is_live(&self, now: Instant) -> bool {
        self.is_live_after(now, suspension::total())
    }

    /// Whether it is live, if the machine was suspended for this long in all.
    fn is_live_after(&self, now: Instant, suspended: Duration) -> bool {
        let is_live = self.read(now, suspended, Validity::is_live);
        let backing = self.backing.as_ref();
        is_live && backing.is_none_or(|it| it.is_live_after(now, suspended))
    }

    pub(crate) fn loss(&self, now: Instant) -> Option<LossReason> {
        let loss = self.read(now, suspension::total(), Validity::loss);
        loss.or_else(|| self.backing.as_ref()?.loss(now))
    }

    pub(crate) fn remaining(&self, now: Instant) -> Duration {
        self.remaining_after(now, suspension::total())
    }

    /// How long its holder may count on it, if the machine was suspended for this long in all.
    pub(crate) fn remaining_after(&self, now: Instant, suspended: Duration) -> Duration {
        let remaining = self.read(now, suspended, Validity::remaining);
        match &self.backing {
            None => remaining,
            Some(backing) => remaining.min(backing.remaining_after(now, suspended)),
        }
    }

    /// The instant at which the lease is lost, if the machine is not suspended any more until then.
    pub(crate) fn deadline(&self) -> Instant {
        let now = Instant::now();
        let deadline = self.read(now, suspension::total(), |validity, counted| {
            let deadline = validity.deadline();
            deadline.checked_sub(counted - now).unwrap_or(deadline)
        });
        match &self.backing {
            None => deadline,
            Some(backing) => deadline.min(backing.deadline()),
        }
    }

    /// Reads its own validity, with this instant on a clock that has gone on during suspensions.
    fn read<T>(
        &self,
        now: Instant,
        suspended: Duration,
        read: impl FnOnce(&Validity, Instant) -> T,
    ) -> T {
        let state = self.state.borrow();
        read(&state.validity, state.counted(now, suspended))
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
        let is_unchanged = state.mode == Mode::Exclusive && state.conversions.no_upgrade_was_sent();
        if self.terms.asked_once && is_unchanged {
            request.known(KnownGrant {
                fence: state.fence,
                acquired_at: self.granted.acquired_at,
            })
        } else {
            request
        }
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

    /// How much time a lease that is kept alive has left when it counts as at risk although no renewal failed: half of
    /// what it has left when its renewal is due. `None` if the lease is not kept alive. Without a clock margin, a lease
    /// with a ttl of 30 s is renewed when it has 20 s left, and is at risk when it has 10 s left.
    fn unrenewed(&self, state: &Status) -> Option<Duration> {
        let left = timing::left_when_due(self.ttl()).saturating_sub(self.terms.clock_margin);
        state.is_kept.then_some(left / 2)
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
            if state.validity.is_well() {
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
                state.clear_risk();
                // Answers may arrive in another order than their requests were sent.
                state.suspended = state.suspended.max(sent.suspended);
            }
            (loss, risk) = (
                state.take_unreported_loss(state.validity.loss(now)),
                state.take_unreported_risk(self.ttl(), now),
            );
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
        let is_own = match &answer {
            Ok(RenewAnswer::Renewed(grant)) => state.is_own_renewal(grant.fence),
            _ => true,
        };
        let validity = &mut state.validity;
        match answer {
            Ok(RenewAnswer::Renewed(_)) if !is_own => {
                lost(validity.lose(LossReason::TakenOver, now))
            }
            Ok(RenewAnswer::Renewed(grant)) => {
                let until = deadline(sent.instant, &grant, self.ttl(), self.terms.clock_margin);
                validity.renewed(until, now).or_else(lost)
            }
            Ok(RenewAnswer::Expired) => lost(validity.lose(LossReason::Expired, now)),
            Ok(RenewAnswer::TakenOver) => lost(validity.lose(LossReason::TakenOver, now)),
            Err(error) => {
                validity.failed(error.clone(), now);
                Err(error)
            }
        }
    }

    /// Reports the loss of the lease to telemetry, if the lease is lost and its loss was not reported before.
    pub(crate) fn check_loss(&self) {
        let mut loss = self.loss(Instant::now());
        self.set(|state| loss = state.take_unreported_loss(loss.take()));
        self.report_loss(loss);
    }

    fn report_loss(&self, loss: Option<LossReason>) {
        let Some(reason) = loss else {
            return;
        };
        if self.is_guard() {
            telemetry::lost(self.fields(), &reason);
        } else {
            self.check_guards();
        }
    }

    /// Records that the lease is lost, by the answer of the server. Returns the first reason of the loss.
    pub(crate) fn lose(&self, reason: LossReason) -> LossReason {
        let (mut first, mut loss) = (reason.clone(), None);
        self.state.send_modify(|state| {
            let now = Instant::now();
            first = state.validity.lose(reason, now);
            loss = state.take_unreported_loss(state.validity.loss(now));
        });
        self.report_loss(loss);
        first
    }
}
