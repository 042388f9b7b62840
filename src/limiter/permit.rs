//! `Permit` and `PermitAttempt`: the answers of a limiter.

use std::time::Duration;

use chrono::{DateTime, Utc};

/// Allows the caller to make as many calls as [`permits`](Permit::permits) says. The permits count for the window in
/// which they were granted, whether or not the calls are made. Dropping a `Permit` returns nothing to the limiter.
#[derive(Debug)]
pub struct Permit {
    pub(super) permits: u32,
    pub(super) granted_at: DateTime<Utc>,
}

impl Permit {
    /// How many calls are allowed.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// When the permits were granted, on the server's clock. They count for the window of this instant.
    pub fn granted_at(&self) -> DateTime<Utc> {
        self.granted_at
    }
}

/// The answer to [`Limiter::try_permit`](crate::Limiter::try_permit) and
/// [`Limiter::try_permits`](crate::Limiter::try_permits).
#[derive(Debug)]
#[must_use = "a full limiter lets no call through"]
pub enum PermitAttempt {
    /// The calls may be made.
    Granted(Permit),
    /// The limiter does not have enough permits now, so no call may be made.
    Full {
        /// How long it takes until there can be enough permits, by the last answer of the server. Other callers may
        /// take them first.
        retry_in: Duration,
    },
}
