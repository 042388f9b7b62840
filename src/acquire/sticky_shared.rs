//! `AcquireShared`: the builder for a shared lease that stays with its process.

use std::{future::IntoFuture, time::Duration};

use futures::future::BoxFuture;

use super::{attempt::Attempt, builder::Acquire, start};
use crate::{
    lease::SharedLease,
    model::{Access, Error},
};

/// A request for a shared lease that stays with this process, made by [`Acquire::sticky_shared`]. Await it: it resolves
/// to a [`SharedLease`].
///
/// # Errors
///
/// As for [`Acquire`].
///
/// # Cancel safety
///
/// As for [`Acquire`].
#[derive(Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct AcquireShared {
    acquire: Acquire,
}

impl Acquire {
    /// Requests a [shared](Acquire::shared) lease that stays with this process after its last use, until no task has
    /// asked for it for `idle`. The next such acquire of the key in this process is then granted from memory, without a
    /// request, also while other tasks hold it.
    ///
    /// It is for a lock that each worker shares before it takes a narrower one: the lock on an index before that on a
    /// document, for example. What [`sticky`](Acquire::sticky) says about other processes, and about what it is not
    /// for, goes for this too. The lease shows no [fence](crate::Lease::fence), and its type says so.
    ///
    /// Call this last: it turns the builder into one for a [`SharedLease`]. If the key stays here as an exclusive
    /// lease, the shared ones are granted from memory under that one.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// let (ttl, idle) = (Duration::from_secs(30), Duration::from_secs(60));
    /// for document in ["books:1", "books:2", "books:3"] {
    ///     // Only the first of these asks the store.
    ///     let index = leases.acquire("index:books", ttl).sticky_shared(idle).await?;
    ///     let lease = leases.acquire(document, ttl).await?;
    ///     // Write the document. An exclusive lease on the index would keep all of its writers out.
    ///     lease.release().await?;
    ///     index.release().await?;
    /// }
    /// # leases.close().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn sticky_shared(mut self, idle: Duration) -> AcquireShared {
        self.options.access = Ok(Access::Shared);
        self.options.sticky = (!idle.is_zero()).then_some(idle);
        AcquireShared { acquire: self }
    }
}

impl IntoFuture for AcquireShared {
    type Output = Result<SharedLease, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Acquire {
            key,
            options,
            wait_policy,
        } = self.acquire;
        Box::pin(async move {
            let attempt = start::acquire(options, key, wait_policy).await;
            let lease = attempt.and_then(Attempt::acquired)?;
            Ok(SharedLease::new(lease))
        })
    }
}
