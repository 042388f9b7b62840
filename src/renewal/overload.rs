//! `Overload`: warns if more leases are kept alive than the store can renew in time, before the first of them is lost.

use std::{
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

/// Watches the schedule, and publishes whether renewals are late.
pub(super) struct Overload {
    late: watch::Sender<bool>,
    /// When the leases at risk were last counted.
    counted: Option<Instant>,
    /// When the last warning was reported.
    warned: Option<Instant>,
    /// The load that was last reported to telemetry.
    reported: KeptLeases,
}

impl Overload {
    pub(super) fn new(late: watch::Sender<bool>) -> Self {
        Self {
            late,
            counted: None,
            warned: None,
            reported: KeptLeases::default(),
        }
    }

    /// Reads the state of the schedule, and returns what has to be reported. The leases at risk are counted at most
    /// once in [`COUNT_INTERVAL`].
    #[must_use]
    pub(super) fn update(
        &mut self,
        schedule: &Schedule<Weak<LeaseState>>,
        now: Instant,
    ) -> Findings {
        let late = schedule.is_late(now);
        let was_late = *self.late.borrow();
        let since = |at: Option<Instant>| at.map(|at| now.saturating_duration_since(at));
        let is_too_soon = since(self.counted).is_some_and(|since| since < COUNT_INTERVAL);
        if is_too_soon && late == was_late && schedule.len() == self.reported.kept {
            return Findings::default();
        }
        // A count of the leases at risk reads all leases, so it is not done at each update.
        let load = if is_too_soon {
            KeptLeases {
                kept: schedule.len(),
                ..self.reported
            }
        } else {
            schedule.load(now)
        };
        let mut findings = Findings {
            late: (late != was_late).then(|| (self.late.clone(), late)),
            change: Some((self.reported, load)),
            ..Findings::default()
        };
        self.reported = load;
        if is_too_soon {
            return findings;
        }
        self.counted = Some(now);
        if late && since(self.warned).is_none_or(|since| since >= WARNING_INTERVAL) {
            self.warned = Some(now);
            findings.warning = Some((load, schedule.lag(now)));
        }
        let delayed = schedule.at_risk_and_waiting(now);
        findings.delayed = delayed.filter_map(Weak::upgrade).collect();
        findings
    }
}

/// The results of an update. They are reported after the mutex of the schedule is released, because the subscriber for
/// events and the recorder for metrics are code of the application, which may call this crate.
#[derive(Default)]
pub(super) struct Findings {
    /// If it has changed whether renewals are late: the sender, and the new value.
    late: Option<(watch::Sender<bool>, bool)>,
    /// The load that was last reported, and the load now.
    change: Option<(KeptLeases, KeptLeases)>,
    /// The load, and how late the next renewal is, if it is time to warn.
    warning: Option<(KeptLeases, Duration)>,
    /// The leases that wait for their renewal and have less than a third of their ttl left.
    delayed: Vec<Arc<LeaseState>>,
}

impl Findings {
    pub(super) fn report(self) {
        if let Some((sender, late)) = self.late {
            sender.send_replace(late);
        }
        if let Some((before, load)) = self.change {
            telemetry::kept(before, load);
            for lease in &self.delayed {
                lease.record_delay(|| overloaded(load.kept));
            }
        }
        if let Some((load, lag)) = self.warning {
            telemetry::renewals_late(load, lag);
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
