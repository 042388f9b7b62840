//! Sends a request again, alone, if its batch is not answered in time.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::future::{BoxFuture, Either, FutureExt, pending, select};
use tokio::{
    sync::{Notify, oneshot},
    time::sleep,
};

use crate::{
    model::{Error, Key, LeaseId},
    runtime::in_flight::{Answered, Call, TimedAnswer},
    store::Store,
    telemetry,
};

/// How long a request waits for the answer to its batch before it is sent again.
const OVERDUE: Duration = Duration::from_secs(1);

/// Whether a request is sent again if its answer is overdue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeats {
    Once,
    Never,
}

/// Makes a call again. The other call is not repeated.
pub(super) struct Repeat<A>(Box<dyn FnOnce() -> Call<A> + Send>);

impl<A> Repeat<A> {
    pub(super) fn new(
        (store, operation): (Arc<dyn Store>, &'static str),
        key: &Key,
        lease: LeaseId,
        call: impl FnOnce() -> Call<A> + Send + 'static,
    ) -> Self {
        let key = key.clone();
        Self(Box::new(move || {
            let late = Error::TimedOut {
                store: store.name(),
                operation,
                limit: OVERDUE,
            };
            telemetry::store_failed(operation, Some((&key, lease)), &late);
            call()
        }))
    }
}

/// Waits for an answer. If the call may be repeated, this makes the other call [`OVERDUE`] after the request was sent
/// in a batch, unless `stop` is notified before, and returns the first of the two answers.
pub(super) async fn in_time<A: Send + 'static>(
    answer: impl Future<Output = TimedAnswer<A>> + Send + 'static,
    went: oneshot::Receiver<()>,
    repeat: Option<Repeat<A>>,
    stop: Arc<Notify>,
) -> Answered<A> {
    let Some(Repeat(repeat)) = repeat else {
        return (answer.await, None);
    };
    let overdue = pin!(async {
        match went.await {
            Ok(()) => sleep(OVERDUE).await,
            // The request is sent alone, so it is never overdue.
            Err(_) => pending().await,
        }
    });
    let rest = match select(answer.boxed(), overdue).await {
        Either::Left((answer, _)) => return (answer, None),
        Either::Right(((), rest)) => rest,
    };
    if stop.notified().now_or_never().is_some() {
        return (rest.await, None);
    }
    first_of(rest, repeat(), &stop).await
}

/// The first answer of a call and its repeat, and the rest: the one that is not answered.
async fn first_of<A: Send + 'static>(
    mut rest: BoxFuture<'static, TimedAnswer<A>>,
    mut again: Call<A>,
    stop: &Notify,
) -> Answered<A> {
    let withdrawn = async {
        stop.notified().await;
        if !again.withdraw.as_ref().is_some_and(|withdraw| withdraw()) {
            pending().await
        }
    };
    tokio::select! {
        biased;
        // A repeat that is withdrawn has no answer.
        () = withdrawn => {}
        answer = &mut rest => return (answer, Some(again)),
        (answer, _) = &mut again.answer => {
            let rest = rest.map(|answer| (answer, None));
            return (answer, Some(Call::new(rest, None)));
        }
    }
    (rest.await, None)
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, timeout};

    use super::*;

    /// A call that went in a batch. Its answer comes when the sender sends it.
    fn in_batch() -> (
        oneshot::Sender<u32>,
        impl Future<Output = TimedAnswer<u32>> + Send,
        oneshot::Receiver<()>,
    ) {
        let (sender, answer) = oneshot::channel();
        let (went, told) = oneshot::channel();
        went.send(()).unwrap();
        let answer = async { (Instant::now(), Ok(answer.await.unwrap())) };
        (sender, answer, told)
    }

    fn answered((_, answer): TimedAnswer<u32>) -> u32 {
        answer.unwrap()
    }

    /// A repeat, with this answer if there is one, which can be withdrawn or was sent.
    fn repeat(answer: Option<u32>, is_withdrawn: bool) -> Repeat<u32> {
        let answer = async move {
            match answer {
                Some(answer) => ((Instant::now(), Ok(answer)), None),
                None => pending().await,
            }
        };
        let withdraw = move || is_withdrawn;
        Repeat(Box::new(move || {
            Call::new(answer, Some(Box::new(withdraw)))
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_of_two_answers_comes_with_the_rest_of_the_call() {
        let (late, answer, told) = in_batch();
        let repeat = repeat(Some(2), false);
        let call = in_time(answer, told, Some(repeat), Arc::default());
        let (first, rest) = call.await;
        assert_eq!(answered(first), 2);
        late.send(1).unwrap();
        let (second, rest) = rest.unwrap().answer.await;
        assert_eq!(answered(second), 1);
        assert!(rest.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn after_the_stop_nothing_is_sent_and_what_was_withdrawn_has_no_answer() {
        for (is_overdue, is_withdrawn) in [(false, false), (true, true), (true, false)] {
            let stop = Arc::new(Notify::new());
            let (late, answer, told) = in_batch();
            let repeat = repeat(None, is_withdrawn);
            let mut call = pin!(in_time(answer, told, Some(repeat), stop.clone()));
            let before = if is_overdue { OVERDUE * 2 } else { OVERDUE / 2 };
            assert!(timeout(before, &mut call).await.is_err());
            stop.notify_one();
            assert!(timeout(OVERDUE, &mut call).await.is_err());
            late.send(1).unwrap();
            let (first, rest) = call.await;
            assert_eq!(answered(first), 1);
            let has_rest = is_overdue && !is_withdrawn;
            assert_eq!(rest.is_some(), has_rest, "{is_overdue} {is_withdrawn}");
        }
    }
}
