//! The state of one lease in this process: until when it is valid, and how it ends. Its guard, the renewal task and
//! its release share that.

mod number;
mod status;
pub(crate) mod timing;
mod validity;
mod watcher;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use chrono::{DateTime, Utc};
use tokio::{
    sync::watch::Sender,
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

pub(crate) use self::{number::LeaseNumber, status::EndReason, watcher::LossWatcher};
use self::{
    status::Status,
    validity::{Validity, deadline},
};
use crate::{
    messages::{AcquireRequest, Grant, KnownGrant, RenewAnswer, RenewRequest},
    model::{Error, Fence, Key, LeaseId, LossReason, Mode},
    telemetry::{self, LeaseFields},
};

/// The request of the holder, and how it was sent.
#[derive(Debug)]
pub(crate) struct GrantTerms {
    pub(crate) request: Arc<AcquireRequest>,
    pub(crate) clock_margin: Duration,
    /// Whether only one acquire with this lease id was ever sent: then no late request can be granted the same
    /// lease anew.
    pub(crate) asked_once: bool,
}

#[derive(Debug)]
pub(crate) struct LeaseState {
    number: LeaseNumber,
    terms: GrantTerms,
    acquired_at: DateTime<Utc>,
    /// When its grant came in.
    since: Instant,
    state: Sender<Status>,
    /// For how long, counted from the grant, the key stays held although the lease is released. It is set
    /// when the lease is in the hands of its caller: a grant that its caller did not take leaves nothing behind.
    min_hold: OnceLock<Duration>,
    kept: AtomicBool,
    /// Whether a request for it may still be on its way to the server.
    open: AtomicBool,
    pub(crate) token: OnceLock<CancellationToken>,
}

impl LeaseState {
    /// A grant, which was asked for at this instant; `None` if the answer took so long that nothing
    /// is left of it.
    pub(crate) fn new(terms: GrantTerms, grant: &Grant, sent: Instant) -> Option<Self> {
        let validity = Validity::until(deadline(sent, grant, terms.clock_margin));
        let since = Instant::now();
        if !validity.is_live(since) {
            return None;
        }
        let state = Status::new(validity, terms.request.access.mode(), grant.fence);
        Some(Self {
            number: LeaseNumber::next(),
            terms,
            acquired_at: grant.acquired_at,
            since,
            state: Sender::new(state),
            min_hold: OnceLock::new(),
            kept: AtomicBool::new(false),
            open: AtomicBool::new(false),
            token: OnceLock::new(),
        })
    }

    pub(crate) fn request(&self) -> &AcquireRequest {
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

    pub(crate) fn min_hold(&self) -> Option<Duration> {
        self.min_hold.get().copied()
    }

    /// The lease has come to its caller, who asked for this minimum hold.
    pub(crate) fn set_min_hold(&self, min_hold: Option<Duration>) {
        if let Some(min_hold) = min_hold {
            // A lease comes to its caller once, so the value is not set yet.
            let _ = self.min_hold.set(min_hold);
        }
    }

    pub(crate) fn acquired_at(&self) -> DateTime<Utc> {
        self.acquired_at
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

    /// Whether a grant with this fence is this one. A late request may have been granted the same lease
    /// anew, after it had been lost and another had been granted the key.
    #[cfg(feature = "mongodb")]
    pub(crate) fn is_own(&self, fence: Fence) -> bool {
        let state = self.state.borrow();
        fence == state.fence || state.unanswered_upgrades > 0
    }

    pub(crate) fn is_live(&self, now: Instant) -> bool {
        self.state.borrow().validity.is_live(now)
    }

    pub(crate) fn loss(&self, now: Instant) -> Option<LossReason> {
        self.state.borrow().validity.loss(now)
    }

    pub(crate) fn remaining(&self, now: Instant) -> Duration {
        self.state.borrow().validity.remaining(now)
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.state.borrow().validity.deadline()
    }

    /// The fields of its spans and events.
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

    pub(crate) fn renewal(&self) -> RenewRequest {
        let request = RenewRequest::new(self.key().clone(), self.id(), self.ttl());
        let state = self.state.borrow();
        if self.terms.asked_once && state.mode == Mode::Exclusive && !state.has_upgraded {
            request.known(KnownGrant {
                fence: state.fence,
                acquired_at: self.acquired_at,
            })
        } else {
            request
        }
    }

    /// Whether a request for it may still be on its way to the server.
    pub(crate) fn may_be_in_flight(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Whether a holder counts on it, so that it is worth a renewal.
    pub(crate) fn wants_renewal(&self) -> bool {
        let state = self.state.borrow();
        self.is_kept() && state.end.is_none() && state.validity.is_live(Instant::now())
    }

    /// A request for it may still be on its way to the server, and has to be released after it.
    pub(crate) fn leave_open(&self) {
        self.open.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Relaxed)
    }

    /// Whether it is renewed in the background from now on.
    pub(crate) fn keep(&self, kept: bool) {
        self.kept.store(kept, Ordering::Relaxed);
    }

    /// When it is to be renewed first: at a third of its ttl, counted from the request that granted
    /// it, and at once if that is past.
    pub(crate) fn first_renewal(&self, now: Instant) -> Instant {
        let left = self.remaining(now) + self.terms.clock_margin;
        now + left.saturating_sub(timing::after_renewal(self.ttl()))
    }

    /// How much is left of a lease that is kept alive and was not renewed for twice as long as planned.
    fn unrenewed(&self) -> Option<Duration> {
        let left = timing::after_renewal(self.ttl()).saturating_sub(self.terms.clock_margin);
        self.is_kept().then_some(left / 2)
    }

    /// Takes in why a renewal is not sent, unless there is trouble already.
    pub(crate) fn record_delay(&self, why: impl FnOnce() -> Error) {
        self.state.send_if_modified(|state| {
            if state.validity.is_well() {
                state.validity.failed(why(), Instant::now());
            }
            false
        });
    }

    /// Takes in that a renewal failed.
    pub(crate) fn failed(&self, error: Error) {
        // The renewal itself has the same error.
        let _ = self.apply_renewal(Instant::now(), Err(error));
    }

    /// Takes in the answer to a renewal that was sent at this instant.
    pub(crate) fn apply_renewal(
        &self,
        sent: Instant,
        answer: Result<RenewAnswer, Error>,
    ) -> Result<(), Error> {
        let mut outcome = Ok(());
        let (mut left, mut loss, mut risk) = (Duration::ZERO, None, false);
        self.state.send_modify(|state| {
            let (now, validity) = (Instant::now(), &mut state.validity);
            left = validity.remaining(now);
            let lost = |reason| Err(self.lost_error(reason));
            outcome = match answer {
                // A late request was granted the same lease anew, after it had been lost and another
                // had been granted the key. (A smaller fence is that of before an upgrade, which this renewal
                // crossed.)
                Ok(RenewAnswer::Renewed(grant))
                    if state.unanswered_upgrades == 0
                        && (grant.fence > state.fence
                            || grant.fence < state.fence && !state.has_upgraded) =>
                {
                    lost(validity.lose(LossReason::TakenOver, now))
                }
                Ok(RenewAnswer::Renewed(grant)) => {
                    let until = deadline(sent, &grant, self.terms.clock_margin);
                    validity.renewed(until, now).or_else(lost)
                }
                Ok(RenewAnswer::Expired) => lost(validity.lose(LossReason::Expired, now)),
                Ok(RenewAnswer::TakenOver) => lost(validity.lose(LossReason::TakenOver, now)),
                Err(error) => {
                    validity.failed(error.clone(), now);
                    Err(error)
                }
            };
            if outcome.is_ok() {
                state.clear_risk();
            }
            (loss, risk) = (
                state.take_unreported_loss(now),
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
        self.tell(loss);
        if risk {
            telemetry::at_risk(self.fields(), self.remaining(Instant::now()));
        }
        outcome
    }

    /// Looks whether the lease is lost, and tells it at the first look that sees it.
    pub(crate) fn check_loss(&self) {
        let mut loss = None;
        self.state.send_if_modified(|state| {
            loss = state.take_unreported_loss(Instant::now());
            false
        });
        self.tell(loss);
    }

    fn tell(&self, loss: Option<LossReason>) {
        if let Some(reason) = loss {
            telemetry::lost(self.fields(), &reason);
        }
    }

    /// An upgrade is sent, which gives the lease another fence.
    pub(crate) fn upgrade_sent(&self) {
        self.state.send_modify(|state| {
            state.has_upgraded = true;
            state.unanswered_upgrades = state.unanswered_upgrades.saturating_add(1);
        });
    }

    /// The outcome of an upgrade is known.
    pub(crate) fn upgrade_answered(&self) {
        self.state.send_modify(|state| {
            state.unanswered_upgrades = state.unanswered_upgrades.saturating_sub(1);
        });
    }

    /// Takes in a conversion.
    pub(crate) fn converted(&self, mode: Mode, fence: Fence) {
        self.state.send_modify(|state| {
            // With a smaller fence it is the late answer to a conversion before the last one.
            if fence >= state.fence {
                (state.mode, state.fence) = (mode, fence);
            }
        });
    }

    /// Takes in that the server said the lease is lost, and gives back the reason that counts.
    pub(crate) fn lose(&self, reason: LossReason) -> LossReason {
        let (mut first, mut loss) = (reason.clone(), None);
        self.state.send_modify(|state| {
            let now = Instant::now();
            first = state.validity.lose(reason, now);
            loss = state.take_unreported_loss(now);
        });
        self.tell(loss);
        first
    }

    /// Ends the lease: its holder does not count on it any more. Returns whether this was the first call to do so;
    /// that caller has to see to it that the lease is released.
    pub(crate) fn end(&self, end: EndReason, now: Instant) -> bool {
        let mut loss = None;
        let first = self.state.send_if_modified(|state| {
            // The lease may have expired without a look at it: then the loss is reported now.
            loss = state.take_unreported_loss(now);
            let first = state.end.is_none();
            state.end.get_or_insert(end);
            first
        });
        self.tell(loss);
        if first {
            let held = now.saturating_duration_since(self.since);
            match end {
                EndReason::Released => telemetry::given_up(self.fields(), held),
                EndReason::Detached => telemetry::detached(self.fields(), held),
            }
        }
        first
    }

    /// Waits until no holder counts on the lease any more.
    pub(crate) async fn ended(&self) -> EndReason {
        let mut states = self.state.subscribe();
        loop {
            if let Some(end) = states.borrow_and_update().end {
                return end;
            }
            // The sender is part of `self`, so this cannot fail.
            let _ = states.changed().await;
        }
    }

    /// The release that belongs to the end has been answered, or given up.
    pub(crate) fn mark_released(&self) {
        self.state.send_modify(|state| state.over = true);
    }

    /// Waits until the release that belongs to the end is marked.
    pub(crate) async fn released(&self) {
        // The sender is part of `self`, so this cannot fail.
        let _ = self.state.subscribe().wait_for(|state| state.over).await;
    }

    /// Waits until the lease is lost.
    pub(crate) async fn lost(&self) -> LossReason {
        let reason = self.watch().lost().await;
        self.check_loss();
        reason.unwrap_or(LossReason::Closed)
    }

    /// Waits until the lease is at risk, or lost.
    pub(crate) async fn at_risk(&self) {
        let mut states = self.state.subscribe();
        loop {
            let (risk, deadline) = {
                let Status { validity, .. } = &*states.borrow_and_update();
                if !validity.is_live(Instant::now()) {
                    return;
                }
                (
                    validity.risk(self.ttl(), self.unrenewed()),
                    validity.deadline(),
                )
            };
            let at = risk.unwrap_or(deadline);
            if Instant::now() >= at {
                return;
            }
            let _ = timeout_at(at, states.changed()).await;
        }
    }

    /// Watches the lease without being part of it.
    pub(crate) fn watch(&self) -> LossWatcher {
        LossWatcher(self.state.subscribe())
    }
}
