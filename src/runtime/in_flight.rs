//! The store calls of one operation that are under way: there may be several when one fails or takes too long, and
//! each runs to its end.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use futures::future::{BoxFuture, Either, select};
use tokio::time::{Instant, timeout};

use crate::model::Error;

/// An answer, and the instant before its request was sent.
pub(crate) type Answer<T> = (Instant, Result<T, Error>);

/// The calls under way.
///
/// A call that is not waited for any longer runs on in here: the MongoDB driver documents that its
/// futures are not cancel safe. So whoever owns this must let it [finish](InFlight::finish), in
/// [work](crate::runtime::inline_task::InlineTask) that goes on when its caller has gone.
pub(crate) struct InFlight<T> {
    /// There are few calls, mostly one. `FuturesUnordered` has its task polled twice each time (futures 0.3.34),
    /// and a second thread woken for that.
    running: Vec<Call<T>>,
    /// Answers that came while something else was waited for.
    answered: Vec<Answer<T>>,
}

/// A call that runs.
struct Call<T> {
    answer: BoxFuture<'static, Answer<T>>,
    withdraw: Option<Withdraw>,
}

/// Takes a request back that waits to be sent. Says whether that was in time: then it is never sent.
pub(crate) type Withdraw = Box<dyn Fn() -> bool + Send + Sync>;

impl<T: Send + 'static> InFlight<T> {
    pub(crate) fn new() -> Self {
        Self {
            running: Vec::new(),
            answered: Vec::new(),
        }
    }

    /// Takes in a call, which begins as soon as an answer is waited for.
    pub(crate) fn start(
        &mut self,
        answer: impl Future<Output = Answer<T>> + Send + 'static,
        withdraw: Option<Withdraw>,
    ) {
        let answer = Box::pin(answer);
        self.running.push(Call { answer, withdraw });
    }

    /// Takes back what was not sent yet.
    pub(crate) fn withdraw_unsent(&mut self) {
        let withdrawn = |call: &Call<T>| call.withdraw.as_ref().is_some_and(|withdraw| withdraw());
        self.running.retain(|call| !withdrawn(call));
    }

    /// Whether nothing is under way and no answer left.
    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.answered.is_empty()
    }

    /// The next answer to any of the calls; `None` when there is none within this time.
    ///
    /// Cancel safe, as all of these are: the calls stay in here.
    pub(crate) async fn next(&mut self, limit: Duration) -> Option<Answer<T>> {
        match self.answered.pop() {
            Some(answer) => Some(answer),
            None => timeout(limit, next_of(&mut self.running))
                .await
                .ok()
                .flatten(),
        }
    }

    /// The next answer to any of the calls; `None` when there is none before something else happens.
    pub(crate) async fn next_before(&mut self, end: impl Future<Output = ()>) -> Option<Answer<T>> {
        match self.answered.pop() {
            Some(answer) => Some(answer),
            None => tokio::select! {
                biased;
                answer = next_of(&mut self.running) => answer,
                () = end => None,
            },
        }
    }

    /// The next answer, however long it takes; `None` when no call is under way any more.
    pub(crate) async fn next_at_last(&mut self) -> Option<Answer<T>> {
        match self.answered.pop() {
            Some(answer) => Some(answer),
            None => next_of(&mut self.running).await,
        }
    }

    /// Waits for something else, or for an answer to come first, which the next call gives: `None`.
    pub(crate) async fn select_response<O>(&mut self, other: impl Future<Output = O>) -> Option<O> {
        if !self.answered.is_empty() {
            return None;
        }
        if self.running.is_empty() {
            return Some(other.await);
        }
        match select(pin!(other), next_of(&mut self.running)).await {
            Either::Left((output, _)) => Some(output),
            Either::Right((answer, _)) => {
                self.answered.extend(answer);
                None
            }
        }
    }

    /// Waits for something else, and keeps the calls going meanwhile.
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

    /// Takes the answers that came while something else was waited for.
    pub(crate) fn answered(&mut self) -> Vec<Answer<T>> {
        std::mem::take(&mut self.answered)
    }

    /// Runs every call that was sent to its end.
    pub(crate) async fn finish(mut self) {
        self.withdraw_unsent();
        while next_of(&mut self.running).await.is_some() {}
    }
}

/// The next answer that comes; `None` when no call is under way.
fn next_of<T>(running: &mut Vec<Call<T>>) -> impl Future<Output = Option<Answer<T>>> {
    poll_fn(|cx| {
        let answered = running.iter_mut().enumerate().find_map(|(index, call)| {
            match call.answer.as_mut().poll(cx) {
                Poll::Ready(answer) => Some((index, answer)),
                Poll::Pending => None,
            }
        });
        match answered {
            Some((index, answer)) => {
                drop(running.swap_remove(index));
                Poll::Ready(Some(answer))
            }
            None if running.is_empty() => Poll::Ready(None),
            None => Poll::Pending,
        }
    })
}
