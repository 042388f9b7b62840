//! Several keys at once.

use std::{
    collections::BTreeSet,
    future::{IntoFuture, poll_fn},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::future::{BoxFuture, join_all};
use tokio::time::Instant;
use tracing::Instrument;

use super::{
    attempt::Attempt,
    context::AcquireContext,
    operation,
    options::{LeaseOptions, lease_options},
};
use crate::{
    coalescer::Batching,
    lease::LeaseSet,
    model::{Error, Key, WaitPolicy},
    telemetry,
};

/// A request for several keys, all or nothing, made by
/// [`Leases::acquire_all`](crate::Leases::acquire_all). Await it.
///
/// All keys are asked for in one go first, in one or two round trips. If some of them are not free, those that were
/// granted are given back, and the keys are taken one after the other in the order of their bytes, each once. That
/// order is the same for everybody, so two callers who want the same keys never wait for each other in a circle. What
/// is taken already is kept alive while the rest is waited for.
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

    async fn run(mut self) -> Result<LeaseSet, Error> {
        let start = Instant::now();
        let keys = self.keys.clone()?;
        if self.ask.gives_way
            && let Some(first) = keys.first()
        {
            // Once for all keys, and not while some of them are held for nothing.
            let (context, ttl) = (&self.ask.context, self.ask.ttl);
            operation::give_way(context, first, ttl, self.patience, start).await;
            self.ask.gives_way = false;
        }
        let taken = match self.take_in_one_go(&keys, start).await? {
            Some(taken) => taken,
            None => self.take_in_order(&keys, start).await?,
        };
        for lease in taken.leases() {
            lease.state().set_min_hold(self.ask.min_hold);
        }
        Ok(taken)
    }

    /// Gives each of them its whole ttl from here on, where taking them took long.
    async fn refresh(&self, taken: &LeaseSet, start: Instant) -> Result<(), Error> {
        if !self.ask.keep_alive && start.elapsed() >= self.ask.ttl / 10 {
            taken.renew().await?;
        }
        taken.loss().map_or(Ok(()), Err)
    }

    /// Asks for all keys at the same time, once, and waits for none. `None` if they were not all free: then nothing is
    /// left of it.
    async fn take_in_one_go(
        &self,
        keys: &BTreeSet<Key>,
        start: Instant,
    ) -> Result<Option<LeaseSet>, Error> {
        if keys.len() < 2 {
            return Ok(None);
        }
        let coalescer = &self.ask.context.coalescer;
        let asked = keys.iter().map(|key| {
            let (ask, key) = (self.ask.clone(), Ok(key.clone()));
            operation::acquire_one_of_several(ask, key, WaitPolicy::None, Batching::Set)
        });
        let mut asked = pin!(join_all(asked));
        let mut is_sent = false;
        let answers = poll_fn(|cx| {
            let answers = asked.as_mut().poll(cx);
            // The first poll has submitted all of them.
            if !std::mem::replace(&mut is_sent, true) {
                coalescer.send_set();
            }
            answers
        });
        let (mut taken, mut is_whole, mut fatal) = (LeaseSet::new(), true, Ok(()));
        for answer in answers.await {
            match answer {
                Ok(Attempt::Acquired(lease)) => taken.push(lease),
                Ok(Attempt::Held(_)) => is_whole = false,
                Err(error) => {
                    is_whole = false;
                    if !error.is_retryable() && fatal.is_ok() {
                        fatal = Err(error);
                    }
                }
            }
        }
        // One that was granted long before the last, and not kept alive meanwhile, may be over.
        if is_whole && self.refresh(&taken, start).await.is_ok() {
            return Ok(Some(taken));
        }
        // A release that fails goes on in the background, and its key is waited for.
        let _ = taken.release().await;
        fatal.map(|()| None)
    }

    async fn take_in_order(&self, keys: &BTreeSet<Key>, start: Instant) -> Result<LeaseSet, Error> {
        let mut taken = LeaseSet::new();
        for key in keys {
            let mut ask = self.ask.clone();
            // The first ones have to live until the last one is there.
            ask.keep_alive |= keys.len() > 1;
            let patience = match self.patience {
                WaitPolicy::For(wait) => WaitPolicy::For(wait.saturating_sub(start.elapsed())),
                patience => patience,
            };
            let key = Ok(key.clone());
            let outcome = operation::acquire_one_of_several(ask, key, patience, Batching::Any);
            match outcome.await.and_then(Attempt::acquired) {
                Ok(lease) => taken.push(lease),
                Err(error) => return Err(taken.give_back(error).await),
            }
        }
        if !self.ask.keep_alive {
            for lease in taken.leases() {
                lease.state().keep(false);
            }
        }
        match self.refresh(&taken, start).await {
            Ok(()) => Ok(taken),
            Err(error) => Err(taken.give_back(error).await),
        }
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
