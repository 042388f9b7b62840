//! `Fences`: the fences that the guards under a lease get, one after the other. Pure.

use std::num::NonZeroU16;

use crate::model::{Fence, Mode};

/// How many fences an exclusive lease takes that is to stay. Each guard under it needs one. After so many the store is
/// asked again, which costs two requests.
pub(super) const OF_STAY: NonZeroU16 = NonZeroU16::new(4_096).unwrap();

/// How many fences another exclusive lease takes that serves further tasks for a turn.
pub(super) const OF_TURN: NonZeroU16 = NonZeroU16::new(1_024).unwrap();

/// The fences for the guards under a lease.
#[derive(Debug)]
pub(super) enum Fences {
    /// Those of a block that no guard has had.
    Block {
        next: i64,
        /// That of the lease in the store. It is the fence of a ticket, and of an upgrade.
        last: i64,
    },
    /// All guards have that of the lease.
    One(Fence),
}

impl Fences {
    /// The fences of a grant in this mode that took this many of them, and has the last one.
    pub(super) fn of_grant(mode: Mode, last: Fence, count: u16) -> Self {
        if mode != Mode::Exclusive || count <= 1 {
            return Self::One(last);
        }
        let last = last.get();
        let next = last.saturating_sub(i64::from(count) - 1);
        Self::Block { next, last }
    }

    /// The next fence, which in a block is smaller than that of the lease in the store. `None` if all were taken.
    pub(super) fn take(&mut self) -> Option<Fence> {
        match self {
            Self::One(fence) => Some(*fence),
            Self::Block { next, last } => {
                let taken = (*next < *last).then_some(Fence::new(*next))?;
                *next = next.saturating_add(1);
                Some(taken)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_taken_once_but_that_of_the_grant() {
        let mut fences = Fences::of_grant(Mode::Exclusive, Fence::new(10_000), OF_STAY.get());
        let mut all: Vec<_> = std::iter::from_fn(|| fences.take()).collect();
        assert_eq!(all.len(), usize::from(OF_STAY.get()) - 1);
        assert_eq!(all.first(), Some(&Fence::new(10_000 - 4_095)));
        assert_eq!(all.last(), Some(&Fence::new(9_999)));
        all.dedup();
        assert!(all.is_sorted() && all.len() == usize::from(OF_STAY.get()) - 1);
    }
}
