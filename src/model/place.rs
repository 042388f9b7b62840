//! `Place`: a process that waits for a key, as the lock's document contains it.

use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::{ids::LeaseId, limits::MAX_PLACE_TIME, mode::Mode, time::after};

/// The place of a process in the queue of a key.
///
/// A process has one place for a key, however many of its tasks wait for the key. The place is that of the task that
/// asks first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The process that waits.
    pub waiter: LeaseId,
    /// The owner that its lease is to have.
    pub owner: Arc<str>,
    /// Which other holders its lease is to allow beside it.
    pub mode: Mode,
    /// How many permits its lease is to take; 1 unless the mode is [`Mode::Permits`].
    pub permits: i64,
    /// When the process took the place, on the server's clock.
    pub since: DateTime<Utc>,
    /// Until when the place counts, on the server's clock. The process renews it by asking again.
    pub until: DateTime<Utc>,
}

impl Place {
    /// A place that a process takes now, at this time of the server.
    pub fn new(
        waiter: LeaseId,
        owner: Arc<str>,
        (mode, permits): (Mode, i64),
        since: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> Self {
        Self {
            waiter,
            owner,
            mode,
            permits,
            since,
            until,
        }
    }

    /// Whether the place counts at this time of the server's clock.
    ///
    /// A place whose end is later than [`MAX_PLACE_TIME`](crate::limits::MAX_PLACE_TIME) allows was written before the
    /// clock stepped back. It does not count.
    pub fn is_live(&self, now: DateTime<Utc>) -> bool {
        Self::counts(self.until, now)
    }

    /// Whether a place that counts until this time counts now.
    pub(crate) fn counts(until: DateTime<Utc>, now: DateTime<Utc>) -> bool {
        now < until && until <= after(now, MAX_PLACE_TIME)
    }
}
