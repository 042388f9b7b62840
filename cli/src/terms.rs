//! The times of a command under a lease: its grace time, and how long before the end of the lease it must be dead.

use std::time::Duration;

/// The longest default of the grace time.
const GRACE: Duration = Duration::from_secs(10);
/// The shortest ttl with room for a renewal, for a process that is scheduled late, and for a grace time.
const SHORTEST: Duration = Duration::from_secs(1);

/// The times of a command under a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    ttl: Duration,
    margin: Duration,
    /// The time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// How long before the end of the lease the command must be dead. The supervisor may get the processor late by this
    /// much.
    pub spare: Duration,
}

impl Terms {
    /// Checks the ttl and the grace time. `None` means the default grace time. The error is a message for people.
    pub fn new(ttl: Duration, grace: Option<Duration>, margin: Duration) -> Result<Self, String> {
        if ttl < SHORTEST {
            return Err(format!(
                "a ttl is at least {SHORTEST:?} here, to end a command in"
            ));
        }
        let spare = (ttl / 20).clamp(Duration::from_millis(50), Duration::from_secs(1));
        // A renewal after a third of the ttl has another sixth of the ttl to succeed.
        let longest = (ttl / 2).saturating_sub(margin + spare);
        let grace = grace.unwrap_or_else(|| GRACE.min(ttl / 3).min(longest));
        if grace > longest {
            return Err(format!(
                "a grace time of {grace:?} does not fit into a ttl of {ttl:?}: at most {longest:?}, or a longer ttl"
            ));
        }
        Ok(Self {
            ttl,
            margin,
            grace,
            spare,
        })
    }

    /// How often the lease is checked.
    pub fn check_interval(&self) -> Duration {
        (self.ttl / 20).min(Duration::from_secs(1))
    }

    /// The time between the request for a lease and its local deadline.
    pub fn lifetime(&self) -> Duration {
        self.ttl.saturating_sub(self.margin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARGIN: Duration = Duration::from_millis(100);

    fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    #[test]
    fn a_renewal_has_time_beside_the_grace_time() {
        for ttl in [seconds(1), seconds(3), seconds(30), seconds(3_600)] {
            let terms = Terms::new(ttl, None, MARGIN).ok();
            let left = terms.map(|terms| ttl - MARGIN - terms.spare - terms.grace);
            assert!(
                left.is_some_and(|left| left >= ttl / 2),
                "{ttl:?}: {terms:?}"
            );
            assert!(terms.is_some_and(|terms| terms.check_interval() <= ttl / 20));
        }
        let grace = |ttl| Terms::new(ttl, None, MARGIN).map(|terms| terms.grace);
        assert_eq!(grace(seconds(12)), Ok(seconds(4)));
        assert_eq!(grace(seconds(3_600)), Ok(GRACE));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_does() {
        let refused = Terms::new(seconds(10), Some(seconds(5)), MARGIN).err();
        assert!(refused.is_some_and(|text| text.contains("at most 4.4s")));
        assert!(Terms::new(seconds(10), Some(seconds(4)), MARGIN).is_ok());
        assert!(Terms::new(Duration::from_millis(999), None, MARGIN).is_err());
    }
}
