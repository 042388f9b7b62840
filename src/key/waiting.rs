//! `Waiting`: the future of a task that wants a key.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};

use super::{
    cell::{Cell, News, WaitEnd},
    effect::Event,
    keys::Keys,
    waiters::Want,
};
use crate::{model::Key, runtime::outside};

/// A task that wants a key. Its drop leaves the key to others.
pub(crate) struct Waiting {
    keys: Arc<Keys>,
    key: Key,
    cell: Arc<Cell>,
    /// Whether it has waited, so that it was woken and may have woken others.
    is_resumed: bool,
    is_over: bool,
}

impl Keys {
    /// Lets a task want a key from now on.
    pub(crate) fn enter(self: &Arc<Self>, want: Want) -> Waiting {
        let cell = Cell::new();
        let waiting = Waiting {
            keys: self.clone(),
            key: want.request.key.clone(),
            cell: cell.clone(),
            is_resumed: false,
            is_over: false,
        };
        let entered = self.change(&waiting.key, true, |state, now, out| {
            state.step(Event::Enter(cell, want), now, out);
        });
        self.carry_out(&waiting.key, entered);
        waiting
    }
}

impl Waiting {
    /// Waits for the guard, or for why there is none. Cancel safe: a task that is dropped takes nothing with it.
    pub(crate) async fn end(mut self) -> WaitEnd {
        let end = poll_fn(|cx| self.poll(cx)).await;
        self.is_over = true;
        end
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<WaitEnd> {
        loop {
            let (news, call) = self.cell.take_news();
            match news {
                None => {}
                Some(News::Offered) => match self.take() {
                    Some(end) => return Poll::Ready(end),
                    None => continue,
                },
                Some(News::Refused(end)) => return Poll::Ready(*end),
            }
            if let Some(call) = call
                && call.poll_here(cx)
            {
                self.cell.forget_call(&call);
                if self.is_resumed && outside::runs_beside_others() {
                    // The answer may have woken a task that all requests need, for example the one that has the
                    // connections of a driver. No other worker takes that task while this one computes, so it runs
                    // before this one takes the guard.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
            if !self.cell.wait(cx.waker()) {
                self.is_resumed = true;
                return Poll::Pending;
            }
        }
    }

    /// Takes the guard that the task is offered. `None` if it is offered none any more.
    fn take(&self) -> Option<WaitEnd> {
        let taken = self.keys.update(&self.key, |state, now, out| {
            state.take(self.cell.no, now, out)
        });
        taken.flatten()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(call) = self.cell.call() {
            self.keys.leave(&call);
        }
        if !self.is_over {
            self.keys.step(&self.key, Event::Leave(self.cell.no));
        }
    }
}
