//! The requests of one release that are under way. There can be several, because a release that gets no answer in time is
//! requested again, and each request runs to its end.

use std::time::Duration;

use futures::future::select_all;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::{
    coalescer::{Call, HowSent, Queued, TimedAnswer},
    messages::ReleaseAnswer,
};

/// The requests that are under way.
///
/// A request stays here even if the release no longer waits for its answer, because the futures of the MongoDB driver
/// are not cancel safe. So the release must let the requests [finish](InFlight::finish), as part of work that goes on
/// after its caller has gone.
#[derive(Default)]
pub(crate) struct InFlight {
    /// There are few, mostly one, so all of them are polled each time. `FuturesUnordered` would have the task polled
    /// twice for each answer (futures 0.3.34), and would wake a second thread for that.
    ///
    /// A request that is added begins with the next wait for an answer.
    pub(super) running: Vec<Call<ReleaseAnswer>>,
    /// The answers that came while the release waited for something else.
    answered: Vec<TimedAnswer<ReleaseAnswer>>,
}

impl InFlight {
    /// Withdraws the requests that were not sent yet.
    pub(super) fn withdraw_unsent(&mut self) {
        let is_withdrawn = |call: &Call<_>| call.queued.as_ref().is_some_and(Queued::withdraw);
        self.running.retain(|call| !is_withdrawn(call));
    }

    /// Whether no request is under way and no answer is left to take.
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.answered.is_empty()
    }

    /// When the batch was sent of the request that is under way. `None` if it was not sent in a batch, or not yet, or if
    /// several are under way.
    pub(super) fn batch_sent(&self) -> Option<Instant> {
        let [call] = self.running.as_slice() else {
            return None;
        };
        match call.queued.as_ref()?.how_sent() {
            HowSent::InBatch(sent) => Some(sent),
            HowSent::NotYet | HowSent::AtOnce | HowSent::Alone(_) => None,
        }
    }

    /// The next answer to any of the requests. `None` if there is none within this time, or if no request is under way.
    ///
    /// Cancel safe, like all waits of this type except [`finish`](InFlight::finish): the requests stay here.
    pub(super) async fn next(&mut self, limit: Duration) -> Option<TimedAnswer<ReleaseAnswer>> {
        if let Some(answer) = self.answered.pop() {
            return Some(answer);
        }
        let next = timeout(limit, next_of(&mut self.running)).await;
        next.ok().flatten()
    }

    /// Pauses, and polls the requests meanwhile.
    pub(super) async fn pause(&mut self, pause: Duration) {
        let end = Instant::now() + pause;
        while let Ok(Some(answer)) = timeout_at(end, next_of(&mut self.running)).await {
            self.answered.push(answer);
        }
        sleep_until(end).await;
    }

    /// Runs every request that is left to its end. Not cancel safe: dropping the future drops the requests.
    pub(crate) async fn finish(mut self) {
        while next_of(&mut self.running).await.is_some() {}
    }
}

/// The next answer that comes; `None` when no request is under way.
async fn next_of<T>(running: &mut Vec<Call<T>>) -> Option<TimedAnswer<T>> {
    if running.is_empty() {
        return None;
    }
    let answers = running.iter_mut().map(|call| &mut call.answer);
    let (answer, at, _) = select_all(answers).await;
    drop(running.swap_remove(at));
    Some(answer)
}
