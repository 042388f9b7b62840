//! `RunOnce`: work that is done once a tick, over all processes.
//!
//! Invariants:
//!
//! - The tick is written as done only after the work has ended well, by the release of the live lease under which it ran.
//! - Work that fails, panics or is dropped, and work whose lease is lost, leaves the tick as it was.

use std::{fmt, ops::Deref, sync::Arc, time::Duration};

use super::{attempt::Attempt, context::AcquireContext, options::LeaseOptions, start};
use crate::{
    lease::Lease,
    messages::DoneTick,
    model::{Done, Error, Held, Key, LossReason, Tick, WaitPolicy},
    telemetry,
};

/// How long a lease lives without a renewal, unless [`RunOnce::ttl`] says otherwise.
const TTL: Duration = Duration::from_secs(30);
/// For how long what is done is kept, unless [`RunOnce::kept_for`] says otherwise: 30 days.
const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// A job that is done once a tick, over all processes, made by [`Leases::once`](crate::Leases::once).
/// [`run`](RunOnce::run) runs it.
#[derive(Clone)]
#[must_use = "nothing happens until it is run"]
pub struct RunOnce {
    key: Result<Key, Error>,
    tick: Tick,
    options: LeaseOptions,
    wait_policy: WaitPolicy,
    kept_for: Duration,
}

/// What became of a tick.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the work may not have run"]
pub enum Once<T> {
    /// The work ran here and ended well, and the tick is done. This is the work's value.
    Ran(T),
    /// The tick was done before, or a later one was. The work did not run here.
    Done(Done),
    /// Somebody has the key: the work for this tick is likely to be running. It did not run here.
    Running(Held),
}

/// Why a tick is not known to be done.
#[derive(Debug, thiserror::Error)]
pub enum OnceError<E> {
    /// The work did not begin: the key was not granted.
    #[error("the work did not begin: {0}")]
    NotAcquired(#[source] Error),
    /// The lease was lost before the tick was written as done. The work was stopped, or had just ended; whoever asks next
    /// runs it again.
    #[error("the lease on {key} was lost while the work was under way: {reason}")]
    Lost {
        /// The key.
        key: Key,
        /// Why the lease was lost.
        reason: LossReason,
    },
    /// The work ended well, and the store has not confirmed that the tick is done. After an error that a retry can
    /// mend the request is repeated in the background until the ttl is over. So the tick may be done by now, or may be run
    /// again.
    #[error("the work has ended, and it is not known whether its tick was written as done: {0}")]
    NotConfirmed(#[source] Error),
    /// The work itself failed. The tick is not done, and whoever asks next runs it again.
    #[error(transparent)]
    Work(E),
}

impl<E: From<Error>> OnceError<E> {
    /// Converts this error to the error type of the work, if that type can hold an [`Error`] as well.
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
        let mut options = LeaseOptions::new(context, TTL);
        options.tick = Some(tick);
        (options.keep_alive, options.waits_for_renewals) = (true, true);
        Self {
            key,
            tick,
            options,
            wait_policy: WaitPolicy::None,
            kept_for: KEPT_FOR,
        }
    }

    /// How long the key stays taken after the process that runs the work has died; 30 s by default. The lease is kept
    /// alive while the work runs, however long that takes.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// The owner that other processes see while the work runs, and as [`Done::by`](crate::Done) afterwards. By default the
    /// [owner of the handle](crate::LeasesBuilder::owner).
    pub fn owner(mut self, owner: impl Into<Arc<str>>) -> Self {
        self.options.owner = Some(owner.into());
        self
    }

    /// A note for people, which [`inspect`](crate::Leases::inspect) shows while the work runs, of at most
    /// [`MAX_NOTE_BYTES`](crate::limits::MAX_NOTE_BYTES) bytes. Write no secrets into a note.
    pub fn note(mut self, note: impl Into<Arc<str>>) -> Self {
        self.options.note = Some(note.into());
        self
    }

    /// Ends the work when its lease was held for so long, also if it hangs and renewals go on; see
    /// [`Acquire::max_hold`](crate::Acquire::max_hold). The tick is not done then.
    pub fn max_hold(mut self, time: Duration) -> Self {
        self.options.max_hold = Some(time);
        self
    }

    /// Waits this long for whoever has the key: until the tick is done, which gives [`Once::Done`], or until that one has
    /// failed or died, and the work runs here. By default nothing is waited for.
    pub fn wait_for(mut self, wait: Duration) -> Self {
        self.wait_policy = WaitPolicy::For(wait);
        self
    }

    /// For how long the store keeps that the tick is done, in whole milliseconds; 30 days by default. After that a clean-up
    /// may remove it, and then the same tick runs again. Take [`Duration::MAX`] for work that must never come again, such
    /// as a migration.
    pub fn kept_for(mut self, time: Duration) -> Self {
        self.kept_for = time;
        self
    }

    /// Runs the work, unless its tick is done or somebody has the key.
    ///
    /// The work runs at least once until it is done, and never again afterwards. Two of them never run at the same time
    /// while both may count on their lease; what a process that was paused writes after the loss of its lease, the
    /// resource has to refuse by the [fence](Lease::fence).
    ///
    /// The lease is kept alive. When it is lost, the work's future is dropped. A lease that somebody holds on the same key
    /// by an ordinary [`acquire`](crate::Leases::acquire) is as good as one of a job that runs: [`Once::Running`].
    ///
    /// # Errors
    ///
    /// [`OnceError`] says which of its steps failed. In [`OnceError::NotAcquired`] there is, among others,
    /// [`Error::OtherTickKind`] if the tick is of another kind than the last one that was done: they have no order.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the work and releases the lease. If the work had ended, the tick may be written as done.
    ///
    /// ```
    /// use chrono::NaiveDate;
    /// use leasehold::{Leases, MemoryStore, Once};
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
    ///         Once::Running(held) => println!("{} is at it", held.owner()),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<T, E>(
        self,
        work: impl AsyncFnOnce(&Lease) -> Result<T, E>,
    ) -> Result<Once<T>, OnceError<E>> {
        let lease = match self.acquire().await.map_err(OnceError::NotAcquired)? {
            OnceAttempt::Acquired(lease) => lease,
            OnceAttempt::Done(done) => return Ok(Once::Done(done)),
            OnceAttempt::Held(held) => return Ok(Once::Running(held)),
        };
        let key = lease.key().clone();
        let outcome = tokio::select! {
            // If the lease is lost and the work has ended, the loss counts.
            biased;
            reason = lease.lost() => Err(OnceError::Lost { key, reason }),
            outcome = work(&lease) => outcome.map_err(OnceError::Work),
        };
        match outcome {
            Ok(value) => match lease.complete().await {
                Ok(()) => Ok(Once::Ran(value)),
                Err(Error::Lost { key, reason }) => Err(OnceError::Lost { key, reason }),
                Err(error) => Err(OnceError::NotConfirmed(error)),
            },
            Err(error) => {
                // The work has failed, which is what is told. The release goes on in the background if it fails.
                let _ = lease.release().await;
                Err(error)
            }
        }
    }

    /// Asks for the lease under which the tick is to be done, for work that does not fit into a closure.
    /// [`OnceLease::complete`] writes the tick as done.
    ///
    /// # Errors
    ///
    /// As for [`TryAcquire`](crate::TryAcquire), and [`Error::OtherTickKind`] if the tick is of another kind than the last
    /// one that was done.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future at any point leaves no lock behind.
    pub async fn acquire(self) -> Result<OnceAttempt, Error> {
        let done = DoneTick {
            tick: self.tick,
            kept_for: self.kept_for,
        };
        let key = self.key?;
        match start::acquire(self.options, Ok(key.clone()), self.wait_policy).await {
            Ok(Attempt::Acquired(lease)) => Ok(OnceAttempt::Acquired(OnceLease { lease, done })),
            Ok(Attempt::Held(held)) | Err(Error::WaitTimedOut { held, .. }) => {
                telemetry::tick_running(&key, done.tick);
                Ok(OnceAttempt::Held(held))
            }
            Err(Error::Done(before)) => {
                telemetry::tick_done(&key, done.tick, &before);
                Ok(OnceAttempt::Done(before))
            }
            Err(error) => Err(error),
        }
    }
}

/// The answer to [`RunOnce::acquire`].
#[derive(Debug)]
#[must_use = "a lease that is dropped is released at once"]
pub enum OnceAttempt {
    /// The tick is to be done under this lease.
    Acquired(OnceLease),
    /// The tick was done before, or a later one was.
    Done(Done),
    /// Somebody has the key.
    Held(Held),
}

/// A lease under which a tick is to be done. It is kept alive, and is a [`Lease`] in all else.
///
/// If it is dropped the lease is released, and the tick is not done.
#[derive(Debug)]
#[must_use = "a lease that is dropped is released at once"]
pub struct OnceLease {
    lease: Lease,
    done: DoneTick,
}

impl OnceLease {
    /// The tick.
    pub fn tick(&self) -> Tick {
        self.done.tick
    }

    /// Writes that the tick is done, and releases the lease in the same step.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease is lost: the tick is not done. After any other error that a retry can mend the request
    /// is repeated in the background until the ttl is over, so the tick may be done by now, or may be run again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after its first poll, the request goes on in the background. Before that the lease is
    /// dropped, and the tick is not done.
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

    /// Releases the lease without a tick that was done: whoever asks next runs it again.
    ///
    /// # Errors
    ///
    /// As for [`Lease::release`].
    ///
    /// # Cancel safety
    ///
    /// As for [`Lease::release`].
    pub async fn release(self) -> Result<(), Error> {
        let failure = if self.lease.is_live() {
            "failed"
        } else {
            "lost"
        };
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

impl fmt::Debug for RunOnce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunOnce")
            .field("key", &self.key)
            .field("tick", &self.tick)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
