//! Which requests say that their lease id was in no request before.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use leasehold::{
    Error, Leases, Store,
    store::{AcquireAnswer, AcquireRequest, Earlier},
};
use leasehold_tests::layer::{Layer, Layered};
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use super::{Fate, FlakyStore, MOMENT, PATIENCE, TTL};

/// A fresh request is one that no earlier one can have been granted the lease of. The store takes the time of such a
/// grant for its own.
#[tokio::test(start_paused = true)]
async fn beside_a_batch_that_hangs_no_request_is_fresh() {
    let sent = after_a_batch(Fate::Late(TTL / 2), TTL / 4).await;
    assert!(sent.len() > 1, "after the repeat it asks again: {sent:?}");
    assert!(sent.iter().all(|is_fresh| !is_fresh), "{sent:?}");
}

/// The batch of the first request ends with an error while the operation pauses. Until then it may have been granted.
#[tokio::test(start_paused = true)]
async fn after_a_batch_that_ends_with_an_error_no_request_is_fresh() {
    let sent = after_a_batch(Fate::LateAndCut(TTL / 4), TTL).await;
    assert!(sent.len() > 2, "it asks again after the error: {sent:?}");
    assert!(sent.iter().all(|is_fresh| !is_fresh), "{sent:?}");
}

/// Lets the batch of eight acquires meet a fate. The key of one of them is held all the time. Returns whether each of
/// its requests that were sent alone within this time was fresh: the first of them repeats that of the batch.
async fn after_a_batch(fate: Fate, time: Duration) -> Vec<bool> {
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
    store.next_of("batch", fate);
    let acquire = |number| leases.acquire(format!("key {number}"), TTL).into_future();
    let asked: Vec<_> = (0..8).map(|it| tokio::spawn(acquire(it))).collect();
    sleep(time).await;
    assert_eq!(*store.batched.lock(), [8]);
    let sent = log.sent.lock().clone();
    held.release().await.unwrap();
    for asked in asked {
        drop(timeout(PATIENCE, asked).await.unwrap().unwrap().unwrap());
    }
    drop(first);
    sent
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
            self.sent.lock().push(request.earlier != Earlier::Unclear);
        }
        self.store.acquire(request).await
    }
}
