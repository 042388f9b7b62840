//! `Faults`: the handle by which a test tells a faulty store what to do.

use std::sync::Arc;

use chrono::{SubsecRound, Utc};

use super::{
    calls::Calls,
    plan::{Group, Refusals, Remaining},
    shared::SharedPlans,
};
use crate::model::{Error, Key};

/// Tells a [`FaultyStore`](super::FaultyStore) what to do, while it is in use. A clone tells the same store.
///
/// Every call to the store counts, also those that the client makes by itself: it renews leases, releases dropped ones,
/// and repeats requests that have failed. A batch counts as its requests, and renewals that are sent together count one
/// by one.
#[derive(Clone, Debug)]
pub struct Faults {
    shared: Arc<SharedPlans>,
}

impl Faults {
    /// The owner that has the key when an acquire is [refused](Self::refuse_next).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Attempt, Leases, MemoryStore, testing::{FaultyStore, Faults}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let store = FaultyStore::new(MemoryStore::new());
    /// # let faults = store.faults();
    /// # let leases = Leases::new(store);
    /// faults.refuse_next(1);
    /// match leases.try_acquire("report:42", Duration::from_secs(30)).await? {
    ///     Attempt::Held(held) => assert_eq!(held.owner(), Faults::OTHER_OWNER),
    ///     Attempt::Acquired(_) => unreachable!(),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub const OTHER_OWNER: &str = "another owner";

    pub(super) fn new(shared: Arc<SharedPlans>) -> Self {
        Self { shared }
    }

    /// The next `acquires` acquires are refused, of whatever keys, as if another owner had them. Takes the place of
    /// what was said of refusals before.
    ///
    /// Nothing is written. An acquire that waits asks again, a second later at most, and each time counts. A refused
    /// request has the same answer as at a store that keeps the key for another owner, so its caller cannot tell the
    /// difference, but [`Leases::inspect`](crate::Leases::inspect) shows the key as it is.
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
    /// faults.refuse_next(3);
    /// // Is granted by the fourth request.
    /// let lease = leases.acquire("report:42", Duration::from_secs(30)).await?;
    /// # lease.release().await
    /// # }
    /// ```
    pub fn refuse_next(&self, acquires: u32) {
        self.refuse(Remaining::Next(acquires));
    }

    /// All acquires are refused from now on, as with [`refuse_next`](Self::refuse_next).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Error, Leases, MemoryStore, testing::FaultyStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// tokio::time::pause();
    /// let store = FaultyStore::new(MemoryStore::new());
    /// let faults = store.faults();
    /// let leases = Leases::new(store);
    /// let acquire = || leases.acquire("report:42", Duration::from_secs(30)).wait_for(Duration::from_secs(5));
    ///
    /// faults.refuse_all();
    /// assert!(matches!(acquire().await, Err(Error::WaitTimedOut { .. })));
    /// faults.clear();
    /// acquire().await?.release().await
    /// # }
    /// ```
    pub fn refuse_all(&self) {
        self.refuse(Remaining::All);
    }

    fn refuse(&self, remaining: Remaining) {
        let since = Utc::now().trunc_subsecs(3);
        self.shared
            .change(|plans| plans.refusals = Refusals { remaining, since });
    }

    /// Evicts all that hold the key now, as [`Leases::evict`](crate::Leases::evict) does from another process. Their
    /// next renewals are told so, and the leases are lost with [`LossReason::TakenOver`](crate::LossReason::TakenOver).
    /// The key is free, and its fence is raised.
    ///
    /// The store does it before it carries out its next call. Leases that are granted afterwards are not lost. A lease
    /// that is neither kept alive nor renewed is not told.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, LossReason, MemoryStore, testing::FaultyStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// tokio::time::pause();
    /// let store = FaultyStore::new(MemoryStore::new());
    /// let faults = store.faults();
    /// let leases = Leases::new(store);
    /// let lease = leases.acquire("report:42", Duration::from_secs(30)).keep_alive().await?;
    ///
    /// faults.lose("report:42")?;
    /// assert!(matches!(lease.lost().await, LossReason::TakenOver));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`] if the key is empty or too long.
    pub fn lose(&self, key: impl AsRef<str>) -> Result<(), Error> {
        let key = Key::new(key)?;
        self.shared.change(|plans| plans.lost.push_back(key));
        Ok(())
    }

    /// Ends all faults. Calls that hang are carried out. Leases that are [lost](Self::lose) stay lost.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore, testing::{Failure, FaultyStore}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let store = FaultyStore::new(MemoryStore::new());
    /// # let faults = store.faults();
    /// # let leases = Leases::new(store);
    /// faults.calls().fail_all(Failure::Denied);
    /// faults.refuse_all();
    /// faults.clear();
    /// let lease = leases.acquire("report:42", Duration::from_secs(30)).await?;
    /// # lease.release().await
    /// # }
    /// ```
    pub fn clear(&self) {
        self.shared.change(|plans| {
            plans.clear(Group::Every);
            plans.refusals = Refusals::default();
        });
    }

    /// All calls.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Error, Leases, MemoryStore, testing::{Failure, FaultyStore}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # let store = FaultyStore::new(MemoryStore::new());
    /// # let faults = store.faults();
    /// # let leases = Leases::new(store);
    /// faults.calls().fail_all(Failure::Denied);
    /// assert!(matches!(leases.inspect("report:42").await, Err(Error::Denied { .. })));
    /// # }
    /// ```
    pub fn calls(&self) -> Calls {
        self.of(Group::Every)
    }

    /// The requests for a lease.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Error, Leases, MemoryStore, testing::{Failure, FaultyStore}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let store = FaultyStore::new(MemoryStore::new());
    /// # let faults = store.faults();
    /// # let leases = Leases::new(store);
    /// # let ttl = Duration::from_secs(30);
    /// let lease = leases.acquire("report:42", ttl).await?;
    /// faults.acquires().fail_all(Failure::Denied);
    /// assert!(leases.acquire("report:43", ttl).await.is_err());
    /// lease.renew().await?;
    /// # lease.release().await
    /// # }
    /// ```
    pub fn acquires(&self) -> Calls {
        self.of(Group::Acquires)
    }

    /// The renewals of leases.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, LossReason, MemoryStore, testing::{Failure, FaultyStore}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # tokio::time::pause();
    /// # let store = FaultyStore::new(MemoryStore::new());
    /// # let faults = store.faults();
    /// # let leases = Leases::new(store);
    /// let lease = leases.acquire("report:42", Duration::from_secs(30)).keep_alive().await?;
    /// faults.renewals().fail_all(Failure::Unreachable);
    /// assert!(matches!(lease.lost().await, LossReason::Unreachable(_)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn renewals(&self) -> Calls {
        self.of(Group::Renewals)
    }

    /// The releases of leases.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore, testing::{Failure, FaultyStore}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let store = FaultyStore::new(MemoryStore::new());
    /// # let faults = store.faults();
    /// # let leases = Leases::new(store);
    /// let lease = leases.acquire("report:42", Duration::from_secs(30)).await?;
    /// faults.releases().fail_all(Failure::Denied);
    /// assert!(lease.release().await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn releases(&self) -> Calls {
        self.of(Group::Releases)
    }

    fn of(&self, group: Group) -> Calls {
        Calls::new(self.shared.clone(), group)
    }
}
