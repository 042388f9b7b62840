//! `Attempt`: the lease, or who holds the key.

use std::time::Duration;

use crate::{
    lease::Lease,
    model::{Error, Held},
};

/// The outcome of [`Leases::try_acquire`](crate::Leases::try_acquire).
#[derive(Debug)]
#[must_use = "a lease that is dropped is released at once"]
pub enum Attempt {
    /// The lease is yours.
    Acquired(Lease),
    /// Somebody else holds the key.
    Held(Held),
}

impl Attempt {
    /// The lease. One that waits is refused with an error; this says the same.
    pub(crate) fn acquired(self) -> Result<Lease, Error> {
        match self {
            Self::Acquired(lease) => Ok(lease),
            Self::Held(held) => Err(Error::WaitTimedOut {
                waited: Duration::ZERO,
                held,
            }),
        }
    }
}
