//! One acquire from its first request to its last: a task of its own.
//!
//! The caller's future only waits for the reply. Dropping it at any point therefore drops no
//! request: the task notices, waits for what it has sent, and releases what that granted.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};

use crate::{
    AcquireAnswer, AcquireRequest, Attempt, Error, Key, Lease,
    calls::Calls,
    hold::{End, Hold},
    keeper,
    key::MAX_OWNER_BYTES,
    leases::Shared,
    record::LeaseId,
    release::Unused,
    tries::{TRIES, Tries},
    ttl,
    wait::Turn,
};

/// What a builder collects. A bad key is kept until the builder is awaited, so that the call site
/// needs one `?` and not two.
pub(crate) struct Ask {
    pub(crate) shared: Arc<Shared>,
    pub(crate) key: Result<Key, Error>,
    pub(crate) ttl: Duration,
    pub(crate) keep_alive: bool,
}

impl Ask {
    pub(crate) fn new(shared: Arc<Shared>, key: Result<Key, Error>, ttl: Duration) -> Self {
        Self {
            shared,
            key,
            ttl,
            keep_alive: false,
        }
    }
}

impl std::fmt::Debug for Ask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ask")
            .field("key", &self.key)
            .field("ttl", &self.ttl)
            .field("keep_alive", &self.keep_alive)
            .finish_non_exhaustive()
    }
}

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
pub(crate) async fn acquire(ask: Ask, patience: Patience) -> Result<Attempt, Error> {
    let (reply, outcome) = oneshot::channel();
    let shared = ask.shared.clone();
    // Counted before the look at what is closed, so that a close waits for it or is seen here.
    let at_work = shared.keeper.at_work();
    let acquisition = Acquisition::new(ask)?;
    keeper::spawn(async move {
        acquisition.run(patience, reply).await;
        drop(at_work);
    })?;
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
        attempt => Ok(attempt),
    }
}

struct Acquisition {
    shared: Arc<Shared>,
    request: Arc<AcquireRequest>,
    keep_alive: bool,
    calls: Calls<AcquireAnswer>,
    /// Whether there is a grant that is of no use.
    granted: bool,
    /// Whether a request ended without telling its outcome: it may have been granted, or may still
    /// be on its way to the server.
    open: bool,
}

impl Acquisition {
    fn new(ask: Ask) -> Result<Self, Error> {
        let shared = ask.shared;
        let ttl = ttl::checked(ask.ttl, shared.clock_margin)?;
        let bytes = shared.owner.len();
        if bytes == 0 || bytes > MAX_OWNER_BYTES {
            return Err(Error::InvalidOwner { bytes });
        }
        let (key, owner) = (ask.key?, shared.owner.clone());
        if shared.keeper.closing().is_cancelled() {
            return Err(Error::Closed);
        }
        shared.keeper.ensure_running(&shared.store)?;
        let request = AcquireRequest::exclusive(key, LeaseId::random(), owner, ttl);
        Ok(Self {
            shared,
            request: Arc::new(request),
            keep_alive: ask.keep_alive,
            calls: Calls::new(),
            granted: false,
            open: false,
        })
    }

    async fn run(mut self, patience: Patience, mut reply: oneshot::Sender<Result<Attempt, Error>>) {
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
        let Some(hold) = hold else {
            return self.settle().await;
        };
        if self.calls.is_empty() && !self.open {
            return;
        }
        // What an earlier request may still be granted has no effect while the lease is held, and
        // has to be released after it.
        match self.calls.beside(hold.ended()).await {
            End::Released => self.settle().await,
            // Nobody may release this lease any more, on whichever request it was granted.
            End::Detached => self.calls.finish().await,
        }
    }

    async fn ask(&mut self, patience: Patience) -> Result<Attempt, Error> {
        match patience {
            Patience::None | Patience::For(Duration::ZERO) => self.ask_now(patience).await,
            Patience::For(wait) => self.ask_in_turn(Some(wait)).await,
            Patience::Endless => self.ask_in_turn(None).await,
        }
    }

    /// Asks without waiting for a holder.
    async fn ask_now(&mut self, patience: Patience) -> Result<Attempt, Error> {
        let start = Instant::now();
        let mut tries = Tries::default();
        loop {
            match self.attempt().await {
                Ok(Attempt::Held(held)) if patience != Patience::None => {
                    let waited = start.elapsed();
                    return Err(Error::WaitTimedOut { waited, held });
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
    async fn ask_in_turn(&mut self, patience: Option<Duration>) -> Result<Attempt, Error> {
        let start = Instant::now();
        // A patience beyond the end of time is no bound.
        let give_up = patience.and_then(|wait| start.checked_add(wait));
        let shared = self.shared.clone();
        let place = shared.room.enter(&self.request.key);
        let mut last_look = give_up;
        loop {
            let attempt = match self.calls.unless_answered(place.turn(last_look)).await {
                Some(Turn::Ask) => {
                    place.asks();
                    self.attempt().await
                }
                Some(Turn::GiveUp) => {
                    let waited = start.elapsed();
                    return Err(match place.news() {
                        Some(Ok(held)) => Error::WaitTimedOut { waited, held },
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
                    place.granted(lease.id(), lease.remaining());
                    return Ok(Attempt::Acquired(lease));
                }
                Ok(Attempt::Held(held)) => {
                    place.refused(held.clone());
                    shared.keeper.listen(&shared.store);
                    if over {
                        let waited = now - start;
                        return Err(Error::WaitTimedOut { waited, held });
                    }
                }
                Err(error) if error.is_retryable() => {
                    let (failures, answered) = place.failed(error.clone()).unwrap_or((TRIES, now));
                    let hopeless = || now - answered.max(start) >= shared.call_timeout;
                    if failures >= TRIES && (over || give_up.is_none() && hopeless()) {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
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
        let margin = self.shared.clock_margin;
        let Some(hold) = Hold::new(&self.request, &grant, sent, margin) else {
            self.granted = true;
            return Err(too_late(limit));
        };
        let lease = Lease::new(self.shared.clone(), hold, self.keep_alive);
        // A close that came before the lease was taken in did not see it.
        match self.shared.keeper.closing().is_cancelled() {
            true => Err(Error::Closed),
            false => Ok(Attempt::Acquired(lease)),
        }
    }

    /// Releases what was granted and is of no use, now and whenever a request ends that was not
    /// waited for.
    async fn settle(mut self) {
        loop {
            if self.granted || self.open {
                let shared = self.shared.clone();
                let release = shared.keeper.releases().run(self.unused(), None);
                self.calls.beside(release).await;
            }
            // A release that overtakes its acquire would free nothing, hence this order.
            let Some((_, answer)) = self.calls.next_at_last().await else {
                return;
            };
            self.granted = matches!(answer, Ok(AcquireAnswer::Granted(_)));
            self.open = leaves_open(&answer);
        }
    }

    fn unused(&self) -> Unused {
        Unused {
            key: self.request.key.clone(),
            lease: self.request.lease,
            ttl: self.request.ttl,
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
