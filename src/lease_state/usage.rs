//! `KnownUsage`: what the next renewal of a lease says about the use of its key.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::messages::Usage;

/// What the renewals of a lease say about the use of its key.
///
/// The renewals say nothing until the key is first not used. So the renewals of all other leases write no more than
/// they have to.
#[derive(Debug, Default)]
pub(crate) struct KnownUsage(AtomicU8);

const UNMARKED: u8 = 0;
const IDLE: u8 = 1;
const IN_USE: u8 = 2;
/// The store was told that the key is in use.
const REPORTED_IN_USE: u8 = 3;
/// The key is idle, but was used after the store was told that it is idle. The store holds the start of the earlier
/// idle time. So the next renewal reports the use, and the one after it reports the new idle time.
const IDLE_AGAIN: u8 = 4;

impl KnownUsage {
    /// Records that a renewal is sent now, and returns what it says.
    pub(super) fn record_next(&self) -> Usage {
        let told = self.change(|known| match known {
            IN_USE => REPORTED_IN_USE,
            IDLE_AGAIN => IDLE,
            known => known,
        });
        match told {
            UNMARKED => Usage::Unmarked,
            IDLE => Usage::Idle,
            _ => Usage::InUse,
        }
    }

    /// Records that the key is not used from now on.
    pub(super) fn set_idle(&self) {
        self.change(|known| match known {
            IN_USE | IDLE_AGAIN => IDLE_AGAIN,
            _ => IDLE,
        });
    }

    /// Records that the key is used again. If no renewal has reported it as idle, nothing has to be corrected.
    pub(super) fn set_in_use(&self) {
        self.change(|known| match known {
            IDLE | IDLE_AGAIN => IN_USE,
            known => known,
        });
    }

    /// Changes what is known, and returns what was known before.
    fn change(&self, change: impl Fn(u8) -> u8) -> u8 {
        let changed = |known| Some(change(known));
        let before = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
        before.unwrap_or_else(|known| known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_nothing_until_the_key_is_not_used() {
        let usage = KnownUsage::default();
        usage.set_in_use();
        assert_eq!(usage.record_next(), Usage::Unmarked);
        usage.set_idle();
        assert_eq!(usage.record_next(), Usage::Idle);
        usage.set_in_use();
        assert_eq!(usage.record_next(), Usage::InUse);
    }

    #[test]
    fn a_use_between_two_renewals_is_told_once() {
        let usage = KnownUsage::default();
        usage.set_idle();
        assert_eq!(usage.record_next(), Usage::Idle);
        for _ in 0..3 {
            usage.set_in_use();
            usage.set_idle();
        }
        assert_eq!(usage.record_next(), Usage::InUse);
        assert_eq!(usage.record_next(), Usage::Idle);
        usage.set_in_use();
        assert_eq!(usage.record_next(), Usage::InUse);
        usage.set_idle();
        assert_eq!(
            usage.record_next(),
            Usage::Idle,
            "the store knows of the use"
        );
    }
}
