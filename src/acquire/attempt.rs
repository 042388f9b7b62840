//! `Attempt`: the answer to an acquire that does not wait.

use std::time::Duration;

use crate::{
    lease::Lease,
    model::{Error, Held},
};

/// The answer to [`Leases::try_acquire`](crate::Leases::try_acquire), which has an example.
#[derive(Debug)]
#[must_use = "a lease that is dropped is released at once"]
pub enum Attempt {
    /// The lease was granted.
    Acquired(Lease),
    /// The key was not granted. [`Held`] names the holders, and says how many processes wait.
    Held(Held),
}

impl Attempt {
    /// Returns the lease. An acquire that waits reports a held key as an error and never as `Held`, so `Held` becomes
    /// that error here.
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
