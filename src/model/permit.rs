//! `PermitsLeft`: what a limiter has left.

use std::time::Duration;

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
