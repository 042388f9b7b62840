//! The handoff: the holder of a key hands it off to the first waiter for it in this process, which takes one request
//! where a release and an acquire take two.
//!
//! The waiter asks for the key in the place of the holder's lease, and tells the holder the outcome. Unless that is
//! a handoff, the holder releases its lease as if there had been no waiter: that is right before the handoff, and
//! harmless after it, because the release names the old lease. (`queues.rs` makes the offer, `release/worker.rs`
//! waits for the outcome.)

use std::time::Duration;

use tokio::{sync::oneshot, time::Instant};

use crate::model::LeaseId;

/// How often in a row a key is handed off within this process, and for how long, at most. Then its holder releases
/// it, because other processes are granted a key only when it is released.
const LONGEST_RUN: u32 = 32;
const LONGEST_TIME: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandoffOutcome {
    /// The waiter has the key, and the lease of the holder is gone.
    Over,
    /// The lease of the holder is as it was.
    NotOver,
    /// It is not known which of the two happened.
    Unclear,
}

/// How a lease of this process came to its key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HandoffStreak {
    /// `None` for a lease that was granted without a waiter.
    run: Option<Run>,
}

/// A run of handoffs. It begins with a lease that was granted to a waiter.
#[derive(Clone, Copy, Debug)]
struct Run {
    since: Instant,
    /// How often in a row the key was handed off since.
    handed: u32,
}

impl HandoffStreak {
    /// Whether the run is long enough, so that the key is released instead of handed off once more.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.run.is_some_and(|run| run.is_over(now))
    }

    /// The run of a lease that is granted now; `before` is that of the lease in whose place it was granted, if any.
    pub(super) fn next(before: Option<Self>, now: Instant) -> Self {
        let before = before.unwrap_or_default();
        let run = match before.run {
            Some(Run { since, handed }) => Run {
                since,
                handed: handed.saturating_add(1),
            },
            None => Run {
                since: now,
                handed: 0,
            },
        };
        Self { run: Some(run) }
    }
}

impl Run {
    fn is_over(&self, now: Instant) -> bool {
        // The time counts only after the first handoff: a holder that has worked for long still hands the key off to
        // a waiter.
        let slow = self.handed > 0 && self.took(now) >= LONGEST_TIME;
        slow || self.handed >= LONGEST_RUN
    }

    fn took(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

/// A lease that its holder offers to the first waiter. Dropping the offer tells the holder that no request was sent, so
/// that the lease is as it was.
#[derive(Debug)]
pub(crate) struct HandoffOffer {
    from: LeaseId,
    streak: HandoffStreak,
    reply: HandoffReply,
}

/// Tells the holder the outcome, when it is dropped at the latest.
#[derive(Debug)]
pub(crate) struct HandoffReply {
    outcome: Option<oneshot::Sender<HandoffOutcome>>,
    /// The outcome if it is dropped.
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
            otherwise: HandoffOutcome::NotOver,
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

    /// Records that the waiter sends its request for the place of the lease. From now on a dropped reply means that the
    /// outcome is not known.
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
            // This fails if the holder does not wait for the outcome any longer.
            let _ = outcome.send(self.otherwise);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn a_run_ends_by_its_number_or_its_time() {
        let start = Instant::now();
        let mut run = HandoffStreak::next(None, start);
        for _ in 0..LONGEST_RUN {
            assert!(!run.is_over(start));
            run = HandoffStreak::next(Some(run), start);
        }
        assert!(run.is_over(start));
        let slow = HandoffStreak::next(None, start);
        let slow = HandoffStreak::next(Some(slow), start + LONGEST_TIME - MILLISECOND);
        assert!(!slow.is_over(start + LONGEST_TIME - MILLISECOND));
        assert!(slow.is_over(start + LONGEST_TIME));
        let alone = HandoffStreak::next(None, start);
        assert!(!alone.is_over(start + LONGEST_TIME * 10));
    }
}
