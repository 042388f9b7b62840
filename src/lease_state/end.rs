//! The end of a lease in this process: its loss, or that its holder gives it up. What is reported of it, and who waits for
//! it, or for the risk of it.

use tokio::time::{Instant, sleep_until};

use super::{
    LeaseState,
    status::{Ended, EndedBefore},
    timing,
};
use crate::{model::LossReason, telemetry};

impl LeaseState {
    /// Ends the lease: its holder does not count on it any more. The first call decides how the lease ends. Its caller
    /// releases the lease or gives it away, and passes the answer to [`report_end`](Self::report_end) after that, because
    /// the subscriber of the application may panic.
    pub(crate) fn end(&self, now: Instant) -> Result<Ended, EndedBefore> {
        let mut loss = self.loss(now);
        let is_first = self.state.send_if_modified(|state| {
            // A loss by expiry is reported only when a call checks the lease, and this may be the first such call.
            loss = state.take_unreported_loss(loss.take());
            !std::mem::replace(&mut state.has_ended, true)
        });
        is_first.then_some(Ended(loss)).ok_or(EndedBefore)
    }

    /// Reports the loss of a lease that has ended to telemetry.
    pub(crate) fn report_end(&self, ended: Ended) {
        self.report_loss(ended.0);
    }

    /// Records that the end of the client loses the lease for this reason, without an event.
    pub(crate) fn lose_by_close(&self, why: &LossReason) {
        self.state.send_modify(|state| {
            state.validity.lose(why.clone(), Instant::now());
        });
    }

    /// Reports the loss of the lease to telemetry, if the lease is lost and its loss was not reported before.
    pub(crate) fn check_loss(&self) {
        let mut loss = self.loss(Instant::now());
        self.set(|state| loss = state.take_unreported_loss(loss.take()));
        self.report_loss(loss);
    }

    pub(super) fn report_loss(&self, loss: Option<LossReason>) {
        match loss {
            Some(reason) if self.is_guard() => telemetry::lost(self.fields(), &reason),
            Some(_) => self.check_guards(),
            None => {}
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

    /// Whether the holder has given up the lease.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.borrow().has_ended
    }

    /// Waits until the lease is lost, and returns the reason. If the holder gives it up before that, it is
    /// [closed](LossReason::Closed).
    pub(crate) async fn lost(&self) -> LossReason {
        let reason = self.lost_or_ended().await;
        self.check_loss();
        reason.unwrap_or(LossReason::Closed)
    }

    /// Waits until the lease is lost, or its holder gives it up, without an event.
    pub(crate) async fn lost_or_ended(&self) -> Option<LossReason> {
        self.until(|now| match self.loss(now) {
            // A renewal that is under way at the deadline does not delay the loss, because its answer would come too
            // late.
            None if !self.has_ended() => Err(self.deadline()),
            loss => Ok(loss),
        })
        .await
    }

    /// Waits until the lease is at risk, or lost.
    pub(crate) async fn at_risk(&self) {
        self.until(|now| {
            let at = self.risk();
            let at = self.backing.as_ref().map_or(at, |it| at.min(it.risk()));
            if now >= at || !self.is_live(now) {
                Ok(())
            } else {
                Err(at)
            }
        })
        .await;
    }

    /// When the lease itself is at risk, or lost if it is at no risk before.
    fn risk(&self) -> Instant {
        // A lease that is kept alive counts as at risk, although no renewal failed, when it has half of what it has left
        // when its renewal is due. Without a clock margin, a lease with a ttl of 30 s is renewed when it has 20 s left,
        // and is at risk when it has 10 s left.
        let left = timing::left_when_due(self.ttl()).saturating_sub(self.terms.clock_margin);
        let state = self.state.borrow();
        let unrenewed = state.is_kept.then_some(left / 2);
        let risk = state.validity.risk(self.ttl(), unrenewed);
        drop(state);
        risk.unwrap_or_else(|| self.deadline())
    }

    /// Waits until `look` returns something. It looks after each change, and at the instant that it returns as its error.
    async fn until<T>(&self, look: impl Fn(Instant) -> Result<T, Instant>) -> T {
        let stored = self.backing.as_deref().unwrap_or(self);
        let (mut own, mut stored) = (self.state.subscribe(), stored.state.subscribe());
        loop {
            own.mark_unchanged();
            stored.mark_unchanged();
            match look(Instant::now()) {
                Ok(seen) => return seen,
                // The states are there for as long as somebody waits.
                Err(at) => tokio::select! {
                    biased;
                    _ = own.changed() => {}
                    _ = stored.changed() => {}
                    () = sleep_until(at) => {}
                },
            }
        }
    }
}
