//! A piece of work under a lease.

use crate::{
    lease::Lease,
    model::{Error, Key, LossReason},
};

/// Why [`Acquire::with`](crate::Acquire::with) did not bring its body to a good end.
#[derive(Debug, thiserror::Error)]
pub enum WithError<E> {
    /// The lease was not acquired, and the body did not run.
    #[error("the lease was not acquired: {0}")]
    NotAcquired(#[source] Error),
    /// The lease was lost before the body had come to its end, which was stopped; or before it was
    /// released, so that the end of the body may have overlapped with the work of another.
    #[error("the lease on {key} was lost while the work was under way: {reason}")]
    Lost {
        /// The key.
        key: Key,
        /// How it was lost.
        reason: LossReason,
    },
    /// The body itself failed. The lease was released.
    #[error(transparent)]
    Body(E),
}

impl<E: From<Error>> WithError<E> {
    /// The same as one error of the body's type, which takes in those of this crate as well, such as
    /// `anyhow::Error`, `Box<dyn Error + Send + Sync>` or an enum of your own.
    ///
    /// Where the error of the body is a [`std::error::Error`], `?` alone does it, for this is one then.
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

/// Runs the body until it ends or the lease is lost, and releases the lease.
pub(crate) async fn run<T, E>(
    lease: Lease,
    body: impl AsyncFnOnce(&Lease) -> Result<T, E>,
) -> Result<T, WithError<E>> {
    let key = lease.key().clone();
    let outcome = tokio::select! {
        // A body that comes to its end after the loss comes too late.
        biased;
        reason = lease.lost() => Err(WithError::Lost { key, reason }),
        outcome = body(&lease) => outcome.map_err(WithError::Body),
    };
    match lease.release().await {
        Err(Error::Lost { key, reason }) if outcome.is_ok() => Err(WithError::Lost { key, reason }),
        _ => outcome,
    }
}
