//! When the streams of a store are opened, and opened again: that of the keys which become free, and that of the keys
//! for which processes begin to wait. The same holds for both.

use std::{future::IntoFuture, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream, stream::BoxStream};
use leasehold::{
    Error, Leases, MemoryStore, Store,
    store::{AwaitedKeys, Cause, FreedKeys},
};
use leasehold_tests::layer::{Layer, Layered};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::{MOMENT, TTL};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// What happens to a stream that is opened.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// The store does not answer.
    Hangs,
    /// The store refuses this client the stream.
    Refused,
    /// The stream has this many items, 5 s apart, and then ends.
    Has(usize),
}

/// A store that has both streams.
#[derive(Clone, Debug)]
struct Streams {
    memory: MemoryStore,
    kind: Kind,
    /// When a stream was opened.
    opened: Arc<Mutex<Vec<Instant>>>,
    dropped: Arc<Dropped>,
}

/// What happens when a stream is dropped.
#[derive(Default)]
struct Dropped {
    next: Mutex<Option<BoxFuture<'static, ()>>>,
    at: Mutex<Option<Instant>>,
}

impl std::fmt::Debug for Dropped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dropped").finish_non_exhaustive()
    }
}

/// Begins the work, the first step of it at once.
struct OnDrop(Arc<Dropped>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(mut next) = self.0.next.lock().take() {
            *self.0.at.lock() = Some(Instant::now());
            if next.as_mut().now_or_never().is_none() {
                tokio::spawn(next);
            }
        }
    }
}

impl Streams {
    fn new(kind: Kind) -> Self {
        Self {
            memory: MemoryStore::new(),
            kind,
            opened: Arc::default(),
            dropped: Arc::default(),
        }
    }

    async fn open<T: Send + 'static>(
        &self,
    ) -> Result<Option<BoxStream<'static, Result<Vec<T>, Error>>>, Error> {
        self.opened.lock().push(Instant::now());
        let items = match self.kind {
            Kind::Hangs => std::future::pending().await,
            Kind::Refused => {
                return Err(Error::Denied {
                    store: "a store",
                    source: Cause::text("the right is missing"),
                });
            }
            Kind::Has(items) => items,
        };
        let next = async |(left, on_drop): (usize, OnDrop)| {
            let left = left.checked_sub(1)?;
            sleep(5 * SECOND).await;
            Some((Ok(Vec::new()), (left, on_drop)))
        };
        let on_drop = OnDrop(self.dropped.clone());
        Ok(Some(stream::unfold((items, on_drop), next).boxed()))
    }

    /// The times between the first openings of a stream, until there are this many.
    async fn gaps(&self, count: usize) -> Vec<Duration> {
        while self.opened.lock().len() <= count {
            sleep(SECOND).await;
        }
        let opened = self.opened.lock();
        opened.windows(2).map(|two| two[1] - two[0]).collect()
    }
}

#[async_trait]
impl Layer for Streams {
    fn inner(&self) -> &dyn Store {
        &self.memory
    }

    async fn freed(&self) -> Result<Option<FreedKeys>, Error> {
        self.open().await
    }

    async fn awaited(&self) -> Result<Option<AwaitedKeys>, Error> {
        self.open().await
    }
}

/// Why a stream is opened.
#[derive(Clone, Copy, Debug)]
enum Need {
    /// A task waits for the key, for this long.
    Waits(Duration),
    /// The key stays, for this long.
    Stays(Duration),
}

impl Need {
    fn begin(self, leases: &Leases) -> BoxFuture<'static, ()> {
        let asked = leases.acquire("key", TTL);
        match self {
            Self::Waits(time) => asked.wait_for(time).into_future().map(drop).boxed(),
            Self::Stays(time) => asked.sticky(time).into_future().map(drop).boxed(),
        }
    }
}

/// The store, and a handle on it with this need for a stream.
async fn begun(kind: Kind, need: Need) -> (Streams, Leases) {
    let store = Streams::new(kind);
    if let Need::Waits(_) = need {
        let other = Leases::new(store.memory.clone());
        other.acquire("key", HOUR).await.unwrap().detach().unwrap();
    }
    let leases = Leases::new(Layered(store.clone()));
    tokio::spawn(need.begin(&leases));
    (store, leases)
}

const NEEDS: [Need; 2] = [Need::Waits(HOUR), Need::Stays(HOUR)];

/// The store answers none of the calls within 30 s. The pauses after that get longer all the same.
#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_is_asked_less_and_less() {
    for need in NEEDS {
        let (store, _leases) = begun(Kind::Hangs, need).await;
        let gaps = store.gaps(14).await;
        assert!(gaps[0] <= 30 * SECOND + MOMENT, "{need:?}: {gaps:?}");
        let last = 35 * SECOND..=40 * SECOND;
        assert!(last.contains(&gaps[13]), "{need:?}: {gaps:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_is_asked_once_a_minute() {
    for need in NEEDS {
        let (store, _leases) = begun(Kind::Refused, need).await;
        let gaps = store.gaps(5).await;
        assert!(
            gaps.iter().all(|gap| *gap >= 60 * SECOND),
            "{need:?}: {gaps:?}"
        );
    }
}

/// They end after 5 s.
#[tokio::test(start_paused = true)]
async fn streams_that_end_early_are_opened_less_and_less() {
    for need in NEEDS {
        let (store, _leases) = begun(Kind::Has(1), need).await;
        let gaps = store.gaps(14).await;
        let last = 10 * SECOND..=15 * SECOND;
        assert!(last.contains(&gaps[13]), "{need:?}: {gaps:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_lasted_is_opened_again_at_once() {
    for need in NEEDS {
        let (store, _leases) = begun(Kind::Has(3), need).await;
        let gaps = store.gaps(14).await;
        assert!(
            gaps.iter().all(|gap| *gap <= 15 * SECOND + MOMENT),
            "{need:?}: {gaps:?}"
        );
    }
}

/// The listener has found no need for the stream for long enough, and drops it. Then there is one.
#[tokio::test(start_paused = true)]
async fn a_need_that_comes_while_a_listener_ends_has_another_one() {
    for (need, next) in [Need::Waits, Need::Stays].map(|need| (need(SECOND), need(HOUR))) {
        let (store, leases) = begun(Kind::Has(usize::MAX), need).await;
        *store.dropped.next.lock() = Some(next.begin(&leases));
        let gap = store.gaps(1).await[0];
        let (first, dropped) = (store.opened.lock()[0], store.dropped.at.lock().unwrap());
        assert!(dropped - first >= 30 * SECOND, "{need:?}: {gap:?}");
        assert_eq!(first + gap, dropped, "{need:?}: it is opened at once");
    }
}
