//! When the routers of a sharded cluster are asked to which cluster they belong.

use std::time::{Duration, Instant};

/// When the routers are asked for the second time. At the first time the driver may not have found all of them yet.
const SECOND_AFTER: Duration = Duration::from_secs(1);
/// How often they are asked from then on: the driver also learns of routers later, from DNS.
const EVERY: Duration = Duration::from_secs(60);

/// When the routers were asked for the last time, and whether that was not the first time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RouterChecks {
    pub(super) last: Option<Instant>,
    is_repeated: bool,
}

impl RouterChecks {
    pub(super) fn is_due(self, now: Instant) -> bool {
        let pause = if self.is_repeated {
            EVERY
        } else {
            SECOND_AFTER
        };
        self.last
            .is_none_or(|last| now.saturating_duration_since(last) >= pause)
    }

    pub(super) fn next(self, now: Instant) -> Self {
        Self {
            last: Some(now),
            is_repeated: self.last.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_asked_at_first_soon_after_and_then_now_and_then() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let first = RouterChecks::default();
        assert!(first.is_due(start));
        let second = first.next(start);
        assert!(!second.is_due(start));
        assert!(second.is_due(at(1)));
        let third = second.next(at(1));
        assert!(!third.is_due(at(60)));
        assert!(third.is_due(at(61)));
        assert!(third.next(at(61)).is_due(at(121)));
    }
}
