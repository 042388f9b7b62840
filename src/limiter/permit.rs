//! `Permit`, with which calls may be made, and `PermitAttempt`.

use std::time::Duration;

use chrono::{DateTime, Utc};

/// Leave to make as many calls as it is for, in the window in which it was granted.
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

    /// For how many calls it is.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// When it was granted, on the server's clock: which window it counts for.
    pub fn granted_at(&self) -> DateTime<Utc> {
        self.granted_at
    }
}

/// The outcome of [`Limiter::try_permit`](crate::Limiter::try_permit).
#[derive(Debug)]
#[must_use = "a full limiter lets no call through"]
pub enum PermitAttempt {
    /// Call now.
    Granted(Permit),
    /// No call now.
    Full {
        /// When permits come back, on the server's clock as it answered. Others may take them.
        retry_in: Duration,
    },
}
