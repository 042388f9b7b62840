//! The ways in which a holder gives up its lease: a release, also with a tick that was done under it, a ticket for
//! another process, a detach, and the drop of the guard.

use std::time::Duration;

use tokio::time::Instant;
use tracing::Instrument;

use super::{guard::Lease, ticket::Ticket};
use crate::{
    key::{Departed, Departure, PolledCall, ReleaseOutcome},
    lease_state::EndedBefore,
    messages::{DoneTick, ReleaseAnswer},
    model::{Cause, Error, LeaseId, LossReason},
    release::Released,
    telemetry::{self, LeaseFields},
};

impl Lease {
    /// Releases the lease, and waits until the store has confirmed the release.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Error, Leases, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// let lease = leases.acquire("report:42", Duration::from_secs(30)).await?;
    /// match lease.release().await {
    ///     Err(Error::Lost { reason, .. }) => println!("the work may have overlapped: {reason}"),
    ///     other => other?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If another task of this process gets the key next, under the same lease, nothing is sent, and so too if the lease
    /// [stays](crate::Acquire::sticky). Then this does not tell of an eviction that the client has not heard of.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease was evicted, if the key was granted to another lease before this release, or if the
    /// lock's document was cleaned up after the lease had expired. The work under the lease may then have overlapped
    /// with the work of another holder. The error is also [`Error::Lost`] if the client is closed, because the close
    /// releases the lease itself. If the lease has expired, but the key was not granted again, the release succeeds.
    ///
    /// After another error that [a retry can fix](Error::is_retryable), and after [`Error::NoRuntime`], the release
    /// goes on in the background until the ttl is over. After any other error the release is not repeated, and the key
    /// is free when the ttl is over.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after its first poll, the release goes on in the background. If it is dropped before
    /// that, the guard is dropped, which releases the lease in the background too.
    pub async fn release(self) -> Result<(), Error> {
        let now = Instant::now();
        let lost_before = self.state.loss(now);
        // If the subscriber of the application panics in an event, the release goes on in the background.
        let call = PolledCall::new(&self.keys.lifecycle);
        let (departed, release) =
            self.give_up(telemetry::given_up, Departure::Released, call, now)?;
        if let Some(release) = release {
            let release = release.instrument(telemetry::release(self.state.fields()));
            let Released { answer, unclear } = release.await?;
            // If the answer to an earlier try was lost on the way, that try may have been carried out. But if the lease was
            // lost before the first try, it may be gone because of a takeover.
            if answer == ReleaseAnswer::NotHeld && !(unclear && lost_before.is_none()) {
                let reason = LossReason::TakenOver;
                if lost_before.is_none() {
                    telemetry::lost(self.state.fields(), &reason);
                }
                return Err(self.state.lost_error(reason));
            }
            // It may have expired, but the key was not granted again.
            return Ok(());
        }
        match lost_before {
            Some(LossReason::Expired) | None if departed.was_there => Ok(()),
            Some(reason) => Err(self.state.lost_error(reason)),
            // The close of the client releases the lease, and this does not wait for it.
            None => Err(self.closed()),
        }
    }

    /// Releases the lease, and writes the tick as done in the same step.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease is lost: the tick is not done. After another error the release goes on in the
    /// background until the ttl is over, so the tick may be done later.
    pub(crate) async fn complete(self, done: DoneTick) -> Result<(), Error> {
        let now = Instant::now();
        self.ensure_live(now)?;
        // If the subscriber of the application panics in an event, the release goes on in the background.
        let (call, how) = (PolledCall::new(&self.keys.lifecycle), Departure::Done(done));
        let (_, release) = self.give_up(telemetry::given_up, how, call, now)?;
        // The close of the client may have taken over the release of the lease, which writes no tick.
        let release = release.ok_or_else(|| self.closed())?;
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

    /// Gives up the guard without a release, and returns a ticket. Another process can continue the lease with it,
    /// until its ttl is over: [`Leases::resume`](crate::Leases::resume) has an example. Nothing is sent. The resumed
    /// lease has the same [minimum hold](crate::Acquire::min_hold) and [maximum hold](crate::Acquire::max_hold), which
    /// count from the grant by the server's clock.
    ///
    /// The ticket of a lease that was [granted from memory](crate::Acquire::sticky) is that of the lease in the store,
    /// whose fence is greater. From then on the key is not granted from memory any more. While other tasks have leases
    /// of the key from memory, it is the ticket of no lease: `resume` answers [`Resumed::Gone`](crate::Resumed::Gone),
    /// as for a lease that is lost. So it is if the client is closed, because the close releases the lease itself.
    pub fn into_ticket(self) -> Ticket {
        let given_away = self.give_away(Departure::Ticketed);
        // Nothing converts the lease from now on.
        let mut ticket = Ticket::of(&self.state);
        if given_away.is_err() {
            // Another call has ended the lease: its release would free the key under the process with the ticket. So
            // this is the ticket of a lease that does not exist, and it cannot be resumed.
            ticket.lease = LeaseId::random();
        }
        ticket
    }

    /// Gives up the guard without a release. The key stays held until the ttl is over, and the lease is not renewed any
    /// more. Nothing is sent. For a lease that was [granted from memory](crate::Acquire::sticky), it is the ttl of the
    /// lease in the store, of which a third may have passed.
    ///
    /// For a job that must run once per tick of a schedule, use [`Leases::once`](crate::Leases::once).
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease is lost, so that the key may be free: also if the client is closed, because the close
    /// releases the lease itself.
    pub fn detach(self) -> Result<(), Error> {
        let lost_before = self.ensure_live(Instant::now());
        let detached = self.give_away(Departure::Detached);
        lost_before.and(detached)
    }

    /// Gives up the guard, so that its lease is not released.
    fn give_away(&self, how: Departure) -> Result<(), Error> {
        let now = Instant::now();
        // If the lease stays, other tasks may have the key after a guard that is lost.
        let how = if self.state.is_live(now) || !self.keys.stays(&self.state) {
            how
        } else {
            Departure::Released
        };
        let (departed, _) = self.give_up(telemetry::detached, how, None, now)?;
        if departed.detaches {
            Ok(())
        } else {
            Err(self.closed())
        }
    }

    /// Gives up the guard, and reports that with how long it was held. Returns the outcome of the release, if the lease
    /// goes back with it. Fails if a close has ended the lease: it releases the lease itself.
    fn give_up(
        &self,
        report: fn(LeaseFields<'_>, Duration),
        how: Departure,
        call: Option<PolledCall>,
        now: Instant,
    ) -> Result<(Departed, Option<ReleaseOutcome>), Error> {
        let closed = |EndedBefore| self.closed();
        let ended = self.state.end(now).map_err(closed)?;
        let (departed, release) = self.keys.depart(&self.state, how, now, call);
        let held = now.saturating_duration_since(self.state.times.since);
        telemetry::harmless_in_a_panic(|| {
            self.state.report_end(ended);
            report(self.state.fields(), held);
        });
        Ok((departed, release.map_err(closed)?))
    }

    /// The error if another call than that of the guard has ended the lease: only the close of the client does.
    fn closed(&self) -> Error {
        let loss = self.state.loss(Instant::now());
        self.state.lost_error(loss.unwrap_or(LossReason::Closed))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let now = Instant::now();
        // It fails if the guard was given up before.
        let _ = self.give_up(telemetry::given_up, Departure::Released, None, now);
    }
}
