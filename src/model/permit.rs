//! `Permit` and `PermitsLeft`: what a limiter grants, and what it has left.

use std::time::Duration;

use chrono::{DateTime, Utc};

/// What is left of a limiter, by an answer of the store. Other callers may have taken permits since.
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Leases, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// let leases = Leases::new(MemoryStore::new());
/// let limiter = leases.limiter("partner-api", 10, Duration::from_secs(3_600));
/// let left = limiter.permit().await?.left();
/// assert_eq!((left.limit, left.remaining), (10, 9));
/// assert!(left.reset_in <= Duration::from_secs(3_600));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitsLeft {
    /// The most permits that can be taken at once: the limit of a window, or the burst of a smooth limiter.
    pub limit: u32,
    /// How many of them can be taken now.
    pub remaining: u32,
    /// How long it takes until all permits are back, if no caller takes any; zero if all are there. The time counts from
    /// the answer of the server, in whole milliseconds.
    pub reset_in: Duration,
}

/// Allows the caller to make as many calls as [`permits`](Permit::permits) says. The permits count for the window in
/// which they were granted, whether or not the calls are made. Dropping a `Permit` returns nothing to the limiter.
#[derive(Debug)]
pub struct Permit {
    permits: u32,
    granted_at: DateTime<Utc>,
    left: PermitsLeft,
}

impl Permit {
    pub(crate) fn new(permits: u32, granted_at: DateTime<Utc>, left: PermitsLeft) -> Self {
        Self {
            permits,
            granted_at,
            left,
        }
    }

    /// How many calls are allowed.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// When the permits were granted, on the server's clock. They count for the window of this instant.
    pub fn granted_at(&self) -> DateTime<Utc> {
        self.granted_at
    }

    /// What was left of the limiter after these permits. If the request was for further tasks of this process, each of
    /// them has fewer [`remaining`](PermitsLeft::remaining) than the one before, and
    /// [`reset_in`](PermitsLeft::reset_in) counts the permits of all.
    pub fn left(&self) -> PermitsLeft {
        self.left
    }
}
