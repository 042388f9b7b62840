//! The name of the index that the aliases lead to, once it is known. The locks are in that index. (`send.rs` asks for
//! the name, and `fitness.rs` judges the answer.)
//!
//! Callers take turns. The first caller sends a request, and its answer serves all that wait. A failure also counts for
//! the callers that came before the failed request was sent. It is not remembered: a caller that comes later sends
//! another request. Each request runs in the future of the caller that sends it. If that future is dropped, it is the
//! turn of the next caller.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::RwLock;
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

use crate::model::Error;

/// How long an answer may take. All operations of the store, even renewals, wait for the caller whose turn it is, and the
/// next request may succeed on another connection.
pub(super) const LOOKUP_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a caller waits for its turn to end. It sends at most two requests.
const LOOKUPS_TIMEOUT: Duration = Duration::from_secs(6);
/// The shortest time between two checks that contention or an answer from which nothing follows causes. Contention is
/// common where many clients want one key.
const MIN_TIME_BETWEEN_CHECKS: Duration = Duration::from_secs(10);

/// The index that the aliases lead to, once it is known.
#[derive(Debug, Default)]
pub(super) struct AliasedIndex {
    known: RwLock<Option<Arc<str>>>,
    checked: RwLock<Option<Instant>>,
    /// How many requests have begun.
    begun: AtomicU64,
    /// The turn to send a request. The mutex holds the error of the last failed request, with its number.
    turn: Mutex<Option<(u64, Error)>>,
}

impl AliasedIndex {
    /// The name of the index. If it is not known yet, `request` asks for it.
    pub(super) async fn get_or_request(
        &self,
        name: impl FnOnce() -> String,
        request: impl Future<Output = Result<String, Error>>,
    ) -> Result<Arc<str>, Error> {
        if let Some(index) = self.known() {
            return Ok(index);
        }
        let came = self.begun.load(Ordering::Relaxed);
        let mut failed = self.turn.lock().await;
        if let Some(index) = self.known() {
            return Ok(index);
        }
        // The failed request began after this caller came, so its error answers this caller too. Otherwise many callers of
        // a cluster that does not answer would wait one after the other.
        if let Some((number, error)) = &*failed
            && *number > came
        {
            return Err(error.clone());
        }
        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let answer = timeout(LOOKUPS_TIMEOUT, request).await;
        let found = answer.unwrap_or_else(|_| {
            Err(Error::TimedOut {
                store: name(),
                operation: "the question where the locks are",
                limit: LOOKUPS_TIMEOUT,
            })
        });
        *failed = found.as_ref().err().map(|error| (number, error.clone()));
        let index: Arc<str> = found?.into();
        *self.known.write() = Some(index.clone());
        Ok(index)
    }

    /// The cluster has just said that this is the index.
    pub(super) fn know(&self, index: String) {
        *self.known.write() = Some(index.into());
    }

    fn known(&self) -> Option<Arc<str>> {
        self.known.read().clone()
    }

    /// Begins a check of the index, at most every ten seconds. Returns whether the caller is to make it. Meanwhile all
    /// others go on with the index that is known.
    pub(super) fn begin_check(&self, now: Instant) -> bool {
        let mut checked = self.checked.write();
        let is_old = |at| now.saturating_duration_since(at) >= MIN_TIME_BETWEEN_CHECKS;
        let is_due = checked.is_none_or(is_old);
        if is_due {
            *checked = Some(now);
        }
        is_due
    }

    /// Makes the next caller ask again, unless another name is known by now.
    pub(super) fn forget(&self, index: &str) {
        let mut known = self.known.write();
        if known.as_deref() == Some(index) {
            *known = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures::future::join_all;

    use super::*;
    use crate::model::Cause;

    fn name() -> String {
        "the store".to_owned()
    }

    #[derive(Default)]
    struct Asked(AtomicU64);

    impl Asked {
        async fn saying(&self, told: Result<&str, ()>) -> Result<String, Error> {
            self.0.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            told.map(str::to_owned).map_err(|()| Error::Interrupted {
                store: "store",
                source: Cause::text("no answer"),
            })
        }

        fn times(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[tokio::test]
    async fn all_who_come_at_once_are_served_by_one_request() {
        let (index, asked) = (AliasedIndex::default(), Asked::default());
        let told =
            join_all((0..100).map(|_| index.get_or_request(name, asked.saying(Ok("a"))))).await;
        assert!(
            told.iter()
                .all(|it| it.as_deref().is_ok_and(|it| it == "a"))
        );
        assert_eq!(asked.times(), 1);
    }

    /// The first caller sends a request. The others come while it is under way, so its failure does not count for them.
    /// One of them sends another request, and all of them get the failure of that one.
    #[tokio::test]
    async fn a_failure_is_shared_and_not_remembered() {
        let (index, asked) = (AliasedIndex::default(), Asked::default());
        let told =
            join_all((0..100).map(|_| index.get_or_request(name, asked.saying(Err(()))))).await;
        assert!(told.iter().all(Result::is_err));
        assert_eq!(asked.times(), 2);
        assert!(
            index
                .get_or_request(name, asked.saying(Ok("a")))
                .await
                .is_ok()
        );
        assert_eq!(asked.times(), 3);
    }

    /// A request that began before this caller came says nothing about the time since.
    #[tokio::test]
    async fn who_comes_while_a_request_is_under_way_does_not_take_its_failure() {
        let (index, asked) = (AliasedIndex::default(), Asked::default());
        let first = index.get_or_request(name, asked.saying(Err(())));
        let second = async {
            tokio::task::yield_now().await;
            assert_eq!(asked.times(), 1, "the first is under way");
            index.get_or_request(name, asked.saying(Ok("a"))).await
        };
        let (first, second) = tokio::join!(first, second);
        assert!(first.is_err() && second.is_ok());
    }

    #[tokio::test]
    async fn a_caller_that_goes_leaves_the_turn_to_the_next() {
        let (index, asked) = (AliasedIndex::default(), Asked::default());
        let gone = timeout(
            Duration::from_millis(1),
            index.get_or_request(name, pending()),
        )
        .await;
        assert!(gone.is_err());
        assert!(
            index
                .get_or_request(name, asked.saying(Ok("a")))
                .await
                .is_ok()
        );
    }

    #[tokio::test]
    async fn only_the_index_that_is_known_is_forgotten() {
        let (index, asked) = (AliasedIndex::default(), Asked::default());
        for (forgotten, times) in [("other", 1), ("a", 2)] {
            index
                .get_or_request(name, asked.saying(Ok("a")))
                .await
                .unwrap();
            index.forget(forgotten);
            index
                .get_or_request(name, asked.saying(Ok("a")))
                .await
                .unwrap();
            assert_eq!(asked.times(), times);
        }
    }

    /// The request that is never answered runs in a task of its own, so that it goes on beside the other.
    #[tokio::test(start_paused = true)]
    async fn a_request_without_an_answer_holds_up_the_others_for_a_bounded_time() {
        let (index, asked) = (Arc::new(AliasedIndex::default()), Asked::default());
        let hanging = index.clone();
        let hanging = tokio::spawn(async move { hanging.get_or_request(name, pending()).await });
        tokio::task::yield_now().await;
        let told = timeout(
            LOOKUPS_TIMEOUT * 2,
            index.get_or_request(name, asked.saying(Ok("a"))),
        )
        .await;
        assert!(told.is_ok());
        let error = hanging.await.unwrap().unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
    }

    #[test]
    fn contention_is_a_reason_for_a_check_now_and_then() {
        let (index, start) = (AliasedIndex::default(), Instant::now());
        for (after, is_due) in [(0, true), (1, false), (9, false), (10, true), (11, false)] {
            let now = start + Duration::from_secs(after);
            assert_eq!(index.begin_check(now), is_due, "after {after} s");
        }
    }
}
