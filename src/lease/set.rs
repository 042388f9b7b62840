//! `LeaseSet`, the guard of several leases. The set counts as lost as soon as one of them is lost.

use std::{fmt, future::pending, time::Duration};

use futures::future::{join_all, select_all};

use super::guard::Lease;
use crate::{
    model::{Error, Key, LossReason},
    telemetry::StayEndReason,
};

/// The guard of several leases, made by [`Leases::acquire_all`](crate::Leases::acquire_all). The set is live as long as
/// all of its leases are live.
///
/// Dropping the guard releases all leases in the background, as for a [`Lease`].
///
/// ```
/// # use std::time::Duration;
/// # use leasehold::{Leases, MemoryStore};
/// # async fn transfer() -> std::io::Result<()> { Ok(()) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let leases = Leases::new(MemoryStore::new());
/// let both = leases.acquire_all(["account:3", "account:7"], Duration::from_secs(30)).await?;
/// tokio::select! {
///     done = transfer() => done?,
///     (key, reason) = both.lost() => return Err(format!("{key} was lost: {reason}").into()),
/// }
/// both.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "leases that are dropped are released at once"]
pub struct LeaseSet {
    pub(crate) leases: Vec<Lease>,
}

impl LeaseSet {
    /// The leases of the set, in the order of their keys.
    pub fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// The lease on this key. `None` if the set has no lease on it.
    pub fn get(&self, key: impl AsRef<str>) -> Option<&Lease> {
        let key = key.as_ref();
        self.leases.iter().find(|lease| lease.key().as_str() == key)
    }

    /// Whether the holder may still count on all of the leases. Once this is `false`, it stays `false`.
    pub fn is_live(&self) -> bool {
        self.leases.iter().all(Lease::is_live)
    }

    /// How long the holder may count on all of the leases without a renewal. Zero once one is lost, and
    /// [`Duration::MAX`] for a set without keys.
    pub fn remaining(&self) -> Duration {
        let remaining = self.leases.iter().map(Lease::remaining);
        remaining.min().unwrap_or(Duration::MAX)
    }

    /// Waits until one of the leases is lost, and returns its key and the reason. A set without keys is never lost.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a later call waits for the same loss.
    pub async fn lost(&self) -> (&Key, LossReason) {
        let leases = self.leases.iter();
        first_of(leases.map(|lease| async move { (lease.key(), lease.lost().await) })).await
    }

    /// Waits until one of the leases is at risk, or lost: see [`Lease::at_risk`]. A set without keys is never at
    /// risk.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a later call checks the leases anew.
    pub async fn at_risk(&self) {
        first_of(self.leases.iter().map(Lease::at_risk)).await;
    }

    /// Renews all leases: each lives for another ttl from now.
    ///
    /// # Errors
    ///
    /// If renewals fail, the error of the first such lease in the order of the keys, as for [`Lease::renew`]. The other
    /// leases are renewed all the same.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, like [`Lease::renew`].
    pub async fn renew(&self) -> Result<(), Error> {
        let outcomes = join_all(self.leases.iter().map(Lease::renew)).await;
        outcomes.into_iter().collect()
    }

    /// Releases all leases, and waits until the store has confirmed that.
    ///
    /// # Errors
    ///
    /// If releases fail, the error of the first such lease in the order of the keys, as for [`Lease::release`]. The
    /// other leases are released all the same.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the releases go on in the background.
    pub async fn release(self) -> Result<(), Error> {
        let Some(first) = self.leases.first() else {
            return Ok(());
        };
        let releaser = first.keys.releaser.clone();
        let releases = join_all(self.leases.into_iter().map(Lease::release));
        let outcomes = releaser.coalescer.send_together(releases).await;
        outcomes.into_iter().collect()
    }

    /// Returns the guards of the single leases, in the order of their keys. Nothing is released or sent.
    pub fn into_leases(self) -> Vec<Lease> {
        self.leases
    }

    /// Releases all leases because the set was not granted as a whole. None of their keys stays with this process: with
    /// what it keeps, two processes could refuse each other for ever.
    pub(crate) async fn give_back(self) {
        let why = StayEndReason::SetRefused;
        for lease in &self.leases {
            lease.keys.stop_serving(&lease.state, why);
        }
        // An error of the acquire counts more than one of the release. A release that fails goes on in the background.
        let _ = self.release().await;
    }
}

/// Waits for the first of these that ends. If there are none, this waits for ever.
async fn first_of<F: Future>(futures: impl Iterator<Item = F>) -> F::Output {
    let futures: Vec<_> = futures.map(Box::pin).collect();
    if futures.is_empty() {
        return pending().await;
    }
    select_all(futures).await.0
}

impl fmt::Debug for LeaseSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.leases).finish()
    }
}
