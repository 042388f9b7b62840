//! The store calls of one operation that are under way. There can be several, because an operation that gets no answer
//! in time makes its call again, and each call runs to its end.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use futures::future::{BoxFuture, Either, select};
use tokio::time::{Instant, timeout};

use crate::model::Error;

/// An answer, and the instant before its request was sent.
pub(crate) type TimedAnswer<T> = (Instant, Result<T, Error>);

/// The calls that are under way.
///
/// A call stays here even if the operation no longer waits for its answer, because the futures of the MongoDB driver
/// are not cancel safe. So the operation must let the calls [finish](InFlight::finish), as part of work that goes on after its caller has
/// gone.
pub(crate) struct InFlight<T> {
    /// There are few calls, mostly one, so all of them are polled each time. `FuturesUnordered` would have the task
    /// polled twice for each answer (futures 0.3.34), and would wake a second thread for that.
    running: Vec<Call<T>>,
    /// The answers that came while the operation waited for something else.
    answered: Vec<TimedAnswer<T>>,
}

/// A store call. It begins when it is first polled.
pub(crate) struct Call<T> {
    pub(crate) answer: BoxFuture<'static, Answered<T>>,
    /// `None` if the request is sent at once.
    pub(crate) withdraw: Option<Withdraw>,
}

/// Sees to it that nothing more is sent for a call. Returns `true` if nothing was sent: there is then no answer.
pub(crate) type Withdraw = Box<dyn Fn() -> bool + Send + Sync>;

/// An answer to a call, and the rest of the call if another answer will come.
pub(crate) type Answered<T> = (TimedAnswer<T>, Option<Call<T>>);

impl<T> Call<T> {
    /// A call that runs to its end, unless `withdraw` withdraws its request.
    pub(crate) fn new(
        answer: impl Future<Output = Answered<T>> + Send + 'static,
        withdraw: Option<Withdraw>,
    ) -> Self {
        Self {
            answer: Box::pin(answer),
            withdraw,
        }
    }
}

impl<T: Send + 'static> InFlight<T> {
    pub(crate) fn new() -> Self {
        Self {
            running: Vec::new(),
            answered: Vec::new(),
        }
    }

    /// Adds a call. It begins with the next wait for an answer.
    pub(crate) fn start(&mut self, call: Call<T>) {
        self.running.push(call);
    }

    /// Withdraws the requests that were not sent yet. Requests that were sent are not sent again, unless that has
    /// begun.
    pub(crate) fn stop_sending(&mut self) {
        let withdrawn = |call: &Call<T>| call.withdraw.as_ref().is_some_and(|withdraw| withdraw());
        self.running.retain(|call| !withdrawn(call));
    }

    /// Whether no call is under way and no answer is left to take.
    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.answered.is_empty()
    }

    /// The next answer to any of the calls. `None` if there is none within this time, or if no call is under way.
    ///
    /// Cancel safe, like all waits of this type except [`finish`](InFlight::finish): the calls stay here.
    pub(crate) async fn next(&mut self, limit: Duration) -> Option<TimedAnswer<T>> {
        match self.answered.pop() {
            Some(answer) => Some(answer),
            None => timeout(limit, next_of(&mut self.running))
                .await
                .ok()
                .flatten(),
        }
    }

    /// Waits for `other`, and polls the calls meanwhile.
    pub(crate) async fn drive_while<O>(&mut self, other: impl Future<Output = O>) -> O {
        let mut other = pin!(other);
        while !self.running.is_empty() {
            match select(other.as_mut(), next_of(&mut self.running)).await {
                Either::Left((output, _)) => return output,
                Either::Right((answer, _)) => self.answered.extend(answer),
            }
        }
        other.await
    }

    /// Runs every call that was sent to its end. Not cancel safe: dropping the future drops the calls.
    pub(crate) async fn finish(mut self) {
        self.stop_sending();
        while next_of(&mut self.running).await.is_some() {}
    }
}

/// The next answer that comes; `None` when no call is under way.
fn next_of<T>(running: &mut Vec<Call<T>>) -> impl Future<Output = Option<TimedAnswer<T>>> {
    poll_fn(|cx| {
        let mut index = 0;
        while let Some(call) = running.get_mut(index) {
            match call.answer.as_mut().poll(cx) {
                Poll::Pending => index += 1,
                Poll::Ready((answer, rest)) => {
                    match rest {
                        Some(rest) => *call = rest,
                        None => drop(running.swap_remove(index)),
                    }
                    return Poll::Ready(Some(answer));
                }
            }
        }
        if running.is_empty() {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    })
}
