//! When the routers of a sharded cluster are asked to which cluster they belong.

use std::time::{Duration, Instant};

/// When the routers are asked for the second time. At the first time the driver may not have found all of them yet.
const SECOND_AFTER: Duration = Duration::from_secs(1);
/// How often they are asked from then on: the driver also learns of routers later, from DNS.
const EVERY: Duration = Duration::from_secs(60);

/// When the routers were asked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum RouterChecks {
    #[default]
    None,
    One(Instant),
    Several(Instant),
}

impl RouterChecks {
    pub(super) fn is_due(self, now: Instant) -> bool {
        let since = |last| now.saturating_duration_since(last);
        match self {
            Self::None => true,
            Self::One(last) => since(last) >= SECOND_AFTER,
            Self::Several(last) => since(last) >= EVERY,
        }
    }

    pub(super) fn next(self, now: Instant) -> Self {
        match self {
            Self::None => Self::One(now),
            Self::One(_) | Self::Several(_) => Self::Several(now),
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
