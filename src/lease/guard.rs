//! The guard of a held lock.

use std::{fmt, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{registry::LeaseRegistry, requests, ticket::Ticket};
#[cfg(feature = "mongodb")]
use crate::store::Store;
use crate::{
    coalescer::Batching,
    lease_state::LeaseState,
    messages::{ConvertRequest, ReleaseAnswer},
    model::{Error, Fence, Held, Key, LeaseId, LossReason, Mode},
    release::{Released, Releaser},
    retry::Tries,
    telemetry::{self, Outcome},
};

/// The answer to [`Lease::upgrade`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "an upgrade may be refused"]
pub enum Upgrade {
    /// The lease is exclusive now.
    Exclusive,
    /// Others hold the key too, so the lease is shared as before.
    Held(Held),
}

/// A lock that is held until it is released, dropped, or runs out of time.
///
/// Dropping it releases it in the background: that is a message to a task, so it works anywhere
/// and takes no time, but nobody learns whether it succeeded, and a program that ends right after
/// it may end before it was carried out. [`Lease::release`] waits and reports, and
/// [`Leases::close`](crate::Leases::close) waits for all.
///
/// # What it guarantees
///
/// While [`is_live`](Lease::is_live) says so, no other lease that conflicts with it is granted, unless
/// an operator evicts it: that is heard of with the next renewal. The clock of this process counts,
/// which stands still while its machine is suspended: [`renew`](Lease::renew) after that. Between the
/// look and what is done on its strength the process may be paused for any length of time; where
/// that matters, hand the [`fence`](Lease::fence) to the protected resource and let it refuse an
/// older one.
///
/// # Losing it
///
/// A lease is lost when its time is over here, which is before it is over on the server, or when a
/// renewal is told that it was evicted or taken over. It then stays lost. [`lost`](Lease::lost)
/// waits for that, [`cancellation_token`](Lease::cancellation_token) hands it to other tasks, and
/// [`at_risk`](Lease::at_risk) warns before it.
#[must_use = "a lease that is dropped is released at once"]
pub struct Lease {
    registry: Arc<LeaseRegistry>,
    state: Arc<LeaseState>,
}

impl Lease {
    /// How its release is sent.
    pub(super) fn releaser(&self) -> &Releaser {
        &self.registry.releaser
    }

    pub(crate) fn new(registry: Arc<LeaseRegistry>, state: LeaseState) -> Self {
        let state = Arc::new(state);
        registry.granted(&state);
        Self { registry, state }
    }

    /// Keeps it alive from now on.
    pub(crate) fn keep(&self) -> Result<(), Error> {
        self.registry.renewals.keep(&self.state)
    }

    pub(crate) fn is_live_at(&self, now: Instant) -> bool {
        self.state.is_live(now)
    }

    pub(crate) fn state(&self) -> Arc<LeaseState> {
        self.state.clone()
    }

    #[cfg(feature = "mongodb")]
    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.registry.store
    }

    /// The key that is held.
    pub fn key(&self) -> &Key {
        self.state.key()
    }

    /// The name of this grant, as it stands in the lock's document.
    pub fn id(&self) -> LeaseId {
        self.state.id()
    }

    /// What it allows beside itself. It changes with [`upgrade`](Lease::upgrade) and
    /// [`downgrade`](Lease::downgrade).
    pub fn mode(&self) -> Mode {
        self.state.mode()
    }

    /// The fencing token: greater than that of every earlier grant of the key. A
    /// [reentrant](crate::Acquire::reentrant) lease has that of its owner, and an
    /// [`upgrade`](Lease::upgrade) has a new one.
    pub fn fence(&self) -> Fence {
        self.state.fence()
    }

    /// Who holds it, as others see it.
    pub fn owner(&self) -> &str {
        &self.state.request().owner
    }

    /// The time to live that each renewal gives anew.
    pub fn ttl(&self) -> Duration {
        self.state.ttl()
    }

    /// When it was granted, on the server's clock.
    pub fn acquired_at(&self) -> DateTime<Utc> {
        self.state.acquired_at()
    }

    /// How long the lease may be counted on without a renewal; zero once it is lost.
    ///
    /// This is by the clock of this process, from the instant before the request was sent, less
    /// the clock margin: it is over before the server gives the key to another.
    pub fn remaining(&self) -> Duration {
        self.state.remaining(Instant::now())
    }

    /// The instant at which the lease is lost unless it is renewed, on the clock of this process. It
    /// may be lost before that: see [`is_live`](Lease::is_live).
    pub fn deadline(&self) -> Instant {
        self.state.deadline()
    }

    /// Whether the lease may still be counted on. Once this is `false` it stays so.
    pub fn is_live(&self) -> bool {
        self.is_live_at(Instant::now())
    }

    /// Waits until the lease is lost, and says why.
    ///
    /// It ends at the [`deadline`](Lease::deadline) even while a renewal hangs, and as soon as a
    /// renewal, by [`keep_alive`](crate::Acquire::keep_alive) or by [`renew`](Lease::renew), is
    /// answered that the lease is over. Without renewals nobody asks the server: an eviction shows
    /// no earlier than the deadline.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, and made for `tokio::select!`: a later call waits for the same loss.
    pub async fn lost(&self) -> LossReason {
        self.state.lost().await
    }

    /// Waits until the lease is at risk: less than about a third of the ttl is left, and a renewal has failed
    /// with none that succeeded since; or it is kept alive, and should have been renewed long ago. Time to
    /// bring work to a safe point. It also ends when the lease is lost.
    ///
    /// The lease may recover: ask [`remaining`](Lease::remaining), or wait again.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a later call looks anew.
    pub async fn at_risk(&self) {
        self.state.at_risk().await;
    }

    /// A token that is cancelled as soon as the lease must not be counted on any more: it is lost,
    /// released, dropped or detached. For tasks that outlive a borrow of the guard.
    ///
    /// The lease is watched by a task on the runtime of the first call, and the token is cancelled when that
    /// ends.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// # async fn serve() {}
    /// let lease = leases.acquire("leader", Duration::from_secs(10)).keep_alive().await?;
    /// let stop = lease.cancellation_token();
    /// let server = tokio::spawn(async move { stop.run_until_cancelled(serve()).await });
    /// # drop(lease);
    /// # server.await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancellation_token(&self) -> CancellationToken {
        let token = self.state.token.get_or_init(|| {
            let token = CancellationToken::new();
            let guard = token.clone().drop_guard();
            self.registry.renewals.tell(&self.state, guard);
            token
        });
        // A child, so that a caller who cancels the token does not cancel those of others.
        token.child_token()
    }

    /// Gives the lease its ttl anew, counted from now.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease is over: stop what depends on it. Any other error leaves the
    /// lease as it was, live for what [`remaining`](Lease::remaining) says, and the renewal may be
    /// tried again.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a renewal that was sent runs to its end, and counts if it succeeds in time.
    pub async fn renew(&self) -> Result<(), Error> {
        let span = telemetry::renew(self.state.fields());
        let mut tries = Tries::default();
        loop {
            let now = Instant::now();
            if let Some(reason) = self.state.loss(now) {
                return Err(self.state.lost_error(reason));
            }
            // An answer after the deadline is of no use.
            let limit = self.registry.call_timeout.min(self.state.remaining(now));
            let (store, state) = (self.registry.store.clone(), self.state());
            let renewal = requests::renew_now(store, state, limit);
            let Err(error) = renewal.instrument(span.clone()).await else {
                return Ok(());
            };
            match tries.pause_after(&error) {
                Some(pause) => tokio::time::sleep(pause.min(self.remaining())).await,
                None => return Err(error),
            }
        }
    }

    /// Makes a shared lease exclusive, if nobody else holds the key: an answer, and never a wait, so
    /// two readers that both want to write do not block each other for ever. One that is exclusive
    /// already stays so.
    ///
    /// The lease has a new [`fence`](Lease::fence) then, greater than those of all who shared the key
    /// with it.
    ///
    /// # Errors
    ///
    /// As for [`renew`](Lease::renew). After an error that
    /// [is ambiguous](Error::is_ambiguous) the lease may be exclusive in the store and not here:
    /// repeat the call.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop an upgrade that was sent, and
    /// [`mode`](Lease::mode) tells of it when it is answered.
    pub async fn upgrade(&self) -> Result<Upgrade, Error> {
        let request = ConvertRequest::upgrade(self.key().clone(), self.id());
        Ok(match self.convert(request).await? {
            None => Upgrade::Exclusive,
            Some(held) => Upgrade::Held(held),
        })
    }

    /// Makes an exclusive lease shared, and lets those in who wait to share the key. One that is
    /// shared already stays so. The fence stays as it is.
    ///
    /// # Errors
    ///
    /// As for [`renew`](Lease::renew).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop a downgrade that was sent, and
    /// [`mode`](Lease::mode) tells of it when it is answered.
    pub async fn downgrade(&self) -> Result<(), Error> {
        let request = ConvertRequest::downgrade(self.key().clone(), self.id());
        match self.convert(request).await? {
            None => Ok(()),
            // The rules refuse only permits.
            Some(_) => Err(Error::InvalidConversion),
        }
    }

    /// Converts the lease; gives back the holders that are in the way.
    async fn convert(&self, request: ConvertRequest) -> Result<Option<Held>, Error> {
        let mode = request.conversion.mode();
        let span = telemetry::convert(self.state.fields(), mode);
        let converted = self.try_to_convert(request).instrument(span.clone()).await;
        let (outcome, error) = match &converted {
            Ok(None) => (Outcome::Granted, None),
            Ok(Some(_)) => (Outcome::Held, None),
            Err(error) => (Outcome::of(error), Some(error)),
        };
        telemetry::converted(&span, self.state.fields(), mode, outcome, error);
        converted
    }

    async fn try_to_convert(&self, request: ConvertRequest) -> Result<Option<Held>, Error> {
        if self.mode() == Mode::Permits {
            return Err(Error::InvalidConversion);
        }
        let mut tries = Tries::default();
        loop {
            if let Some(reason) = self.state.loss(Instant::now()) {
                return Err(self.state.lost_error(reason));
            }
            let limit = self.registry.call_timeout.min(self.remaining());
            let of = (self.registry.store.clone(), self.registry.queues.clone());
            let outcome = requests::convert(of, self.state(), request.clone(), limit).await;
            let error = match outcome {
                Err(error) => error,
                converted => return converted,
            };
            match tries.pause_after(&error) {
                Some(pause) => tokio::time::sleep(pause.min(self.remaining())).await,
                None => return Err(error),
            }
        }
    }

    /// Frees the key now and waits until the store has confirmed it.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease was evicted, if somebody else was granted the key before this release,
    /// or if its document was cleaned up since it expired: what was done under the lease may have
    /// overlapped with the work of another. A lease that expired, with nobody granted since, is released
    /// like any other. After any other error the release goes on in the background until the ttl is over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future goes on with the release in the background.
    pub async fn release(self) -> Result<(), Error> {
        self.release_with(Batching::Any).await
    }

    /// The same. The releases of a set have to be [sent](Releaser::send_set) when all of them are submitted.
    pub(super) async fn release_with(self, batching: Batching) -> Result<(), Error> {
        let now = Instant::now();
        let lost_before = self.state.loss(now);
        let Some(pending) = self.registry.end(&self.state, now) else {
            // A close has released it, and still does.
            return Err(self.state.lost_error(LossReason::Closed));
        };
        let release = self.registry.release(pending, batching, now);
        let release = release.instrument(telemetry::release(self.state.fields()));
        let Released { answer, unclear } = release.await?;
        match answer {
            ReleaseAnswer::Released => Ok(()),
            // An earlier try was carried out, and its answer got lost. But what was over before the
            // first try may have been another's by then.
            ReleaseAnswer::NotHeld if unclear && lost_before.is_none() => Ok(()),
            ReleaseAnswer::NotHeld => {
                let reason = LossReason::TakenOver;
                if lost_before.is_none() {
                    telemetry::lost(self.state.fields(), &reason);
                }
                Err(self.state.lost_error(reason))
            }
        }
    }

    /// Lets go of the guard, and gives what another process needs to go on with the lease, before its ttl
    /// is over: see [`Leases::resume`](crate::Leases::resume).
    pub fn into_ticket(self) -> Ticket {
        let ticket = Ticket::of(&self.state);
        self.detach();
        ticket
    }

    /// Lets go of the guard and leaves the key held until its ttl is over.
    ///
    /// For a job that must run once per tick of a schedule, by whoever comes first: take a key that
    /// names the tick, and detach the lease when the work is done. A scheduler that comes a little
    /// later finds the key held. (`examples/more/run_once.rs`)
    pub fn detach(self) {
        self.registry.detach(&self.state);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.registry.abandon(&self.state);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("key", self.key())
            .field("id", &self.id())
            .field("fence", &self.fence())
            .field("mode", &self.mode())
            .field("owner", &self.owner())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
