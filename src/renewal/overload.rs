//! Warns when more leases are kept alive than the store can renew in time, before the first of them is lost.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use super::schedule::{Load, Schedule};
use crate::{
    lease_state::LeaseState,
    model::{Cause, Error},
    telemetry::{self, KeptLeases},
};

/// The least time between two looks at all leases.
const LOOK: Duration = Duration::from_secs(1);
/// The least time between two warnings.
const WARNING: Duration = Duration::from_secs(10);

/// Watches the schedule, and tells whether renewals are late.
pub(super) struct Overload {
    late: Arc<watch::Sender<bool>>,
    looked: Option<Instant>,
    warned: Option<Instant>,
    /// The load that was last reported to telemetry.
    told: Load,
}

impl Overload {
    pub(super) fn new(late: Arc<watch::Sender<bool>>) -> Self {
        Self {
            late,
            looked: None,
            warned: None,
            told: Load::default(),
        }
    }

    /// Looks at the schedule, at each of its leases only once in [`LOOK`], and gives what there is to tell.
    #[must_use]
    pub(super) fn look(&mut self, schedule: &Schedule<Weak<LeaseState>>, now: Instant) -> Findings {
        let late = schedule.is_late(now);
        let was_late = *self.late.borrow();
        let since = |at: Option<Instant>| at.map(|at| now.saturating_duration_since(at));
        let often = since(self.looked).is_some_and(|since| since < LOOK);
        if often && late == was_late && schedule.len() == self.told.kept {
            return Findings::default();
        }
        // To count the leases at risk takes a look at all leases.
        let load = if often {
            Load {
                kept: schedule.len(),
                ..self.told
            }
        } else {
            schedule.load(now)
        };
        let mut findings = Findings {
            late: (late != was_late).then(|| (self.late.clone(), late)),
            change: Some((self.told, load)),
            ..Findings::default()
        };
        self.told = load;
        if often {
            return findings;
        }
        self.looked = Some(now);
        if late && since(self.warned).is_none_or(|since| since >= WARNING) {
            self.warned = Some(now);
            findings.warning = Some((load, schedule.lag(now)));
        }
        let delayed = schedule.at_risk_and_waiting(now);
        findings.delayed = delayed.filter_map(Weak::upgrade).collect();
        findings
    }
}

/// The findings of a look at the schedule. They are told after the look, without the lock of the schedule, because the
/// listeners for events and metrics belong to the application and may do anything.
#[derive(Default)]
pub(super) struct Findings {
    /// Whether renewals are late now, and who is told if that has changed.
    late: Option<(Arc<watch::Sender<bool>>, bool)>,
    /// The load that was last reported, and the load now.
    change: Option<(Load, Load)>,
    /// The load, and how late the next renewal is, if it is time to warn.
    warning: Option<(Load, Duration)>,
    /// The leases that wait for their renewal, and have little time left.
    delayed: Vec<Arc<LeaseState>>,
}

impl Findings {
    pub(super) fn tell(self) {
        if let Some((told, late)) = self.late {
            told.send_replace(late);
        }
        if let Some((before, load)) = self.change {
            telemetry::kept(shown(before), shown(load));
            for lease in &self.delayed {
                lease.record_delay(|| overloaded(load.kept));
            }
        }
        if let Some((load, lag)) = self.warning {
            telemetry::renewals_late(shown(load), load.waiting, lag);
        }
    }
}

impl Drop for Overload {
    fn drop(&mut self) {
        telemetry::kept(shown(self.told), KeptLeases::default());
    }
}

/// The part of the load that telemetry reports.
fn shown(load: Load) -> KeptLeases {
    let Load { kept, at_risk, .. } = load;
    KeptLeases { kept, at_risk }
}

/// Why no renewal was sent yet for a lease that is due.
fn overloaded(kept: usize) -> Error {
    Error::Overloaded {
        store: "the store",
        source: Cause::text(format!(
            "{kept} leases are kept alive, and it does not renew so many in time"
        )),
    }
}
