//! `Fences`: the fences that the grants from memory get, one after the other. Pure.

use std::num::NonZeroU16;

use crate::model::Fence;

/// How many fences a lease takes that is to stay.
///
/// Each grant from memory needs one. After so many grants the store is asked again, which costs two requests. More
/// fences would put the newest fence of the key further ahead of the server's clock, which keeps its document for
/// longer.
const BLOCK: NonZeroU16 = NonZeroU16::new(4_096).unwrap();

/// The fences of a block that no grant from memory has had.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fences {
    next: i64,
    /// That of the lease in the store. It is the fence of a ticket, and of an upgrade.
    last: i64,
}

impl Fences {
    /// How many fences to ask the store for.
    pub(crate) const COUNT: NonZeroU16 = BLOCK;

    /// The fences of a grant that took [`COUNT`](Self::COUNT) of them, and has the last one.
    pub(crate) fn of_grant(last: Fence) -> Self {
        let last = last.get();
        let next = last.saturating_sub(i64::from(BLOCK.get()) - 1);
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
        let mut fences = Fences::of_grant(Fence::new(10_000));
        let mut all: Vec<_> = std::iter::from_fn(|| fences.take()).collect();
        assert_eq!(all.len(), usize::from(BLOCK.get()) - 1);
        assert_eq!(all.first(), Some(&Fence::new(10_000 - 4_095)));
        assert_eq!(all.last(), Some(&Fence::new(9_999)));
        all.dedup();
        assert!(all.is_sorted() && all.len() == usize::from(BLOCK.get()) - 1);
    }
}
