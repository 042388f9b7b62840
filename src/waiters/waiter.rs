//! `Waiter`: one waiter for a key. It tells its operation when to send a request, and reports the answers to its queue.

use std::{
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::{
    handoff::{HandoffOffer, HandoffStreak},
    kind::{Standing, WaiterKind},
    place::{EndedTurn, PlaceNews},
    queue::{Granted, KeyQueue, Step},
    queues::WaitQueues,
};
use crate::{
    messages::InTurn,
    model::{Error, Held, Key, LeaseId, Mode, WaiterId},
    runtime::inline_task::InlineTask,
    telemetry::{self, Waiting},
};

/// The next step of a waiter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WaitOutcome {
    /// Send a request for the key.
    Ask,
    /// Give up without a request, because the time of the waiter is over, or no request for the key is answered.
    GiveUp,
}

/// A waiter in the queue of a key. Its drop leaves the queue.
pub(crate) struct Waiter {
    queues: Arc<WaitQueues>,
    key: Key,
    wake: Arc<Notify>,
    kind: WaiterKind,
    /// Reports the wait to telemetry. It is set when the waiter first has to wait.
    waiting: OnceLock<Waiting>,
}

impl Waiter {
    /// Adds this operation, which began at `since`, to the queue of this key.
    pub(crate) fn enter(
        queues: &Arc<WaitQueues>,
        key: &Key,
        kind: WaiterKind,
        since: Instant,
        work: Weak<InlineTask>,
    ) -> Self {
        let wake = Arc::new(Notify::new());
        queues.push(key, wake.clone(), kind, since, work);
        Self {
            queues: queues.clone(),
            key: key.clone(),
            wake,
            kind,
            waiting: OnceLock::new(),
        }
    }

    /// Whether this waiter is the first in its queue.
    pub(crate) fn is_first(&self) -> bool {
        // The queue exists while this waiter is in it.
        let is_first = self.queue(|queue| queue.is_first(&self.wake));
        is_first.unwrap_or(false)
    }

    /// Leaves the queue. If this was the last waiter in the place of this process, returns the place, which is to be
    /// given up.
    pub(crate) fn leave(&self) -> Option<WaiterId> {
        self.queues.remove(&self.key, &self.wake)
    }

    /// Waits until this waiter is let in, or is the first and its next request is due.
    ///
    /// At `last_request_at` a waiter that is not the first gives up. The first waiter then sends a last request, unless
    /// the last answer is recent and another waiter stays. From `errors_end_wait` on, the waiter gives up as soon as
    /// another waiter has [failed because no request was answered](Self::fail_waiters).
    pub(crate) async fn until_next_step(
        &self,
        last_request_at: Option<Instant>,
        errors_end_wait: Option<Instant>,
    ) -> WaitOutcome {
        loop {
            let now = Instant::now();
            let step =
                self.queue(|queue| queue.step(&self.wake, last_request_at, errors_end_wait, now));
            // The queue exists while this waiter is in it.
            let next = match step.unwrap_or(Step::Wait(None)) {
                Step::Ask => return WaitOutcome::Ask,
                Step::GiveUp => return WaitOutcome::GiveUp,
                Step::Wait(next) => next,
            };
            self.waiting.get_or_init(|| self.begins_to_wait());
            let called = self.wake.notified();
            // Whether it was notified or its time has come, the next round reads the queue.
            match next.into_iter().chain(last_request_at).min() {
                Some(at) => drop(timeout_at(at, called).await),
                None => called.await,
            }
        }
    }

    fn begins_to_wait(&self) -> Waiting {
        let held = self.last_answer().and_then(Result::ok);
        Waiting::begins(&self.key, held.map(|held| held.ahead()))
    }

    /// Ends the pause of this waiter, which is the first.
    pub(crate) fn end_pause(&self) {
        self.queue(|queue| queue.end_pause(Instant::now()));
    }

    /// Records that this waiter gives up, because no request was answered for the whole call timeout. The other waiters
    /// that have waited for as long give up too.
    pub(crate) fn fail_waiters(&self) {
        self.queue(KeyQueue::give_up);
    }

    /// Plans the next request of this waiter, and returns what it says about the place of this process. `None` if the
    /// waiter does not wait in turn.
    pub(crate) fn plan_request(&self) -> Option<InTurn> {
        match self.kind {
            WaiterKind::Barging => None,
            WaiterKind::Exclusive | WaiterKind::Shared | WaiterKind::Permits => {
                self.queue(|queue| queue.plan_request(&self.wake))
            }
        }
    }

    /// Records that this waiter sends a request now. If a lease is offered, returns the offer: the request may replace
    /// that lease.
    pub(crate) fn begin_to_ask(&self) -> Option<HandoffOffer> {
        let now = Instant::now();
        self.queue(|queue| queue.ask(&self.wake, now)).flatten()
    }

    /// Records that a request was refused, and plans the next one. Returns whether a waiter for the key needs the
    /// store's reports of freed keys.
    pub(crate) fn refused(&self, held: Held, standing: Standing) -> bool {
        let is_held_here = self.queues.has_own_holder(&held);
        let reports_freed = self.queues.reports_freed();
        let now = Instant::now();
        let refused = self.queue(|queue| {
            let place_news = queue.refused(&self.wake, held, standing, reports_freed, now);
            if is_held_here {
                queue.note_held_here();
            }
            (place_news, queue.needs_reports())
        });
        // The queue exists while this waiter is in it.
        let (place_news, needs_reports) = refused.unwrap_or_default();
        match place_news {
            Some(PlaceNews::Taken { ahead }) => telemetry::place_taken(&self.key, ahead),
            Some(PlaceNews::NoRoom) => telemetry::no_place(&self.key),
            None => {}
        }
        needs_reports
    }

    /// Records that a request failed, and whether it may have taken the place nevertheless. Returns how many have
    /// failed in a row, and when the last answer came.
    pub(crate) fn failed(
        &self,
        error: Error,
        may_have_taken_place: bool,
    ) -> Option<(u32, Instant)> {
        let now = Instant::now();
        self.queue(|queue| queue.failed(&self.wake, error, may_have_taken_place, now))
    }

    /// Records that this waiter was granted the key. `refusal` is what other requests are refused with from now on;
    /// `None` for a lease from memory. `in_place_of` is the lease of this process that the new lease replaces, if it
    /// replaces one.
    pub(crate) fn granted(
        &self,
        lease: LeaseId,
        mode: Mode,
        remaining: Duration,
        refusal: Option<Held>,
        in_place_of: Option<(LeaseId, HandoffStreak)>,
        ends_place: bool,
    ) {
        let now = Instant::now();
        let granted = Granted {
            lease,
            mode,
            remaining,
            is_in_turn: self.kind != WaiterKind::Barging,
            ends_place,
            refusal,
            in_place_of,
        };
        let granted = self.queue(|queue| queue.granted(&self.wake, granted, now));
        let Some((streak, ended)) = granted else {
            return;
        };
        self.queues.set_streak(lease, streak);
        if let Some(EndedTurn {
            ahead,
            waited,
            passed,
        }) = ended
        {
            telemetry::turn_came(&self.key, ahead, waited);
            if let Some((ahead, waited)) = passed {
                telemetry::places_passed(&self.key, ahead, waited);
            }
        }
    }

    /// Records that this waiter gets the key from memory when its turn comes, under a lease that stays with this
    /// process. So the next waiter asks at once. Nothing was granted yet, so a place in the document stays what it is.
    pub(crate) fn record_wait_for_memory(&self, lease: LeaseId, remaining: Duration) {
        let now = Instant::now();
        let granted = Granted {
            lease,
            mode: Mode::Shared,
            remaining,
            is_in_turn: false,
            ends_place: false,
            refusal: None,
            in_place_of: None,
        };
        self.queue(|queue| queue.granted(&self.wake, granted, now));
    }

    /// The outcome of the last request for the key, whichever waiter sent it.
    pub(crate) fn last_answer(&self) -> Option<Result<Held, Error>> {
        self.queue(|queue| queue.last()).flatten()
    }

    /// What other requests are refused with after a grant to a waiter of this process, if that was the last answer.
    pub(crate) fn last_grant(&self) -> Option<Held> {
        self.queue(|queue| queue.last_grant()).flatten()
    }

    fn queue<A>(&self, f: impl FnOnce(&mut KeyQueue) -> A) -> Option<A> {
        self.queues.with(&self.key, f)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        // The place in the document is not given up here, because there may be no runtime to send the request. The
        // place expires by itself.
        self.leave();
    }
}
