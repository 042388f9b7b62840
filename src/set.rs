//! Several keys at once.

use std::{collections::BTreeSet, fmt, future::IntoFuture, sync::Arc, time::Duration};

use futures::{
    future::{BoxFuture, join_all, select_all},
    stream::{FuturesOrdered, TryStreamExt},
};
use tokio::time::Instant;
use tracing::Instrument;

use crate::{
    acquire::Attempt,
    acquisition::{self, Patience},
    ask::{Ask, lease_options},
    lease::Lease,
    leases::Shared,
    model::{Error, Key, LossReason},
    telemetry,
};

/// A request for several keys, all or nothing, made by
/// [`Leases::acquire_all`](crate::Leases::acquire_all). Await it.
///
/// The keys are taken one after the other in the order of their bytes, each once. That order is the same
/// for everybody, so two callers who want the same keys never wait for each other in a circle. What is
/// taken already is kept alive while the rest is waited for.
///
/// # Errors
///
/// As for [`Acquire`](crate::Acquire), for the first key that cannot be had, and
/// [`Error::Lost`] if one was lost while another was waited for. What was taken is released before the
/// error is told, without the [`min_hold`](AcquireAll::min_hold), which only counts once the whole set is
/// there.
///
/// # Cancel safety
///
/// Dropping the future at any point leaves no lock behind, as for [`Acquire`](crate::Acquire).
#[derive(Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct AcquireAll {
    keys: Result<BTreeSet<Key>, Error>,
    ask: Ask,
    patience: Patience,
}

lease_options!(AcquireAll);

impl AcquireAll {
    pub(crate) fn new(
        shared: Arc<Shared>,
        keys: impl IntoIterator<Item = Result<Key, Error>>,
        ttl: Duration,
    ) -> Self {
        Self {
            keys: keys.into_iter().collect(),
            ask: Ask::new(shared, ttl),
            patience: Patience::Endless,
        }
    }

    /// Waits this long for all of the keys together; without it, for as long as it takes.
    pub fn wait_for(mut self, patience: Duration) -> Self {
        self.patience = Patience::For(patience);
        self
    }

    async fn run(self) -> Result<LeaseSet, Error> {
        let start = Instant::now();
        let keys = self.keys?;
        let mut taken = LeaseSet { leases: Vec::new() };
        for key in &keys {
            let mut ask = self.ask.clone();
            // The first ones have to live until the last one is there.
            ask.keep_alive |= keys.len() > 1;
            // Those that it has already would be held meanwhile.
            ask.gives_way &= taken.leases.is_empty();
            let patience = match self.patience {
                Patience::For(wait) => Patience::For(wait.saturating_sub(start.elapsed())),
                patience => patience,
            };
            let outcome = acquisition::acquire_one_of_several(ask, Ok(key.clone()), patience).await;
            match outcome.and_then(Attempt::acquired) {
                Ok(lease) => taken.leases.push(lease),
                Err(error) => return Err(taken.give_back(error).await),
            }
        }
        if keys.len() > 1 && !self.ask.keep_alive {
            for lease in &taken.leases {
                lease.hold().keep(false);
            }
            // Where it took long, each has its whole ttl from here on.
            let long = start.elapsed() >= self.ask.ttl / 10;
            if long && let Err(error) = taken.renew().await {
                return Err(taken.give_back(error).await);
            }
        }
        if let Some(error) = taken.loss() {
            return Err(taken.give_back(error).await);
        }
        for lease in &taken.leases {
            lease.hold().set_min_hold(self.ask.min_hold);
        }
        Ok(taken)
    }
}

impl IntoFuture for AcquireAll {
    type Output = Result<LeaseSet, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let since = Instant::now();
            let keys = self.keys.as_ref().ok().map(BTreeSet::len);
            let span = telemetry::acquire_all(keys, self.ask.fields());
            let taken = self.run().instrument(span.clone()).await;
            telemetry::acquired_all(&span, since, taken.as_ref().err());
            taken
        })
    }
}

/// The guard of several locks, which are held and lost together.
///
/// Dropping it releases them in the background, as for a [`Lease`].
#[must_use = "leases that are dropped are released at once"]
pub struct LeaseSet {
    leases: Vec<Lease>,
}

impl LeaseSet {
    /// The single leases, in the order of their keys.
    pub fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// The lease on this key; `None` if it was not asked for.
    pub fn get(&self, key: impl AsRef<str>) -> Option<&Lease> {
        let key = key.as_ref();
        self.leases.iter().find(|lease| lease.key().as_str() == key)
    }

    /// Whether all of them may still be counted on. Once this is `false` it stays so.
    pub fn is_live(&self) -> bool {
        self.leases.iter().all(Lease::is_live)
    }

    /// How long all of them may be counted on without a renewal; zero once one is lost.
    pub fn remaining(&self) -> Duration {
        let remaining = self.leases.iter().map(Lease::remaining);
        remaining.min().unwrap_or(Duration::MAX)
    }

    /// Waits until one of them is lost, and says which and why. A set without keys is never lost.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a later call waits for the same loss.
    pub async fn lost(&self) -> (&Key, LossReason) {
        if self.leases.is_empty() {
            return std::future::pending().await;
        }
        let losses = self
            .leases
            .iter()
            .map(|lease| Box::pin(async move { (lease.key(), lease.lost().await) }));
        select_all(losses).await.0
    }

    /// Waits until one of them is at risk, or lost: see [`Lease::at_risk`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a later call looks anew.
    pub async fn at_risk(&self) {
        if self.leases.is_empty() {
            return std::future::pending().await;
        }
        select_all(self.leases.iter().map(|lease| Box::pin(lease.at_risk()))).await;
    }

    /// Gives each of them its ttl anew.
    ///
    /// # Errors
    ///
    /// The first error of one of them, as for [`Lease::renew`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, as [`Lease::renew`].
    pub async fn renew(&self) -> Result<(), Error> {
        let renewals: FuturesOrdered<_> = self.leases.iter().map(Lease::renew).collect();
        renewals.try_collect().await
    }

    /// Frees all of the keys and waits until the store has confirmed it.
    ///
    /// # Errors
    ///
    /// The first error of one of them, as for [`Lease::release`]. The others are released all the
    /// same.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future goes on with the releases in the background.
    pub async fn release(self) -> Result<(), Error> {
        let releases = self.leases.into_iter().map(Lease::release);
        join_all(releases).await.into_iter().collect()
    }

    /// The guards one by one, which from now on have nothing to do with each other.
    pub fn into_leases(self) -> Vec<Lease> {
        self.leases
    }

    fn loss(&self) -> Option<Error> {
        let lost = |lease: &Lease| {
            let hold = lease.hold();
            hold.loss(Instant::now())
                .map(|reason| hold.lost_error(reason))
        };
        self.leases.iter().find_map(lost)
    }

    async fn give_back(self, error: Error) -> Error {
        // Why it is given back is what the caller wants to know.
        let _ = self.release().await;
        error
    }
}

impl fmt::Debug for LeaseSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.leases).finish()
    }
}
