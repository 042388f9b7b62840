//! `Call`: a request to the store, which the task that waits for its answer polls, and which goes on in a task of its
//! own when it must not depend on that one.
//!
//! A task for each request would be simpler, but costs more than everything else the client does: in a program that has
//! little to do, two threads wake each other for every request (`CONTRIBUTING.md` says what that cost).

use std::{
    future::poll_fn,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures::{FutureExt, future::BoxFuture, task::AtomicWaker};
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::oneshot::{self, error::TryRecvError},
    task::yield_now,
};

use crate::{
    coalescer::{HowSent, Queued},
    model::Error,
    runtime::{ended, lifecycle::Lifecycle, outside, panicked},
};

/// A request that was sent, or is about to be.
#[derive(Default)]
pub(crate) struct Call {
    state: Mutex<CallState>,
    /// Wakes the task that polls the call, when that one has to wait for the outcome elsewhere.
    waker: AtomicWaker,
}

#[derive(Default)]
struct CallState {
    work: Work,
    /// Whether a task of its own is to poll the call: the one on this runtime.
    spawn_on: Option<Handle>,
    is_withdrawn: bool,
    /// `None` if the request is sent at once, and alone.
    queued: Option<Queued>,
    has_panicked: bool,
}

/// What is left to do for a call. If it is withdrawn, so that there is no answer, this is dropped under no lock, and when
/// the state of the key knows.
#[derive(Default)]
#[must_use]
pub(super) enum Work {
    /// The call has not begun.
    #[default]
    Not,
    Here(BoxFuture<'static, ()>),
    /// It has ended, goes on in a task of its own, or is polled at this moment.
    Gone,
}

impl Call {
    /// Begins the call. Fails if it was withdrawn before.
    pub(super) fn begin(
        self: &Arc<Self>,
        work: impl Future<Output = ()> + Send + 'static,
        queued: Option<Queued>,
    ) -> Result<(), Work> {
        let this = Arc::downgrade(self);
        // A subscriber of the application that panics in an event must not end the task of the caller.
        let work = AssertUnwindSafe(work).catch_unwind().map(move |ended| {
            if let (Err(_), Some(this)) = (ended, this.upgrade()) {
                this.state.lock().has_panicked = true;
            }
        });
        let work = Box::pin(work);
        let mut state = self.state.lock();
        if state.is_withdrawn && queued.as_ref().is_some_and(Queued::withdraw) {
            state.work = Work::Gone;
            return Err(Work::Here(work));
        }
        state.queued = queued;
        match state.spawn_on.clone() {
            Some(runtime) => {
                state.work = Work::Gone;
                drop(state);
                outside::spawn(&runtime, work);
            }
            None => state.work = Work::Here(work),
        }
        Ok(())
    }

    /// Polls the call, unless it goes on elsewhere. Returns whether it does, or has ended.
    pub(super) fn poll_here(&self, cx: &mut Context<'_>) -> bool {
        let mut state = self.state.lock();
        let mut work = match std::mem::replace(&mut state.work, Work::Gone) {
            Work::Here(work) => work,
            Work::Gone => return true,
            Work::Not => {
                state.work = Work::Not;
                return false;
            }
        };
        drop(state);
        // The lock is not held here, because the answer changes the key, which may leave this call.
        if work.as_mut().poll(cx).is_pending() {
            let mut state = self.state.lock();
            let Some(runtime) = state.spawn_on.clone() else {
                state.work = Work::Here(work);
                self.waker.register(cx.waker());
                return false;
            };
            drop(state);
            outside::spawn(&runtime, work);
        }
        // A waker may own its task, so it is dropped under no lock.
        drop(self.waker.take());
        true
    }

    /// Lets a task on this runtime poll the call from now on.
    pub(super) fn leave(&self, runtime: &Handle) {
        let mut state = self.state.lock();
        state.spawn_on = Some(runtime.clone());
        match std::mem::replace(&mut state.work, Work::Gone) {
            Work::Here(work) => {
                drop(state);
                outside::spawn(runtime, work);
                // The task waits for the outcome from now on.
                self.waker.wake();
            }
            other => state.work = other,
        }
    }

    /// Sees to it that nothing is sent for the call. `None` if that is too late, or not known before the call begins.
    pub(super) fn withdraw(&self) -> Option<Work> {
        let mut state = self.state.lock();
        state.is_withdrawn = true;
        let withdraws = state.queued.as_ref().is_some_and(Queued::withdraw);
        let work = || std::mem::replace(&mut state.work, Work::Gone);
        withdraws.then(work)
    }

    /// How the request was sent.
    pub(super) fn how_sent(&self) -> HowSent {
        let state = self.state.lock();
        match (&state.queued, &state.work) {
            (Some(queued), _) => queued.how_sent(),
            (None, Work::Not) => HowSent::NotYet,
            (None, _) => HowSent::AtOnce,
        }
    }
}

/// A call that its caller polls, until a task on the runtime of the client does.
#[derive(Clone)]
pub(crate) struct PolledCall(Arc<Call>, Handle);

impl PolledCall {
    /// A call that begins later. `None` outside of a runtime.
    pub(crate) fn new(lifecycle: &Lifecycle) -> Option<Self> {
        Handle::try_current().ok()?;
        Some(Self(Arc::default(), lifecycle.home()?.clone()))
    }

    /// Begins the call.
    pub(super) fn begin(&self, work: impl Future<Output = ()> + Send + 'static) {
        // Only requests that wait in the coalescer are withdrawn, and this call is a whole release.
        let _ = self.0.begin(work, None);
    }

    /// Lets a task poll the call from now on, or from its beginning.
    pub(super) fn leave(&self) {
        self.0.leave(&self.1);
    }

    /// Polls the call until its outcome is there. Fails if it panics, or ends with its runtime. When the returned future
    /// ends or is dropped, also unpolled, a task does the rest.
    pub(super) fn outcome<T>(
        self,
        outcome: oneshot::Receiver<T>,
    ) -> impl Future<Output = Result<T, Error>> + use<T> {
        let here = LeaveOnDrop(self);
        async move {
            // The receiver is moved to a local, which is dropped before the call is left. So the call can see that its
            // caller has gone.
            let (here, mut outcome) = (here, outcome);
            let PolledCall(call, _) = &here.0;
            // Whether the call was left and resumed here, so that this future was woken and may have woken others.
            let mut is_resumed = false;
            let told = poll_fn(|cx| {
                let told = if call.poll_here(cx) {
                    Pin::new(&mut outcome).poll(cx).map(Result::ok)
                } else {
                    // The call sends the outcome while it is polled here, so a check after each poll finds the
                    // outcome. Waiting on the channel as well would wake this future once more for nothing, and
                    // perhaps a thread.
                    match outcome.try_recv() {
                        Ok(outcome) => Poll::Ready(Some(outcome)),
                        Err(TryRecvError::Empty) => Poll::Pending,
                        Err(TryRecvError::Closed) => Poll::Ready(None),
                    }
                };
                is_resumed |= told.is_pending();
                told
            });
            let Some(told) = told.await else {
                let has_panicked = call.state.lock().has_panicked;
                return Err(if has_panicked { panicked() } else { ended() });
            };
            let may_have_woken = is_resumed && outside::runs_beside_others();
            drop(here);
            if may_have_woken {
                // The last poll may have woken a task that all requests need, for example the one that has the
                // connections of a driver. No other worker takes that task while the caller computes, so it runs before
                // the caller.
                yield_now().await;
            }
            Ok(told)
        }
    }
}

/// Leaves a call when its future ends or is dropped.
struct LeaveOnDrop(PolledCall);

impl Drop for LeaveOnDrop {
    fn drop(&mut self) {
        self.0.leave();
    }
}
