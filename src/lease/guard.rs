//! `Lease`, the guard of a lease: the calls of its holder. `give_up.rs` releases a lease whose guard is dropped.
//!
//! Invariants: a lease is given up exactly once, by a release, a detach, the drop of the guard, or a close, whichever
//! comes first. A request that was sent runs to its end, even if the future that waits for it is dropped.

use std::{fmt, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::{
    key::{Granted, Keys},
    lease_state::LeaseState,
    messages::only_renewal,
    model::{Error, Fence, Key, LeaseId, LossReason, Mode},
    retry::Tries,
    runtime::{self, suspension::SentAt},
    store::Store,
    telemetry,
};

/// The guard of a lease: the key is held until the guard is released or dropped, or the lease expires.
///
/// Dropping the guard releases the lease in the background. The drop only queues the release for a task, so it
/// works outside of a runtime too and does not block. But the caller does not learn whether the release
/// succeeded. [`Lease::release`] waits and reports.
///
/// A runtime that ends ends its tasks. So a guard that is dropped at the end of `main` may stay held until its ttl is
/// over, and on a current-thread runtime it always does. End `main` with [`Leases::close`](crate::Leases::close), which
/// waits for all releases.
///
/// ```
/// # use std::time::Duration;
/// # use leasehold::{Leases, MemoryStore};
/// # async fn work() -> std::io::Result<()> { Ok(()) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let leases = Leases::new(MemoryStore::new());
/// let lease = leases.acquire("report:42", Duration::from_secs(30)).keep_alive().await?;
/// tokio::select! {
///     done = work() => done?,
///     reason = lease.lost() => return Err(reason.into()),
/// }
/// lease.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// While [`is_live`](Lease::is_live) is `true`, no other lease that conflicts with this one is granted, unless an
/// operator evicts this one. The holder learns of an eviction from its next renewal, and one whose lease
/// [stays](crate::Acquire::sticky) within half a second.
///
/// The clock of this process measures the lease, and the time in which the machine is suspended counts.
///
/// The process may be paused for any length of time between a call of `is_live` and the work that depends on it. Where
/// such a pause matters, pass the [`fence`](Lease::fence) to the protected resource, and let the resource refuse an
/// older fence.
///
/// # Loss
///
/// A lease is lost when it expires on the clock of this process, which is before it expires on the server;
/// when the store answers a renewal or a conversion that the lease has expired, was evicted or was taken
/// over; when its [maximum hold](crate::Acquire::max_hold) is over; or when the client
/// [closes](crate::Leases::close), or ends with [its runtime](crate::Leases#its-runtime). A lost lease stays lost. [`lost`](Lease::lost)
/// waits for the loss, [`cancellation_token`](Lease::cancellation_token) tells other tasks of the loss, and
/// [`at_risk`](Lease::at_risk) warns before the loss.
#[must_use = "a lease that is dropped is released at once"]
pub struct Lease {
    pub(crate) keys: Arc<Keys>,
    pub(crate) state: Arc<LeaseState>,
}

impl Lease {
    /// The lease of a task that has got this guard.
    pub(crate) fn new(keys: Arc<Keys>, guard: Granted) -> Self {
        let state = guard.state;
        let lease = Self { keys, state };
        // If the subscriber of the application panics, the lease is dropped, which gives up the guard.
        if !guard.is_first {
            telemetry::granted_from_memory(lease.state.fields());
        }
        telemetry::guard_created();
        lease
    }

    /// Sets the minimum hold and the maximum hold, which counts from this instant.
    pub(crate) fn set_holds(&self, [min_hold, max_hold]: [Option<Duration>; 2], from: Instant) {
        if min_hold.is_some() {
            let stored = self.state.stored();
            stored.set_release_terms(|terms| terms.min_hold = min_hold);
        }
        if let Some(max_hold) = max_hold {
            self.keys.set_max_hold(&self.state, max_hold, from);
        }
    }

    /// Fails if the lease is lost.
    pub(crate) fn ensure_live(&self, now: Instant) -> Result<(), Error> {
        let loss = self.state.loss(now);
        loss.map_or(Ok(()), |reason| Err(self.state.lost_error(reason)))
    }

    /// The key that is held.
    pub fn key(&self) -> &Key {
        self.state.key()
    }

    /// The lease id: the name of this grant in the lock's document. Guards that tasks of
    /// this process get under one lease, from memory, have the same id.
    pub fn id(&self) -> LeaseId {
        self.state.id()
    }

    /// Whether the lease is exclusive, shared, or a lease of permits. [`upgrade`](Lease::upgrade) and
    /// [`downgrade`](Lease::downgrade) change the mode.
    pub fn mode(&self) -> Mode {
        self.state.mode()
    }

    /// The fencing token. It is greater than the fence of every earlier grant of the key. A
    /// [reentrant](crate::Acquire::reentrant) lease has the fence of the lease that its owner already holds. An
    /// [`upgrade`](Lease::upgrade) gives the lease a new fence.
    pub fn fence(&self) -> Fence {
        self.state.fence()
    }

    /// The owner that the acquire named. Other processes see this owner as the holder of the key.
    pub fn owner(&self) -> &str {
        &self.state.request().owner
    }

    /// The time to live: how long the lease lives after its grant, and after each renewal.
    pub fn ttl(&self) -> Duration {
        self.state.ttl()
    }

    /// When the lease was granted, on the server's clock.
    pub fn acquired_at(&self) -> DateTime<Utc> {
        self.state.acquired_at()
    }

    /// How long the holder may count on the lease without a renewal. Zero once the lease is lost.
    ///
    /// The clock of this process measures the time, from the instant before the request was sent. The clock margin is
    /// subtracted. So the time ends before the server grants the key to another lease.
    pub fn remaining(&self) -> Duration {
        self.state.remaining(Instant::now())
    }

    /// The instant at which the lease is lost unless it is renewed, on the clock of this process. The lease
    /// may be lost earlier: see [`is_live`](Lease::is_live). It is never later than the
    /// [`max_hold_deadline`](Lease::max_hold_deadline).
    pub fn deadline(&self) -> Instant {
        self.state.deadline()
    }

    /// The instant at which the [maximum hold](crate::Acquire::max_hold) is over, on the clock of this process. No
    /// renewal moves the [`deadline`](Lease::deadline) past it. `None` if the lease has no maximum hold.
    pub fn max_hold_deadline(&self) -> Option<Instant> {
        self.state.max_hold_deadline()
    }

    /// Whether the holder may still count on the lease. Once this is `false`, it stays `false`. It sends nothing.
    pub fn is_live(&self) -> bool {
        self.state.is_live(Instant::now())
    }

    /// Waits until the lease is lost, and returns the reason. The example of [`Lease`] uses it.
    ///
    /// The wait ends at the [`deadline`](Lease::deadline), even while a renewal hangs. It ends earlier if the answer to
    /// a renewal, by [`keep_alive`](crate::Acquire::keep_alive) or by [`renew`](Lease::renew), says that the lease is
    /// lost. Without renewals no request reaches the server, so an eviction is noticed only at the deadline.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a later call waits for the same loss.
    pub async fn lost(&self) -> LossReason {
        self.state.lost().await
    }

    /// Waits until the lease is at risk, or lost. The holder should then bring its work to a safe point.
    ///
    /// A lease is at risk in three cases:
    ///
    /// - At most a third of its ttl is left, and the last renewal failed.
    /// - It is kept alive, about a third of its ttl is left, and its renewal, which was due when two thirds were left,
    ///   has not succeeded.
    /// - At most a third of its ttl is left until its [maximum hold](crate::Acquire::max_hold) is over.
    ///
    /// A lease that is not kept alive, and has no maximum hold and no failed renewal, is not at risk before it is lost.
    ///
    /// [`remaining`](Lease::remaining) says how much time is left. A renewal may still succeed, unless the maximum hold
    /// is the reason. While the lease is at risk, a later call returns at once.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::Lease;
    /// # async fn next_step() -> bool { false }
    /// # async fn save() {}
    /// # async fn example(lease: Lease) {
    /// loop {
    ///     tokio::select! {
    ///         more = next_step() => if !more { break },
    ///         () = lease.at_risk() => {
    ///             save().await; // Another holder can continue from here.
    ///             break;
    ///         }
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a later call checks the lease anew.
    pub async fn at_risk(&self) {
        self.state.at_risk().await;
    }

    /// Returns a token that is cancelled as soon as the lease is lost, released, dropped or detached. Use the token in
    /// tasks that cannot borrow the guard.
    ///
    /// A task on [the runtime of the handle](crate::Leases#its-runtime) watches the lease.
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
            let state = self.state.clone();
            self.keys.lifecycle.spawn(async move {
                state.lost_or_ended().await;
                drop(guard);
            });
            token
        });
        // The token is a child, so that a caller that cancels it does not cancel the tokens of other callers.
        token.child_token()
    }

    /// Renews the lease: it lives for another ttl from now. An error that a retry can fix is returned only after
    /// three tries.
    ///
    /// Guards that were granted from memory renew the lease that they share, so they learn of a loss as any other.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// let lease = leases.acquire("report:42", Duration::from_secs(30)).await?;
    /// for chapter in 1..=3 {
    ///     // Write the chapter, which takes a few seconds.
    ///     lease.renew().await?;
    /// }
    /// lease.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease is lost: the work that depends on it must stop. After any other error the lease is
    /// still live for the time that [`remaining`](Lease::remaining) returns, and the call can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a renewal that was sent runs to its end, and extends the lease if it is answered in time.
    pub async fn renew(&self) -> Result<(), Error> {
        let span = telemetry::renew(self.state.fields());
        let mut tries = Tries::default();
        loop {
            let now = Instant::now();
            self.ensure_live(now)?;
            // An answer after the deadline comes too late to extend the lease.
            let limit = self.keys.call_timeout().min(self.state.remaining(now));
            let renewal = self.renew_once(limit).instrument(span.clone());
            let Err(error) = renewal.await else {
                return Ok(());
            };
            tries.pause(error, self.remaining()).await?;
        }
    }

    /// Sends a renewal, and waits at most `limit` for the answer. An answer that comes later extends the lease too,
    /// whether or not the holder still waits.
    async fn renew_once(&self, limit: Duration) -> Result<(), Error> {
        let (keys, guard) = (self.keys.clone(), self.state.clone());
        let renewing = |store: Arc<dyn Store>| async move {
            let (stored, sent) = (guard.stored(), SentAt::now());
            let answers = runtime::caught(store.renew(&[stored.begin_renewal()])).await;
            stored.apply_renewal(sent, only_renewal(answers))?;
            keys.extend(&guard, false)
        };
        let outcome = self.keys.call("renew", limit, renewing).await;
        if let Err(error @ Error::TimedOut { .. }) = &outcome {
            self.state.stored().failed(error.clone());
        }
        outcome
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
