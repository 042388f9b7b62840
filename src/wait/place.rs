//! A place in the queue of a key, and what happens to who has it.

use std::sync::{Arc, OnceLock};

use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::{Baton, Queue, Run, Turn, WaitingRoom};
use crate::{
    lease::Lease,
    model::{Error, Held, Key, LeaseId, Mode},
    retry,
    telemetry::Waiting,
};

/// A place in the queue of a key. Dropping it leaves the queue.
pub(crate) struct Place {
    pub(super) room: Arc<WaitingRoom>,
    pub(super) key: Key,
    pub(super) turn: Arc<Notify>,
    /// Once it has to wait.
    pub(super) waiting: OnceLock<Waiting>,
}

impl Place {
    /// Waits until it is the first and the time to ask has come. At `last_look` the first asks in
    /// any case, and another gives up. From `hopeless` on it gives up when nobody gets an answer.
    pub(crate) async fn turn(&self, last_look: Option<Instant>, hopeless: Option<Instant>) -> Turn {
        loop {
            let now = Instant::now();
            let over = last_look.is_some_and(|at| now >= at);
            let next = self.queue(|queue| {
                if queue.hopeless && hopeless.is_some_and(|at| now >= at) {
                    return Err(Turn::GiveUp);
                }
                if !queue.is_first(self) {
                    return if over { Err(Turn::GiveUp) } else { Ok(None) };
                }
                match over || now >= queue.next {
                    true if over && queue.knows(now) => Err(Turn::GiveUp),
                    true => Err(Turn::Ask),
                    false => Ok(Some(queue.next)),
                }
            });
            let next = match next {
                // The queue is there as long as this place is.
                None | Some(Ok(None)) => None,
                Some(Ok(next)) => next,
                Some(Err(turn)) => return turn,
            };
            self.waiting.get_or_init(|| Waiting::begins(&self.key));
            let called = self.turn.notified();
            // Whatever ends the wait, the queue is looked at again.
            match next.into_iter().chain(last_look).min() {
                Some(at) => drop(timeout_at(at, called).await),
                None => called.await,
            }
        }
    }

    /// There was nothing but errors for so long that the first one gives up. Those that have waited
    /// as long do so too.
    pub(crate) fn despairs(&self) {
        self.queue(|queue| {
            queue.hopeless = true;
            queue
                .waiters
                .iter()
                .for_each(|waiter| waiter.turn.notify_one());
        });
    }

    /// The first one asks now, for the place of the lease that makes way if there is one.
    pub(crate) fn asks(&self) -> Option<Baton> {
        self.queue(|queue| {
            (queue.asking, queue.woken) = (true, false);
            queue.baton.take()
        })
        .flatten()
    }

    /// The key is held.
    pub(crate) fn refused(&self, held: Held) {
        let elsewhere = {
            let ours = self.room.ours.lock();
            held.holders().iter().any(|it| !ours.contains(&it.lease))
        };
        let expires_in = (!held.holders().is_empty()).then(|| held.expires_in());
        let least = self.room.first_pause();
        self.queue(|queue| {
            let now = Instant::now();
            queue.is_answered(now);
            // One of ours that is not among the holders has ended otherwise than by its release.
            let holds = |lease: &LeaseId| held.holders().iter().any(|it| it.lease == *lease);
            queue.here.retain(holds);
            if elsewhere {
                queue.elsewhere = Some(now);
            }
            // A key that goes from hand to hand is free now and then, for a moment.
            let first = |held: &Held| held.holders().first().map(|holder| holder.lease);
            if matches!(&queue.news, Some(Ok(before)) if first(before) != first(&held)) {
                queue.pauses = 0;
            }
            queue.news = Some(Ok(held));
            queue.pause(least, expires_in, now);
        });
    }

    /// There was no answer. Says how often in a row, and since when.
    pub(crate) fn failed(&self, error: Error) -> Option<(u32, Instant)> {
        self.queue(|queue| {
            queue.asking = false;
            queue.failures = queue.failures.saturating_add(1);
            queue.news = Some(Err(error));
            queue.pause(0, None, Instant::now());
            (queue.failures, queue.answered)
        })
    }

    /// The key is granted to the first one, be it in the place of another lease of this process. Who is
    /// behind it hears of the release, and until then asks at the slowest pace only; unless it may be
    /// granted the key as well.
    pub(crate) fn granted(&self, lease: &Lease, in_place_of: Option<(LeaseId, Run)>) {
        self.queue(|queue| {
            let now = Instant::now();
            queue.is_answered(now);
            queue.news = None;
            let (from, before) = in_place_of.unzip();
            lease.came_by(Run::next(before, queue.elsewhere, now));
            queue.here.retain(|here| Some(*here) != from);
            queue.here.push(lease.id());
            match lease.mode() {
                Mode::Exclusive => {
                    queue.woken = false;
                    queue.pause(retry::SLOWEST, Some(lease.remaining()), now);
                }
                Mode::Shared | Mode::Permits => queue.wake(now),
            }
        });
    }

    /// What the last request brought, whoever sent it.
    pub(crate) fn news(&self) -> Option<Result<Held, Error>> {
        self.queue(|queue| queue.news.clone()).flatten()
    }

    fn queue<A>(&self, look: impl FnOnce(&mut Queue) -> A) -> Option<A> {
        self.room.queues.lock().get_mut(&self.key).map(look)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut queues = self.room.queues.lock();
        let Some(queue) = queues.get_mut(&self.key) else {
            return;
        };
        let first = queue.is_first(self);
        match first {
            true => drop(queue.waiters.pop_front()),
            false => queue
                .waiters
                .retain(|it| !Arc::ptr_eq(&it.turn, &self.turn)),
        }
        if queue.waiters.is_empty() {
            queues.remove(&self.key);
        } else if first {
            // It went away in the middle of a request, whose answer nobody will tell.
            if std::mem::take(&mut queue.asking) {
                queue.next = Instant::now();
            }
            queue.call_first();
        }
    }
}
