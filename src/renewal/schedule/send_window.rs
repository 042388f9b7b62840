//! `SendWindow`: how many renewals may be under way, by how fast the store answers. Pure: times come in as arguments.
//!
//! The number of leases that may be under way works like the window of a TCP connection. It grows while answers come
//! fast, and shrinks when an answer is late or does not come. So a slow store gets fewer renewals at a time, and no
//! lease is lost while a large batch of other leases is under way.

use std::time::Duration;

use tokio::time::Instant;

use crate::messages::MAX_RENEWALS;

/// The smallest number of batches that may be under way. With one, a batch that hangs would delay all others.
const LEAST_UNDER_WAY: usize = 2;
/// The greatest number of batches that may be under way. More would not be faster, because each batch keeps a processor
/// of the server busy.
const MOST_UNDER_WAY: usize = 4;
/// The smallest limit for the leases in a batch. Smaller batches cost the store nearly as much.
const SMALLEST: usize = 10;
/// The window before the first answer.
const FIRST: usize = 500;

/// How fast the store answers, and how many leases may be under way.
#[derive(Debug)]
pub(super) struct SendWindow {
    /// How many leases may be under way.
    window: usize,
    /// When the window shrank last.
    shrunk: Option<Instant>,
    /// How long an answer takes on average.
    mean: Duration,
    /// How far the times of answers differ from the mean, on average.
    deviation: Duration,
}

impl SendWindow {
    pub(super) fn new() -> Self {
        Self {
            window: FIRST,
            shrunk: None,
            mean: Duration::ZERO,
            deviation: Duration::ZERO,
        }
    }

    /// How many leases may go in one batch.
    pub(super) fn size(&self) -> usize {
        (self.window / LEAST_UNDER_WAY).clamp(SMALLEST, MAX_RENEWALS)
    }

    /// How many batches may be under way.
    pub(super) fn max_batches(&self) -> usize {
        (self.window / self.size()).clamp(LEAST_UNDER_WAY, MOST_UNDER_WAY)
    }

    /// How long an answer is likely to take, by the earlier answers. Zero before the first answer.
    pub(super) fn expected(&self) -> Duration {
        self.mean + self.deviation
    }

    /// Records that a batch of `leases` leases was answered. An answer that took longer than `target` shrinks the
    /// window. An answer in less than half of that lets the window grow.
    pub(super) fn answered(
        &mut self,
        leases: usize,
        sent: Instant,
        now: Instant,
        target: Duration,
    ) {
        let elapsed = now.saturating_duration_since(sent);
        self.observe(elapsed);
        if elapsed > target {
            self.unanswered(leases, sent, now);
        } else if elapsed < target / 2 && leases >= self.size() {
            self.window = (self.window + leases).min(MOST_UNDER_WAY * MAX_RENEWALS);
        }
    }

    /// Records how long an answer took, for the [expected](Self::expected) time of later answers.
    pub(super) fn observe(&mut self, elapsed: Duration) {
        // The averages of RFC 6298, section 2, which TCP uses for the same purpose.
        let difference = elapsed.abs_diff(self.mean);
        self.deviation = (self.deviation * 3 + difference) / 4;
        self.mean = (self.mean * 7 + elapsed) / 8;
    }

    /// Records that a batch of `leases` leases was not answered in time, and shrinks the window.
    pub(super) fn unanswered(&mut self, leases: usize, sent: Instant, now: Instant) {
        // A batch that was sent before the window last shrank is late for the same reason, and does not shrink it
        // again.
        let known = self.shrunk.is_some_and(|at| sent < at);
        // A small batch that is slow says nothing about large ones.
        if !known && leases >= self.size() {
            self.shrunk = Some(now);
            self.window = (self.window / 2).max(LEAST_UNDER_WAY * SMALLEST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Duration = Duration::from_secs(1);

    fn places(window: &SendWindow) -> (usize, usize) {
        (window.max_batches(), window.size())
    }

    #[test]
    fn it_grows_while_answers_are_fast_and_shrinks_when_they_are_slow() {
        let (mut window, start) = (SendWindow::new(), Instant::now());
        assert_eq!(places(&window), (2, 250));
        let (fast, slow) = (start + TARGET / 10, start + TARGET * 2);
        for _ in 0..20 {
            window.answered(window.size(), start, fast, TARGET);
        }
        assert_eq!(places(&window), (4, 1_000));
        window.answered(1_000, start, slow, TARGET);
        assert_eq!(places(&window), (2, 1_000));
        // A batch that was under way at the same time does not shrink the window again.
        window.unanswered(1_000, start, slow);
        assert_eq!(places(&window), (2, 1_000));
        window.unanswered(1_000, slow, slow);
        assert_eq!(places(&window), (2, 500));
        window.unanswered(3, slow, slow);
        assert_eq!(window.size(), 500, "it says nothing");
        for _ in 0..20 {
            window.unanswered(window.size(), slow, slow);
        }
        assert_eq!(places(&window), (2, SMALLEST));
        // An answer that is neither fast nor late changes nothing.
        window.answered(SMALLEST, slow, slow + TARGET * 3 / 4, TARGET);
        assert_eq!(places(&window), (2, SMALLEST));
        for _ in 0..20 {
            window.answered(window.size(), slow, slow + TARGET / 10, TARGET);
        }
        assert_eq!(window.size(), 1_000);
    }

    #[test]
    fn an_answer_is_expected_within_what_answers_took_and_varied() {
        let mut window = SendWindow::new();
        for _ in 0..100 {
            window.observe(TARGET / 10);
        }
        let expected = window.expected();
        assert!(
            expected >= TARGET / 11 && expected < TARGET / 8,
            "{expected:?}"
        );
        window.observe(TARGET);
        assert!(window.expected() > TARGET / 3);
    }
}
