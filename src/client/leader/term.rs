//! `Term`: the time for which a process leads, under one lease.

use std::fmt;

use tokio_util::sync::CancellationToken;

use crate::{
    lease::Lease,
    model::{Fence, Key, LossReason},
};

/// The time for which this process leads: given to the work of [`Leader::run`](crate::Leader::run).
///
/// The term ends when the work ends, when its lease is lost, by [`resign`](Term::resign), or when the client
/// [closes](crate::Leases::close). The work's future is dropped then, where it awaits. Tasks that the work has spawned
/// are told by [`cancellation_token`](Term::cancellation_token).
///
/// A process that is paused past the end of its lease goes on writing when it wakes up, until it awaits. Where that
/// matters, hand the [`fence`](Term::fence) to the protected resource, and let the resource refuse an older fence.
pub struct Term {
    lease: Lease,
    resigned: CancellationToken,
}

/// How a term ended.
pub(super) enum TermEnd<E> {
    /// The work ended.
    Finished,
    /// The work failed.
    Failed(E),
    /// The lease was lost; also by the close of the client.
    Lost(LossReason),
    /// The work resigned.
    Resigned,
}

impl Term {
    pub(super) fn new(lease: Lease) -> Self {
        lease.state().set_awaited();
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
            // If the lease is lost and the work has ended, the loss counts: the work may have ended after the loss.
            biased;
            reason = self.lease.lost() => TermEnd::Lost(reason),
            () = self.resigned.cancelled() => TermEnd::Resigned,
            done = work(self) => match done {
                Ok(()) => TermEnd::Finished,
                Err(error) => TermEnd::Failed(error),
            },
        }
    }

    /// The lease of a term that has ended.
    pub(super) fn into_lease(self) -> Lease {
        self.lease
    }

    /// The fencing token of the term: greater than that of every earlier term.
    pub fn fence(&self) -> Fence {
        self.lease.fence()
    }

    /// The key that names what is led.
    pub fn key(&self) -> &Key {
        self.lease.key()
    }

    /// The owner that followers see as the leader.
    pub fn owner(&self) -> &str {
        self.lease.owner()
    }

    /// Waits until the lease of the term is lost, and gives the reason, as [`Lease::lost`] does.
    ///
    /// The work itself is stopped at a loss, so it seldom has to wait for one.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a later call waits for the same loss.
    pub async fn lost(&self) -> LossReason {
        self.lease.lost().await
    }

    /// Waits until the lease of the term is at risk, or lost: bring the work to a safe point then. A renewal may still
    /// succeed after that. [`Lease::at_risk`] says when a lease is at risk.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a call keeps nothing for the next.
    pub async fn at_risk(&self) {
        self.lease.at_risk().await;
    }

    /// A token that is cancelled as soon as the term ends, in whichever way. Use it in tasks that the work spawns,
    /// because those are not dropped with the work. Another term has another token.
    ///
    /// A task on the runtime of the first call watches the lease, as for [`Lease::cancellation_token`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Error, Leases, MemoryStore};
    /// # async fn serve() {}
    /// # async fn example(leases: Leases) -> Result<(), Error> {
    /// let leader = leases.leader("scheduler", Duration::from_secs(10));
    /// let work = async |term: &leasehold::Term| {
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

    /// Ends the term: the work's future is dropped at its next await, the lease is released, and the process campaigns
    /// again, behind the others that wait. The call itself only asks for that, and returns at once.
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
