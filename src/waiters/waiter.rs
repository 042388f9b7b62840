//! One waiter for a key: when it asks, and what it reports to its queue.

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
    kind::WaiterKind,
    place::EndedTurn,
    place::PlaceToAsk,
    queue::{Queue, Step},
    queues::WaitQueues,
};
use crate::{
    model::{Error, Held, Key, LeaseId, Mode, WaiterId},
    runtime::inline_task::InlineTask,
    telemetry::{self, Waiting},
};

/// The next step of a waiter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WaitOutcome {
    /// Ask for the key.
    Ask,
    /// Give up without a request: the time of the waiter is over, or no request for the key is answered.
    GiveUp,
}

/// A place in the queue of a key. Dropping it leaves the queue.
pub(crate) struct Waiter {
    queues: Arc<WaitQueues>,
    key: Key,
    turn: Arc<Notify>,
    kind: WaiterKind,
    /// Reports the wait to telemetry; set when the waiter first has to wait.
    waiting: OnceLock<Waiting>,
}

impl Waiter {
    /// Takes the last place in the queue of this key for this operation.
    pub(crate) fn enter(
        queues: &Arc<WaitQueues>,
        key: &Key,
        kind: WaiterKind,
        work: Weak<InlineTask>,
    ) -> Self {
        let turn = Arc::new(Notify::new());
        queues.push(key, turn.clone(), kind, work);
        Self {
            queues: queues.clone(),
            key: key.clone(),
            turn,
            kind,
            waiting: OnceLock::new(),
        }
    }

    /// Leaves the queue. Gives the place in the document of the key that is to be given up, if the waiter was the last that
    /// waits in it.
    pub(crate) fn leave(&self) -> Option<WaiterId> {
        self.queues.remove(&self.key, &self.turn)
    }

    /// Waits until the waiter is the first and the time to ask has come.
    ///
    /// At `last_look` a waiter that is not the first gives up. The first one asks for the last time then, unless the
    /// last answer is recent and another waiter goes on. From `gives_up` on the waiter gives up as soon as another has
    /// [failed for want of answers](Self::fail_waiters).
    pub(crate) async fn turn(
        &self,
        last_look: Option<Instant>,
        gives_up: Option<Instant>,
    ) -> WaitOutcome {
        loop {
            let now = Instant::now();
            let step = self.queue(|queue| queue.step(&self.turn, last_look, gives_up, now));
            // There is always a queue as long as this waiter is in it.
            let next = match step.unwrap_or(Step::Wait(None)) {
                Step::Ask => return WaitOutcome::Ask,
                Step::GiveUp => return WaitOutcome::GiveUp,
                Step::Wait(next) => next,
            };
            self.waiting.get_or_init(|| self.begins_to_wait());
            let called = self.turn.notified();
            // Whichever of the two ends the wait, the next round looks at the queue.
            match next.into_iter().chain(last_look).min() {
                Some(at) => drop(timeout_at(at, called).await),
                None => called.await,
            }
        }
    }

    fn begins_to_wait(&self) -> Waiting {
        let held = self.last_answer().and_then(Result::ok);
        Waiting::begins(&self.key, held.map(|held| held.ahead()))
    }

    /// Records that this waiter gives up, because no request was answered for the whole call timeout. The others that
    /// have waited as long give up too.
    pub(crate) fn fail_waiters(&self) {
        self.queue(Queue::give_up);
    }

    /// The place of this process among those that wait for the key, for the next request of this waiter; `None` if it does
    /// not wait in turn.
    pub(crate) fn place_to_ask(&self) -> Option<PlaceToAsk> {
        match self.kind {
            WaiterKind::Barging => None,
            WaiterKind::Exclusive | WaiterKind::Shared => self.queue(Queue::turn),
        }
    }

    /// Records that this waiter asks now. Gives the lease in whose place it may ask, if one is offered.
    pub(crate) fn begin_to_ask(&self) -> Option<HandoffOffer> {
        let now = Instant::now();
        self.queue(|queue| queue.ask(now)).flatten()
    }

    /// Records that the key is held, and plans the next request. A request for the place of another lease of this process
    /// waits for nobody, and takes no place.
    pub(crate) fn refused(&self, held: Held, is_for_a_lease: bool) {
        let least = self.queues.least_pauses();
        let now = Instant::now();
        let in_turn = self.kind != WaiterKind::Barging && !is_for_a_lease;
        let taken_behind = self.queue(|queue| queue.refused(held, in_turn, least, now));
        if let Some(ahead) = taken_behind.flatten() {
            telemetry::place_taken(&self.key, ahead);
        }
    }

    /// Records that a request failed. Gives how many have failed in a row, and when the last answer came.
    pub(crate) fn failed(&self, error: Error) -> Option<(u32, Instant)> {
        self.queue(|queue| queue.failed(error, Instant::now()))
    }

    /// Records that the key is granted to this waiter, in the place of another lease of this process if there is one.
    pub(crate) fn granted(
        &self,
        lease: LeaseId,
        mode: Mode,
        remaining: Duration,
        in_place_of: Option<(LeaseId, HandoffStreak)>,
    ) {
        let now = Instant::now();
        let in_turn = self.kind != WaiterKind::Barging;
        let granted =
            self.queue(|queue| queue.granted(lease, mode, remaining, in_turn, in_place_of, now));
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

    /// The outcome of the last request for the key, whichever waiter sent it.
    pub(crate) fn last_answer(&self) -> Option<Result<Held, Error>> {
        self.queue(|queue| queue.last()).flatten()
    }

    fn queue<A>(&self, look: impl FnOnce(&mut Queue) -> A) -> Option<A> {
        self.queues.with(&self.key, look)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        // A runtime that has ended cannot tell the store that the place is given up. Its time ends it.
        self.leave();
    }
}
