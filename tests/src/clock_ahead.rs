//! A dead holder that was granted the key by a server whose clock was a day ahead, and has gone back since.

use std::time::Duration;

use futures::TryStreamExt;
use leasehold::{
    Attempt, Error, Filter, Leases, Store,
    store::{LeaseId, SCHEMA},
};
use serde_json::{Value, json};

use super::hostile::{KEY, at};

const TTL: Duration = Duration::from_secs(10);
const DAY: i64 = 24 * 60 * 60;

/// The document of the key, as the server wrote it.
pub fn shape() -> Value {
    json!({
        "key": KEY, "schema": SCHEMA, "fence": 7, "lease": LeaseId::random().to_string(),
        "owner": "host-7", "acquired_at": at(DAY), "expires_at": at(DAY + 10),
    })
}

/// The document is in the store. Nothing cuts its expiry, and everybody who asks is told what happened.
pub async fn is_named(store: impl Store) {
    let leases = Leases::new(store);
    let Attempt::Held(held) = leases.try_acquire(KEY, TTL).await.unwrap() else {
        panic!("granted although a holder may be at work");
    };
    let words = "a time that no ttl explains: the server's clock was ahead";
    assert!(held.to_string().contains(words), "{held}");
    let wait = leases.acquire(KEY, TTL).wait_for(Duration::from_millis(10));
    match wait.await {
        Err(error @ Error::WaitTimedOut { .. }) => {
            assert!(error.to_string().contains(words), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let state = leases.inspect(KEY).await.unwrap().unwrap();
    assert_eq!(state.from_a_clock_ahead().count(), 1, "{state:?}");

    // Another key is held by a living holder.
    let lease = leases.acquire("another", TTL).await.unwrap();
    let listed: Vec<_> = leases.list(Filter::new()).try_collect().await.unwrap();
    assert!(listed.iter().any(|lock| lock.key.as_str() == KEY));
    for lock in listed {
        let count = lock.from_a_clock_ahead().count();
        assert_eq!(count, usize::from(lock.key.as_str() == KEY), "{lock:?}");
    }
    lease.release().await.unwrap();

    leases.evict(KEY).await.unwrap();
    let lease = leases.acquire(KEY, TTL).wait_for(Duration::ZERO);
    lease.await.unwrap().release().await.unwrap();
}
