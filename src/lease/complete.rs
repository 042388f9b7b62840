//! The release of a lease under which the tick of a job was done.

use tokio::time::Instant;
use tracing::Instrument;

use super::guard::Lease;
use crate::{
    messages::{DoneTick, ReleaseAnswer},
    model::{Error, LossReason},
    telemetry,
};

impl Lease {
    /// Releases the lease, and writes in the same step that the tick is done.
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
        self.state.set_done(done);
        let Some(pending) = self.registry.end(&self.state, now) else {
            // A close has given up the lease, and releases it.
            return Err(self.state.lost_error(LossReason::Closed));
        };
        let release = self.registry.release(pending, now);
        let release = release.instrument(telemetry::release(self.state.fields()));
        match release.await?.answer {
            ReleaseAnswer::Released => Ok(()),
            ReleaseAnswer::NotHeld => {
                let reason = LossReason::TakenOver;
                telemetry::lost(self.state.fields(), &reason);
                Err(self.state.lost_error(reason))
            }
        }
    }
}
