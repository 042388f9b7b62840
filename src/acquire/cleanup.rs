//! `Cleanup`: after an acquire is over, waits for the answers to its requests that are still under way, and releases
//! the leases that they grant.
//!
//! Invariants:
//!
//! - All requests of an acquire have the same lease id, so one release covers them all. But a release that the server
//!   carries out before an acquire request does not undo that request. So the clean-up releases after each answer that
//!   may be a grant, and again if no answer came within the call timeout.
//! - While the caller holds the lease, the clean-up releases nothing. The release by the caller goes first: otherwise
//!   it would find the lease gone, and report a loss.
//! - A detached lease is never released.
//! - The place of this process in the queue of the key is given up after the last request that may take it.
//! - A close waits for the clean-up for at most the sum of the call timeout and the ttl.

use std::{future::pending, pin::pin, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout_at},
};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::context::AcquireContext;
use crate::{
    lease_state::{EndReason, LeaseState},
    messages::{AcquireAnswer, AcquireRequest, ReleaseAnswer},
    model::{Access, Error, Key, WaiterId},
    release::ReleaseJob,
    runtime::{self, in_flight::InFlight},
    telemetry,
};

/// An acquire that is over, and its requests that are still under way.
pub(super) struct Cleanup {
    pub(super) context: Arc<AcquireContext>,
    pub(super) request: Arc<AcquireRequest>,
    pub(super) calls: InFlight<AcquireAnswer>,
    pub(super) leftover: Leftover,
    /// The place among the processes that wait for the key, if it is to be given up: no task of this process waits in
    /// it any more, or a request of this acquire may have taken it.
    pub(super) place: Option<WaiterId>,
    /// The place that a request takes if it is refused after the acquire is over.
    pub(super) place_if_refused: Option<WaiterId>,
}

/// What the requests that have ended may have left in the store without a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Leftover {
    Nothing,
    /// A grant.
    Granted,
    /// Perhaps a grant: a request ended with an error that does not tell its outcome. It may have been granted, or may
    /// still be on its way to the server.
    Unclear,
}

impl Leftover {
    /// What a request with this answer leaves in the store, if its caller does not take the lease.
    fn of(answer: &Result<AcquireAnswer, Error>) -> Self {
        match answer {
            Ok(AcquireAnswer::Granted(_)) => Self::Granted,
            Ok(AcquireAnswer::Held(_) | AcquireAnswer::Done(_)) => Self::Nothing,
            Err(error) => Self::of_error(error),
        }
    }

    /// What a request that ended with this error leaves in the store: `Nothing` only if the error proves that nothing
    /// was changed. A needless release is harmless.
    pub(super) fn of_error(error: &Error) -> Self {
        if error.leaves_doubt() {
            Self::Unclear
        } else {
            Self::Nothing
        }
    }
}

impl Cleanup {
    /// Waits until the caller's lease has ended, and then cleans up. While the lease is held, the store answers a late
    /// request with that lease. After the release the store would grant the lease again.
    pub(super) async fn outlive(mut self, state: Arc<LeaseState>, at_work: TaskTrackerToken) {
        self.leftover = Leftover::Nothing;
        let end = self.calls.drive_while(state.ended()).await;
        if end == EndReason::Detached {
            let end = self.close_waits_until();
            return at_work_until(end, at_work, self.keep_detached(state.acquired_at())).await;
        }
        // The server carried out the answered requests before the release, so they leave nothing. Only requests with an
        // unclear outcome may.
        self.take_in_answered();
        // If the clean-up released before the holder does, the holder's release would give `Error::Lost`.
        self.calls.drive_while(state.given_back()).await;
        self.run(at_work).await;
    }

    fn take_in_answered(&mut self) {
        for (_, answer) in self.calls.take_answered() {
            if self.take_in(&answer) == Leftover::Unclear {
                self.leftover = Leftover::Unclear;
            }
        }
    }

    /// Records the late answer to a request, and returns what the request leaves in the store.
    fn take_in(&mut self, answer: &Result<AcquireAnswer, Error>) -> Leftover {
        let left = Leftover::of(answer);
        if left == Leftover::Unclear || matches!(answer, Ok(AcquireAnswer::Held(_))) {
            self.place = self.place.or(self.place_if_refused);
        }
        left
    }

    /// Leaves a detached lease held. A late request may be granted the key after the lease has expired. That grant is
    /// later than the lease, and is released. An earlier grant had expired when the lease was granted. The fence does
    /// not tell them apart, because an upgrade gives the lease another one.
    async fn keep_detached(mut self, acquired_at: DateTime<Utc>) {
        while let Some((_, answer)) = self.calls.next_at_last().await {
            self.take_in(&answer);
            if matches!(answer, Ok(AcquireAnswer::Granted(grant)) if grant.acquired_at > acquired_at)
            {
                self.release().await;
            }
        }
        self.give_up_place().await;
    }

    /// Gives up the place, unless other tasks of this process wait in it. After an error this does not try again,
    /// because the place expires soon.
    pub(super) async fn give_up_place(self) {
        if let Some(place) = self.place {
            // Boxed, so that the future of a waiter does not contain this one.
            Box::pin(leave_queue(&self.context, &self.request.key, place)).await;
        }
    }

    /// Releases what the acquire may have left in the store, now and whenever one of its late requests ends, and gives
    /// up its place at the end.
    pub(super) async fn run(self, at_work: TaskTrackerToken) {
        if self.calls.is_empty() && self.leftover == Leftover::Nothing && self.place.is_none() {
            return;
        }
        let limit = self.context.registry.call_timeout;
        let end = self.close_waits_until();
        // Boxed, so that the future of a waiter does not contain the clean-up, which few waiters need.
        let cleaning = Box::pin(self.until_answered(limit, end));
        at_work_until(end, at_work, cleaning).await;
    }

    /// Until when a close waits for what is cleaned up from now on. `None` if an `Instant` cannot express it.
    fn close_waits_until(&self) -> Option<Instant> {
        let limit = self.context.registry.call_timeout;
        Instant::now().checked_add(limit.saturating_add(self.request.ttl))
    }

    async fn until_answered(mut self, mut limit: Duration, end: Option<Instant>) {
        // The task that repeats the release, and whether another one is due after it.
        let (mut aside, mut is_due) = (None, false);
        loop {
            if self.leftover != Leftover::Nothing {
                self.release().await;
            }
            if self.calls.is_empty() {
                return self.give_up_place().await;
            }
            // A release that the server carries out before the acquire frees nothing. So the first release waits for
            // the answer, or until it is late.
            let is_over = end.is_some_and(|end| Instant::now() >= end);
            let answered = async {
                if is_over {
                    self.calls.next_at_last().await
                } else {
                    self.calls.next(limit).await
                }
            };
            tokio::select! {
                biased;
                answer = answered => match answer {
                    Some((_, answer)) => self.leftover = self.take_in(&answer),
                    // No answer: the server may have granted the request, and the connection may be dead without an
                    // error. A server that stood still may also carry the request out later. So the release is
                    // repeated, after pauses that double, until a lease that was granted would have expired. A release
                    // that is not answered either is tried again by its task. More tasks at the same time would only
                    // make a slow server slower.
                    None => {
                        limit = limit.saturating_mul(2);
                        match aside {
                            Some(_) => is_due = true,
                            None => aside = self.release_aside(end),
                        }
                    }
                },
                () = ended(&mut aside) => {
                    aside = is_due.then(|| self.release_aside(end)).flatten();
                    is_due = false;
                }
            }
        }
    }

    /// Releases in another task what may have been granted, so that this task can still release a late grant as soon as
    /// the answer comes.
    fn release_aside(&self, end: Option<Instant>) -> Option<JoinHandle<()>> {
        let at_work = self.context.registry.lifecycle.register_operation();
        let releases = self.context.registry.releaser.clone();
        let job = ReleaseJob {
            maybe_in_flight: true,
            ..self.job()
        };
        // The clean-up runs on a runtime, so `spawn` finds one.
        let released = runtime::spawn(async move {
            let mut calls = InFlight::new();
            let release = releases.release_until_confirmed(&job, None, &mut calls);
            at_work_until(end, at_work, release).await;
            finish_aside(calls);
        });
        released.ok()
    }

    async fn release(&mut self) {
        let (context, job) = (self.context.clone(), self.job());
        let mut calls = InFlight::new();
        let release = context
            .registry
            .releaser
            .release_until_confirmed(&job, None, &mut calls);
        self.calls.drive_while(release).await;
        self.leftover = Leftover::Nothing;
        finish_aside(calls);
    }

    fn job(&self) -> ReleaseJob {
        ReleaseJob {
            key: self.request.key.clone(),
            lease: self.request.lease,
            ttl: self.request.ttl,
            is_exclusive: self.request.access == Access::Exclusive,
            maybe_in_flight: self.leftover == Leftover::Unclear,
            held: None,
        }
    }
}

/// Waits for the end of the task, if there is one.
async fn ended(task: &mut Option<JoinHandle<()>>) {
    match task {
        // A panic ends it too.
        Some(task) => drop(task.await),
        None => pending().await,
    }
}

/// If requests of a release still hang, a task waits for their end. A close does not wait for that task.
fn finish_aside(calls: InFlight<ReleaseAnswer>) {
    if !calls.is_empty() {
        // The clean-up runs on a runtime, so `spawn` finds one.
        let _ = runtime::spawn(calls.finish());
    }
}

/// Gives up a place in the background. After an error this does not try again, because the place expires soon.
pub(super) fn give_up_place(context: &Arc<AcquireContext>, key: &Key, place: WaiterId) {
    let (context, key) = (context.clone(), key.clone());
    // The acquire runs on a runtime, so `spawn` finds one.
    let _ = runtime::spawn(async move { leave_queue(&context, &key, place).await });
}

async fn leave_queue(context: &AcquireContext, key: &Key, place: WaiterId) {
    let registry = &context.registry;
    if registry.queues.leave_place(key, place) {
        return;
    }
    let (store, of) = (registry.store.clone(), key.clone());
    let leaving = async move { store.leave(&of, place).await };
    let name = || registry.store.name();
    let left = runtime::call("leave", registry.call_timeout, name, leaving).await;
    telemetry::place_given_up(key, left.as_ref().err());
}

/// Drives the work to its end. A close waits for the work until `end` at the latest, and without a limit if `end` is
/// `None`.
async fn at_work_until(
    end: Option<Instant>,
    at_work: TaskTrackerToken,
    work: impl Future<Output = ()>,
) {
    let mut work = pin!(work);
    if let Some(end) = end {
        if timeout_at(end, &mut work).await.is_ok() {
            return;
        }
        drop(at_work);
        return work.await;
    }
    work.await;
    drop(at_work);
}
