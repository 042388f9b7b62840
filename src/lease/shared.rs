//! `SharedLease`: the guard of a shared lease that stays with its process.

use std::{fmt, time::Duration};

use chrono::{DateTime, Utc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::guard::Lease;
use crate::model::{Error, Key, LossReason};

/// The guard of a shared lease that [stays](crate::Acquire::sticky_shared) with its process after its last use.
///
/// It has no fence. Two processes that each keep a shared lease of a key grant it to their tasks from memory, in no
/// order that a resource could check. It has no conversion, no ticket and no detach either: for these, acquire a lease
/// [without `sticky_shared`](crate::Acquire::shared).
///
/// Dropping the guard gives it up, as for a [`Lease`].
#[must_use = "a lease that is dropped is released at once"]
pub struct SharedLease(Lease);

impl SharedLease {
    pub(crate) fn new(lease: Lease) -> Self {
        Self(lease)
    }

    /// The key that is held.
    pub fn key(&self) -> &Key {
        self.0.key()
    }

    /// The owner that the acquire named.
    pub fn owner(&self) -> &str {
        self.0.owner()
    }

    /// The time to live, as for [`Lease::ttl`].
    pub fn ttl(&self) -> Duration {
        self.0.ttl()
    }

    /// When the lease was granted, on the server's clock, as far as this process can tell that time.
    pub fn acquired_at(&self) -> DateTime<Utc> {
        self.0.acquired_at()
    }

    /// How long the holder may count on the lease without a renewal, as for [`Lease::remaining`].
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// The instant at which the lease is lost unless it is renewed, as for [`Lease::deadline`].
    pub fn deadline(&self) -> Instant {
        self.0.deadline()
    }

    /// Whether the holder may still count on the lease. Once this is `false`, it stays `false`. It sends nothing.
    pub fn is_live(&self) -> bool {
        self.0.is_live()
    }

    /// Waits until the lease is lost, and returns the reason, as for [`Lease::lost`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a later call waits for the same loss.
    pub async fn lost(&self) -> LossReason {
        self.0.lost().await
    }

    /// Waits until the lease is at risk, or lost, as for [`Lease::at_risk`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a later call checks the lease anew.
    pub async fn at_risk(&self) {
        self.0.at_risk().await;
    }

    /// Returns a token that is cancelled as soon as the lease is lost or given up, as for
    /// [`Lease::cancellation_token`].
    pub fn cancellation_token(&self) -> CancellationToken {
        self.0.cancellation_token()
    }

    /// Renews the lease, as [`Lease::renew`] does: it lives for another ttl from now.
    ///
    /// # Errors
    ///
    /// As for [`Lease::renew`].
    ///
    /// # Cancel safety
    ///
    /// As for [`Lease::renew`].
    pub async fn renew(&self) -> Result<(), Error> {
        self.0.renew().await
    }

    /// Gives up the lease. While the lease in the store stays with this process, this sends nothing.
    ///
    /// # Errors
    ///
    /// As for [`Lease::release`].
    ///
    /// # Cancel safety
    ///
    /// As for [`Lease::release`].
    pub async fn release(self) -> Result<(), Error> {
        self.0.release().await
    }
}

impl fmt::Debug for SharedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLease")
            .field("key", self.key())
            .field("owner", &self.owner())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
