//! A key that as many processes wait for as may have a place.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use leasehold::{
    Error, Key, Store,
    limits::{MAX_PLACE_TIME, MAX_PLACES},
    store::{AcquireAnswer, AcquireRequest, LeaseId, Turn},
};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{
    super::layer::{Layer, Layered},
    LONG, PATIENCE, patient,
};

/// The pause between two requests, when the key is evicted. The pauses of a process without a place grow with the time
/// for which the key is held.
const PAUSE: Duration = Duration::from_secs(3);

/// A store that records the requests of a process that waits.
#[derive(Debug)]
struct Watched {
    store: Arc<dyn Store>,
    last: watch::Sender<Last>,
}

/// The number of requests, and the last one.
#[derive(Clone, Copy, Debug)]
struct Last {
    number: usize,
    /// When its answer came.
    at: Instant,
    /// Whether it was refused because all places are taken.
    has_no_room: bool,
}

#[async_trait]
impl Layer for Watched {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        let answer = self.store.acquire(request).await?;
        self.last.send_modify(|last| {
            *last = Last {
                number: last.number + 1,
                at: Instant::now(),
                has_no_room: matches!(&answer, AcquireAnswer::Held(held) if held.ahead() >= MAX_PLACES),
            };
        });
        Ok(answer)
    }
}

/// A process that finds all places taken is reported, and asks seldom. An eviction by this process wakes it. The places
/// end by themselves, so if this process stood still meanwhile, what it saw does not count, and it tries again.
///
/// The caller runs this on a runtime of one thread, whose metrics it reads.
pub async fn a_process_without_a_place_is_reported_and_woken_by_an_eviction(store: Arc<dyn Store>) {
    let recorder = DebuggingRecorder::new();
    let meter = recorder.snapshotter();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let others = patient(store.clone());
    let waiters: Vec<_> = (0..MAX_PLACES).map(|_| LeaseId::random()).collect();
    let start = Instant::now();
    loop {
        let holder = others.acquire("key", LONG).barging().await.unwrap();
        fill(&store, &waiters).await;
        let (last, mut seen) = watch::channel(Last {
            number: 0,
            at: Instant::now(),
            has_no_room: false,
        });
        let store = store.clone();
        let leases = patient(Layered(Watched { store, last }));
        no_places(&meter);
        let waiting = tokio::spawn(leases.acquire("key", LONG).into_future());
        let mut refused = *next(&mut seen, 0).await;
        let mut paused = Duration::ZERO;
        while paused < PAUSE && refused.has_no_room {
            let again = *next(&mut seen, refused.number).await;
            paused = again.at - refused.at;
            refused = again;
        }
        let reported = no_places(&meter);
        leases.evict("key").await.unwrap();
        let woken = *next(&mut seen, refused.number).await;
        waiting.abort();
        leases.close().await;
        drop(holder);
        // If it was not refused for this reason, a place was free again, and what was seen does not count.
        if refused.has_no_room {
            assert_eq!(reported, 1);
            if woken.at - refused.at < paused / 2 {
                return;
            }
        }
        assert!(
            start.elapsed() < PATIENCE / 2,
            "{refused:?} {woken:?} {paused:?}"
        );
    }
}

/// Of two processes without a place, the one whose owner has the key already comes before all that wait, so it asks
/// more often than the other one. While the places end, both ask as often, so then what was seen does not count.
pub async fn an_owner_without_a_place_asks_more_often_than_others(store: Arc<dyn Store>) {
    let others = patient(store.clone());
    let waiters: Vec<_> = (0..MAX_PLACES).map(|_| LeaseId::random()).collect();
    let start = Instant::now();
    loop {
        let outer = others.acquire("key", LONG).shared().owner("me").barging();
        let outer = outer.await.unwrap();
        let beside = others
            .acquire("key", LONG)
            .shared()
            .barging()
            .await
            .unwrap();
        fill(&store, &waiters).await;
        let watched = || {
            let (last, seen) = watch::channel(Last {
                number: 0,
                at: Instant::now(),
                has_no_room: false,
            });
            let store = store.clone();
            (patient(Layered(Watched { store, last })), seen)
        };
        let ((one, mut plain), (two, mut owner)) = (watched(), watched());
        let waits = tokio::spawn(one.acquire("key", LONG).into_future());
        let enters = two.acquire("key", LONG).owner("me").reentrant();
        let enters = tokio::spawn(enters.into_future());
        let refused = *next(&mut owner, 15).await;
        let (plain, is_full) = (*next(&mut plain, 0).await, refused.has_no_room);
        waits.abort();
        enters.abort();
        one.close().await;
        two.close().await;
        outer.release().await.unwrap();
        beside.release().await.unwrap();
        if is_full && plain.has_no_room && refused.number >= 2 * plain.number {
            return;
        }
        assert!(start.elapsed() < PATIENCE / 2, "{refused:?} {plain:?}");
    }
}

/// Waits for a request after the one with this number.
async fn next(seen: &mut watch::Receiver<Last>, number: usize) -> watch::Ref<'_, Last> {
    let next = seen.wait_for(|last| last.number > number);
    timeout(PATIENCE, next).await.unwrap().unwrap()
}

/// Processes that wait for the key take all places.
async fn fill(store: &Arc<dyn Store>, waiters: &[LeaseId]) {
    let key = Key::new("key").unwrap();
    for waiter in waiters {
        let turn = Turn::in_turn(*waiter, MAX_PLACE_TIME);
        let request = AcquireRequest::exclusive(key.clone(), LeaseId::random(), "me".into(), LONG);
        let request = request.turn(turn);
        loop {
            match store.acquire(&request).await {
                Ok(AcquireAnswer::Held(_)) => break,
                Ok(answer) => panic!("{answer:?}"),
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// How many waits without a place were reported since the last call.
fn no_places(meter: &Snapshotter) -> u64 {
    let counted = meter.snapshot().into_vec().into_iter();
    let counted = counted.filter(|(key, ..)| key.key().name() == "leasehold_no_place_total");
    let counted = counted.map(|(.., value)| match value {
        DebugValue::Counter(counted) => counted,
        value => panic!("{value:?}"),
    });
    counted.sum()
}
