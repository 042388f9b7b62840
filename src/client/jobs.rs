//! Jobs that run once per tick.

use super::leases::Leases;
use crate::{
    acquire::RunOnce,
    model::{Done, Error, Key, Tick},
};

impl Leases {
    /// Makes a job that runs once per tick, over all processes.
    ///
    /// The store keeps the newest tick that is done. So a scheduler of another host that fires a minute late does not
    /// run the job again, although the work took only a second and the lock is free.
    ///
    /// The tick names one run of the job, and must be the same in all processes: the scheduled time, the date, a
    /// version or a counter. Ticks are ordered: a tick that is older than the newest done tick never runs. The answer
    /// is then [`Once::Superseded`](crate::jobs::Once::Superseded), which is not that of a tick that is done.
    ///
    /// This call sends nothing and checks nothing; [`RunOnce::run`](crate::jobs::RunOnce::run) does, and has an
    /// example. The key is 1 to 512 bytes of text. A job and an ordinary lease of the same key use the same lock.
    pub fn once(&self, key: impl AsRef<str>, tick: impl Into<Tick>) -> RunOnce {
        RunOnce::new(self.acquires.clone(), Key::new(key), tick.into())
    }

    /// Returns the newest done tick of a job. `None` if no tick is done, or if the store does not keep it any more: see
    /// [`RunOnce::kept_for`](crate::jobs::RunOnce::kept_for).
    ///
    /// ```
    /// # use leasehold::{Leases, MemoryStore, jobs::Tick};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// let report = leases.once("report", Tick::counter(7));
    /// let _ = report.run(async |_| Ok::<_, std::io::Error>(())).await?;
    /// let done = leases.last_done("report").await?;
    /// assert_eq!(done.map(|done| done.tick), Some(Tick::counter(7)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Leases::inspect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn last_done(&self, key: impl AsRef<str>) -> Result<Option<Done>, Error> {
        Ok(self.inspect(key).await?.and_then(|state| state.done))
    }
}
