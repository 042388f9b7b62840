//! `Permit`: what a limiter has granted to a caller.

use std::{cmp::Reverse, iter, sync::Arc};

use chrono::{DateTime, Utc};
use futures::future::join_all;

use super::{driver::LimiterQueue, queue::Granted};
use crate::model::{Error, PermitsLeft};

/// Allows the caller to make as many calls as [`permits`](Permit::permits) says. The permits count for the window in
/// which they were granted, whether or not the calls are made. Dropping a `Permit` returns nothing to the limiter, but
/// [`give_back`](Permit::give_back) does.
#[derive(Debug)]
pub struct Permit {
    pub(super) first: Part,
    /// What the further limits have granted, if the limiter [has several](super::Limiter::and).
    pub(super) others: Vec<Part>,
}

/// The part of a permit that one limit has granted.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) granted: Granted,
    pub(super) limit: Arc<LimiterQueue>,
}

impl Permit {
    pub(super) fn new(first: Part) -> Self {
        let others = Vec::new();
        Self { first, others }
    }

    pub(super) fn parts_mut(&mut self) -> impl Iterator<Item = &mut Part> {
        iter::once(&mut self.first).chain(&mut self.others)
    }

    /// How many calls are allowed.
    pub fn permits(&self) -> u32 {
        self.first.granted.permits
    }

    /// When the permits were granted, on the server's clock. They count for the window of this instant. If the limiter
    /// has several limits, this is when the last of them granted its permits.
    pub fn granted_at(&self) -> DateTime<Utc> {
        let others = self.others.iter().map(|part| part.granted.granted_at);
        others.fold(self.first.granted.granted_at, DateTime::max)
    }

    /// What was left of the limiter after these permits. If the request was for further tasks of this process, each of
    /// them has fewer [`remaining`](PermitsLeft::remaining) than the one before, and
    /// [`reset_in`](PermitsLeft::reset_in) counts the permits of all. If the limiter has several limits, this is about
    /// the one with the fewest permits left.
    pub fn left(&self) -> PermitsLeft {
        let others = self.others.iter().map(|part| part.granted.left);
        others.fold(self.first.granted.left, scarcer)
    }

    /// Gives the permits back, because the calls were not made: other callers can take them.
    ///
    /// They are free again if they still count:
    ///
    /// - permits of a fixed window, until it ends;
    /// - those of a [smooth](super::Limiter::smooth) limiter less what may have come back by itself, which is as much as
    ///   the limiter earns in the time since the grant. So a permit is given back as a whole only at once, and not at all
    ///   after `window / limit`.
    ///
    /// Tasks of this process that wait for the limiter are told. Other processes learn of it by their next requests, and
    /// send none while they know the limiter to be full.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// let limiter = leases.limiter("partner-api", 1, Duration::from_secs(3_600));
    /// let permit = limiter.permit().await?;
    /// permit.give_back().await?; // The call turned out to be needless.
    /// limiter.permit().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of the store, or [`Error::TimedOut`] after the
    /// [`call_timeout`](crate::LeasesBuilder::call_timeout). The request is sent once, because a second one could give
    /// back what other callers have taken. So after an error the permits may count as used. A search cluster whose
    /// primary shard fails while it carries out the request may carry it out again.
    ///
    /// # Cancel safety
    ///
    /// A request that was sent runs to its end, and one that was not is not sent: then the permits count as used.
    pub async fn give_back(self) -> Result<(), Error> {
        let parts = iter::once(&self.first).chain(&self.others);
        let ends = join_all(parts.map(|part| part.limit.give_back(part.granted))).await;
        ends.into_iter().collect()
    }
}

/// Which of two limits stops the caller first.
pub(super) fn scarcer(one: PermitsLeft, other: PermitsLeft) -> PermitsLeft {
    let rank = |left: &PermitsLeft| (left.remaining, Reverse(left.reset_in));
    if rank(&other) < rank(&one) {
        other
    } else {
        one
    }
}
