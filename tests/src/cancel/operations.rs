//! The operations that are dropped.

use anyhow::{Result, ensure};
use futures::join;
use leasehold::{
    Attempt, Error, Key, Lease, WithError,
    store::{AcquireRequest, LeaseId},
};
use tokio::{task::JoinHandle, time::sleep};

use super::{Cell, MOMENT, TTL, Waiting};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    TryAcquire,
    Acquire,
    Renew,
    Release,
    /// Work under a lease. The fault happens to its acquire, to the renewal in its body, or to its
    /// release.
    WithAcquiring,
    WithRenewing,
    WithReleasing,
    /// Another process holds the key, and releases it later. The fault happens to the request that
    /// is refused.
    QueuedRefused,
    /// The same, but the fault happens to the request that is granted.
    QueuedGranted,
    /// The acquire is behind a waiter of the same process, and the fault happens to that one.
    BehindAsking,
    /// The same, but the fault happens to the acquire itself, after the first waiter has released
    /// the key.
    BehindGranted,
    /// The negative control: a client that drops its request, and does nothing about it.
    Abandoned,
}

pub(super) const OPERATIONS: [Operation; 11] = [
    Operation::TryAcquire,
    Operation::Acquire,
    Operation::Renew,
    Operation::Release,
    Operation::WithAcquiring,
    Operation::WithRenewing,
    Operation::WithReleasing,
    Operation::QueuedRefused,
    Operation::QueuedGranted,
    Operation::BehindAsking,
    Operation::BehindGranted,
];

impl Operation {
    /// Whether the fault happens to a request for the key.
    pub(super) fn is_struck_acquiring(self) -> bool {
        use Operation::{Release, Renew, WithReleasing, WithRenewing};
        !matches!(self, Renew | Release | WithRenewing | WithReleasing)
    }
}

impl Cell {
    pub(super) async fn operate(&self) -> Result<()> {
        let words = self.words;
        match self.case.operation {
            Operation::TryAcquire => {
                self.strike(&words.acquire);
                let attempt = self.leases.try_acquire(&self.key, TTL).await?;
                // If the request is lost, the waiter behind may get the key first.
                let held = matches!(attempt, Attempt::Held(_));
                ensure!(!held || self.case.followed, "{attempt:?}");
            }
            Operation::Acquire => {
                self.strike(&words.acquire);
                drop(self.acquire().await?);
            }
            Operation::Renew => {
                let lease = self.acquired(self.acquiring()).await?;
                self.renew(&lease).await?;
            }
            Operation::Release => {
                let lease = self.acquired(self.acquiring()).await?;
                self.strike(&words.release);
                lease.release().await?;
            }
            Operation::WithAcquiring | Operation::WithRenewing | Operation::WithReleasing => {
                self.work().await.map_err(WithError::merge)?;
            }
            Operation::QueuedRefused => {
                self.hold_elsewhere().await?;
                self.strike(&words.acquire);
                drop(self.acquire().await?);
            }
            Operation::QueuedGranted => {
                self.hold_elsewhere().await?;
                let refusal = self.proxy.hold_the_answer_to(words.acquire);
                let released = async {
                    refusal.reached().await;
                    let released = self.release_holder().await;
                    self.strike(&words.acquire);
                    refusal.open();
                    released
                };
                let (lease, released) = join!(self.acquire(), released);
                released?;
                drop(lease?);
            }
            Operation::BehindAsking => {
                self.arm(&words.acquire);
                let first = self.passing_through();
                sleep(MOMENT).await;
                let queued = async {
                    sleep(MOMENT).await;
                    self.armed.notify_one();
                };
                let (lease, ()) = join!(self.acquire(), queued);
                drop(lease?);
                first.await??;
            }
            Operation::BehindGranted => {
                let grant = self.proxy.hold_the_answer_to(words.acquire);
                let first = self.passing_through();
                grant.reached().await;
                let queued = async {
                    sleep(MOMENT).await;
                    self.strike(&words.acquire);
                    grant.open();
                };
                // The lease of the first waiter has no note, so it does not serve this one.
                let second = self
                    .leases
                    .acquire(&self.key, TTL)
                    .note("the second waiter");
                let (lease, ()) = join!(second.into_future(), queued);
                drop(lease?);
                first.await??;
            }
            Operation::Abandoned => {
                self.strike(&words.acquire);
                let (key, owner) = (Key::new(&self.key)?, "nobody".into());
                let request = AcquireRequest::exclusive(key, LeaseId::random(), owner, TTL);
                self.store.acquire(&request).await?;
            }
        }
        Ok(())
    }

    async fn acquire(&self) -> Result<Lease, Error> {
        self.leases.acquire(&self.key, TTL).await
    }

    /// If a renewal fails, its caller still has the lease.
    async fn renew(&self, lease: &Lease) -> Result<(), Error> {
        self.strike(&self.words.renew);
        let outcome = lease.renew().await;
        assert!(lease.is_live(), "{:?}: {outcome:?}", self.case);
        outcome
    }

    async fn work(&self) -> Result<(), WithError<Error>> {
        if self.case.operation == Operation::WithAcquiring {
            self.strike(&self.words.acquire);
        }
        let work = self.leases.acquire(&self.key, TTL);
        work.with(async |lease| {
            if self.case.operation == Operation::WithRenewing {
                self.renew(lease).await?;
            }
            if self.case.operation == Operation::WithReleasing {
                self.strike(&self.words.release);
            }
            Ok(())
        })
        .await
    }

    async fn hold_elsewhere(&self) -> Result<(), Error> {
        let holder = self.direct.acquire(&self.key, TTL).await?;
        *self.holder.lock() = Some(holder);
        Ok(())
    }

    pub(super) async fn release_holder(&self) -> Result<(), Error> {
        let holder = self.holder.lock().take();
        match holder {
            Some(holder) => holder.release().await,
            None => Ok(()),
        }
    }

    /// One more task that waits for the key.
    pub(super) fn acquiring(&self) -> Waiting {
        tokio::spawn(self.leases.acquire(&self.key, TTL).into_future())
    }

    /// One more task that waits for the key, and releases it at once.
    fn passing_through(&self) -> JoinHandle<Result<(), Error>> {
        let acquire = self.leases.acquire(&self.key, TTL).into_future();
        tokio::spawn(async move { acquire.await?.release().await })
    }
}
