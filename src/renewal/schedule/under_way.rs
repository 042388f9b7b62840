//! The batches of renewals that are under way, and whether one more may be sent. Pure: times come in as arguments.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use crate::lease_state::{LeaseNumber, timing::response_timeout};

/// The greatest number of parts of split batches that may be under way. It is more than one because several leases may
/// hang in the server, and the parts without such a lease must still be sent.
pub(super) const REPEATS: usize = 4;
/// The greatest number of batches under way, including those that were not answered in time. Each uses a connection.
pub(super) const MOST_UNANSWERED: usize = 24;
/// If this many batches that were sent later have ended, the earlier batch hangs, and the store is not slow.
const OVERTAKEN: u32 = 2;

/// The number of a batch. A batch that is sent later has a greater one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BatchId(pub(super) u64);

/// The batches that were sent and not answered, in the order in which they were sent.
pub(super) type Batches = BTreeMap<BatchId, InFlightBatch>;

/// A batch that was sent.
#[derive(Debug)]
pub(super) struct InFlightBatch {
    pub(super) leases: Vec<LeaseNumber>,
    pub(super) sent: Instant,
    /// The shortest ttl among the leases.
    pub(super) ttl: Duration,
    pub(super) is_repeat: bool,
    /// Whether the batch was not answered in time, so that its leases are sent once more.
    pub(super) is_overdue: bool,
    /// How many batches were sent after this one and have ended.
    pub(super) overtaken: u32,
}

impl InFlightBatch {
    pub(super) fn overdue_at(&self) -> Instant {
        self.sent + response_timeout(self.ttl)
    }

    /// When the batch no longer counts as under way, even if it was not answered.
    pub(super) fn forgotten_at(&self) -> Instant {
        self.sent + self.ttl
    }

    /// Until when a lease of this ttl that is due waits for the answer. A batch of leases with a long ttl may be
    /// answered later, but a lease with a short ttl cannot wait for that.
    pub(super) fn waited_for_until(&self, ttl: Duration) -> Instant {
        self.sent + response_timeout(self.ttl.min(ttl))
    }

    /// Whether the store counts as working on the batch.
    fn is_at_work(&self) -> bool {
        self.overtaken < OVERTAKEN
    }
}

/// A batch that may be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct NextBatch {
    /// Whether it is a part of an earlier batch.
    pub(super) is_repeat: bool,
    /// The ttl of its first lease. The others have similar ones.
    pub(super) ttl: Duration,
}

/// Whether this batch may be sent now. Of first batches, `most` may be under way. Repeats are counted separately, so
/// that repeats that hang do not delay first batches, and first batches do not delay repeats.
pub(super) fn has_slot(batches: &Batches, next: NextBatch, most: usize, now: Instant) -> bool {
    let same_kind =
        |batch: &&InFlightBatch| batch.is_repeat == next.is_repeat && batch.is_at_work();
    let (hanging, young): (Vec<_>, Vec<_>) = batches
        .values()
        .filter(same_kind)
        .partition(|batch| batch.is_overdue || batch.waited_for_until(next.ttl) <= now);
    let places = if next.is_repeat {
        REPEATS
    } else {
        // One batch may always be sent, to find out whether the store answers again.
        most.saturating_sub(hanging.len()).max(1)
    };
    young.len() < places && batches.len() < MOST_UNANSWERED
}
