//! Which batches of renewals are under way, and whether one more may be sent: pure.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use crate::lease_state::{LeaseNumber, timing::response_timeout};

/// How many parts of split batches are under way at most. Several leases may hang in the server, and the parts
/// without such a lease have to get through.
pub(super) const REPEATS: usize = 4;
/// How many batches are under way at most, those included that are not answered in time: each has a connection.
pub(super) const MOST_UNANSWERED: usize = 24;
/// If so many batches that were sent later have ended, a batch hangs by itself, and the store is not slow.
const OVERTAKEN: u32 = 2;

/// The number of a batch. A batch that is sent later has a greater one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BatchId(pub(super) u64);

/// The batches that were sent and not answered, in the order in which they were sent.
pub(super) type Batches = BTreeMap<BatchId, UnderWay>;

/// A batch that was sent.
#[derive(Debug)]
pub(super) struct UnderWay {
    pub(super) leases: Vec<LeaseNumber>,
    pub(super) sent: Instant,
    /// The shortest ttl among the leases.
    pub(super) ttl: Duration,
    pub(super) is_repeat: bool,
    /// Whether it was not answered in time, and its leases are sent once more.
    pub(super) is_overdue: bool,
    /// How many batches were sent after it and ended before it.
    pub(super) overtaken: u32,
}

impl UnderWay {
    pub(super) fn overdue_at(&self) -> Instant {
        self.sent + response_timeout(self.ttl)
    }

    /// When the batch does not count as under way any more, answered or not.
    pub(super) fn forgotten_at(&self) -> Instant {
        self.sent + self.ttl
    }

    /// Whether the store is taken to be at work on it.
    fn is_at_work(&self) -> bool {
        self.overtaken < OVERTAKEN
    }
}

/// Whether there is a place for one more batch: for one that repeats a part of another, or for a first one, of which
/// `most` may be under way. Each kind has places of its own, so that repeats that hang do not keep first ones out, nor
/// the other way round.
pub(super) fn has_place(batches: &Batches, is_repeat: bool, most: usize) -> bool {
    let same_kind = |batch: &&UnderWay| batch.is_repeat == is_repeat && batch.is_at_work();
    let (overdue, young): (Vec<_>, Vec<_>) = batches
        .values()
        .filter(same_kind)
        .partition(|batch| batch.is_overdue);
    let places = if is_repeat {
        REPEATS
    } else {
        // At least one batch may go, to find out whether the store answers again.
        most.saturating_sub(overdue.len()).max(1)
    };
    young.len() < places && batches.len() < MOST_UNANSWERED
}
