//! `Overload`: warns if more leases are kept alive than the store can renew in time, before the first of them is lost.

use std::{mem, sync::Weak, time::Duration};

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
    /// Reads the state of the schedule. The leases at risk are counted at most once in [`COUNT_INTERVAL`].
    ///
    /// Returns what reports to telemetry, and publishes whether renewals are late. It is called after the mutex of the
    /// schedule is released, because the subscriber for events and the recorder for metrics are code of the application,
    /// which may call this crate.
    pub(super) fn update(
        &mut self,
        schedule: &Schedule<Weak<LeaseState>>,
        now: Instant,
    ) -> impl FnOnce(&watch::Sender<bool>) + use<> {
        let has_passed = |interval: Duration, since: Option<Instant>| {
            since.is_none_or(|since| now.saturating_duration_since(since) >= interval)
        };
        let (is_late, before) = (schedule.is_late(now), self.reported);
        self.reported.kept = schedule.len();
        // How late the next renewal is, if it is time to warn.
        let mut lag = None;
        // The leases that wait for their renewal and have less than a third of their ttl left.
        let mut delayed = Vec::new();
        if has_passed(COUNT_INTERVAL, self.counted) {
            self.counted = Some(now);
            self.reported = schedule.load(now);
            if is_late && has_passed(WARNING_INTERVAL, self.warned) {
                self.warned = Some(now);
                lag = Some(schedule.lag(now));
            }
            let at_risk = schedule.at_risk_and_waiting(now);
            delayed.extend(at_risk.filter_map(Weak::upgrade));
        }
        let load = self.reported;
        move |late| {
            late.send_if_modified(|known| mem::replace(known, is_late) != is_late);
            telemetry::kept(before, load);
            for lease in &delayed {
                lease.record_delay(|| overloaded(load.kept));
            }
            if let Some(lag) = lag {
                telemetry::renewals_late(load, lag);
            }
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
