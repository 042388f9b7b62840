//! `Leader`: campaigns for a key, runs work while this process holds it, and campaigns again when the term is over.
//!
//! Invariant: the work runs only under a live lease. However a term ends, also by a panic or a drop, the work is
//! dropped before the guard of its lease.

mod term;
mod watch;

use std::{fmt, sync::Arc, time::Duration};

use tokio::{
    sync::watch::Receiver,
    time::{Instant, sleep},
};
use tracing::Instrument;

use self::term::TermEnd;
pub use self::{term::Term, watch::Leading};
use crate::{
    acquire::Acquire,
    model::{Error, LossReason},
    random, retry,
    telemetry::{self, TermSpan},
};

/// The pause between the first failure of the work and the next campaign, before jitter. It doubles with each term in a row
/// whose work fails.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(60);
/// After a term that lasted at least this long, the pauses start again with the shortest one.
const LASTING: Duration = LONGEST;

/// A candidate for leader, made by [`Leases::leader`](crate::Leases::leader). Of all candidates that campaign for a key
/// one leads, and the others wait.
///
/// ```
/// # use std::time::Duration;
/// # use leasehold::{Error, Leases, MemoryStore, jobs::Term};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// # let leases = Leases::new(MemoryStore::new());
/// let leader = leases.leader("scheduler", Duration::from_secs(10)).note("v7");
/// # let handle = leases.clone();
/// let work = async |term: &Term| {
///     println!("leading with fence {}", term.fence());
///     # handle.close().await;
///     Ok::<_, std::io::Error>(())
/// };
/// leader.run(work).await // Returns when the client closes.
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nobody campaigns until it is run"]
pub struct Leader {
    pub(super) acquire: Acquire,
}

impl Leader {
    /// Sets the owner that followers see as the leader, 1 to 512 bytes of text. The default is the [owner of the
    /// handle](crate::LeasesBuilder::owner).
    pub fn owner(mut self, owner: impl Into<Arc<str>>) -> Self {
        self.acquire = self.acquire.owner(owner);
        self
    }

    /// Sets a note for people and followers, of at most [`MAX_NOTE_BYTES`](crate::limits::MAX_NOTE_BYTES) bytes: the
    /// address at which the leader serves, for example. A note must not contain secrets.
    pub fn note(mut self, note: impl Into<Arc<str>>) -> Self {
        self.acquire = self.acquire.note(note);
        self
    }

    /// Bounds a term, so that work that hangs does not lead for ever. A third of the ttl before the time is over the
    /// term is [at risk](crate::jobs::Term::at_risk). Then its lease is lost, the work's future is dropped at its
    /// current await, the lease is released, and this process campaigns again, behind the processes that wait. The time
    /// is at least the ttl. See [`Acquire::max_hold`](crate::Acquire::max_hold).
    pub fn max_hold(mut self, time: Duration) -> Self {
        self.acquire = self.acquire.max_hold(time);
        self
    }

    /// Campaigns for the key, and runs the work while this process leads. When a term is over it campaigns again, until
    /// the client [closes](crate::Leases::close).
    ///
    /// The lease of a term is [kept alive](crate::Acquire::keep_alive). How a term ends, and what follows:
    ///
    /// - The work returns `Ok`: the lease is released, and this process campaigns again at once, behind the processes
    ///   that wait. If this process is to lead for as long as it can, the work must not return.
    /// - The work returns an error: the lease is released, and this process campaigns again after a pause, in which
    ///   another process can lead. The pause doubles from 1 s up to a minute, and starts again with 1 s after a term
    ///   that lasted for a minute. The text of the error is written into an event (`docs/observability.md`), so it must
    ///   not contain secrets.
    /// - [`Term::resign`] is called: the work's future is dropped at its current await, the lease is released, and this
    ///   process campaigns again, behind the processes that wait.
    /// - The lease is lost: the work's future is dropped at its current await, and this process campaigns again. If the
    ///   reason is the end of its [maximum hold](Self::max_hold), that is behind the processes that wait.
    /// - The client closes: the work's future is dropped at its current await, the close releases the lease, and this
    ///   call returns `Ok`.
    /// - The work panics: the panic propagates to the caller, and the lease is released in the background.
    ///
    /// Two errors of the compiler, and what mends them:
    ///
    /// - ``implementation of `Send` is not general enough``, where the call is spawned: write `async move |term:
    ///   &Term|`, so that the work borrows nothing.
    /// - ``type annotations needed``, for work that never returns: write the type of its error,
    ///   `async |term: &Term| -> Result<(), Infallible>`.
    ///
    /// When a lease is released, the next leader is granted the key like a waiter of
    /// [`Leases::acquire`](crate::Leases::acquire): at once in the same process, and also in another process if the
    /// store [reports freed keys](crate::Store::freed) and the term lasted for a quarter of a second. Otherwise it is
    /// granted the key with its next request, after a second at most. When a leader dies, the others wait for the rest
    /// of its ttl.
    ///
    /// # Errors
    ///
    /// Only errors that a retry cannot fix: an error whose name begins with `Invalid`, [`Error::NoRuntime`] outside a
    /// tokio runtime, [`Error::RuntimeEnded`], and the error of a store that refuses the credentials, is not prepared, or has a document for the
    /// key that is not a lock. While the store does not answer, the campaign goes on.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the campaign. If this process leads, the work is dropped, and the lease is released in
    /// the background.
    pub async fn run<E: fmt::Display>(
        self,
        mut work: impl AsyncFnMut(&Term) -> Result<(), E>,
    ) -> Result<(), Error> {
        let (mut failures, mut unanswered) = (0, 0);
        loop {
            let lease = match self.acquire.clone().await {
                Ok(lease) => lease,
                Err(Error::Closed) => return Ok(()),
                Err(error) if error.is_retryable() => {
                    let pause = retry::pause(unanswered, retry::LONGEST_PAUSE, random::fraction());
                    telemetry::campaign_failed(self.acquire.key.as_ref().ok(), pause, &error);
                    self.pause(pause).await;
                    unanswered = unanswered.saturating_add(1);
                    continue;
                }
                Err(error) => return Err(error),
            };
            unanswered = 0;
            let began = Instant::now();
            let span = TermSpan::begin(lease.state.fields(), lease.owner());
            let term = Term::new(lease);
            let end = term.run(&mut work).instrument(span.span.clone()).await;
            if began.elapsed() >= LASTING {
                failures = 0;
            }
            match end {
                TermEnd::Over(outcome) => {
                    span.end(outcome, None);
                    term.release().await;
                }
                TermEnd::Failed(error) => {
                    let chance = random::fraction();
                    let pause = retry::pause_from(FIRST, failures, LONGEST, chance);
                    failures = failures.saturating_add(1);
                    span.end("failed", Some((&error, pause)));
                    term.release().await;
                    self.pause(pause).await;
                }
                TermEnd::Lost(LossReason::Closed) => {
                    span.end("closed", None);
                    return Ok(());
                }
                TermEnd::Lost(reason) => {
                    span.end("lost", None);
                    // The store still has the lease after this reason. After another one the guard is dropped, which
                    // releases the lease in the background, in case the store still has it.
                    if matches!(reason, LossReason::HeldTooLong) {
                        term.release().await;
                    }
                }
            }
        }
    }

    /// Returns a receiver of the current leader. Its value is `None` until the first read, and while no process leads.
    ///
    /// A task reads the key twice a second. It also reads it at once when this client releases the key, or the store
    /// [reports](crate::Store::freed) that the key became free. So a follower sees a new leader within a second if the
    /// store answers in time, and at once if the last term ended by a release that the store reports. A term that is
    /// shorter than that may be missed.
    ///
    /// When reads fail, an event reports it. The last value stays until the lease that was read would have expired, and
    /// is `None` from then on: nobody is known to lead. It is also `None` once the client closes.
    ///
    /// The value may be out of date. Only a live [`Term`] shows for sure that this process leads.
    ///
    /// Each call starts a task on [the runtime of the handle](crate::Leases#its-runtime), so clone the receiver instead of calling this again. The task
    /// ends when all receivers are dropped or the client closes. From then on
    /// [`changed`](tokio::sync::watch::Receiver::changed) returns an error. It does so at once if the key is invalid,
    /// or if this is called outside of a tokio runtime.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Error, Leases, MemoryStore};
    /// # async fn example(leases: Leases) {
    /// let mut leading = leases.leader("scheduler", Duration::from_secs(10)).watch();
    /// while leading.changed().await.is_ok() {
    ///     match &*leading.borrow_and_update() {
    ///         Some(leader) => println!("{} leads since {}", leader.owner, leader.since),
    ///         None => println!("there is no leader"),
    ///     }
    /// }
    /// # }
    /// ```
    pub fn watch(&self) -> Receiver<Option<Leading>> {
        watch::watch(&self.acquire.options.context.keys, self.acquire.key.clone())
    }

    /// Sleeps for `pause`, or until the client closes.
    async fn pause(&self, pause: Duration) {
        let closing = &self.acquire.options.context.keys.lifecycle.closing;
        let _ = closing.run_until_cancelled(sleep(pause)).await;
    }
}
