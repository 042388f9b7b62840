//! The handoff: a holder passes its key to the first waiter in this process. That takes one request instead of two, a
//! release and an acquire.
//!
//! The waiter sends an acquire request that replaces the holder's lease, and reports the outcome to the holder. If the
//! outcome is not a handoff, or unclear, the holder releases its lease as usual. Such a release is harmless even after
//! a handoff, because it names the old lease. `queues.rs` makes the offer, and `release/releaser.rs` waits for the
//! outcome.

use std::time::Duration;

use tokio::{sync::oneshot, time::Instant};

use crate::model::LeaseId;

/// The most handoffs in a row of a key within this process. After that the holder releases the key, because other
/// processes are granted a key only after a release.
const MAX_HANDOFFS: u32 = 32;
/// The longest time for such handoffs in a row.
const MAX_STREAK_TIME: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandoffOutcome {
    /// The waiter was granted the key, and the lease of the holder is gone.
    HandedOver,
    /// The lease of the holder is unchanged.
    NotHandedOver,
    /// It is not known whether the handoff happened.
    Unclear,
}

/// The handoffs in a row that led to a lease of this process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HandoffStreak {
    /// When the streak began, with the first grant to a waiter. `None` for a lease that was granted without a waiter.
    began_at: Option<Instant>,
    /// How often the key was handed off since then.
    handoffs: u32,
}

impl HandoffStreak {
    /// Whether the streak is long enough, so that the key is released instead of handed off once more.
    pub(super) fn is_exhausted(&self, now: Instant) -> bool {
        let lasted = self
            .began_at
            .map_or(Duration::ZERO, |began| now.saturating_duration_since(began));
        // The time counts only after the first handoff, so that a holder that worked for a long time still hands off
        // the key.
        self.handoffs >= MAX_HANDOFFS || self.handoffs > 0 && lasted >= MAX_STREAK_TIME
    }

    /// The streak of a lease that is granted now. `before` is the streak of the lease that it replaces, if it replaces
    /// one.
    pub(super) fn next(before: Option<Self>, now: Instant) -> Self {
        Self {
            began_at: before.and_then(|it| it.began_at).or(Some(now)),
            handoffs: before.map_or(0, |it| it.handoffs.saturating_add(1)),
        }
    }
}

/// A lease that its holder offers to the first waiter. The drop of the offer reports to the holder that no request was
/// sent, so its lease is unchanged.
#[derive(Debug)]
pub(crate) struct HandoffOffer {
    from: LeaseId,
    streak: HandoffStreak,
    reply: HandoffReply,
}

/// Reports the outcome to the holder when it is dropped.
#[derive(Debug)]
pub(crate) struct HandoffReply {
    outcome: Option<oneshot::Sender<HandoffOutcome>>,
    /// The outcome that the drop reports.
    otherwise: HandoffOutcome,
}

impl HandoffOffer {
    /// An offer, and the receiver of its outcome.
    pub(super) fn new(
        from: LeaseId,
        streak: HandoffStreak,
    ) -> (Self, oneshot::Receiver<HandoffOutcome>) {
        let (outcome, told) = oneshot::channel();
        let reply = HandoffReply {
            outcome: Some(outcome),
            otherwise: HandoffOutcome::NotHandedOver,
        };
        let offer = Self {
            from,
            streak,
            reply,
        };
        (offer, told)
    }

    pub(crate) fn from(&self) -> LeaseId {
        self.from
    }

    pub(crate) fn streak(&self) -> HandoffStreak {
        self.streak
    }

    /// Records that the waiter sends the request that replaces the lease. From now on the drop of the reply reports an
    /// unclear outcome.
    pub(crate) fn sent(mut self) -> HandoffReply {
        self.reply.otherwise = HandoffOutcome::Unclear;
        self.reply
    }
}

impl HandoffReply {
    pub(crate) fn tell(mut self, outcome: HandoffOutcome) {
        self.otherwise = outcome;
    }
}

impl Drop for HandoffReply {
    fn drop(&mut self) {
        if let Some(outcome) = self.outcome.take() {
            // This fails if the holder does not wait for the outcome any more.
            let _ = outcome.send(self.otherwise);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn a_streak_ends_by_its_number_or_its_time() {
        let start = Instant::now();
        let mut streak = HandoffStreak::next(None, start);
        for _ in 0..MAX_HANDOFFS {
            assert!(!streak.is_exhausted(start));
            streak = HandoffStreak::next(Some(streak), start);
        }
        assert!(streak.is_exhausted(start));
        let slow = HandoffStreak::next(None, start);
        let slow = HandoffStreak::next(Some(slow), start + MAX_STREAK_TIME - MILLISECOND);
        assert!(!slow.is_exhausted(start + MAX_STREAK_TIME - MILLISECOND));
        assert!(slow.is_exhausted(start + MAX_STREAK_TIME));
        let alone = HandoffStreak::next(None, start);
        assert!(!alone.is_exhausted(start + MAX_STREAK_TIME * 10));
    }

    /// The first lease was granted to a `try_acquire`, and not to a waiter.
    #[test]
    fn a_streak_that_an_attempt_began_ends_by_its_time_too() {
        let start = Instant::now();
        let attempt = HandoffStreak::default();
        assert!(!attempt.is_exhausted(start));
        let slow = HandoffStreak::next(Some(attempt), start);
        assert!(!slow.is_exhausted(start));
        assert!(slow.is_exhausted(start + MAX_STREAK_TIME));
    }
}
