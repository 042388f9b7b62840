//! Which requests say that their lease id was in no request before.

use std::sync::Arc;

use async_trait::async_trait;
use leasehold::{
    Error, Leases, Store,
    store::{AcquireAnswer, AcquireRequest},
};
use leasehold_tests::layer::{Layer, Layered};
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use super::{Fate, FlakyStore, MOMENT, PATIENCE, TTL};

/// A fresh request is one that no earlier one can have been granted the lease of. The store takes the time of such a
/// grant for its own.
#[tokio::test(start_paused = true)]
async fn beside_a_batch_that_hangs_no_request_is_fresh() {
    let mut store = FlakyStore::new();
    store.at_once = 1;
    store.fates_now([Fate::AnswerLate(MOMENT), Fate::Late(TTL / 2)]);
    let log = FreshRequests {
        store: store.clone(),
        sent: Arc::default(),
    };
    let leases = Leases::new(Layered(log.clone()));
    let other = Leases::new(store.memory.clone());
    let held = other.acquire("key 0", TTL * 100).await.unwrap();
    let first = tokio::spawn(leases.acquire("the first", TTL).into_future());
    sleep(MOMENT / 2).await;
    let acquire = |number| leases.acquire(format!("key {number}"), TTL).into_future();
    let asked: Vec<_> = (0..8).map(|it| tokio::spawn(acquire(it))).collect();
    sleep(TTL / 4).await;
    assert_eq!(*store.batched.lock(), [8]);
    let sent = log.sent.lock().clone();
    assert!(sent.len() > 1, "after the repeat it asks again: {sent:?}");
    assert!(sent.iter().all(|is_fresh| !is_fresh), "{sent:?}");
    held.release().await.unwrap();
    for asked in asked {
        drop(timeout(PATIENCE, asked).await.unwrap().unwrap().unwrap());
    }
    drop(first);
}

/// The batch of the first request ends with an error while the operation pauses. Until then it may have been granted.
#[tokio::test(start_paused = true)]
async fn after_a_batch_that_ends_with_an_error_no_request_is_fresh() {
    let mut store = FlakyStore::new();
    store.at_once = 1;
    let log = FreshRequests {
        store: store.clone(),
        sent: Arc::default(),
    };
    let leases = Leases::new(Layered(log.clone()));
    let other = Leases::new(store.memory.clone());
    let held = other.acquire("key 0", TTL * 100).await.unwrap();
    store.fates_now([Fate::AnswerLate(MOMENT)]);
    let first = tokio::spawn(leases.acquire("the first", TTL).into_future());
    sleep(MOMENT / 2).await;
    // The repeats of the requests are answered before it.
    store.next_of("batch", Fate::LateAndCut(TTL / 4));
    let acquire = |number| leases.acquire(format!("key {number}"), TTL).into_future();
    let asked: Vec<_> = (0..8).map(|it| tokio::spawn(acquire(it))).collect();
    sleep(TTL).await;
    assert_eq!(*store.batched.lock(), [8]);
    let sent = log.sent.lock().clone();
    assert!(sent.len() > 2, "it asks again after the error: {sent:?}");
    assert!(sent.iter().all(|is_fresh| !is_fresh), "{sent:?}");
    held.release().await.unwrap();
    for asked in asked {
        drop(timeout(PATIENCE, asked).await.unwrap().unwrap().unwrap());
    }
    drop(first);
}

/// Whether each request for `key 0` that was sent alone was fresh.
#[derive(Clone, Debug)]
struct FreshRequests {
    store: FlakyStore,
    sent: Arc<Mutex<Vec<bool>>>,
}

#[async_trait]
impl Layer for FreshRequests {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        if request.key.as_str() == "key 0" {
            self.sent.lock().push(request.fresh);
        }
        self.store.acquire(request).await
    }
}
