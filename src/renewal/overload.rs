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

    /// Looks at the schedule, at all of its leases now and then.
    pub(super) fn look(&mut self, schedule: &Schedule<Weak<LeaseState>>, now: Instant) {
        let late = schedule.is_late(now);
        let was_late = *self.late.borrow();
        self.late.send_if_modified(|told| {
            *told = late;
            late != was_late
        });
        let since = |at: Option<Instant>| at.map(|at| now.saturating_duration_since(at));
        let often = since(self.looked).is_some_and(|since| since < LOOK);
        if often && late == was_late && schedule.len() == self.told.kept {
            return;
        }
        // Counting those at risk takes a look at all.
        let load = match often {
            true => Load {
                kept: schedule.len(),
                ..self.told
            },
            false => schedule.load(now),
        };
        telemetry::kept(shown(self.told), shown(load));
        self.told = load;
        if often {
            return;
        }
        self.looked = Some(now);
        if late && since(self.warned).is_none_or(|since| since >= WARNING) {
            self.warned = Some(now);
            let load = schedule.load(now);
            telemetry::renewals_late(shown(load), load.waiting, schedule.lag(now));
        }
        let waiting = schedule.at_risk_and_waiting(now);
        for lease in waiting.filter_map(Weak::upgrade) {
            lease.record_delay(|| overloaded(load.kept));
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
