//! `Calls`: the handle for some calls of a faulty store, or for all of them.

use std::{sync::Arc, time::Duration};

use super::{
    failure::Failure,
    plan::{Answers, Group, Plan, Remaining},
    shared::SharedPlans,
};

/// Tells a [`FaultyStore`](super::FaultyStore) what to do with all of its calls, or with those of one kind.
/// [`Faults`](super::Faults) gives it.
///
/// These calls are answered, fail, or hang: what the test says last holds. In each case their answers may be late too.
/// A call may be under a fault of all calls and under one of its kind. It is late by both delays, hangs if one of the
/// two hangs, and counts for one of two failures.
#[derive(Clone, Debug)]
pub struct Calls {
    shared: Arc<SharedPlans>,
    group: Group,
}

impl Calls {
    pub(super) fn new(shared: Arc<SharedPlans>, group: Group) -> Self {
        Self { shared, group }
    }

    /// The next `calls` of these calls fail. Ends a [hang](Self::hang), and replaces the failures that the test
    /// has set before.
    ///
    /// The client repeats what may be repeated: a test that wants to see the error of an acquire lets three requests
    /// fail.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore, testing::{Failure, FaultyStore}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// tokio::time::pause();
    /// let store = FaultyStore::new(MemoryStore::new());
    /// let faults = store.faults();
    /// let leases = Leases::new(store);
    ///
    /// faults.calls().fail_next(2, Failure::Unreachable);
    /// // The third request is carried out.
    /// let lease = leases.acquire("report:42", Duration::from_secs(30)).await?;
    /// # lease.release().await
    /// # }
    /// ```
    pub fn fail_next(&self, calls: u32, failure: Failure) {
        self.answer(Answers::Errors(failure, Remaining::Next(calls)));
    }

    /// All of these calls fail from now on, as with [`fail_next`](Self::fail_next).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Error, Leases, MemoryStore, testing::{Failure, FaultyStore}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # tokio::time::pause();
    /// # let store = FaultyStore::new(MemoryStore::new());
    /// # let faults = store.faults();
    /// # let leases = Leases::new(store);
    /// faults.calls().fail_all(Failure::Unreachable);
    /// let error = leases.try_acquire("report:42", Duration::from_secs(30)).await.unwrap_err();
    /// assert!(matches!(error, Error::Unreachable { .. }));
    /// # }
    /// ```
    pub fn fail_all(&self, failure: Failure) {
        self.answer(Answers::Errors(failure, Remaining::All));
    }

    /// These calls hang from now on: none is carried out or answered, as if the server were stopped. They go on when
    /// the test calls [`clear`](Self::clear), [`Faults::clear`](super::Faults::clear) or
    /// [`fail_next`](Self::fail_next), and are carried out then, or fail. A call whose future is dropped before that is
    /// never carried out.
    ///
    /// Calls that were carried out before, and are answered late, do not hang.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Error, Leases, MemoryStore, testing::FaultyStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # tokio::time::pause();
    /// # let store = FaultyStore::new(MemoryStore::new());
    /// # let faults = store.faults();
    /// # let leases = Leases::new(store);
    /// faults.calls().hang();
    /// let error = leases.try_acquire("report:42", Duration::from_secs(30)).await.unwrap_err();
    /// assert!(matches!(error, Error::TimedOut { .. }));
    /// faults.calls().clear();
    /// # }
    /// ```
    pub fn hang(&self) {
        self.answer(Answers::Never);
    }

    /// Waits until one of these calls hangs. Ends at once if one does now.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore, testing::FaultyStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let store = FaultyStore::new(MemoryStore::new());
    /// # let faults = store.faults();
    /// # let leases = Leases::new(store);
    /// faults.acquires().hang();
    /// let (lease, ()) = tokio::join!(leases.acquire("report:42", Duration::from_secs(30)).into_future(), async {
    ///     faults.acquires().until_hanging().await;
    ///     faults.acquires().clear();
    /// });
    /// # lease?.release().await
    /// # }
    /// ```
    pub fn until_hanging(&self) -> impl Future<Output = ()> + Send + 'static {
        let Self { shared, group } = self.clone();
        async move { shared.until(|plans| plans.any_hangs(group)).await }
    }

    /// Delays the answers to these calls by this time, errors included. The calls are carried out at once. A delay of
    /// zero ends the fault.
    ///
    /// The delay is on tokio's clock, and takes no time where that is paused. It is for calls that begin from now on.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore, testing::FaultyStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// tokio::time::pause();
    /// let store = FaultyStore::new(MemoryStore::new());
    /// let faults = store.faults();
    /// let leases = Leases::new(store);
    ///
    /// faults.calls().delay(Duration::from_secs(2));
    /// let lease = leases.acquire("report:42", Duration::from_secs(30)).await?;
    /// // The holder counts from before its request.
    /// assert!(lease.remaining() <= Duration::from_secs(28));
    /// # lease.release().await
    /// # }
    /// ```
    pub fn delay(&self, by: Duration) {
        self.change(|plan| plan.delay = by);
    }

    /// Ends all faults of these calls: failures, hangs and delays. Those of [all calls](super::Faults::calls) are the
    /// faults of every kind.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore, testing::{Failure, FaultyStore}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let store = FaultyStore::new(MemoryStore::new());
    /// # let faults = store.faults();
    /// # let leases = Leases::new(store);
    /// faults.acquires().fail_all(Failure::Denied);
    /// faults.acquires().clear();
    /// let lease = leases.acquire("report:42", Duration::from_secs(30)).await?;
    /// # lease.release().await
    /// # }
    /// ```
    pub fn clear(&self) {
        self.shared.change(|plans| plans.clear(self.group));
    }

    fn answer(&self, answers: Answers) {
        self.change(|plan| plan.answers = answers);
    }

    fn change(&self, change: impl FnOnce(&mut Plan)) {
        self.shared.change(|plans| change(plans.of(self.group)));
    }
}
