//! `KnownUsage`: what the next renewal of a lease says about the use of its key.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::messages::Usage;

/// What the renewals of a lease say about the use of its key.
///
/// They say nothing until the key is first not used. So the renewals of all other leases write no more than they have
/// to.
#[derive(Debug, Default)]
pub(crate) struct KnownUsage(AtomicU8);

const UNMARKED: u8 = 0;
const IDLE: u8 = 1;
const IN_USE: u8 = 2;

impl KnownUsage {
    pub(super) fn get(&self) -> Usage {
        match self.0.load(Ordering::Relaxed) {
            IDLE => Usage::Idle,
            IN_USE => Usage::InUse,
            _ => Usage::Unmarked,
        }
    }

    /// Records that the key is not used from now on.
    pub(super) fn set_idle(&self) {
        self.0.store(IDLE, Ordering::Relaxed);
    }

    /// Records that the key is used again. If no renewal could have said otherwise, the next one need not say it.
    pub(super) fn set_in_use(&self) {
        if self.0.load(Ordering::Relaxed) != UNMARKED {
            self.0.store(IN_USE, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_nothing_until_the_key_is_not_used() {
        let usage = KnownUsage::default();
        usage.set_in_use();
        assert_eq!(usage.get(), Usage::Unmarked);
        usage.set_idle();
        assert_eq!(usage.get(), Usage::Idle);
        usage.set_in_use();
        assert_eq!(usage.get(), Usage::InUse);
    }
}
