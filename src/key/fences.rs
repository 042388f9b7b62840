//! `Fences`: the fences that the guards under a lease get, one after the other. Pure.

use std::num::NonZeroU16;

use crate::model::Fence;

/// How many fences an exclusive lease takes that is to stay. Each guard under it needs one. After so many the store is
/// asked again, which costs two requests.
pub(super) const OF_STAY: NonZeroU16 = NonZeroU16::new(4_096).unwrap();

/// How many fences another exclusive lease takes that serves further tasks for a turn.
pub(super) const OF_TURN: NonZeroU16 = NonZeroU16::new(1_024).unwrap();

/// The fences of a block that no grant from memory has had.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fences {
    next: i64,
    /// That of the lease in the store. It is the fence of a ticket, and of an upgrade.
    last: i64,
}

impl Fences {
    /// The fences of a grant that took this many of them, and has the last one.
    pub(super) fn of_grant(last: Fence, count: u16) -> Self {
        let last = last.get();
        let next = last.saturating_sub(i64::from(count) - 1);
        Self { next, last }
    }

    /// The next fence, which is smaller than that of the lease in the store. `None` if all were taken.
    pub(super) fn take(&mut self) -> Option<Fence> {
        let next = (self.next < self.last).then_some(Fence::new(self.next))?;
        self.next = self.next.saturating_add(1);
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_taken_once_but_that_of_the_grant() {
        let mut fences = Fences::of_grant(Fence::new(10_000), OF_STAY.get());
        let mut all: Vec<_> = std::iter::from_fn(|| fences.take()).collect();
        assert_eq!(all.len(), usize::from(OF_STAY.get()) - 1);
        assert_eq!(all.first(), Some(&Fence::new(10_000 - 4_095)));
        assert_eq!(all.last(), Some(&Fence::new(9_999)));
        all.dedup();
        assert!(all.is_sorted() && all.len() == usize::from(OF_STAY.get()) - 1);
    }
}
