//! What a limiter answers: a permit, or when to ask again.

use std::time::Duration;

use chrono::{DateTime, Utc};

/// Allows as many calls as [`permits`](Permit::permits) says. They count for the window in which the permit was
/// granted, whether or not they are made. Dropping the permit gives nothing back.
#[derive(Debug)]
pub struct Permit {
    permits: u32,
    granted_at: DateTime<Utc>,
}

impl Permit {
    pub(crate) fn new(permits: u32, granted_at: DateTime<Utc>) -> Self {
        Self {
            permits,
            granted_at,
        }
    }

    /// How many calls are allowed.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// When the permit was granted, on the server's clock. It counts for the window of this instant.
    pub fn granted_at(&self) -> DateTime<Utc> {
        self.granted_at
    }
}

/// The outcome of [`Limiter::try_permit`](crate::Limiter::try_permit) and
/// [`Limiter::try_permits`](crate::Limiter::try_permits).
#[derive(Debug)]
#[must_use = "a full limiter lets no call through"]
pub enum PermitAttempt {
    /// The calls may be made.
    Granted(Permit),
    /// The limiter has not enough permits now, so no call may be made.
    Full {
        /// In how long there can be enough permits, by the server's last answer. Other callers may take them first.
        retry_in: Duration,
    },
}
