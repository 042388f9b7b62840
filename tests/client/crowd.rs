//! A crowd at one key.

use std::{collections::BTreeMap, time::Duration};

use futures::future::join_all;
use leasehold::{Attempt, Error, Leases};
use tokio::time::sleep;

use super::{FlakyStore, TTL, setup, until_free};

/// How often each method of the store was called.
fn counted(store: &FlakyStore) -> BTreeMap<&'static str, usize> {
    let mut counted = BTreeMap::new();
    for call in store.calls() {
        *counted.entry(call).or_default() += 1;
    }
    counted
}

/// So many tasks wait for a key that another process has, and give up at once, half of them because their time is over
/// and half because they are dropped. Returns what the store was asked.
async fn give_up_at_once(tasks: usize) -> BTreeMap<&'static str, usize> {
    const WAIT: Duration = Duration::from_secs(3);
    let (store, leases) = setup();
    let other = Leases::new(store.memory.clone());
    let held = other.acquire("key", TTL * 100).await.unwrap();
    let wait = |wait| leases.acquire("key", TTL).wait_for(wait).into_future();
    let dropped: Vec<_> = (0..tasks / 2).map(|_| tokio::spawn(wait(TTL))).collect();
    let patient: Vec<_> = (0..tasks / 2).map(|_| tokio::spawn(wait(WAIT))).collect();
    sleep(WAIT - Duration::from_millis(1)).await;
    dropped.iter().for_each(|task| task.abort());
    for outcome in join_all(patient).await {
        let error = outcome.unwrap().map(drop).unwrap_err();
        assert!(matches!(error, Error::WaitTimedOut { .. }), "{error:?}");
    }
    sleep(TTL).await;
    let asked = counted(&store);
    // Nothing of them is left: the key is free when its holder gives it up, and the next one gets it by one request.
    held.release().await.unwrap();
    until_free(&store).await;
    store.calls();
    let next = leases.try_acquire("key", TTL).await;
    assert!(matches!(next, Ok(Attempt::Acquired(_))), "{next:?}");
    assert_eq!(counted(&store), BTreeMap::from([("acquire", 1)]));
    asked
}

#[tokio::test(start_paused = true)]
async fn waiters_that_give_up_at_once_ask_no_more_than_a_few() {
    let few = give_up_at_once(10).await;
    let many = give_up_at_once(32_000).await;
    for (call, times) in &many {
        let of_few = few.get(call).copied().unwrap_or_default();
        // The pauses are partly random.
        assert!(*times <= 2 * of_few, "{many:?} where a few ask {few:?}");
    }
}
