//! `Cell`: what the future of a waiter and the driver of its key share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
};

use futures::task::AtomicWaker;
use parking_lot::Mutex;

use super::call::Call;
use crate::{
    lease_state::LeaseState,
    model::{Error, Held},
    telemetry::Waiting,
};

/// The number of a waiter, which no other waiter of this process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaiterNo(u64);

pub(crate) struct Cell {
    /// The number of the waiter.
    pub(super) no: WaiterNo,
    state: Mutex<CellState>,
    waker: AtomicWaker,
}

#[derive(Default)]
struct CellState {
    news: Option<News>,
    /// The request that the future of the waiter polls.
    call: Option<Arc<Call>>,
    /// Counts the task as waiting.
    waiting: Option<Waiting>,
}

/// What the future of a waiter is to do.
pub(crate) enum News {
    /// Take the guard that it is offered.
    Offered,
    /// Return: it is refused.
    Refused(Box<WaitEnd>),
}

/// How the wait of a task ends.
pub(crate) struct WaitEnd {
    /// The guard, or why there is none.
    pub(crate) outcome: Result<Granted, Refusal>,
    /// How many waiting processes came first when a request was first refused.
    pub(crate) ahead: Option<usize>,
    /// Whether others were served before this one until the end, so that no request was sent for it.
    pub(crate) was_behind: bool,
}

/// A guard that a task has got.
pub(crate) struct Granted {
    pub(crate) state: Arc<LeaseState>,
    /// Whether it is the first under its lease.
    pub(crate) is_first: bool,
}

pub(crate) enum Refusal {
    Held(Held),
    /// Tasks of this process have the key, under this lease.
    HeldHere(Arc<LeaseState>),
    Failed(Error),
    /// No answer came in time.
    TimedOut,
    Closed,
}

impl Cell {
    /// The cell of a new waiter, whose number is greater than all before it.
    pub(super) fn new() -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            no: WaiterNo(NEXT.fetch_add(1, Ordering::Relaxed)),
            state: Mutex::default(),
            waker: AtomicWaker::new(),
        })
    }

    /// Takes the news.
    pub(super) fn take_news(&self) -> (Option<News>, Option<Arc<Call>>) {
        // The poll of the call may bring news, and needs no wake for them.
        self.waker.take();
        let mut state = self.state.lock();
        (state.news.take(), state.call.clone())
    }

    /// Remembers whom to wake. Returns whether there are news already.
    pub(super) fn wait(&self, waker: &Waker) -> bool {
        self.waker.register(waker);
        self.state.lock().news.is_some()
    }

    pub(super) fn set_call(&self, call: Arc<Call>) {
        self.state.lock().call = Some(call);
    }

    /// Forgets a call that goes on elsewhere, or has ended.
    pub(super) fn forget_call(&self, call: &Arc<Call>) {
        let mut state = self.state.lock();
        state.call.take_if(|known| Arc::ptr_eq(known, call));
    }

    pub(super) fn call(&self) -> Option<Arc<Call>> {
        self.state.lock().call.clone()
    }

    pub(super) fn tell(&self, news: News) {
        let mut state = self.state.lock();
        // Two threads may carry out what two changes ask for in the other order. A refusal is the last news.
        if matches!(state.news, Some(News::Refused(_))) {
            return;
        }
        state.news = Some(news);
        drop(state);
        self.waker.wake();
    }

    /// Counts the task as waiting, unless it does already.
    pub(super) fn begins_to_wait(&self, begin: impl FnOnce() -> Waiting) {
        if self.state.lock().waiting.is_some() {
            return;
        }
        // An event is code of the application, so no lock is held.
        let waiting = begin();
        self.state.lock().waiting = Some(waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_the_last_news() {
        let cell = Cell::new();
        cell.tell(News::Offered);
        let refused = WaitEnd {
            outcome: Err(Refusal::Closed),
            ahead: None,
            was_behind: false,
        };
        cell.tell(News::Refused(Box::new(refused)));
        // An offer that was made before it, by a thread that is late.
        cell.tell(News::Offered);
        assert!(matches!(cell.take_news().0, Some(News::Refused(_))));
    }
}
