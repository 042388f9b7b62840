//! `RunOnce`: work that runs once per tick, over all processes.
//!
//! Invariants:
//!
//! - A tick is written as done only after the work has succeeded, in the same step that releases the live lease under
//!   which the work ran.
//! - If the work fails, panics or is dropped, or its lease is lost, the tick is not written as done.

use std::{ops::Deref, sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{
    options::{AcquireContext, LeaseOptions},
    start::{self, Attempt},
    with::RELEASE_WAIT,
};
use crate::{
    lease::Lease,
    messages::DoneTick,
    model::{Done, Error, Held, Key, LossReason, Tick, WaitPolicy},
    telemetry,
};

/// The default of [`RunOnce::ttl`].
const TTL: Duration = Duration::from_secs(30);
/// The default of [`RunOnce::kept_for`]: 30 days.
const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// A job that runs once per tick, over all processes, made by [`Leases::once`](crate::Leases::once).
/// [`run`](RunOnce::run) runs it, and has an example. [`acquire`](RunOnce::acquire) is for work that does not fit into
/// a closure.
#[derive(Clone, Debug)]
#[must_use = "nothing happens until it is run"]
pub struct RunOnce {
    key: Result<Key, Error>,
    options: LeaseOptions,
    done: DoneTick,
}

/// The answer to [`RunOnce::run`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the work may not have run"]
pub enum Once<T> {
    /// The work ran in this call and succeeded, and the tick is done. The value is what the work returned.
    Ran(T),
    /// This tick was done before. The work did not run.
    Done(Done),
    /// A later tick was done before, so this one is left out, now and in later calls. The store keeps the newest done
    /// tick only: this one may have been done before that, or never.
    ///
    /// For a migration this may mean that it never ran. [`RunOnce::run`] says how each version runs, whatever the
    /// order.
    Superseded {
        /// The tick that is left out.
        tick: Tick,
        /// The newest tick that is done.
        done: Done,
    },
    /// Another lease holds the key, or processes that wait for it come first. So the work is likely to be running
    /// elsewhere. It did not run in this call.
    Running(Held),
}

/// The error of [`RunOnce::run`]. The tick is not done, or not known to be done.
#[derive(Debug, thiserror::Error)]
pub enum OnceError<E> {
    /// The key was not granted, and the work did not begin.
    #[error("the work did not begin: {0}")]
    NotAcquired(#[source] Error),
    /// The lease was lost before the tick was written as done. The work was stopped, or had just ended. The next call
    /// for this tick runs it again.
    #[error("the lease on {key} was lost while the work was under way: {reason}")]
    Lost {
        /// The key.
        key: Key,
        /// Why the lease was lost.
        reason: LossReason,
    },
    /// The work succeeded, but the store has not confirmed that the tick is done. After an error that a retry can fix,
    /// the request is repeated in the background until the ttl is over. So the tick may be done by now, or the next
    /// call may run the work again.
    #[error("the work has ended, and it is not known whether its tick was written as done: {0}")]
    NotConfirmed(#[source] Error),
    /// The work failed. The tick is not done, and the next call for it runs the work again.
    #[error(transparent)]
    Work(E),
}

impl<E: From<Error>> OnceError<E> {
    /// Converts this error to the error type of the work, if that type can be made from an [`Error`].
    /// [`WithError::merge`](crate::WithError::merge) shows how to use such a method.
    pub fn merge(self) -> E {
        match self {
            Self::NotAcquired(error) | Self::NotConfirmed(error) => error.into(),
            Self::Lost { key, reason } => Error::Lost { key, reason }.into(),
            Self::Work(error) => error,
        }
    }
}

impl RunOnce {
    pub(crate) fn new(context: Arc<AcquireContext>, key: Result<Key, Error>, tick: Tick) -> Self {
        let mut options = LeaseOptions::new(context, TTL, WaitPolicy::None);
        options.asked.tick = Some(tick);
        options.keep_alive = true;
        let kept_for = KEPT_FOR;
        Self {
            key,
            options,
            done: DoneTick { tick, kept_for },
        }
    }

    /// Sets the ttl of the lease: how long the key stays held after the process that runs the work has died. The
    /// default is 30 s. The lease is kept alive while the work runs, so the work may take longer than the ttl.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.asked.ttl = ttl;
        self
    }

    /// Sets the owner that other processes see while the work runs, and as [`Done::by`](crate::jobs::Done) afterwards.
    /// The default is the [owner of the handle](crate::LeasesBuilder::owner).
    pub fn owner(mut self, owner: impl Into<Arc<str>>) -> Self {
        self.options.asked.owner = Some(owner.into());
        self
    }

    /// Sets a note for people, which [`inspect`](crate::Leases::inspect) shows while the work runs, of at most
    /// [`MAX_NOTE_BYTES`](crate::limits::MAX_NOTE_BYTES) bytes. A note must not contain secrets.
    pub fn note(mut self, note: impl Into<Arc<str>>) -> Self {
        self.options.asked.note = Some(note.into());
        self
    }

    /// Bounds how long the lease is held, so that work that hangs does not hold the key for ever. When the time is
    /// over, the lease is lost and the work is stopped, and the tick is not done. See
    /// [`Acquire::max_hold`](crate::Acquire::max_hold).
    pub fn max_hold(mut self, time: Duration) -> Self {
        self.options.max_hold = Some(time);
        self
    }

    /// Bounds the wait for the holder of the key. If the tick is done within this time, the answer is [`Once::Done`].
    /// If the key is free before that, because the holder failed or died, the work runs in this call. By default the
    /// call does not wait.
    pub fn wait_for(mut self, wait: Duration) -> Self {
        self.options.wait_policy = WaitPolicy::For(wait);
        self
    }

    /// Sets how long the store keeps the done tick, in whole milliseconds. The default is 30 days. After that a
    /// clean-up may remove it, and then the same tick can run again. Use [`Duration::MAX`] for work that must never run
    /// again, such as a migration.
    pub fn kept_for(mut self, time: Duration) -> Self {
        self.done.kept_for = time;
        self
    }

    /// Runs the work, unless its tick is done or the key is held.
    ///
    /// Work that fails or is stopped may run again in a later call. Once the tick is done, the work does not run again
    /// while the store [keeps](Self::kept_for) the done tick. Two processes never run it under live leases at the same
    /// time. But a process that was paused may write after the loss of its lease: a resource that checks the
    /// [fence](Lease::fence) refuses such a write.
    ///
    /// The lease is kept alive. When it is lost, the work's future is dropped at its current await. An ordinary lease
    /// on the same key, by [`acquire`](crate::Leases::acquire), counts like the lease of a running job: the answer is
    /// [`Once::Running`].
    ///
    /// The ticks of a key run in their order: once a tick is done, no earlier one runs ([`Once::Superseded`]). Give each
    /// piece of work that must run whatever the order a key of its own. For migrations that is a key for each version,
    /// such as `migrate/1.4.0`.
    ///
    /// ```
    /// use chrono::NaiveDate;
    /// use leasehold::{Leases, MemoryStore, jobs::Once};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let leases = Leases::new(MemoryStore::new());
    /// let today = NaiveDate::from_ymd_opt(2026, 11, 24).unwrap();
    /// for _ in 0..2 {
    ///     let report = leases.once("nightly-report", today);
    ///     match report.run(async |_lease| Ok::<_, std::io::Error>(42)).await? {
    ///         Once::Ran(rows) => println!("{rows} rows"),
    ///         Once::Done(done) => println!("{done}"),
    ///         Once::Superseded { tick, done } => println!("{tick} is left out: {done}"),
    ///         Once::Running(held) => println!("{} runs it now", held.owner()),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`OnceError`] says which step failed. [`OnceError::NotAcquired`] contains [`Error::OtherTickKind`] if the tick
    /// is of another kind than the last done tick, because ticks of different kinds have no order.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the work and releases the lease in the background. If the work had succeeded before,
    /// the tick may be written as done.
    pub async fn run<T, E>(
        self,
        work: impl AsyncFnOnce(&Lease) -> Result<T, E>,
    ) -> Result<Once<T>, OnceError<E>> {
        let lease = match self.acquire().await.map_err(OnceError::NotAcquired)? {
            OnceAttempt::Acquired(lease) => lease,
            OnceAttempt::Done(done) => return Ok(Once::Done(done)),
            OnceAttempt::Superseded { tick, done } => return Ok(Once::Superseded { tick, done }),
            OnceAttempt::Held(held) => return Ok(Once::Running(held)),
        };
        let outcome = tokio::select! {
            // The loss is checked first: if the lease is lost and the work has ended, the work may have ended after the
            // loss.
            biased;
            reason = lease.lost() => Err(OnceError::Lost { key: lease.key().clone(), reason }),
            outcome = work(&lease) => outcome.map_err(OnceError::Work),
        };
        match outcome {
            Ok(value) => match lease.complete().await {
                Ok(()) => Ok(Once::Ran(value)),
                Err(Error::Lost { key, reason }) => Err(OnceError::Lost { key, reason }),
                Err(error) => Err(OnceError::NotConfirmed(error)),
            },
            Err(error) => {
                // The caller gets the error of the work. A release that fails or takes long goes on in the background.
                let _ = timeout(RELEASE_WAIT, lease.release()).await;
                Err(error)
            }
        }
    }

    /// Acquires the lease under which the tick is to be done, for work that does not fit into a closure.
    /// [`OnceLease::complete`] then writes the tick as done.
    ///
    /// ```
    /// # use leasehold::{Leases, MemoryStore, jobs::{OnceAttempt, Tick}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// match leases.once("migrate/1.4.0", Tick::version(1, 4, 0)).acquire().await? {
    ///     OnceAttempt::Acquired(lease) => {
    ///         // Migrate the data. If that fails, drop the lease or release it.
    ///         lease.complete().await?;
    ///     }
    ///     OnceAttempt::Done(done) => println!("{done}"),
    ///     OnceAttempt::Superseded { tick, done } => println!("{tick} is left out: {done}"),
    ///     OnceAttempt::Held(held) => println!("{} runs it now", held.owner()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`TryAcquire`](crate::TryAcquire), and [`Error::OtherTickKind`] if the tick is of another kind than the
    /// last done tick.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future at any point leaves no lock behind.
    pub async fn acquire(self) -> Result<OnceAttempt, Error> {
        let (key, done) = (self.key?, self.done);
        match start::acquire(self.options, Ok(key.clone())).await {
            Ok(Attempt::Acquired(lease)) => Ok(OnceAttempt::Acquired(OnceLease { lease, done })),
            Ok(Attempt::Held(held)) | Err(Error::WaitTimedOut { held, .. }) => {
                telemetry::tick_running(&key, done.tick);
                Ok(OnceAttempt::Held(held))
            }
            Err(Error::Done(before)) => {
                telemetry::tick_done(&key, done.tick, &before);
                Ok(OnceAttempt::Done(before))
            }
            Err(Error::Superseded { tick, done }) => {
                telemetry::tick_superseded(&key, tick, &done);
                Ok(OnceAttempt::Superseded { tick, done })
            }
            Err(error) => Err(error),
        }
    }
}

/// The answer to [`RunOnce::acquire`].
#[derive(Debug)]
#[must_use = "a lease that is dropped is released at once"]
pub enum OnceAttempt {
    /// The lease was granted, and the tick is not done.
    Acquired(OnceLease),
    /// This tick was done before.
    Done(Done),
    /// A later tick was done before, so this one is left out: see [`Once::Superseded`].
    Superseded {
        /// The tick that is left out.
        tick: Tick,
        /// The newest tick that is done.
        done: Done,
    },
    /// Another lease holds the key, or processes that wait come first.
    Held(Held),
}

/// A lease under which a tick is to be done, made by [`RunOnce::acquire`]. It is kept alive, and dereferences to a
/// [`Lease`].
///
/// Dropping it releases the lease in the background. The tick is not done then.
#[derive(Debug)]
#[must_use = "a lease that is dropped is released at once"]
pub struct OnceLease {
    lease: Lease,
    done: DoneTick,
}

impl OnceLease {
    /// The tick that is to be done.
    pub fn tick(&self) -> Tick {
        self.done.tick
    }

    /// Writes the tick as done, and releases the lease in the same step. [`RunOnce::acquire`] has an example.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease is lost: the tick is not done. After any other error that a retry can fix, the
    /// request is repeated in the background until the ttl is over. So the tick may be done by now, or the next call
    /// may run the work again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after its first poll, the request goes on in the background. If it is dropped before
    /// that, the lease is dropped, and the tick is not done.
    pub async fn complete(self) -> Result<(), Error> {
        let (key, tick) = (self.lease.key().clone(), self.done.tick);
        let completed = self.lease.complete(self.done).await;
        let failure = completed.as_ref().err().map(|error| match error {
            Error::Lost { .. } => "lost",
            _ => "not_confirmed",
        });
        telemetry::tick_ran(&key, tick, failure);
        completed
    }

    /// Releases the lease without writing the tick as done. The next call for this tick runs the work again.
    ///
    /// # Errors
    ///
    /// As for [`Lease::release`].
    ///
    /// # Cancel safety
    ///
    /// As for [`Lease::release`].
    pub async fn release(self) -> Result<(), Error> {
        let failure = if self.is_live() { "failed" } else { "lost" };
        telemetry::tick_ran(self.lease.key(), self.done.tick, Some(failure));
        self.lease.release().await
    }
}

impl Deref for OnceLease {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}
