//! `Overload`: warns if more leases are kept alive than the store can renew in time, before the first of them is lost.

use std::{
    mem,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use super::schedule::Schedule;
use crate::{
    lease_state::LeaseState,
    model::{Cause, Error},
    telemetry::{self, KeptLeases},
};

/// The shortest time between two counts of the leases at risk. A count reads all leases.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest time between two warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// Watches the schedule.
#[derive(Default)]
pub(super) struct Overload {
    /// When the leases at risk were last counted.
    counted: Option<Instant>,
    /// When the last warning was reported.
    warned: Option<Instant>,
    /// The load that was last reported to telemetry.
    reported: KeptLeases,
}

impl Overload {
    /// Reads the state of the schedule, and returns what has to be reported. The leases at risk are counted at most
    /// once in [`COUNT_INTERVAL`].
    #[must_use]
    pub(super) fn update(
        &mut self,
        schedule: &Schedule<Weak<LeaseState>>,
        now: Instant,
    ) -> Findings {
        let has_passed = |interval: Duration, since: Option<Instant>| {
            since.is_none_or(|since| now.saturating_duration_since(since) >= interval)
        };
        let mut findings = Findings {
            late: schedule.is_late(now),
            before: self.reported,
            load: KeptLeases {
                kept: schedule.len(),
                ..self.reported
            },
            lag: None,
            delayed: Vec::new(),
        };
        if has_passed(COUNT_INTERVAL, self.counted) {
            self.counted = Some(now);
            findings.load = schedule.load(now);
            if findings.late && has_passed(WARNING_INTERVAL, self.warned) {
                self.warned = Some(now);
                findings.lag = Some(schedule.lag(now));
            }
            let delayed = schedule.at_risk_and_waiting(now);
            findings.delayed = delayed.filter_map(Weak::upgrade).collect();
        }
        self.reported = findings.load;
        findings
    }
}

/// The results of an update. They are reported after the mutex of the schedule is released, because the subscriber for
/// events and the recorder for metrics are code of the application, which may call this crate.
pub(super) struct Findings {
    /// Whether renewals are late.
    late: bool,
    /// The load that was last reported.
    before: KeptLeases,
    load: KeptLeases,
    /// How late the next renewal is, if it is time to warn.
    lag: Option<Duration>,
    /// The leases that wait for their renewal and have less than a third of their ttl left.
    delayed: Vec<Arc<LeaseState>>,
}

impl Findings {
    /// Reports to telemetry, and publishes whether renewals are late.
    pub(super) fn report(self, sender: &watch::Sender<bool>) {
        sender.send_if_modified(|late| mem::replace(late, self.late) != self.late);
        telemetry::kept(self.before, self.load);
        for lease in &self.delayed {
            lease.record_delay(|| overloaded(self.load.kept));
        }
        if let Some(lag) = self.lag {
            telemetry::renewals_late(self.load, lag);
        }
    }
}

impl Drop for Overload {
    fn drop(&mut self) {
        telemetry::kept(self.reported, KeptLeases::default());
    }
}

/// The error of a lease whose renewal is due and was not sent yet.
fn overloaded(kept: usize) -> Error {
    Error::Overloaded {
        store: "the store",
        source: Cause::text(format!(
            "{kept} leases are kept alive, and it does not renew so many in time"
        )),
    }
}
