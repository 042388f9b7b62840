//! Chooses by the times of the answers whether the requests of a crowd are sent at once, or wait for each other. This
//! file is pure: times come in as arguments.
//!
//! A batch saves work of the server and of this process. Whether requests are answered sooner in batches, depends on what
//! they wait for otherwise: for a processor, then they are, or for a distant server, then they are not. So both are
//! tried from time to time, and the one with the faster answers is used.

use std::time::Duration;

use tokio::time::Instant;

/// How the requests of a crowd are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendMode {
    /// Each as soon as there is a slot.
    AtOnce,
    /// Together when what was sent before is answered: a group commit.
    Grouped,
}

impl SendMode {
    fn other(self) -> Self {
        match self {
            Self::AtOnce => Self::Grouped,
            Self::Grouped => Self::AtOnce,
        }
    }

    /// What an answer costs that takes this long. If both modes are about as fast, the one with less work is better.
    fn cost(self, mean: Duration) -> Duration {
        match self {
            Self::AtOnce => mean,
            Self::Grouped => mean * 7 / 8,
        }
    }
}

/// After this many answers a mode is judged. As many before them do not count, because a change of the mode disturbs them.
const ANSWERS: u32 = 32;
/// For how long a judgement of the mode that is not used is valid, before that mode is tried again.
const VALID: Duration = Duration::from_secs(8);

/// The mode that is used, and what is known about both.
pub(super) struct Choice {
    mode: SendMode,
    /// How many answers did not count since the mode was changed.
    skipped: u32,
    /// How many answers count that came since the mode was judged, and the sum of their times.
    answers: u32,
    total: Duration,
    /// The mean time of an answer in the other mode, and when it was judged.
    other: Option<(Duration, Instant)>,
}

impl Choice {
    pub(super) fn new() -> Self {
        Self {
            mode: SendMode::AtOnce,
            skipped: 0,
            answers: 0,
            total: Duration::ZERO,
            other: None,
        }
    }

    pub(super) fn mode(&self) -> SendMode {
        self.mode
    }

    /// Records that requests which were sent in this mode were answered, and how long that took in sum, from the moment
    /// when they were submitted.
    pub(super) fn answered(&mut self, mode: SendMode, answers: u32, total: Duration, now: Instant) {
        if mode != self.mode {
            return;
        }
        if self.skipped < ANSWERS {
            self.skipped = self.skipped.saturating_add(answers);
            return;
        }
        self.answers = self.answers.saturating_add(answers);
        self.total += total;
        if self.answers < ANSWERS {
            return;
        }
        let mean = self.total / self.answers;
        (self.answers, self.total) = (0, Duration::ZERO);
        let other = self.other.filter(|(_, at)| now - *at < VALID);
        if other.is_none_or(|(other, _)| mode.other().cost(other) < mode.cost(mean)) {
            self.other = Some((mean, now));
            self.mode = mode.other();
            self.skipped = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of the answers in the mode [`SendMode::Grouped`], if an answer takes this long in each mode, and this many come
    /// at once.
    fn grouped_of(size: u32, at_once: Duration, grouped: Duration) -> f64 {
        let (mut choice, mut now, start) = (Choice::new(), Instant::now(), Instant::now());
        let mut answers = [0_u32; 2];
        while now < start + VALID * 20 {
            let mode = choice.mode();
            let took = match mode {
                SendMode::AtOnce => at_once,
                SendMode::Grouped => grouped,
            };
            now += took;
            choice.answered(mode, size, took * size, now);
            answers[mode as usize] += 1;
        }
        f64::from(answers[1]) / f64::from(answers[0] + answers[1])
    }

    fn grouped(at_once: Duration, grouped: Duration) -> f64 {
        let shares = [8, 50, 100].map(|size| grouped_of(size, at_once, grouped));
        assert!(
            shares.iter().all(|share| (share - shares[0]).abs() < 0.05),
            "{shares:?}"
        );
        shares[0]
    }

    #[test]
    fn the_faster_mode_is_used_and_the_other_one_is_tried() {
        let [short, long] = [2, 3].map(Duration::from_millis);
        let share = grouped(long, short);
        assert!(share > 0.98 && share < 1.0, "{share}");
        let share = grouped(short, long);
        assert!(share < 0.02 && share > 0.0, "{share}");
    }

    #[test]
    fn the_one_with_less_work_is_used_if_both_are_about_as_fast() {
        let [short, long] = [20, 22].map(Duration::from_millis);
        let share = grouped(short, long);
        assert!(share > 0.9, "{share}");
    }

    #[test]
    fn an_answer_to_what_was_sent_in_the_other_mode_does_not_count() {
        let (mut choice, now) = (Choice::new(), Instant::now());
        let all = 2 * ANSWERS;
        choice.answered(SendMode::Grouped, all, Duration::from_secs(9), now);
        choice.answered(SendMode::AtOnce, ANSWERS, Duration::from_secs(9), now);
        assert_eq!(choice.mode(), SendMode::AtOnce);
        choice.answered(SendMode::AtOnce, ANSWERS, Duration::from_secs(9), now);
        assert_eq!(choice.mode(), SendMode::Grouped);
    }
}
