//! `Call`: a request to the store, which the task that waits for its answer polls, and which goes on in a task of its
//! own when it must not depend on that one.
//!
//! A task for each request would be simpler, but costs more than everything else the client does: in a program that has
//! little to do, two threads wake each other for every request (`docs/performance.md`).

use std::task::{Context, Poll};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::runtime::{in_flight::Withdraw, outside};

/// A request that was sent, or is about to be.
#[derive(Default)]
pub(super) struct Call {
    state: Mutex<CallState>,
}

#[derive(Default)]
struct CallState {
    work: Work,
    /// Whether a task of its own is to poll the call: the one on this runtime.
    spawn_on: Option<Handle>,
    is_withdrawn: bool,
    withdraw: Option<Withdraw>,
}

#[derive(Default)]
enum Work {
    /// The call has not begun.
    #[default]
    Not,
    Here(BoxFuture<'static, ()>),
    /// A task polls it at this moment.
    Polled,
    /// It has ended, or goes on in a task of its own.
    Gone,
}

/// Where a call is after it was polled.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Polled {
    Here,
    Gone,
}

impl Call {
    /// Begins the call. Returns whether it begins: it does not if it was withdrawn before.
    pub(super) fn begin(&self, work: BoxFuture<'static, ()>, withdraw: Option<Withdraw>) -> bool {
        let mut state = self.state.lock();
        if state.is_withdrawn && withdraw.as_ref().is_some_and(|withdraw| withdraw()) {
            state.work = Work::Gone;
            return false;
        }
        state.withdraw = withdraw;
        match state.spawn_on.clone() {
            Some(runtime) => {
                state.work = Work::Gone;
                drop(state);
                outside::spawn(&runtime, work);
            }
            None => state.work = Work::Here(work),
        }
        true
    }

    /// Polls the call, unless it goes on elsewhere.
    pub(super) fn poll_here(&self, cx: &mut Context<'_>) -> Polled {
        let mut state = self.state.lock();
        let mut work = match std::mem::replace(&mut state.work, Work::Polled) {
            Work::Here(work) => work,
            other => {
                let is_there = matches!(other, Work::Not);
                state.work = other;
                return if is_there { Polled::Here } else { Polled::Gone };
            }
        };
        drop(state);
        // The lock is not held here, because the answer changes the key, which may leave this call.
        let polled = work.as_mut().poll(cx);
        let mut state = self.state.lock();
        match (polled, state.spawn_on.clone()) {
            (Poll::Ready(()), _) => state.work = Work::Gone,
            (Poll::Pending, None) => {
                state.work = Work::Here(work);
                return Polled::Here;
            }
            (Poll::Pending, Some(runtime)) => {
                state.work = Work::Gone;
                drop(state);
                outside::spawn(&runtime, work);
            }
        }
        Polled::Gone
    }

    /// Lets a task on this runtime poll the call from now on.
    pub(super) fn leave(&self, runtime: &Handle) {
        let mut state = self.state.lock();
        state.spawn_on = Some(runtime.clone());
        match std::mem::replace(&mut state.work, Work::Gone) {
            Work::Here(work) => {
                drop(state);
                outside::spawn(runtime, work);
            }
            other => state.work = other,
        }
    }

    /// Sees to it that nothing more is sent for the call. Returns `true` if nothing was sent: there is then no answer.
    pub(super) fn withdraw(&self) -> bool {
        let mut state = self.state.lock();
        state.is_withdrawn = true;
        let withdraws = state.withdraw.as_ref().is_some_and(|withdraw| withdraw());
        if withdraws {
            state.work = Work::Gone;
        }
        withdraws
    }
}
