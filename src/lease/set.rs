//! Several leases, which are held and lost together.

use std::{fmt, future::poll_fn, pin::pin, time::Duration};

use futures::{
    future::{join_all, select_all},
    stream::{FuturesOrdered, TryStreamExt},
};
use tokio::time::Instant;

use super::guard::Lease;
use crate::{
    coalescer::Batching,
    model::{Error, Key, LossReason},
};

/// The guard of several locks, which are held and lost together.
///
/// Dropping it releases them in the background, as for a [`Lease`].
#[must_use = "leases that are dropped are released at once"]
pub struct LeaseSet {
    leases: Vec<Lease>,
}

impl LeaseSet {
    pub(crate) fn new() -> Self {
        Self { leases: Vec::new() }
    }

    pub(crate) fn push(&mut self, lease: Lease) {
        self.leases.push(lease);
    }

    /// The single leases, in the order of their keys.
    pub fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// The lease on this key; `None` if it was not asked for.
    pub fn get(&self, key: impl AsRef<str>) -> Option<&Lease> {
        let key = key.as_ref();
        self.leases.iter().find(|lease| lease.key().as_str() == key)
    }

    /// Whether all of them may still be counted on. Once this is `false` it stays so.
    pub fn is_live(&self) -> bool {
        self.leases.iter().all(Lease::is_live)
    }

    /// How long all of them may be counted on without a renewal; zero once one is lost.
    pub fn remaining(&self) -> Duration {
        let remaining = self.leases.iter().map(Lease::remaining);
        remaining.min().unwrap_or(Duration::MAX)
    }

    /// Waits until one of them is lost, and says which and why. A set without keys is never lost.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a later call waits for the same loss.
    pub async fn lost(&self) -> (&Key, LossReason) {
        if self.leases.is_empty() {
            return std::future::pending().await;
        }
        let losses = self
            .leases
            .iter()
            .map(|lease| Box::pin(async move { (lease.key(), lease.lost().await) }));
        select_all(losses).await.0
    }

    /// Waits until one of them is at risk, or lost: see [`Lease::at_risk`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a later call looks anew.
    pub async fn at_risk(&self) {
        if self.leases.is_empty() {
            return std::future::pending().await;
        }
        select_all(self.leases.iter().map(|lease| Box::pin(lease.at_risk()))).await;
    }

    /// Gives each of them its ttl anew.
    ///
    /// # Errors
    ///
    /// The first error of one of them, as for [`Lease::renew`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, as [`Lease::renew`].
    pub async fn renew(&self) -> Result<(), Error> {
        let renewals: FuturesOrdered<_> = self.leases.iter().map(Lease::renew).collect();
        renewals.try_collect().await
    }

    /// Frees all of the keys and waits until the store has confirmed it.
    ///
    /// # Errors
    ///
    /// The first error of one of them, as for [`Lease::release`]. The others are released all the
    /// same.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future goes on with the releases in the background.
    pub async fn release(self) -> Result<(), Error> {
        let Some(releaser) = self.leases.first().map(|lease| lease.releaser().clone()) else {
            return Ok(());
        };
        let batching = if self.leases.len() > 1 {
            Batching::Set
        } else {
            Batching::Any
        };
        let releases = self.leases.into_iter();
        let mut released = pin!(join_all(releases.map(|lease| lease.release_with(batching))));
        let mut is_sent = false;
        let outcomes = poll_fn(|cx| {
            let outcomes = released.as_mut().poll(cx);
            // The first poll has submitted all that go together.
            if !std::mem::replace(&mut is_sent, true) {
                releaser.send_set();
            }
            outcomes
        });
        outcomes.await.into_iter().collect()
    }

    /// The guards one by one, which from now on have nothing to do with each other.
    pub fn into_leases(self) -> Vec<Lease> {
        self.leases
    }

    /// Why the first that is lost is lost.
    pub(crate) fn loss(&self) -> Option<Error> {
        let lost = |lease: &Lease| {
            let state = lease.state();
            state
                .loss(Instant::now())
                .map(|reason| state.lost_error(reason))
        };
        self.leases.iter().find_map(lost)
    }

    pub(crate) async fn give_back(self, error: Error) -> Error {
        // Why it is given back is what the caller wants to know.
        let _ = self.release().await;
        error
    }
}

impl fmt::Debug for LeaseSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.leases).finish()
    }
}
