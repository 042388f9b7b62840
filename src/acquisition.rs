//! One acquire from its first request to its last: a task of its own.
//!
//! The caller's future only waits for the reply. Dropping it at any point therefore drops no
//! request: the task notices, waits for what it has sent, and releases what that granted.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::{
    AcquireAnswer, AcquireRequest, Attempt, Error, Fence, Held, Key, Lease,
    ask::Ask,
    calls::{Answer, Calls},
    hold::{End, Hold, Terms},
    keeper,
    leases::Shared,
    release::Unused,
    rules,
    tries::{TRIES, Tries},
    wait::Turn,
};

/// How long a caller waits for a holder to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Not at all.
    None,
    /// This long.
    For(Duration),
    /// For as long as it takes.
    Endless,
}

/// Asks, in a task of its own, and waits for the reply. One lease id stands for all of it.
pub(crate) async fn acquire(
    ask: Ask,
    key: Result<Key, Error>,
    patience: Patience,
) -> Result<Attempt, Error> {
    let (reply, outcome) = oneshot::channel();
    let (shared, keep_alive) = (ask.shared.clone(), ask.keep_alive);
    // Counted before the look at what is closed, so that a close waits for it or is seen here.
    let at_work = shared.keeper.at_work();
    let acquisition = Acquisition::new(ask, key?)?;
    keeper::spawn(acquisition.run(patience, reply, at_work))?;
    let attempt = match outcome.await {
        Ok(outcome) => outcome?,
        Err(_) => return Err(keeper::runtime_ended()),
    };
    match attempt {
        // It lay there for too long, in a future that was not polled.
        Attempt::Acquired(lease) if !lease.is_live() => {
            Err(match shared.keeper.closing().is_cancelled() {
                true => Error::Closed,
                false => too_late(lease.ttl()),
            })
        }
        Attempt::Acquired(lease) => {
            // Not before somebody has it in hand: what nobody polls is not to be held for ever.
            if keep_alive {
                lease.keep()?;
            }
            Ok(Attempt::Acquired(lease))
        }
        attempt => Ok(attempt),
    }
}

struct Acquisition {
    shared: Arc<Shared>,
    request: Arc<AcquireRequest>,
    min_hold: Option<Duration>,
    calls: Calls<AcquireAnswer>,
    /// Whether there is a grant that is of no use.
    granted: bool,
    /// Whether a request ended without telling its outcome: it may have been granted, or may still
    /// be on its way to the server.
    open: bool,
}

impl Acquisition {
    fn new(ask: Ask, key: Key) -> Result<Self, Error> {
        let request = ask.request(key)?;
        let shared = ask.shared;
        if shared.keeper.closing().is_cancelled() {
            return Err(Error::Closed);
        }
        shared.keeper.ensure_running()?;
        Ok(Self {
            shared,
            request: Arc::new(request),
            min_hold: ask.min_hold,
            calls: Calls::new(),
            granted: false,
            open: false,
        })
    }

    async fn run(
        mut self,
        patience: Patience,
        mut reply: oneshot::Sender<Result<Attempt, Error>>,
        at_work: TaskTrackerToken,
    ) {
        let closing = self.shared.keeper.closing().clone();
        let outcome = tokio::select! {
            biased;
            // The caller has gone.
            () = reply.closed() => Err(Error::Closed),
            () = closing.cancelled() => Err(Error::Closed),
            outcome = self.ask(patience) => outcome,
        };
        let hold = match &outcome {
            Ok(Attempt::Acquired(lease)) => Some(lease.hold()),
            _ => None,
        };
        // A lease that nobody takes is released by its drop.
        let _ = reply.send(outcome);
        match hold {
            None => self.settle(at_work).await,
            Some(_) if self.calls.is_empty() => {}
            Some(hold) => self.outlive(hold, at_work).await,
        }
    }

    /// What earlier requests may still be granted has no effect while the lease is held, and has to be
    /// released after it.
    async fn outlive(mut self, hold: Arc<Hold>, at_work: TaskTrackerToken) {
        (self.granted, self.open) = (false, false);
        let end = self.calls.beside(hold.ended()).await;
        if end == End::Detached {
            return self.leave(hold.fence()).await;
        }
        // They were carried out before the release, unless that is not known.
        let open = |(_, answer): &Answer<_>| leaves_open(answer);
        self.open = self.calls.answered().iter().any(open);
        // A release of ours must not come before the holder's own, which would be told of a loss.
        self.calls.beside(hold.over()).await;
        self.settle(at_work).await;
    }

    /// Nobody may release a detached lease any more; but what a late request is granted after it is
    /// over is another.
    async fn leave(mut self, fence: Fence) {
        while let Some((_, answer)) = self.calls.next_at_last().await {
            if matches!(answer, Ok(AcquireAnswer::Granted(grant)) if grant.fence != fence) {
                self.release().await;
            }
        }
    }

    async fn ask(&mut self, patience: Patience) -> Result<Attempt, Error> {
        match patience {
            Patience::None | Patience::For(Duration::ZERO) => self.ask_now(patience).await,
            // Who holds the key already must not wait behind those who wait for it to go.
            _ if self.request.reentrant => match self.attempt().await {
                Ok(Attempt::Held(_)) => self.ask_in_turn(patience).await,
                Err(error) if error.is_retryable() => self.ask_in_turn(patience).await,
                answer => answer,
            },
            _ => self.ask_in_turn(patience).await,
        }
    }

    /// Asks without waiting for a holder.
    async fn ask_now(&mut self, patience: Patience) -> Result<Attempt, Error> {
        let start = Instant::now();
        let mut tries = Tries::default();
        loop {
            match self.attempt().await {
                Ok(Attempt::Held(held))
                    if patience != Patience::None || rules::is_full(&held, &self.request) =>
                {
                    return Err(self.refusal(start.elapsed(), held));
                }
                Err(error) => match tries.pause_after(&error) {
                    Some(pause) => {
                        self.calls.unless_answered(sleep(pause)).await;
                    }
                    None => return Err(error),
                },
                answer => return answer,
            }
        }
    }

    /// Asks whenever it is the turn of this task, until the key is granted or the time is over.
    async fn ask_in_turn(&mut self, patience: Patience) -> Result<Attempt, Error> {
        let start = Instant::now();
        let give_up = match patience {
            // A patience beyond the end of time is no bound.
            Patience::For(wait) => start.checked_add(wait),
            Patience::None | Patience::Endless => None,
        };
        let shared = self.shared.clone();
        let place = shared.room.enter(&self.request.key);
        let mut last_look = give_up;
        // Without a bound of its own, that of a single call counts.
        let hopeless = match give_up {
            None => start.checked_add(shared.call_timeout),
            Some(_) => None,
        };
        loop {
            let attempt = match self
                .calls
                .unless_answered(place.turn(last_look, hopeless))
                .await
            {
                Some(Turn::Ask) => {
                    place.asks();
                    self.attempt().await
                }
                Some(Turn::GiveUp) => {
                    let waited = start.elapsed();
                    return Err(match place.news() {
                        Some(Ok(held)) => self.refusal(waited, held),
                        Some(Err(error)) => error,
                        None => too_late(waited),
                    });
                }
                // A late answer to an earlier request.
                None => self.answer().await,
            };
            let now = Instant::now();
            let over = give_up.is_some_and(|at| now >= at);
            if over {
                last_look = None;
            }
            match attempt {
                Ok(Attempt::Acquired(lease)) => {
                    place.granted(lease.id(), lease.mode(), lease.remaining());
                    return Ok(Attempt::Acquired(lease));
                }
                Ok(Attempt::Held(held)) => {
                    place.refused(held.clone());
                    shared.keeper.listen();
                    if over {
                        return Err(self.refusal(now - start, held));
                    }
                }
                Err(error) if error.is_retryable() => {
                    let (failures, answered) = place.failed(error.clone()).unwrap_or((TRIES, now));
                    let silence = now.saturating_duration_since(answered.max(start));
                    let despairs = give_up.is_none() && silence >= shared.call_timeout;
                    if failures >= TRIES && (over || despairs) {
                        if despairs {
                            place.despairs();
                        }
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Why the lease was not to be had in the time that was allowed for it.
    fn refusal(&self, waited: Duration, held: Held) -> Error {
        match rules::is_full(&held, &self.request) {
            true => Error::TooManyHolders {
                key: self.request.key.clone(),
            },
            false => Error::WaitTimedOut { waited, held },
        }
    }

    /// Asks once.
    async fn attempt(&mut self) -> Result<Attempt, Error> {
        let (store, request) = (self.shared.store.clone(), self.request.clone());
        self.calls
            .start(async move { store.acquire(&request).await });
        self.answer().await
    }

    /// Takes the next answer, be it to an earlier request.
    async fn answer(&mut self) -> Result<Attempt, Error> {
        // An answer that comes after the ttl grants nothing any more.
        let limit = self.shared.call_timeout.min(self.request.ttl);
        let Some((sent, answer)) = self.calls.next(limit).await else {
            return Err(too_late(limit));
        };
        self.open |= leaves_open(&answer);
        let grant = match answer? {
            AcquireAnswer::Granted(grant) => grant,
            AcquireAnswer::Held(held) => return Ok(Attempt::Held(held)),
        };
        let terms = Terms {
            request: self.request.clone(),
            min_hold: self.min_hold,
            clock_margin: self.shared.clock_margin,
        };
        let Some(hold) = Hold::new(terms, &grant, sent) else {
            self.granted = true;
            return Err(too_late(limit));
        };
        if self.open {
            hold.leave_open();
        }
        let lease = Lease::new(self.shared.clone(), hold);
        // A close that came before the lease was taken in did not see it.
        match self.shared.keeper.closing().is_cancelled() {
            true => Err(Error::Closed),
            false => Ok(Attempt::Acquired(lease)),
        }
    }

    /// Releases what was granted and is of no use, now and whenever a request ends that was not
    /// waited for.
    async fn settle(mut self, at_work: TaskTrackerToken) {
        let limit = self.shared.call_timeout;
        // After that nobody waits for a request that hangs; this task still does.
        let waited_for = Instant::now().checked_add(limit.saturating_add(self.request.ttl));
        let (mut at_work, mut silent) = (Some(at_work), false);
        loop {
            if self.granted || self.open {
                self.release().await;
            }
            if self.calls.is_empty() {
                return;
            }
            // A release that overtakes its acquire would free nothing, hence this order.
            let answer = match (silent, waited_for.filter(|_| at_work.is_some())) {
                (false, _) => self.calls.next(limit).await,
                (true, Some(end)) => self.calls.next(end - Instant::now()).await,
                (true, None) => self.calls.next_at_last().await,
            };
            match answer {
                Some((_, answer)) => {
                    self.granted = matches!(answer, Ok(AcquireAnswer::Granted(_)));
                    self.open = leaves_open(&answer);
                }
                // It may have been carried out long ago, on a connection that has died unnoticed.
                None if !silent => {
                    silent = true;
                    self.release_aside();
                }
                None => drop(at_work.take()),
            }
        }
    }

    /// Releases what may have been granted, and does not wait for it: an answer that comes after all
    /// is released at once.
    fn release_aside(&self) {
        let at_work = self.shared.keeper.at_work();
        let releases = self.shared.keeper.releases().clone();
        let unused = Unused {
            open: true,
            ..self.unused()
        };
        // This task runs, so there is a runtime.
        let _ = keeper::spawn(async move {
            let mut calls = Calls::new();
            releases.settle(&unused, None, &mut calls).await;
            drop(at_work);
            calls.finish().await;
        });
    }

    async fn release(&mut self) {
        let (shared, unused) = (self.shared.clone(), self.unused());
        let mut calls = Calls::new();
        let release = shared.keeper.releases().settle(&unused, None, &mut calls);
        self.calls.beside(release).await;
        (self.granted, self.open) = (false, false);
        self.calls.beside(calls.finish()).await;
    }

    fn unused(&self) -> Unused {
        Unused {
            key: self.request.key.clone(),
            lease: self.request.lease,
            ttl: self.request.ttl,
            // The work has not begun.
            min_hold: None,
            open: self.open,
        }
    }
}

/// Whether the lease may be granted although the answer does not say so. An error counts unless it
/// says for certain that nothing was changed: a release too many costs nothing.
fn leaves_open(answer: &Result<AcquireAnswer, Error>) -> bool {
    match answer {
        Ok(_) => false,
        // The last of the nodes that were asked said so, and perhaps not the first.
        Err(Error::Store { .. } | Error::Overloaded { .. }) => true,
        Err(error) => error.is_ambiguous(),
    }
}

fn too_late(limit: Duration) -> Error {
    Error::TimedOut {
        operation: "acquire",
        limit,
    }
}
