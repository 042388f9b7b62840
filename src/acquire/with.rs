//! `Acquire::with`: work under a lease.

use super::builder::Acquire;
use crate::{
    lease::Lease,
    model::{Error, Key, LossReason},
};

/// The error of [`Acquire::with`](crate::Acquire::with).
#[derive(Debug, thiserror::Error)]
pub enum WithError<E> {
    /// The lease was not acquired, and the body did not run.
    #[error("the lease was not acquired: {0}")]
    NotAcquired(#[source] Error),
    /// The lease was lost. Either the body was still running, and was stopped. Or the body had succeeded, and the
    /// release found that the lease was lost: then the body may have overlapped with the work of the next holder.
    #[error("the lease on {key} was lost while the work was under way: {reason}")]
    Lost {
        /// The key.
        key: Key,
        /// Why the lease was lost.
        reason: LossReason,
    },
    /// The body failed. The lease was released, or its release goes on in the background.
    #[error(transparent)]
    Body(E),
}

impl<E: From<Error>> WithError<E> {
    /// Converts this error to the error type of the body, if that type can be made from an [`Error`]: `anyhow::Error`,
    /// `Box<dyn Error + Send + Sync>` or an enum of your own, for example.
    ///
    /// If the error of the body is a [`std::error::Error`], so is `WithError`, and `?` can convert it without this
    /// method.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore, WithError};
    /// # type Failure = Box<dyn std::error::Error + Send + Sync>;
    /// # async fn example(leases: Leases) -> Result<(), Failure> {
    /// # async fn publish() -> Result<u32, Failure> { Ok(3) }
    /// let work = leases.acquire("report:42", Duration::from_secs(30));
    /// let published = work.with(async |_| publish().await).await.map_err(WithError::merge)?;
    /// # assert_eq!(published, 3);
    /// # Ok(())
    /// # }
    /// ```
    pub fn merge(self) -> E {
        match self {
            Self::NotAcquired(error) => error.into(),
            Self::Lost { key, reason } => Error::Lost { key, reason }.into(),
            Self::Body(error) => error,
        }
    }
}

impl Acquire {
    /// Acquires the lease, [keeps it alive](Acquire::keep_alive) while the body runs, and releases it.
    ///
    /// If the lease is lost, the body's future is dropped at its current await. The lease is released in any case, also
    /// when the body fails, and this call waits for the answer to the release.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Fence, Leases, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// # async fn publish(fence: Fence) -> std::io::Result<u32> { Ok(3) }
    /// let published = leases
    ///     .acquire("report:42", Duration::from_secs(30))
    ///     .with(async |lease| publish(lease.fence()).await)
    ///     .await?;
    /// # assert_eq!(published, 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`WithError`] tells apart a lease that was not acquired, one that was lost, and the body's own error. A release
    /// that fails is not an error of this call, because the body ended under the lease. The release goes on in the
    /// background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body and releases the lease in the background.
    pub async fn with<T, E>(
        self,
        body: impl AsyncFnOnce(&Lease) -> Result<T, E>,
    ) -> Result<T, WithError<E>> {
        let lease = self.keep_alive().await.map_err(WithError::NotAcquired)?;
        let key = lease.key().clone();
        let outcome = tokio::select! {
            // The loss is checked first: if the lease is lost and the body has ended, the body may have ended after the
            // loss.
            biased;
            reason = lease.lost() => Err(WithError::Lost { key, reason }),
            outcome = body(&lease) => outcome.map_err(WithError::Body),
        };
        match lease.release().await {
            Err(Error::Lost { key, reason }) if outcome.is_ok() => {
                Err(WithError::Lost { key, reason })
            }
            _ => outcome,
        }
    }
}
