//! Several keys at once.

use std::{collections::BTreeSet, future::IntoFuture, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use tokio::time::Instant;
use tracing::Instrument;

use super::{
    attempt::Attempt,
    context::AcquireContext,
    operation,
    options::{LeaseOptions, lease_options},
};
use crate::{
    lease::LeaseSet,
    model::{Error, Key, WaitPolicy},
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
    ask: LeaseOptions,
    patience: WaitPolicy,
}

lease_options!(AcquireAll);

impl AcquireAll {
    pub(crate) fn new(
        context: Arc<AcquireContext>,
        keys: impl IntoIterator<Item = Result<Key, Error>>,
        ttl: Duration,
    ) -> Self {
        Self {
            keys: keys.into_iter().collect(),
            ask: LeaseOptions::new(context, ttl),
            patience: WaitPolicy::Endless,
        }
    }

    /// Waits this long for all of the keys together; without it, for as long as it takes.
    pub fn wait_for(mut self, patience: Duration) -> Self {
        self.patience = WaitPolicy::For(patience);
        self
    }

    async fn run(self) -> Result<LeaseSet, Error> {
        let start = Instant::now();
        let keys = self.keys?;
        let mut taken = LeaseSet::new();
        for key in &keys {
            let mut ask = self.ask.clone();
            // The first ones have to live until the last one is there.
            ask.keep_alive |= keys.len() > 1;
            // Once the set has leases it does not give way: they would be held for nothing meanwhile.
            ask.gives_way &= taken.leases().is_empty();
            let patience = match self.patience {
                WaitPolicy::For(wait) => WaitPolicy::For(wait.saturating_sub(start.elapsed())),
                patience => patience,
            };
            let outcome = operation::acquire_one_of_several(ask, Ok(key.clone()), patience).await;
            match outcome.and_then(Attempt::acquired) {
                Ok(lease) => taken.push(lease),
                Err(error) => return Err(taken.give_back(error).await),
            }
        }
        if keys.len() > 1 && !self.ask.keep_alive {
            for lease in taken.leases() {
                lease.state().keep(false);
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
        for lease in taken.leases() {
            lease.state().set_min_hold(self.ask.min_hold);
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
