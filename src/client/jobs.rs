//! Jobs that run once a tick.

use super::leases::Leases;
use crate::{
    acquire::RunOnce,
    model::{Done, Error, Key, Tick},
};

impl Leases {
    /// A job that is done once a tick, over all processes: also if the work takes a second and the scheduler of another host
    /// fires a minute late.
    ///
    /// The tick is what all processes agree on: the scheduled time, the date, a version, a counter. It is ordered, so an
    /// older tick than the one that is done is done too, and a tick that was left out is never run.
    /// [`RunOnce::run`](crate::RunOnce::run) runs the work. This call sends nothing.
    ///
    /// The key is 1 to 512 bytes of text. The locks of ordinary leases have the same keys.
    pub fn once(&self, key: impl AsRef<str>, tick: impl Into<Tick>) -> RunOnce {
        RunOnce::new(self.acquires.clone(), Key::new(key), tick.into())
    }

    /// The newest tick of a job that is done; `None` if none is, or if it was forgotten.
    ///
    /// # Errors
    ///
    /// As for [`Leases::inspect`].
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point.
    pub async fn last_done(&self, key: impl AsRef<str>) -> Result<Option<Done>, Error> {
        Ok(self.inspect(key).await?.and_then(|state| state.done))
    }
}
