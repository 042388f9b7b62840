//! The guard of a lease: what its holder can ask and do, and the release when the guard is dropped.
//!
//! Invariants: the lease is given up exactly once, by a release, a detach, the drop of the guard, or a close, whichever
//! comes first. A request that was sent runs to its end, also if the future that waits for it is dropped.

use std::{fmt, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{registry::LeaseRegistry, requests, ticket::Ticket};
#[cfg(feature = "mongodb")]
use crate::store::Store;
use crate::{
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
    /// Other leases hold the key too, so the lease stays shared.
    Held(Held),
}

/// A lock that is held until it is released, dropped, or expires.
///
/// Dropping the guard releases the lease in the background. The drop only queues the release for a task, so it
/// works outside of a runtime too and does not block. But the caller does not learn whether the release
/// succeeded, and a program that ends right after the drop may end before the release was sent.
/// [`Lease::release`] waits and reports, and [`Leases::close`](crate::Leases::close) waits for all releases.
///
/// # Guarantees
///
/// While [`is_live`](Lease::is_live) is `true`, no other lease that conflicts with this one is granted,
/// unless an operator evicts this one: the holder learns of the eviction from the next renewal. The lease is
/// measured on the clock of this process, which may stand still while its machine is suspended: call
/// [`renew`](Lease::renew) after a suspension. The process may be paused for any length of time between a call of
/// `is_live` and the work that depends on it. Where such a pause matters, hand the [`fence`](Lease::fence) to the
/// protected resource, and let the resource refuse an older fence.
///
/// # Loss
///
/// A lease is lost when it expires on the clock of this process, which is before it expires on the server;
/// when the store answers a renewal or a conversion that the lease has expired, was evicted or was taken
/// over; when its [maximum hold](crate::Acquire::max_hold) is over; or when the client
/// [closes](crate::Leases::close). A lost lease stays lost. [`lost`](Lease::lost)
/// waits for the loss, [`cancellation_token`](Lease::cancellation_token) tells other tasks of the loss, and
/// [`at_risk`](Lease::at_risk) warns before the loss.
#[must_use = "a lease that is dropped is released at once"]
pub struct Lease {
    pub(super) registry: Arc<LeaseRegistry>,
    pub(super) state: Arc<LeaseState>,
}

impl Lease {
    /// The releaser, which sends the release of this lease.
    pub(super) fn releaser(&self) -> &Releaser {
        &self.registry.releaser
    }

    pub(crate) fn new(registry: Arc<LeaseRegistry>, state: LeaseState) -> Self {
        let state = Arc::new(state);
        registry.granted(&state);
        Self { registry, state }
    }

    /// The guard of a lease that was resumed. Fails if the client closes; and without a tokio runtime, if the lease is to
    /// be kept alive. The lease is not released then.
    pub(crate) fn resumed(
        registry: Arc<LeaseRegistry>,
        state: LeaseState,
        keep_alive: bool,
    ) -> Result<Self, Error> {
        let state = Arc::new(state);
        if keep_alive {
            registry.renewals.keep(&state)?;
        }
        registry.resumed(&state)?;
        Ok(Self { registry, state })
    }

    /// Keeps the lease alive from now on. Fails without a tokio runtime.
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

    /// The lease id: the name of this grant in the lock's document.
    pub fn id(&self) -> LeaseId {
        self.state.id()
    }

    /// Whether the lease is exclusive, shared, or one of permits. [`upgrade`](Lease::upgrade) and
    /// [`downgrade`](Lease::downgrade) change the mode.
    pub fn mode(&self) -> Mode {
        self.state.mode()
    }

    /// The fencing token: greater than that of every earlier grant of the key. A
    /// [reentrant](crate::Acquire::reentrant) lease has the fence of the lease that its owner holds already.
    /// An [`upgrade`](Lease::upgrade) gives the lease a new fence.
    pub fn fence(&self) -> Fence {
        self.state.fence()
    }

    /// The owner that the acquire named. Other processes see this owner as the holder of the key.
    pub fn owner(&self) -> &str {
        &self.state.request().owner
    }

    /// The time to live: how long the lease lives from its grant, and from each renewal.
    pub fn ttl(&self) -> Duration {
        self.state.ttl()
    }

    /// When the lease was granted, on the server's clock.
    pub fn acquired_at(&self) -> DateTime<Utc> {
        self.state.acquired_at()
    }

    /// How long the holder may count on the lease without a renewal; zero once the lease is lost.
    ///
    /// The time is measured on the clock of this process, from the instant before the request was sent, and is
    /// shorter by the clock margin. So the time ends before the server grants the key to another lease.
    pub fn remaining(&self) -> Duration {
        self.state.remaining(Instant::now())
    }

    /// The instant at which the lease is lost unless it is renewed, on the clock of this process. The lease
    /// may be lost earlier: see [`is_live`](Lease::is_live). It is never later than the
    /// [`max_hold_deadline`](Lease::max_hold_deadline).
    pub fn deadline(&self) -> Instant {
        self.state.deadline()
    }

    /// The instant at which the [maximum hold](crate::Acquire::max_hold) is over, on the clock of this process: no
    /// renewal puts the [`deadline`](Lease::deadline) past it. `None` if the lease has no maximum hold.
    pub fn max_hold_deadline(&self) -> Option<Instant> {
        self.state.max_hold_deadline()
    }

    /// Whether the holder may still count on the lease. Once this is `false` it stays so.
    pub fn is_live(&self) -> bool {
        self.is_live_at(Instant::now())
    }

    /// Waits until the lease is lost, and gives the reason.
    ///
    /// The wait ends at the [`deadline`](Lease::deadline) even while a renewal hangs, and as soon as the store
    /// answers a renewal, by [`keep_alive`](crate::Acquire::keep_alive) or by [`renew`](Lease::renew), that
    /// the lease is over. Without renewals no request asks the server, so an eviction is noticed only at the
    /// deadline.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a later call waits for the same loss.
    pub async fn lost(&self) -> LossReason {
        self.state.lost().await
    }

    /// Waits until the lease is at risk, or lost: bring the work to a safe point then.
    ///
    /// A lease is at risk when about a third of its ttl is left, and either the last renewal failed, or the
    /// lease is kept alive and its renewal, which was due at two thirds, has not succeeded. A lease that is not
    /// kept alive, and of which no renewal failed, is not at risk before it is lost. A lease with a
    /// [maximum hold](crate::Acquire::max_hold) is also at risk when a third of its ttl is left before the end of
    /// that.
    ///
    /// A renewal may still succeed after that, unless the maximum hold is the reason: ask [`remaining`](Lease::remaining), or wait again.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a call keeps nothing for the next.
    pub async fn at_risk(&self) {
        self.state.at_risk().await;
    }

    /// A token that is cancelled as soon as the lease is lost, released, dropped or detached. Use the token in
    /// tasks that cannot borrow the guard.
    ///
    /// A task on the runtime of the first call watches the lease, and the token is cancelled too when that
    /// runtime ends. If the first call is outside of a tokio runtime, a runtime from which leases were acquired
    /// runs that task; if none is left, the token is cancelled at once.
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
            self.registry.renewals.cancel_on_loss(&self.state, guard);
            token
        });
        // The token is a child, so that a caller that cancels it does not cancel the tokens of other callers.
        token.child_token()
    }

    /// Gives the lease its ttl anew, counted from now. An error that a retry can mend is returned only after
    /// three tries.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease is lost: stop what depends on it. After any other error the lease is live
    /// for the time that [`remaining`](Lease::remaining) gives, and the call can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a renewal that was sent runs to its end, and extends the lease if it is answered in time.
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

    /// Makes a shared lease exclusive, if no other lease holds the key. The call does not wait for other
    /// holders, because two shared holders that both upgrade would wait for each other for ever. A lease that is
    /// exclusive already stays as it is.
    ///
    /// A lease that was shared has a new [`fence`](Lease::fence) then, greater than those of all leases that
    /// shared the key with it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConversion`] for a lease of permits; otherwise as for [`renew`](Lease::renew). After an
    /// error that [is ambiguous](Error::is_ambiguous) the lease may be exclusive in the store although
    /// [`mode`](Lease::mode) says that it is shared: repeat the call.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop an upgrade that was sent. [`mode`](Lease::mode) changes when the
    /// upgrade is answered.
    pub async fn upgrade(&self) -> Result<Upgrade, Error> {
        let request = ConvertRequest::upgrade(self.key().clone(), self.id());
        Ok(match self.convert(request).await? {
            None => Upgrade::Exclusive,
            Some(held) => Upgrade::Held(held),
        })
    }

    /// Makes an exclusive lease shared, so that waiters for a shared lease are granted the key. A lease that is
    /// shared already stays as it is. The fence does not change.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConversion`] for a lease of permits; otherwise as for [`renew`](Lease::renew). After an
    /// error that [is ambiguous](Error::is_ambiguous) the lease may be shared in the store although
    /// [`mode`](Lease::mode) says that it is exclusive: repeat the call.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop a downgrade that was sent. [`mode`](Lease::mode) changes when the
    /// downgrade is answered.
    pub async fn downgrade(&self) -> Result<(), Error> {
        let request = ConvertRequest::downgrade(self.key().clone(), self.id());
        match self.convert(request).await? {
            None => Ok(()),
            // Other holders never refuse a downgrade. Only a lease of permits cannot become shared.
            Some(_) => Err(Error::InvalidConversion),
        }
    }

    /// Converts the lease. `Some` with the other holders if they prevent the conversion.
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

    /// Frees the key now and waits until the store has confirmed the release.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease was evicted, if the key was granted to another lease before this release, or
    /// if the lock's document was cleaned up after the lease had expired: the work under the lease may have
    /// overlapped with the work of another holder. Also if the client is closed, because the close releases the
    /// lease itself. A lease that expired, with no other grant since, is released without an error.
    ///
    /// After another error that [a retry can mend](Error::is_retryable), and after [`Error::NoRuntime`], the
    /// release goes on in the background until the ttl is over. After any other error the release is given up,
    /// and the key is free when the ttl is over.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after its first poll, the release goes on in the background; before that, the
    /// guard is dropped, which releases the lease too.
    pub async fn release(self) -> Result<(), Error> {
        let now = Instant::now();
        let lost_before = self.state.loss(now);
        let Some(pending) = self.registry.end(&self.state, now) else {
            // A close has given up the lease, and releases it.
            return Err(self.state.lost_error(LossReason::Closed));
        };
        let release = self.registry.release(pending, now);
        let release = release.instrument(telemetry::release(self.state.fields()));
        let Released { answer, unclear } = release.await?;
        match answer {
            ReleaseAnswer::Released => Ok(()),
            // An earlier try was carried out, and its answer got lost. But if the lease was lost before the first try,
            // a takeover may be the reason instead.
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

    /// Gives up the guard without a release, and returns the ticket with which another process can go on with the
    /// lease until its ttl is over: see [`Leases::resume`](crate::Leases::resume). Nothing is sent. The resumed lease
    /// has the same minimum and [maximum hold](crate::Acquire::max_hold), which count from the grant by the server's
    /// clock.
    pub fn into_ticket(self) -> Ticket {
        let ticket = Ticket::of(&self.state);
        self.detach();
        ticket
    }

    /// Gives up the guard without a release: the key stays held until the ttl is over. The lease is not renewed
    /// any more. Nothing is sent.
    ///
    /// For a job that must run once per tick of a schedule there is [`Leases::once`](crate::Leases::once).
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
