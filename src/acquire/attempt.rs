//! `Attempt`: what an acquire that does not wait gives, the lease or the holders of the key.

use std::time::Duration;

use crate::{
    lease::Lease,
    model::{Error, Held},
};

/// The outcome of [`Leases::try_acquire`](crate::Leases::try_acquire).
#[derive(Debug)]
#[must_use = "a lease that is dropped is released at once"]
pub enum Attempt {
    /// The lease was granted.
    Acquired(Lease),
    /// The key is held: these holders conflict with the request.
    Held(Held),
}

impl Attempt {
    /// The lease. A waiting acquire gives an error for a held key and never `Held`, so `Held` is mapped to that error.
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
