//! `Term`: the time for which a process leads, under one lease.

use std::fmt;

use tokio_util::sync::CancellationToken;

use crate::{
    lease::Lease,
    model::{Fence, Key, LossReason},
};

/// The time for which this process leads, under one lease. [`Leader::run`](crate::jobs::Leader::run) passes it to the
/// work.
///
/// The term ends when the work ends, when its lease is lost, by [`resign`](Term::resign), or when the client
/// [closes](crate::Leases::close). The work's future is then dropped at its current await. Tasks that the work has
/// spawned go on: use [`cancellation_token`](Term::cancellation_token) to stop them.
///
/// A process that is paused past the end of its lease goes on writing when it wakes up, until its next await. Where
/// that matters, pass the [`fence`](Term::fence) to the protected resource, and let the resource refuse an older fence.
pub struct Term {
    lease: Lease,
    resigned: CancellationToken,
}

/// How a term ended.
pub(super) enum TermEnd<E> {
    /// The work returned `Ok`, or called [`Term::resign`]: the word for it.
    Over(&'static str),
    /// The work returned an error.
    Failed(E),
    /// The lease was lost, or the client was closed.
    Lost(LossReason),
}

impl Term {
    pub(super) fn new(lease: Lease) -> Self {
        let stored = lease.state.stored();
        stored.set_release_terms(|terms| terms.is_awaited = true);
        Self {
            lease,
            resigned: CancellationToken::new(),
        }
    }

    /// Runs the work until the term ends.
    pub(super) async fn run<E>(
        &self,
        work: &mut impl AsyncFnMut(&Term) -> Result<(), E>,
    ) -> TermEnd<E> {
        tokio::select! {
            // The loss is checked first: if the lease is lost and the work has ended, the work may have ended after the
            // loss.
            biased;
            reason = self.lease.lost() => TermEnd::Lost(reason),
            () = self.resigned.cancelled() => TermEnd::Over("resigned"),
            done = work(self) => match done {
                Ok(()) => TermEnd::Over("finished"),
                Err(error) => TermEnd::Failed(error),
            },
        }
    }

    /// Releases the lease of a term that has ended, and waits for the answer, so that this process campaigns behind the
    /// processes that wait.
    pub(super) async fn release(self) {
        // The release reports an error as an event, and goes on in the background if a retry can help.
        let _ = self.lease.release().await;
    }

    /// The fencing token of the term. It is greater than the fence of every earlier term.
    pub fn fence(&self) -> Fence {
        self.lease.fence()
    }

    /// The key that the leader holds.
    pub fn key(&self) -> &Key {
        self.lease.key()
    }

    /// The owner that followers see as the leader.
    pub fn owner(&self) -> &str {
        self.lease.owner()
    }

    /// Waits until the lease of the term is lost, and returns the reason, as [`Lease::lost`] does.
    ///
    /// [`Leader::run`](crate::jobs::Leader::run) stops the work at a loss, so the work seldom has to call this.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a later call waits for the same loss.
    pub async fn lost(&self) -> LossReason {
        self.lease.lost().await
    }

    /// Waits until the lease of the term is at risk, or lost. The work should then come to a safe point. A renewal may
    /// still succeed after that. [`Lease::at_risk`] says when a lease is at risk.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a later call checks the lease anew.
    pub async fn at_risk(&self) {
        self.lease.at_risk().await;
    }

    /// Returns a token that is cancelled as soon as the term ends, for any reason. Use it in tasks that the work
    /// spawns, because those are not dropped with the work. Each term has a token of its own.
    ///
    /// A task watches the lease, as for [`Lease::cancellation_token`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Error, Leases, MemoryStore};
    /// # async fn serve() {}
    /// # async fn example(leases: Leases) -> Result<(), Error> {
    /// let leader = leases.leader("scheduler", Duration::from_secs(10));
    /// let work = async |term: &leasehold::jobs::Term| {
    ///     let stop = term.cancellation_token();
    ///     let server = tokio::spawn(async move { stop.run_until_cancelled(serve()).await });
    ///     server.await.map(drop)
    /// };
    /// leader.run(work).await
    /// # }
    /// ```
    pub fn cancellation_token(&self) -> CancellationToken {
        self.lease.cancellation_token()
    }

    /// Ends the term. This call only requests the end, and returns at once. Then the work's future is dropped at its
    /// next await, the lease is released, and this process campaigns again, behind the processes that wait.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Error, Leases, jobs::Term};
    /// # async fn serve() -> std::io::Result<()> { Ok(()) }
    /// # async fn overloaded() {}
    /// # async fn example(leases: Leases) -> Result<(), Error> {
    /// let work = async |term: &Term| {
    ///     tokio::select! {
    ///         served = serve() => served,
    ///         () = overloaded() => {
    ///             term.resign();
    ///             Ok(()) // Another process can lead now.
    ///         }
    ///     }
    /// };
    /// leases.leader("scheduler", Duration::from_secs(10)).run(work).await
    /// # }
    /// ```
    pub fn resign(&self) {
        self.resigned.cancel();
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term")
            .field("key", self.key())
            .field("owner", &self.owner())
            .field("fence", &self.fence())
            .finish_non_exhaustive()
    }
}
