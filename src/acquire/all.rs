//! `AcquireAll`: an acquire of several keys, all or none.

use std::{collections::BTreeSet, future::IntoFuture, time::Duration};

use futures::future::{BoxFuture, join_all};
use tokio::time::Instant;
use tracing::Instrument;

use super::{
    options::{LeaseOptions, lease_options},
    start::{self, Attempt},
};
use crate::{
    lease::LeaseSet,
    model::{Error, Key, WaitPolicy},
    telemetry,
};

/// A request for several keys, all or none, made by [`Leases::acquire_all`](crate::Leases::acquire_all). Await it.
///
/// The acquire first requests all keys at the same time. MongoDB, Elasticsearch and OpenSearch get these requests in
/// batches. If some keys are held, the acquire releases the leases that it was granted, and acquires the keys one after
/// the other in the order of their bytes. Every caller uses that order, so two callers that want the same keys cannot
/// deadlock. The granted leases are renewed while the acquire waits for the rest, even if its future is not polled: an
/// application should drop a future that it does not await any more. The acquire has a place in the queue of the key
/// that it waits for, and of no other.
///
/// A [`min_hold`](AcquireAll::min_hold) applies once the whole set is granted, and counts from the grant of each lease.
/// A [`max_hold`](AcquireAll::max_hold) also applies then, and counts from the last grant of the set, for all leases.
///
/// ```
/// # use std::time::Duration;
/// # use leasehold::{Error, Leases, MemoryStore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let leases = Leases::new(MemoryStore::new());
/// let keys = ["account:3", "account:7"];
/// let acquire = leases.acquire_all(keys, Duration::from_secs(30)).wait_for(Duration::from_secs(5));
/// match acquire.await {
///     Ok(both) => both.release().await?,
///     Err(Error::WaitTimedOut { held, .. }) => println!("{} is held by {}", held.key(), held.owner()),
///     Err(error) => return Err(error),
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As for [`Acquire`](crate::Acquire), for the first key that was not granted, and [`Error::Lost`] if one lease
/// was lost while the acquire waited for another key. The granted leases are released before the error is
/// returned, whatever their minimum hold. A release that fails goes on in the background.
///
/// # Cancel safety
///
/// Dropping the future at any point leaves no lock behind, as for [`Acquire`](crate::Acquire).
#[derive(Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct AcquireAll {
    pub(crate) keys: Result<BTreeSet<Key>, Error>,
    pub(crate) options: LeaseOptions,
}

lease_options!(AcquireAll);

impl AcquireAll {
    /// Bounds the wait for all keys together. Without this option the wait has no bound.
    pub fn wait_for(mut self, time: Duration) -> Self {
        self.options.wait_policy = WaitPolicy::For(time);
        self
    }

    async fn run(self) -> Result<LeaseSet, Error> {
        let start = Instant::now();
        let (options, keys) = (&self.options, self.keys.clone()?);
        if options.keep_alive
            && let Some(first) = keys.first()
        {
            // The set waits for late renewals once, before it holds any key, and not for each key.
            start::wait_for_renewals(options, first, options.asked.ttl, start).await;
        }
        let taken = match self.take_in_one_go(&keys, start).await? {
            Some(taken) => taken,
            None => self.take_in_order(&keys, start).await?,
        };
        let granted = taken.leases.iter().map(|it| it.state.times.granted_at);
        if let Some(granted) = granted.max() {
            for lease in &taken.leases {
                lease.set_holds(options.holds(), granted);
            }
        }
        Ok(taken)
    }

    /// Renews the leases if the acquire took more than a tenth of the ttl, so that the caller gets most of the ttl.
    /// Fails if a lease was lost. Leases that are kept alive are renewed in the background anyway.
    async fn refresh(&self, taken: &LeaseSet, start: Instant) -> Result<(), Error> {
        if !self.options.keep_alive && start.elapsed() >= self.options.asked.ttl / 10 {
            taken.renew().await?;
        }
        let mut leases = taken.leases.iter();
        leases.try_for_each(|lease| lease.ensure_live(Instant::now()))
    }

    /// Requests all keys at the same time, once, without waiting for a holder. `None` if not all keys were granted: the
    /// granted leases are then released.
    async fn take_in_one_go(
        &self,
        keys: &BTreeSet<Key>,
        start: Instant,
    ) -> Result<Option<LeaseSet>, Error> {
        if keys.len() < 2 {
            return Ok(None);
        }
        let asked = keys.iter().map(|key| {
            let mut options = self.options.clone();
            options.wait_policy = WaitPolicy::None;
            start::acquire(options, Ok(key.clone()))
        });
        let coalescer = &self.options.context.keys.releaser.coalescer;
        let answers = coalescer.send_together(join_all(asked)).await;
        let (mut leases, mut fatal) = (Vec::new(), None);
        for answer in answers {
            match answer {
                Ok(Attempt::Acquired(lease)) => leases.push(lease),
                Err(error) if !error.is_retryable() && fatal.is_none() => fatal = Some(error),
                Ok(Attempt::Held(_)) | Err(_) => {}
            }
        }
        let taken = LeaseSet { leases };
        // The first lease may have expired before the last one was granted, because no lease is renewed meanwhile.
        let is_whole = taken.leases.len() == keys.len();
        if is_whole && self.refresh(&taken, start).await.is_ok() {
            return Ok(Some(taken));
        }
        // The next attempt waits for the key of a lease whose release goes on.
        taken.give_back().await;
        fatal.map_or(Ok(None), Err)
    }

    async fn take_in_order(&self, keys: &BTreeSet<Key>, start: Instant) -> Result<LeaseSet, Error> {
        let mut taken = LeaseSet { leases: Vec::new() };
        let taking = async {
            for key in keys {
                let mut options = self.options.clone();
                // The first leases must stay live until the last one is granted.
                options.keep_alive |= keys.len() > 1;
                if let WaitPolicy::For(wait) = &mut options.wait_policy {
                    *wait = wait.saturating_sub(start.elapsed());
                }
                let attempt = start::acquire(options, Ok(key.clone())).await?;
                taken.leases.push(attempt.acquired()?);
            }
            if !self.options.keep_alive {
                for lease in &taken.leases {
                    lease.keys.keep_no_longer(&lease.state);
                }
            }
            self.refresh(&taken, start).await
        };
        if let Err(error) = taking.await {
            taken.give_back().await;
            return Err(error);
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
            let span = telemetry::acquire_all(keys, self.options.fields());
            let taken = self.run().instrument(span.clone()).await;
            telemetry::acquired_all(&span, since, taken.as_ref().err());
            taken
        })
    }
}
