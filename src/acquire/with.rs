//! Work under a lease: `with`, of both builders.

use std::time::Duration;

use tokio::time::timeout;

use super::{
    builder::{Acquire, TryAcquire},
    start::Attempt,
};
use crate::{
    lease::Lease,
    model::{Error, Key, LossReason},
};

/// How long a call that runs work waits for the answer to the release after the work.
pub(super) const RELEASE_WAIT: Duration = Duration::from_secs(2);

/// The error of [`Acquire::with`](crate::Acquire::with) and [`TryAcquire::with`](crate::TryAcquire::with).
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
    /// method. `anyhow::Error` is none: there `?` alone fails to compile, because "the trait `std::error::Error` is not
    /// implemented for `anyhow::Error`".
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
    /// when the body fails. This call waits for the answer to the release, but for 2 s at most: after that the release
    /// goes on in the background.
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
    /// If the body returns `anyhow::Error`, write `.await.map_err(WithError::merge)?`: see
    /// [`merge`](WithError::merge).
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
        run_under(lease, body).await
    }
}

impl TryAcquire {
    /// Asks for the lease once. If it is granted, [keeps it alive](TryAcquire::keep_alive) while the body runs, and
    /// releases it. If the key is held, the body does not run.
    ///
    /// Otherwise it is as [`Acquire::with`]. It is for the handler of a web request, which answers at once when another
    /// request does the work:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Attempt, Leases, MemoryStore, WithError};
    /// # async fn publish() -> std::io::Result<u32> { Ok(3) }
    /// async fn handle(leases: &Leases) -> u16 {
    ///     let attempt = leases.try_acquire("report:42", Duration::from_secs(30));
    ///     match attempt.with(async |_lease| publish().await).await {
    ///         Ok(Attempt::Acquired(_published)) => 200,
    ///         Ok(Attempt::Held(_)) => 409,
    ///         Err(WithError::NotAcquired(error)) if error.is_retryable() => 503,
    ///         Err(_) => 500,
    ///     }
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # assert_eq!(handle(&Leases::new(MemoryStore::new())).await, 200);
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Acquire::with`].
    ///
    /// # Cancel safety
    ///
    /// As for [`Acquire::with`].
    pub async fn with<T, E>(
        self,
        body: impl AsyncFnOnce(&Lease) -> Result<T, E>,
    ) -> Result<Attempt<T>, WithError<E>> {
        match self.keep_alive().await.map_err(WithError::NotAcquired)? {
            Attempt::Acquired(lease) => run_under(lease, body).await.map(Attempt::Acquired),
            Attempt::Held(held) => Ok(Attempt::Held(held)),
        }
    }
}

/// Runs the body until it ends or the lease is lost, and releases the lease.
async fn run_under<T, E>(
    lease: Lease,
    body: impl AsyncFnOnce(&Lease) -> Result<T, E>,
) -> Result<T, WithError<E>> {
    let outcome = tokio::select! {
        // The loss is checked first: if the lease is lost and the body has ended, the body may have ended after the
        // loss.
        biased;
        reason = lease.lost() => Err(WithError::Lost { key: lease.key().clone(), reason }),
        outcome = body(&lease) => outcome.map_err(WithError::Body),
    };
    // A release that was sent goes on when its future is dropped.
    match timeout(RELEASE_WAIT, lease.release()).await {
        Ok(Err(Error::Lost { key, reason })) if outcome.is_ok() => {
            Err(WithError::Lost { key, reason })
        }
        _ => outcome,
    }
}
