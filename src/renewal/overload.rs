//! Says when more is kept alive than the store can renew, long before the first lease is lost by it.

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

/// How often all leases are looked at, at most.
const LOOK: Duration = Duration::from_secs(1);
/// How often a warning is repeated, at most.
const WARNING: Duration = Duration::from_secs(10);

/// Watches the schedule, and tells whether renewals are late.
pub(super) struct Overload {
    late: Arc<watch::Sender<bool>>,
    looked: Option<Instant>,
    warned: Option<Instant>,
    /// The load as the metrics were last told.
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

    /// Looks at the schedule, at all of its leases now and then, and gives what there is to tell.
    #[must_use]
    pub(super) fn look(&mut self, schedule: &Schedule<Weak<LeaseState>>, now: Instant) -> Findings {
        let late = schedule.is_late(now);
        let was_late = *self.late.borrow();
        let since = |at: Option<Instant>| at.map(|at| now.saturating_duration_since(at));
        let often = since(self.looked).is_some_and(|since| since < LOOK);
        if often && late == was_late && schedule.len() == self.told.kept {
            return Findings::default();
        }
        // Counting those at risk takes a look at all.
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

/// The findings of a look at the schedule. They are told after the look, without the lock on the schedule: the
/// listeners for events and metrics belong to the application.
#[derive(Default)]
pub(super) struct Findings {
    /// Whether renewals are late now, and who is told if that has changed.
    late: Option<(Arc<watch::Sender<bool>>, bool)>,
    /// The load as it was told before, and as it is.
    change: Option<(Load, Load)>,
    /// The load and the delay, if it is time to warn of late renewals.
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

/// The fields of its events.
fn shown(load: Load) -> KeptLeases {
    let Load { kept, at_risk, .. } = load;
    KeptLeases { kept, at_risk }
}

/// Why a lease was not renewed that had no request of its own.
fn overloaded(kept: usize) -> Error {
    Error::Overloaded {
        store: "the store",
        source: Cause::text(format!(
            "{kept} leases are kept alive, and it does not renew so many in time"
        )),
    }
}
