//! The guard of several leases. The set counts as lost as soon as one of them is lost.

use std::{fmt, time::Duration};

use futures::future::{join_all, select_all};
use tokio::time::Instant;

use super::guard::Lease;
use crate::model::{Error, Key, LossReason};

/// The guard of several leases: the set is live as long as all of them are.
///
/// Dropping the guard releases all of them in the background, as for a [`Lease`].
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

    /// The leases of the set, in the order of their keys.
    pub fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// The lease on this key; `None` if the key is not one of the set.
    pub fn get(&self, key: impl AsRef<str>) -> Option<&Lease> {
        let key = key.as_ref();
        self.leases.iter().find(|lease| lease.key().as_str() == key)
    }

    /// Whether the holder may still count on all of the leases. Once this is `false` it stays so.
    pub fn is_live(&self) -> bool {
        self.leases.iter().all(Lease::is_live)
    }

    /// How long the holder may count on all of the leases without a renewal; zero once one is lost, and
    /// [`Duration::MAX`] for a set without keys.
    pub fn remaining(&self) -> Duration {
        let remaining = self.leases.iter().map(Lease::remaining);
        remaining.min().unwrap_or(Duration::MAX)
    }

    /// Waits until one of the leases is lost, and gives its key and the reason. A set without keys is never lost.
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

    /// Waits until one of the leases is at risk, or lost: see [`Lease::at_risk`]. A set without keys is never at
    /// risk.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a call keeps nothing for the next.
    pub async fn at_risk(&self) {
        if self.leases.is_empty() {
            return std::future::pending().await;
        }
        select_all(self.leases.iter().map(|lease| Box::pin(lease.at_risk()))).await;
    }

    /// Gives each of the leases its ttl anew, counted from now.
    ///
    /// # Errors
    ///
    /// The error of the first lease, in the order of the keys, that has one, as for [`Lease::renew`]. The other
    /// leases are renewed all the same.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, as [`Lease::renew`].
    pub async fn renew(&self) -> Result<(), Error> {
        let outcomes = join_all(self.leases.iter().map(Lease::renew)).await;
        outcomes.into_iter().collect()
    }

    /// Frees all of the keys and waits until the store has confirmed the releases.
    ///
    /// # Errors
    ///
    /// The error of the first lease, in the order of the keys, that has one, as for [`Lease::release`]. The other
    /// leases are released all the same.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the releases go on in the background.
    pub async fn release(self) -> Result<(), Error> {
        let Some(releaser) = self.leases.first().map(|lease| lease.releaser().clone()) else {
            return Ok(());
        };
        let releases = join_all(self.leases.into_iter().map(Lease::release));
        let outcomes = releaser.send_together(releases).await;
        outcomes.into_iter().collect()
    }

    /// Gives the guards of the single leases, in the order of their keys. Nothing is released or sent.
    pub fn into_leases(self) -> Vec<Lease> {
        self.leases
    }

    /// The error of the first lease that is lost; `None` if none is.
    pub(crate) fn loss(&self) -> Option<Error> {
        let lost = |lease: &Lease| {
            let state = lease.state();
            state
                .loss(Instant::now())
                .map(|reason| state.lost_error(reason))
        };
        self.leases.iter().find_map(lost)
    }

    /// Releases all of the leases because an acquire of the set failed, and returns the error of the
    /// acquire.
    pub(crate) async fn give_back(self, error: Error) -> Error {
        // The caller gets the error of the acquire. An error of the release would hide it.
        let _ = self.release().await;
        error
    }
}

impl fmt::Debug for LeaseSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.leases).finish()
    }
}
