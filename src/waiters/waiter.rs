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
    queue::Queue,
    queues::WaitQueues,
};
use crate::{
    model::{Error, Held, Key, LeaseId, Mode},
    retry,
    runtime::inline_task::InlineTask,
    telemetry::Waiting,
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
    /// Reports the wait to telemetry; set when the waiter first has to wait.
    waiting: OnceLock<Waiting>,
}

impl Waiter {
    /// Takes the last place in the queue of this key for this operation.
    pub(crate) fn enter(queues: &Arc<WaitQueues>, key: &Key, work: Weak<InlineTask>) -> Self {
        let turn = Arc::new(Notify::new());
        queues.push(key, turn.clone(), work);
        Self {
            queues: queues.clone(),
            key: key.clone(),
            turn,
            waiting: OnceLock::new(),
        }
    }

    /// Waits until the waiter is the first and the time to ask has come.
    ///
    /// At `last_look` the first waiter asks for the last time, unless the last answer is recent enough to do without;
    /// then it gives up, as any other waiter does at that time. From `hopeless` on the waiter gives up as soon as
    /// another has [failed for want of answers](Self::fail_waiters).
    pub(crate) async fn turn(
        &self,
        last_look: Option<Instant>,
        hopeless: Option<Instant>,
    ) -> WaitOutcome {
        loop {
            let now = Instant::now();
            let over = last_look.is_some_and(|at| now >= at);
            let next = self.queue(|queue| {
                if queue.hopeless && hopeless.is_some_and(|at| now >= at) {
                    return Err(WaitOutcome::GiveUp);
                }
                if !queue.is_first(&self.turn) {
                    return if over {
                        Err(WaitOutcome::GiveUp)
                    } else {
                        Ok(None)
                    };
                }
                match over || now >= queue.next {
                    true if over && queue.knows(now) => Err(WaitOutcome::GiveUp),
                    true => Err(WaitOutcome::Ask),
                    false => Ok(Some(queue.next)),
                }
            });
            let next = match next {
                // There is always a queue as long as this waiter is in it.
                None | Some(Ok(None)) => None,
                Some(Ok(next)) => next,
                Some(Err(turn)) => return turn,
            };
            self.waiting.get_or_init(|| Waiting::begins(&self.key));
            let called = self.turn.notified();
            // Whichever of the two ends the wait, the next round looks at the queue.
            match next.into_iter().chain(last_look).min() {
                Some(at) => drop(timeout_at(at, called).await),
                None => called.await,
            }
        }
    }

    /// Takes in that this waiter gives up, because no request was answered for the whole call timeout. The others that
    /// have waited as long give up too.
    pub(crate) fn fail_waiters(&self) {
        self.queue(|queue| {
            queue.hopeless = true;
            queue
                .waiters
                .iter()
                .for_each(|waiter| waiter.turn.notify_one());
        });
    }

    /// Takes in that this waiter asks now. Gives the lease in whose place it may ask, if one is offered.
    pub(crate) fn asks(&self) -> Option<HandoffOffer> {
        self.queue(|queue| {
            (queue.asking, queue.woken) = (true, false);
            queue.offer.take()
        })
        .flatten()
    }

    /// Takes in that the key is held, and plans the next request.
    pub(crate) fn refused(&self, held: Held) {
        let elsewhere = !self
            .queues
            .has_all(held.holders().iter().map(|it| it.lease));
        let expires_in = (!held.holders().is_empty()).then(|| held.expires_in());
        let least = self.queues.first_pause();
        self.queue(|queue| {
            let now = Instant::now();
            queue.record_answer(now);
            // A lease that is not among the holders is over, also if its release is not known here: it was evicted,
            // say.
            let holds = |lease: &LeaseId| held.holders().iter().any(|it| it.lease == *lease);
            queue.here.retain(holds);
            if elsewhere {
                queue.elsewhere = Some(now);
            }
            // If the holder is another than at the last refusal, the key was free in between, and may soon be free
            // again. So the pauses begin anew with the shortest.
            let first = |held: &Held| held.holders().first().map(|holder| holder.lease);
            if matches!(&queue.news, Some(Ok(before)) if first(before) != first(&held)) {
                queue.pauses = 0;
            }
            queue.news = Some(Ok(held));
            queue.pause(least, expires_in, now);
        });
    }

    /// Takes in that a request failed. Gives how many have failed in a row, and when the last answer came.
    pub(crate) fn failed(&self, error: Error) -> Option<(u32, Instant)> {
        self.queue(|queue| {
            queue.asking = false;
            queue.failures = queue.failures.saturating_add(1);
            queue.news = Some(Err(error));
            queue.pause(0, None, Instant::now());
            (queue.failures, queue.answered)
        })
    }

    /// Takes in that the key is granted to this waiter, in the place of another lease of this process if there is one.
    /// After an exclusive grant the next waiter asks at the slowest pace, because the release of the lease wakes it.
    /// After a shared grant, or one of permits, it asks at once, because it may be granted the key too.
    pub(crate) fn granted(
        &self,
        lease: LeaseId,
        mode: Mode,
        remaining: Duration,
        in_place_of: Option<(LeaseId, HandoffStreak)>,
    ) {
        let streak = self.queue(|queue| {
            let now = Instant::now();
            queue.record_answer(now);
            queue.news = None;
            let (from, before) = in_place_of.unzip();
            queue.here.retain(|here| Some(*here) != from);
            queue.here.push(lease);
            match mode {
                Mode::Exclusive => {
                    queue.woken = false;
                    queue.pause(retry::SLOWEST, Some(remaining), now);
                }
                Mode::Shared | Mode::Permits => queue.wake(now),
            }
            HandoffStreak::next(before, queue.elsewhere, now)
        });
        if let Some(streak) = streak {
            self.queues.set_streak(lease, streak);
        }
    }

    /// The outcome of the last request for the key, whichever waiter sent it.
    pub(crate) fn news(&self) -> Option<Result<Held, Error>> {
        self.queue(|queue| queue.news.clone()).flatten()
    }

    fn queue<A>(&self, look: impl FnOnce(&mut Queue) -> A) -> Option<A> {
        self.queues.with(&self.key, look)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.queues.remove(&self.key, &self.turn);
    }
}
