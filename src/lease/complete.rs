//! `Lease::complete`: the release of a lease under which the tick of a job was done.

use tokio::time::Instant;
use tracing::Instrument;

use super::guard::Lease;
use crate::{
    key::{Departure, PolledCall},
    lease_state::EndReason,
    messages::{DoneTick, ReleaseAnswer},
    model::{Cause, Error, LossReason},
    release::Released,
    telemetry,
};

impl Lease {
    /// Releases the lease, and writes the tick as done in the same step.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease is lost: the tick is not done. After another error the release goes on in the
    /// background until the ttl is over, so the tick may be done later.
    pub(crate) async fn complete(self, done: DoneTick) -> Result<(), Error> {
        let now = Instant::now();
        if let Some(reason) = self.state.loss(now) {
            return Err(self.state.lost_error(reason));
        }
        // If the subscriber of the application panics in an event, the release goes on in the background.
        let (call, how) = (PolledCall::new(&self.keys.lifecycle), Departure::Done(done));
        let (_, release) = self.give_up(EndReason::Released, how, call, now)?;
        let Some(release) = release else {
            // The close of the client has taken over the release of the lease, which writes no tick.
            return Err(self.state.lost_error(self.closed()));
        };
        let release = release.instrument(telemetry::release(self.state.fields()));
        let Released { answer, unclear } = release.await?;
        match answer {
            ReleaseAnswer::Released => Ok(()),
            // An earlier try may have been carried out, and a later tick may have overwritten this one since.
            ReleaseAnswer::NotHeld if unclear => Err(Error::Interrupted {
                store: "the store",
                source: Cause::text(
                    "the lease is gone, and what an earlier request wrote is not there",
                ),
            }),
            ReleaseAnswer::NotHeld => {
                let reason = LossReason::TakenOver;
                telemetry::lost(self.state.fields(), &reason);
                Err(self.state.lost_error(reason))
            }
        }
    }
}
